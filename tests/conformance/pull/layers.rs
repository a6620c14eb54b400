//! Images of other builders: path forms and file types in their layers.

use std::collections::BTreeMap;

use harness::fixture_image::{ImageBuilder, Layer};
use harness::registry::Registry;
use harness::{Runtime, fixture};
use tar::{EntryType, Header};

use crate::support::{Means, skip_if};

/// A tar stream that keeps names exactly as given.
#[derive(Default)]
struct Stream(Vec<u8>);

impl Stream {
    fn member(
        mut self,
        kind: EntryType,
        path: &str,
        link: &str,
        body: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = Header::new_ustar();
        let mode = if kind == EntryType::Directory {
            0o755
        } else {
            0o644
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        header.set_size(body.len() as u64);
        let fields = header.as_old_mut();
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        change(&mut header);
        header.set_cksum();
        for part in [header.as_bytes(), body] {
            self.0.extend(part);
            self.0.resize(self.0.len().next_multiple_of(512), 0);
        }
        self
    }

    fn file(self, path: &str, body: &str) -> Self {
        self.member(EntryType::Regular, path, "", body.as_bytes(), |_| {})
    }

    fn directory(self, path: &str) -> Self {
        self.member(EntryType::Directory, path, "", b"", |_| {})
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.member(EntryType::Symlink, path, target, b"", |_| {})
    }

    fn hard_link(self, path: &str, target: &str) -> Self {
        self.member(EntryType::Link, path, target, b"", |_| {})
    }

    fn device(self, path: &str, major: u32, minor: u32) -> Self {
        self.member(EntryType::Char, path, "", b"", |header| {
            header.set_device_major(major).unwrap();
            header.set_device_minor(minor).unwrap();
        })
    }

    /// A sparse file of 1 MiB with data in its last five bytes.
    fn sparse(mut self, path: &str, end: &str) -> Self {
        let records = [
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", path),
            ("GNU.sparse.realsize", "1048576"),
        ];
        let mut builder = tar::Builder::new(Vec::new());
        let records = records.map(|(key, value)| (key, value.as_bytes()));
        builder.append_pax_extensions(records).unwrap();
        let bytes = builder.into_inner().unwrap();
        self.0.extend(&bytes[..bytes.len() - 1024]);
        let mut body = b"1\n1048571\n5\n".to_vec();
        body.resize(512, 0);
        body.extend(end.as_bytes());
        self.member(EntryType::Regular, "GNUSparseFile.1/it", "", &body, |_| {})
    }

    fn layer(mut self) -> Layer {
        self.0.extend([0; 1024]);
        Layer::of_stream(self.0)
    }
}

/// A script for a container of an image, and its expected output.
struct Case {
    name: &'static str,
    layers: Vec<Layer>,
    script: &'static str,
    says: &'static str,
}

fn case<const N: usize>(
    name: &'static str,
    layers: [Stream; N],
    script: &'static str,
    says: &'static str,
) -> Case {
    Case {
        name,
        layers: layers.map(Stream::layer).into(),
        script,
        says,
    }
}

fn cases(devices: bool) -> Vec<Case> {
    let new = Stream::default;
    vec![
        case(
            "absolute",
            [new().file("/ko-app/app", "ko\n").directory("/").file("./kaniko/it", "kaniko\n")],
            "cat /ko-app/app /kaniko/it",
            "ko\nkaniko\n",
        ),
        case(
            "names",
            [new().file("a\nb", "break\n").file("c/../d", "inner\n")],
            "cat \"/a\nb\" /d; [ -e /c ] || echo no c",
            "break\ninner\nno c\n",
        ),
        case(
            "symlinks",
            [new()
                .file("data/f", "data\n")
                .symlink("up", "../../../../data")
                .symlink("to", "/data")
                .file("to/g", "through\n")],
            "readlink /up; readlink /to; cat /up/f /to/f /data/g",
            "../../../../data\n/data\ndata\ndata\nthrough\n",
        ),
        case(
            "hard-links",
            [new()
                .file("a", "one\n")
                .hard_link("b", "/a")
                .symlink("s", "a")
                .hard_link("t", "s")],
            "cat /b /t; stat -c %h /a; readlink /t",
            "one\none\n2\na\n",
        ),
        case(
            "nodes",
            [new()
                .directory("nodes")
                .member(EntryType::Fifo, "nodes/pipe", "", b"", |_| {})
                .device("nodes/null", 1, 3)
                .device("nodes/kmsg", 1, 11)],
            "[ -p /nodes/pipe ] && echo pipe
            if [ -c /nodes/null ]; then stat -c %t:%T /nodes/null; echo x > /nodes/null && echo written; else echo none; fi
            (: < /nodes/kmsg) 2> /dev/null || echo not this one",
            if devices { "pipe\n1:3\nwritten\nnot this one\n" } else { "pipe\nnone\nnot this one\n" },
        ),
        case(
            "types",
            [
                new()
                    .file("file-dir", "")
                    .file("dir-file/x", "")
                    .directory("target")
                    .symlink("link-dir", "target"),
                new()
                    .file("file-dir/in", "1\n")
                    .file("dir-file", "2\n")
                    .directory("link-dir")
                    .file("link-dir/in", "3\n")
                    .directory("twice/d")
                    .file("twice", "4\n")
                    .file("again", "")
                    .directory("again")
                    .file("again/in", "5\n"),
            ],
            "cat /file-dir/in /dir-file /link-dir/in /twice /again/in; ls /target",
            "1\n2\n3\n4\n5\n",
        ),
        case(
            "sparse",
            [new().sparse("big", "TAIL\n").file("after", "after\n")],
            "stat -c %s /big; tail -c 5 /big; head -c 4 /big | od -An -tx1; cat /after",
            "1048576\nTAIL\n 00 00 00 00\nafter\n",
        ),
    ]
}

#[tokio::test]
async fn images_of_other_builders_run() {
    let (registry, runtime) = (
        Registry::start().await.unwrap(),
        Runtime::with().start().await.unwrap(),
    );
    let means = Means::of(&runtime).await;
    skip_if!("images_of_other_builders_run", means.no_namespaces());
    let devices = means.no_device_nodes().is_none();
    let mut programs = Layer::new().directory("tmp", 0o1777);
    let names = ["sh", "cat", "readlink", "stat", "ls", "tail", "head", "od"];
    for name in names {
        let path = ["/bin", "/usr/bin"].map(|directory| format!("{directory}/{name}"));
        let found = path.iter().find(|path| std::path::Path::new(path).exists());
        programs = programs.host_program(found.unwrap()).unwrap();
    }
    let pod = runtime.pod("p").await.unwrap();
    let (mut said, mut want) = (BTreeMap::new(), BTreeMap::new());
    for case in cases(devices) {
        let mut image =
            ImageBuilder::new(&format!("example.com/{}:1", case.name)).layer(programs.clone());
        for layer in case.layers {
            image = image.layer(layer);
        }
        registry.add(&image).unwrap();
        let name = format!("{}/{}:1", registry.host(), case.name);
        let output = match super::pull(&runtime, &name, None).await {
            Ok(_) => {
                let mut config = fixture::script(case.name, case.script);
                config.image.as_mut().unwrap().image = name;
                pod.output(config)
                    .await
                    .unwrap_or_else(|error| format!("{error:?}"))
            }
            Err(status) => status.message().to_owned(),
        };
        said.insert(case.name, output);
        want.insert(case.name, case.says.to_owned());
    }
    assert_eq!(said, want);
    if !devices {
        let line = "skipped the device nodes of a layer";
        assert_eq!(runtime.log().matches(line).count(), 1, "{}", runtime.log());
    }
}
