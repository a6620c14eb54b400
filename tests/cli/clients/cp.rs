//! `crib cp` with crib's own runtime, which needs no tar in the image, and with runtimes that need it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use cri::v1::IdMapping;
use harness::fixture_image::{ImageBuilder, Layer};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tar::EntryType;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::Endpoint;
use tower::Service as _;

use crate::command::*;

/// A runtime with a pod whose container `main` runs until it is stopped.
struct Served {
    runtime: Runtime,
    _pod: harness::Pod,
    place: Place,
    /// With `tar`, the runtime does not copy files itself.
    files: &'static str,
}

impl Served {
    async fn start(files: &'static str) -> Self {
        let runtime = Runtime::start().await.unwrap();
        Self::with_container(runtime, fixture::forever("main"), files).await
    }

    /// With an image that contains only these programs of the machine and the layer.
    async fn of_programs(programs: &[&str], layer: Layer, files: &'static str) -> Self {
        let place = Place::unchecked();
        let add = |layer: Layer, program: &&str| layer.host_program(program).unwrap();
        let layer = ["/bin/sh", "/bin/sleep"].iter().chain(programs).fold(layer, add);
        let image = place.path("image.tar");
        ImageBuilder::new("registry.test/bare:1").layer(layer).write_oci(&image).unwrap();
        let runtime = Runtime::with().archive(&image).start().await.unwrap();
        runtime.client.pull("registry.test/bare:1").await.unwrap();
        let mut config = fixture::forever("main");
        config.image.get_or_insert_default().image = "registry.test/bare:1".to_owned();
        config.command = ["/bin/sleep", "1000"].map(str::to_owned).into();
        config.args.clear();
        Self::with_container(runtime, config, files).await
    }

    async fn with_container(
        runtime: Runtime,
        config: cri::v1::ContainerConfig,
        files: &'static str,
    ) -> Self {
        let pod = runtime.pod("p").await.unwrap();
        pod.start(config).await.unwrap();
        let place = Place::unchecked();
        if files == "tar" {
            serve_without_files(&place.path("p"), &runtime.socket());
        }
        Self { runtime, _pod: pod, place, files }
    }

    fn socket(&self) -> String {
        match self.files {
            "tar" => self.path("p"),
            _ => self.runtime.socket().display().to_string(),
        }
    }

    async fn crib(&self, command: &str, args: &[&str]) -> Ended {
        let socket = self.socket();
        self.place.crib(&[&[command, "--runtime-endpoint", &socket], args].concat()).await
    }

    async fn cp(&self, from: &str, to: &str) -> Ended {
        self.crib("cp", &[from, to]).await
    }

    async fn sh(&self, script: &str) -> String {
        self.crib("exec", &["main", "/bin/sh", "-c", script]).await.exits(0).out
    }

    fn path(&self, name: &str) -> String {
        self.place.path(name).to_str().unwrap().to_owned()
    }
}

/// A proxy that forwards only the CRI's calls to a runtime, like a runtime without the copy extension.
fn serve_without_files(listen: &Path, runtime: &Path) {
    let (listener, runtime) = (UnixListener::bind(listen).unwrap(), runtime.to_owned());
    let connect = tower::service_fn(move |_| {
        let runtime = runtime.clone();
        async move { UnixStream::connect(runtime).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let channel = channel.clone();
            let service = service_fn(move |request: http::Request<Incoming>| {
                let mut channel = channel.clone();
                async move {
                    if request.uri().path().starts_with("/crib.files.") {
                        return Ok(tonic::Status::unimplemented("").into_http());
                    }
                    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
                    channel.call(request.map(tonic::body::Body::new)).await
                }
            });
            let server = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
}

/// Creates a directory with everything that copies preserve: modes, times, links, a file longer than any buffer, an empty
/// directory.
fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("deep/empty")).unwrap();
    fs::write(at.join("deep/file"), "text").unwrap();
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(at.join("long"), long).unwrap();
    fs::set_permissions(at.join("deep/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at.join("long"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("deep/file", at.join("link")).unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in ["deep/file", "deep/empty", "long", "deep"] {
        fs::File::open(at.join(path)).unwrap().set_modified(past).unwrap();
    }
}

/// The mode, time and content of each file of a tree created by [`make_tree`].
fn state(at: &Path) -> Vec<(u32, i64, Option<Vec<u8>>)> {
    let found = |path: &&str| {
        let meta = fs::symlink_metadata(at.join(path)).unwrap();
        (meta.mode(), meta.mtime(), fs::read(at.join(path)).ok())
    };
    ["deep", "deep/empty", "deep/file", "long"].iter().map(found).collect()
}

#[rstest]
#[case("own")]
#[case("tar")]
#[tokio::test]
async fn tree_is_the_same_after_both_ways(#[case] files: &'static str) {
    harness::needs!(Namespaces);
    let served = Served::start(files).await;
    make_tree(&served.place.path("tree"));
    served.cp(&served.path("tree"), "main:/tmp/new").await.exits(0);
    assert_eq!(served.sh("readlink /tmp/new/link; cat /tmp/new/link").await, "deep/file\ntext");
    // A copy into an existing directory keeps the source's name, on either side.
    served.cp(&served.path("tree/deep"), "pod/p:/tmp/new").await.exits(0);
    served.cp(&served.path("tree/deep/."), "main:/tmp/new/deep/empty").await.exits(0);
    let listed = served.sh("cat /tmp/new/deep/empty/file; stat -c %a /tmp/new/deep/file").await;
    assert_eq!(listed, "text640\n");
    served.sh("rm -r /tmp/new/deep/empty/*").await;
    fs::create_dir(served.path("back")).unwrap();
    served.cp("main:/tmp/new", &served.path("back")).await.exits(0);
    served.cp("main:/tmp/new", &served.path("renamed")).await.exits(0);
    served.cp("p:/tmp/new/.", &served.path("content")).await.exits(0);
    let mut expected = state(&served.place.path("tree"));
    for copy in ["back/new", "renamed", "content"] {
        let mut copied = state(&served.place.path(copy));
        // Its time changed when an entry was removed from it.
        (expected[1].1, copied[1].1) = (0, 0);
        assert!(copied == expected, "{copy}");
        let link = fs::read_link(served.place.path(copy).join("link")).unwrap();
        assert_eq!(link, Path::new("deep/file"));
    }
    // The target of a link is copied, under the name of the link.
    served.cp("main:/tmp/new/link", &served.path("file")).await.exits(0);
    assert_eq!(fs::read_to_string(served.path("file")).unwrap(), "text");
    served.cp(&served.path("tree/long"), "main:/tmp/new/deep/file").await.exits(0);
    assert_eq!(served.sh("wc -c </tmp/new/deep/file").await, "3000000\n");
}

#[rstest]
#[case("own")]
#[case("tar")]
#[tokio::test]
async fn dash_is_a_tar_archive(#[case] files: &'static str) {
    harness::needs!(Namespaces);
    let served = Served::start(files).await;
    make_tree(&served.place.path("tree"));
    served.cp(&served.path("tree"), "main:/tmp").await.exits(0);
    let socket = served.socket();
    let args = ["cp", "--runtime-endpoint", &socket, "main:/tmp/tree/deep", "-"];
    let archive = served.place.command(&args).output().await.unwrap().stdout;
    let mut members = tar::Archive::new(&archive[..]);
    let names = members.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned());
    let mut names: Vec<_> = names.map(|path| file_tree::part::without_dots(&path)).collect();
    names.sort();
    assert_eq!(names, ["deep", "deep/empty", "deep/file"].map(std::path::PathBuf::from));
    let args = ["cp", "--runtime-endpoint", &socket, "-", "main:/srv"];
    let mut child = served.place.command(&args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&archive).await.unwrap();
    drop(stdin);
    let ended = tokio::time::timeout(WAIT_LIMIT, child.wait_with_output()).await.unwrap().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(served.sh("cat /srv/deep/file").await, "text");
}

#[rstest]
#[case("own")]
#[case("tar")]
#[tokio::test]
async fn refusals_name_the_remedy(#[case] files: &'static str) {
    harness::needs!(Namespaces);
    let served = Served::start(files).await;
    let file = served.place.file("file", "x");
    let missing = served.cp("main:/no/such/file", &served.path("to")).await.exits(1);
    missing.err_has("No such file or directory");
    assert!(!Path::new(&served.path("to")).exists());
    served.cp(&file, "main:/no/such/file").await.exits(1).err_has("No such file or directory");
    served.cp(&served.path("nothing"), "main:/tmp").await.exits(1).err_has("No such file");
    served.cp("main:/etc", &served.path("no/such/")).await.exits(1).err_has("leave out the slash");
    served.cp(&file, "nothing:/tmp").await.exits(1).err_has("container \"nothing\" not found");
    served
        .cp("main:/etc", "main:/tmp")
        .await
        .exits(2)
        .err_has("copy from \"main\" to a local path first");
    served.cp(&file, &served.path("to")).await.exits(2).err_has("write it as POD:PATH");
    if files == "own" {
        for (from, to) in
            [("main:/proc/1/status", served.path("to")), (&*file, "main:/proc/1".to_owned())]
        {
            served.cp(from, &to).await.exits(1).err_has("file system of the kernel");
        }
        served.crib("stop", &["-t", "0", "main"]).await.exits(0);
        let stopped = served.cp("main:/etc/passwd", &served.path("to")).await.exits(1);
        stopped.err_has("its files are copied while it runs");
    }
}

/// Links of the container are resolved in its root.
#[tokio::test]
async fn links_of_a_container_lead_to_nothing_of_this_machine() {
    harness::needs!(Namespaces);
    let programs = ["/bin/cat", "/bin/ln", "/bin/mkdir"];
    let served = Served::of_programs(&programs, Layer::new().directory("srv", 0o755), "own").await;
    let (outside, file) = (served.path("outside"), served.place.file("file", "from here"));
    fs::create_dir(&outside).unwrap();
    let secret = served.place.file("outside/secret", "of this machine");
    served.sh(&format!("mkdir /srv/d && ln -s ../../../../../../..{outside} /srv/d/up && ln -s {secret} /srv/d/secret")).await;
    // The directory exists on this machine, but not in the container.
    served
        .cp(&file, "main:/srv/d/up/written")
        .await
        .exits(1)
        .err_has("failed to open the directory");
    served.cp("main:/srv/d/secret", &served.path("to")).await.exits(1).err_has("No such file");
    served.sh(&format!("mkdir -p {outside}")).await;
    served.cp(&file, "main:/srv/d/up/written").await.exits(0);
    assert_eq!(served.sh(&format!("cat {outside}/written")).await, "from here");
    assert!(!Path::new(&outside).join("written").exists());
    // Copied as a link, it would point to a file of this machine.
    let copied = served.cp("main:/srv/d", &served.path("copy")).await.exits(0);
    copied.err_has("crib: skipped \"d/secret\": the link to ");
    assert_eq!(fs::read_dir(served.path("copy")).unwrap().count(), 0);
}

/// Even if the pod has a user namespace, in which ids are mapped.
#[rstest]
#[case::of_runtime(false)]
#[case::of_pod(true)]
#[tokio::test]
async fn files_in_a_container_belong_to_its_user(#[case] own_namespace: bool) {
    harness::needs!(UserIds);
    let served = Served::start("own").await;
    let mut sandbox = served.runtime.sandbox("q");
    if own_namespace {
        let maps = || vec![IdMapping { host_id: 2000, container_id: 0, length: 3000 }];
        let mode = cri::v1::NamespaceMode::Pod.into();
        let users = cri::v1::UserNamespace { mode, uids: maps(), gids: maps() };
        fixture::pod_namespaces(&mut sandbox).userns_options = Some(users);
    }
    let user = harness::Pod::run(&served.runtime.client, sandbox).await.unwrap();
    let mut config = fixture::forever("user");
    fixture::security(&mut config).run_as_user = Some(cri::v1::Int64Value { value: 1234 });
    fixture::security(&mut config).run_as_group = Some(cri::v1::Int64Value { value: 2345 });
    user.start(config).await.unwrap();
    make_tree(&served.place.path("tree"));
    let script = "stat -c %u:%g $0 $0/deep/file $0/link; echo x >>$0/long";
    // The first is in the container's layer, the second on a file system that is mounted in its namespaces.
    for directory in ["/tmp", "/dev/shm"] {
        served.cp(&served.path("tree"), &format!("user:{directory}")).await.exits(0);
        let tree = format!("{directory}/tree");
        let shown = served.crib("exec", &["user", "sh", "-c", script, &tree]).await.exits(0);
        assert_eq!(shown.out, "1234:2345\n".repeat(3), "{directory}");
        let back = served.path(&directory.replace('/', "-"));
        served.cp(&format!("user:{tree}/deep"), &back).await.exits(0);
        assert_eq!(fs::read_to_string(format!("{back}/file")).unwrap(), "text");
    }
}

/// A file is streamed: the runtime holds only a few chunks of it.
#[tokio::test]
async fn long_file_does_not_grow_memory_of_runtime() {
    harness::needs!(Namespaces);
    let served = Served::start("own").await;
    let pid = served.runtime.pid().unwrap();
    let most = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    served.sh("truncate -s 256M /tmp/long").await;
    served.cp("main:/tmp/long", &served.path("small")).await.exits(0);
    let before = most();
    served.cp(&served.path("small"), "main:/tmp/back").await.exits(0);
    served.cp("main:/tmp/back", &served.path("again")).await.exits(0);
    assert_eq!(fs::metadata(served.path("again")).unwrap().len(), 256 << 20);
    assert!(most() < before + (64 << 10), "{before} kB before, {} kB after", most());
}

/// A pod with a volume, whose image has a shell and no tar.
#[tokio::test]
async fn image_needs_no_tar_and_volumes_are_seen() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let layer = Layer::new().host_program("/bin/sh").unwrap().host_program("/bin/sleep").unwrap();
    let archive = place.path("image.tar");
    ImageBuilder::new("registry.test/bare:1").layer(layer).write_oci(&archive).unwrap();
    let manifest = place.file("p.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n  \
        terminationGracePeriodSeconds: 0\n  volumes: [{name: v, emptyDir: {}}]\n  containers:\n  - name: main\n    \
        image: registry.test/bare:1\n    command: [/bin/sh, -c, 'echo up; exec /bin/sleep 1000']\n    \
        volumeMounts: [{name: v, mountPath: /data}]\n  - name: other\n    image: registry.test/bare:1\n    \
        command: [/bin/sh, -c, 'while ! [ -e /other/tree/deep/file ]; do /bin/sleep 0.1; done; read -r text </other/tree/deep/file; \
        echo it reads $text; exec /bin/sleep 1000']\n    volumeMounts: [{name: v, mountPath: /other}]\n");
    let mut run = place.start(&["run", "--image-archive", archive.to_str().unwrap(), &manifest]);
    run.line_with("up").await;
    make_tree(&place.path("tree"));
    let tree = place.path("tree").display().to_string();
    place.crib(&["cp", "-c", "main", &tree, "shop/web:/data"]).await.exits(0);
    run.line_with("it reads text").await;
    let back = place.path("back").display().to_string();
    place.crib(&["cp", "shop/web:data/tree", &back, "-c", "main"]).await.exits(0);
    assert!(state(&place.path("back")) == state(&place.path("tree")));
    let again = place.path("again").display().to_string();
    let first = place.crib(&["cp", "web:/data", &again]).await.exits(0);
    first.err_has("Defaulted container \"main\" out of: main, other");
    assert!(state(&place.path("again/tree")) == state(&place.path("tree")));
    run.interrupt().await.exits(130);
}

/// Without namespaces, files are those of the machine that the user may read and write.
#[tokio::test]
async fn files_are_copied_without_namespaces() {
    let runtime = Runtime::with().isolation("process").start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    pod.start(fixture::forever("main")).await.unwrap();
    let (place, socket) = (Place::unchecked(), runtime.socket().display().to_string());
    make_tree(&place.path("tree"));
    let at = |name: &str| place.path(name).display().to_string();
    let there = format!("main:{}", at("there"));
    place.crib(&["cp", "--runtime-endpoint", &socket, &at("tree"), &there]).await.exits(0);
    place.crib(&["cp", "--runtime-endpoint", &socket, &there, &at("back")]).await.exits(0);
    assert!(state(&place.path("back")) == state(&place.path("tree")));
}

/// Archives of a hostile tar in the container, and the expected error; `Ok` lists what is skipped.
#[rstest]
#[case::parent(&[(EntryType::Regular, "t/../../escaped", "")], Err("leads out of the destination"))]
#[case::absolute(&[(EntryType::Regular, "/escaped", "")], Err("is absolute"))]
#[case::beside(&[(EntryType::Regular, "escaped", "")], Err("is beside what is copied"))]
#[case::through_link(
    &[(EntryType::Symlink, "t/l", ".."), (EntryType::Regular, "t/l/escaped", "")],
    Ok("\"t/l\": the link to \"..\" may lead out")
)]
#[case::through_inner_link(
    &[(EntryType::Symlink, "t/l", "."), (EntryType::Regular, "t/l/x", "")],
    Err("is a link in the destination, and not followed")
)]
#[case::hard_link(&[(EntryType::Link, "t/l", "../secret")], Err("leads out of the destination"))]
#[case::device(&[(EntryType::Char, "t/null", "")], Ok("\"t/null\": it is a device"))]
#[tokio::test]
async fn hostile_tar_of_a_container_does_not_leave_destination(
    #[case] members: &[(EntryType, &str, &str)],
    #[case] expected: Result<&str, &str>,
) {
    harness::needs!(Namespaces);
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, path, link) in [&[(EntryType::Directory, "t", "")], members].concat() {
        let mut header = tar::Header::new_gnu();
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o6755);
        header.set_size(0);
        header.set_cksum();
        archive.append(&header, std::io::empty()).unwrap();
    }
    let layer = Layer::new().file("bin/tar", 0o755, "#!/bin/sh\nexec /bin/cat /evil\n").file(
        "evil",
        0o644,
        archive.into_inner().unwrap(),
    );
    let served = Served::of_programs(&["/bin/cat"], layer, "tar").await;
    let place = &served.place;
    place.file("to/secret", "secret");
    let ended = served.cp("main:/t", &served.path("to/t")).await;
    match expected {
        Ok(note) => ended.exits(0).err_has(note),
        Err(why) => ended.exits(1).err_has(why),
    }
    let names = |at: &str| {
        let names = fs::read_dir(place.path(at)).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.filter(|name| name != "t").collect();
        names.sort();
        names
    };
    assert_eq!(names("to"), ["secret"]);
    assert_eq!(fs::read_to_string(place.path("to/secret")).unwrap(), "secret");
    assert!(!place.path("escaped").exists() && !Path::new("/escaped").exists());
}

/// Like busybox's tar in a container of containerd, which blocks on the pipe to a tar that has exited.
#[tokio::test]
async fn tar_whose_end_is_not_reported_is_named() {
    harness::needs!(Namespaces);
    let tar = "#!/bin/sh\necho bad archive >&2\nexec >&- 2>&-\nexec /bin/sleep 1000\n";
    let layer = Layer::new().file("bin/tar", 0o755, tar);
    let served = Served::of_programs(&[], layer, "tar").await;
    let letter = served.place.file("letter", "text");
    let ended = served.cp(&letter, "main:/letter").await.exits(1);
    ended.err_has("tar in the container closed its output, and the runtime has not reported the exit of tar for 10 s: bad archive");
}
