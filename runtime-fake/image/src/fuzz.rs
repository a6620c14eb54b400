//! Fuzz targets: layers, archives, documents and references of images.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::{fs, io::Read as _, os::unix::fs::MetadataExt as _, path::Path};

use image_reference::Reference;
use serde_json::json;
use tar::EntryType;

use crate::error::ContentError;
use crate::formats::archive::Archive;
use crate::formats::archive_index;
use crate::formats::digest::Digest;
use crate::formats::limits::{Budget, Limits};
use crate::formats::pax::Extensions;
use crate::formats::platform::{Platform, architecture};
use crate::formats::record::ImageConfig;
use crate::formats::resolve;
use crate::formats::stream::{Counting, Decoder, Metered};
use crate::formats::tar_stream::{Kind, Sequential, TarReader};
use crate::formats::{Configuration, Descriptor, Index, Manifest};
use crate::layer::name::{self, Entry};
use crate::layer::whiteout::Style;
use crate::layer::{self};
use crate::testing::{Members, Tar, gzip};
use fuzz_target::{Target, bytes, text};

const TARGETS: &[Target] = &[
    Target::new("tar", tar, tars),
    Target::new("pax_records", pax_records, pax),
    Target::new("layer", unpack, layers).slow(200),
    Target::new("layer_name", layer_name, names),
    Target::new("compressed_layer", decompress, compressed).slow(300),
    Target::new("image_archive", archive, archives).slow(200),
    Target::new("image_documents", documents, documents_seeds),
    Target::new("image_reference", reference, references),
    Target::new("digest", digest, digests),
];

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    [TARGETS, crate::registry::fuzz::TARGETS].concat()
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}

/// Small limits, so that an input can reach them.
fn limits() -> Limits {
    Limits {
        document_bytes: 64 << 10,
        defaults_bytes: 4 << 10,
        unpacked_bytes: 1 << 20,
        ratio: 20,
        ratio_from: 64 << 10,
        entries: 200,
        layers: 8,
        depth: 16,
        paths: 64 << 10,
        extension_bytes: 4 << 10,
    }
}

/// Members follow one another inside the stream, and the extension headers of each are bounded.
fn tar(data: &[u8]) {
    let limit = 600;
    let mut reader = TarReader::new(Sequential(data), "it", limit);
    let mut at = 0;
    while let Ok(Some(member)) = reader.next_member() {
        assert!(member.offset >= at + 512 && member.offset <= data.len() as u64);
        let bare = matches!(
            member.kind,
            Kind::HardLink
                | Kind::Symlink
                | Kind::Char
                | Kind::Block
                | Kind::Directory
                | Kind::Fifo
        );
        assert!(!bare || member.size == 0);
        assert!(member.mode <= 0o7777 && member.mtime.1 < 1_000_000_000);
        let attributes: usize =
            member.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let said = member.path.len() + member.link.len() + attributes;
        assert!(said as u64 <= 3 * limit, "{said} bytes about one member");
        let mut body = Vec::new();
        if reader.read_to_end(&mut body).is_err() {
            return;
        }
        assert!(member.kind != Kind::File || body.len() as u64 == member.size);
        at = member.offset + body.len() as u64;
    }
}

fn tars() -> Vec<Vec<u8>> {
    let long = "n".repeat(150);
    let tar = Tar::new()
        .directory("./")
        .pax(&[
            ("path", b"d/pax"),
            ("mtime", b"-1.5"),
            ("uid", b"70000"),
            ("SCHILY.xattr.user.a", b"b"),
        ])
        .file("d/a", "text")
        .symlink("d/soft", "../a")
        .hard_link("d/hard", "d/a")
        .member(EntryType::Fifo, "d/fifo", "", b"", |_| {})
        .file(&long, "");
    let attribute = [("SCHILY.xattr.user.a", [b'x'; 400].as_slice())];
    let headers = (0..6).fold(Tar::new(), |tar, _| tar.pax(&attribute));
    vec![tar.bytes(), Tar::new().file("a", [7; 600]).bytes(), headers.file("a", "").bytes()]
}

/// The extension records that were read can be written and read again.
fn pax_records(data: &[u8]) {
    let mut read = Extensions::default();
    if read.read(data, 0).is_err() {
        return;
    }
    let mut written = Vec::new();
    let mut record = |key: &str, value: &[u8]| {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        written.extend(format!("{length} {key}=").as_bytes());
        written.extend(value);
        written.push(b'\n');
    };
    for (key, value) in [("path", &read.path), ("linkpath", &read.link)] {
        if let Some(value) = value {
            record(key, value);
        }
    }
    for (key, value) in [("size", read.size), ("uid", read.uid), ("gid", read.gid)] {
        if let Some(value) = value {
            record(key, value.to_string().as_bytes());
        }
    }
    for (name, value) in &read.xattrs {
        record(&format!("SCHILY.xattr.{name}"), value);
    }
    let mut again = Extensions::default();
    again.read(&written, 0).unwrap();
    assert_eq!((&again.path, &again.link, again.size), (&read.path, &read.link, read.size));
    assert_eq!((again.uid, again.gid, &again.xattrs), (read.uid, read.gid, &read.xattrs));
    assert!(read.mtime.is_none_or(|(_, nanos)| nanos < 1_000_000_000));
}

fn pax() -> Vec<Vec<u8>> {
    bytes(&[
        "12 path=a/b\n14 linkpath=c\n13 size=1024\n9 uid=0\n10 gid=12\n",
        "19 mtime=-1.000005\n28 SCHILY.xattr.user.a=x\ny=\n16 comment=none\n",
    ])
}

/// Any layer stays in its directory and within its budget.
fn unpack(data: &[u8]) {
    let limits = limits();
    let top = tempfile::tempdir().unwrap();
    let outside = top.path().join("outside");
    fs::write(&outside, "as it was").unwrap();
    let lower = top.path().join("lower");
    fs::create_dir(&lower).unwrap();
    let style = Style::probe(fs::File::open(top.path()).unwrap(), false, true);
    let mut lowers = Vec::new();
    // The second half is a layer above the first.
    let (below, above) = data.split_at(data.len() / 1024 * 512);
    for (part, name) in [(below, "one"), (above, "two")] {
        let into = top.path().join(name);
        fs::create_dir(&into).unwrap();
        let reader = TarReader::new(Sequential(part), "the layer", limits.extension_bytes);
        if let Ok(usage) = layer::unpack(reader, &into, &lowers, &style, &Budget::new(&limits)) {
            assert!(usage.file_bytes <= limits.unpacked_bytes, "{usage:?}");
            assert!(count(&into) as u64 <= usage.inodes, "{usage:?}");
        }
        lowers.insert(0, into);
    }
    assert_eq!(fs::read(&outside).unwrap(), b"as it was");
    assert_eq!(fs::metadata(&outside).unwrap().nlink(), 1);
    assert_eq!(fs::read_dir(&lower).unwrap().count(), 0);
    assert!(fs::read_dir(top.path()).unwrap().count() <= 4);
}

/// Counts files, directories and links below a directory.
fn count(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let below = |path: &Path| {
        if path.is_symlink() || !path.is_dir() { 0 } else { count(path) }
    };
    entries.map(|entry| 1 + below(&entry.path())).sum()
}

fn layers() -> Vec<Vec<u8>> {
    let tricks = Tar::new()
        .symlink("up", "..")
        .file("up/outside", "changed")
        .symlink("d", "/")
        .hard_link("h", "../outside")
        .directory("e/")
        .file("e/.wh.x", "")
        .file("e/.wh..wh..opq", "");
    let mut seeds = tars();
    seeds.push(tricks.bytes());
    seeds
}

/// Accepted names never lead upwards.
fn layer_name(data: &[u8]) {
    let depth = limits().depth;
    let plain = |part: &[u8]| {
        !matches!(part, b"" | b"." | b"..") && !part.contains(&b'/') && !part.contains(&0)
    };
    let (parts, last) = match name::classify(data, depth) {
        Ok(Entry::Node { parent, name } | Entry::Whiteout { parent, name }) => (parent, Some(name)),
        Ok(Entry::Opaque { directory }) => (directory, None),
        Ok(Entry::Root | Entry::Bookkeeping) | Err(_) => return,
    };
    assert!(parts.len() <= depth);
    assert!(parts.iter().chain(&last).all(|part| plain(part)));
}

fn names() -> Vec<Vec<u8>> {
    bytes(&[
        "./usr//bin/env",
        "a/.wh.b",
        "etc/.wh..wh..opq",
        "/abs/olute",
        "a/../b",
        "../up",
        "x/./y/",
    ])
}

/// The decoder returns no more than the budget allows.
fn decompress(data: &[u8]) {
    let limits = limits();
    let budget = Budget::new(&limits);
    let (counting, counter) = Counting::new(data);
    let Ok(decoder) = Decoder::new(counting, "it") else {
        return;
    };
    let mut out = Vec::new();
    let read = Metered::new(decoder, &budget, Some(counter), "it").read_to_end(&mut out);
    assert!(out.len() as u64 <= limits.unpacked_bytes);
    if read.is_ok() && out.len() as u64 > limits.ratio_from {
        assert!(out.len() / data.len() <= 20 + 1, "{} from {}", out.len(), data.len());
    }
}

fn compressed() -> Vec<Vec<u8>> {
    let text = tars().remove(0);
    let zstd = zstd::encode_all(&text[..], 1).unwrap();
    vec![gzip(&text), [gzip(b"one"), gzip(b"two")].concat(), zstd, gzip(&[0; 100_000])]
}

/// For any archive, documents are within their limit and layers have digests.
fn archive(data: &[u8]) {
    let limits = limits();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.tar");
    fs::write(&path, data).unwrap();
    let Ok(archive) = Archive::open(&path, directory.path(), &limits) else {
        return;
    };
    let Ok(images) = archive_index::list_images(&archive, "it.tar", &limits) else {
        return;
    };
    for each in &images {
        for name in &each.names {
            assert_eq!(name.to_string().parse(), Ok(name.clone()));
        }
        if let Ok(resolved) = archive_index::resolve(&archive, each, &Platform::here(), &limits) {
            assert!(resolved.layers.len() <= limits.layers);
            assert_eq!(Digest::of(&resolved.config_bytes), resolved.id);
            assert!(resolved.config_bytes.len() as u64 <= limits.document_bytes);
        }
    }
}

fn archives() -> Vec<Vec<u8>> {
    let mut members = Members::default();
    let plain = Tar::new().file("a", "b").bytes();
    let layer = members.blob("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&plain));
    let config = json!({"architecture": architecture(), "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&plain).to_string()]}});
    let config =
        members.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": manifest_type, "config": config, "layers": [layer]});
    let mut manifest = members.blob(manifest_type, manifest.to_string().as_bytes());
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "1.0"});
    members.document("index.json", &json!({"schemaVersion": 2, "manifests": [manifest]}));
    members.document("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}));
    vec![members.tar(), gzip(&members.tar())]
}

/// Documents from registries: content is fetched within the limits only, and by a digest that can be verified.
fn documents(data: &[u8]) {
    let limits = limits();
    let content = |descriptor: &Descriptor| {
        if let Ok(digest) = resolve::wanted(descriptor, &limits) {
            assert_eq!(digest.to_string(), descriptor.digest);
            assert!(descriptor.size <= limits.document_bytes);
        }
    };
    let read: Result<Index, ContentError> = resolve::json("it", data);
    read.iter().flat_map(|index| &index.manifests).for_each(content);
    let read: Result<Manifest, ContentError> = resolve::json("it", data);
    read.iter().for_each(|manifest| content(&manifest.config));
    let read: Result<Configuration, ContentError> = resolve::json("it", data);
    if let Ok(config) = read {
        let _ = ImageConfig::of(&config).user();
        let layers = config.rootfs.diff_ids.len();
        if let Ok(diff_ids) = resolve::diff_ids(&config, layers, &limits) {
            assert!(diff_ids.len() == layers && layers <= limits.layers);
        }
    }
}

fn documents_seeds() -> Vec<Vec<u8>> {
    let digest = Digest::of(b"x").to_string();
    let entry = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 7,
        "platform": {"architecture": "arm", "os": "linux", "variant": "v7"}, "annotations": {"a": "b"}});
    let config = json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 2});
    [
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}),
        json!({"schemaVersion": 2, "config": config, "layers": [config, config]}),
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest]},
            "config": {"User": "1:2", "Env": ["A=b"], "Entrypoint": null, "Cmd": ["sh"], "Volumes": {"/v": {}},
                "Labels": {"l": "m"}, "StopSignal": "SIGINT", "WorkingDir": "/w"},
            "history": [{"created": "2026-01-01T00:00:00Z", "empty_layer": true}]}),
    ]
    .map(|document| document.to_string().into_bytes())
    .to_vec()
}

/// A full name parses to the same reference, and fits into a file name and a URL.
fn reference(data: &[u8]) {
    let Ok(read) = text(data).parse::<Reference>() else {
        return;
    };
    let printed = read.to_string();
    assert_eq!(printed.parse(), Ok(read.clone()), "{printed}");
    assert!(read.repository.len() <= 255 && read.repository.contains('/'), "{printed}");
    assert!(
        printed.bytes().all(|c| c.is_ascii_graphic() && !b"?#%\\\"<>".contains(&c)),
        "{printed}"
    );
    assert!(!printed.contains("..") || read.tag.is_some_and(|tag| tag.contains("..")), "{printed}");
}

fn references() -> Vec<Vec<u8>> {
    let digest = Digest::of(b"x").to_string();
    bytes(&[
        "nginx",
        "a/b:1.25",
        "localhost:5000/a",
        "[::1]:5000/a__b/c-d.e:T",
        &format!("h.io/a@{digest}"),
        &format!("a:b@{digest}"),
    ])
}

/// A parsed digest displays as its input.
fn digest(data: &[u8]) {
    if let Ok(read) = text(data).parse::<Digest>() {
        assert_eq!(read.to_string(), text(data));
    }
}

fn digests() -> Vec<Vec<u8>> {
    bytes(&[&Digest::of(b"x").to_string(), "sha512:00"])
}
