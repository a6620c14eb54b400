//! The store through its public methods, on archives that the tests build.
#![allow(clippy::unwrap_used)]

mod concurrent;
mod hostile;
mod killed;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rstest::rstest;

use crate::testing::*;
use crate::*;

/// The expected leftovers when everything is removed.
const NOTHING: [PathBuf; 0] = [];

/// A store and its directory of archives.
struct Bench {
    dir: tempfile::TempDir,
    limits: Limits,
}

impl Bench {
    fn new() -> Self {
        Self::limited(Limits::default())
    }

    fn limited(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("archives")).unwrap();
        Self { dir, limits }
    }

    fn offer(&self, file: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join("archives").join(file);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open(&self) -> ImageStore {
        let options = ImageOptions {
            archives: vec![self.dir.path().join("archives")],
            limits: self.limits.clone(),
            in_user_namespace: in_user_namespace(),
            ..ImageOptions::new(self.root())
        };
        ImageStore::open(options).unwrap()
    }

    /// Every file and directory of the store, except its fixed directories.
    fn leftovers(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for name in ["tmp", "empty", "layers", "images", "holds", "blobs/sha256"] {
            let entries = fs::read_dir(self.root().join(name)).unwrap();
            all.extend(entries.map(|e| e.unwrap().path()));
        }
        all
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        file_tree::remove(&self.root()).unwrap();
    }
}

fn layers() -> Vec<Vec<u8>> {
    vec![
        Tar::new().directory("bin").file("bin/x", "binary").file("old", "1").bytes(),
        Tar::new().file(".wh.old", "").file("new", "22").bytes(),
    ]
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn check_content(store: &ImageStore, name: &str) {
    let Rootfs::Layers { lower } = store.rootfs(name).unwrap() else { panic!("no layers") };
    let [top, bottom] = &lower[..] else { panic!("{lower:?}") };
    assert_eq!(fs::read_to_string(top.join("new")).unwrap(), "22");
    assert_eq!(fs::read_to_string(bottom.join("bin/x")).unwrap(), "binary");
    assert_eq!(fs::read_to_string(bottom.join("old")).unwrap(), "1");
    assert_eq!(fs::symlink_metadata(top.join("old")).unwrap().rdev(), 0);
}

#[rstest]
#[case::oci("a.tar", oci("example.com/app:1", &layers(), gzip).tar())]
#[case::oci_zstd("a.tar", oci("example.com/app:1", &layers(), zstd).tar())]
#[case::oci_plain_layers("a.tar", oci("example.com/app:1", &layers(), plain).tar())]
#[case::oci_compressed("a.tar.gz", gzip(&oci("example.com/app:1", &layers(), gzip).tar()))]
#[case::docker("a.tar", docker(&["other:2", "example.com/app:1"], &layers()).tar())]
#[case::docker_compressed("a.tgz", gzip(&docker(&["example.com/app:1"], &layers()).tar()))]
#[case::docker_zstd("a.tar.zst", zstd(&docker(&["example.com/app:1"], &layers()).tar()))]
fn pull_status_list_remove(#[case] file: &str, #[case] archive: Vec<u8>) {
    let bench = Bench::new();
    bench.offer(file, archive);
    let store = bench.open();
    assert_eq!(store.status("example.com/app:1"), None);
    assert!(matches!(
        store.pull("example.com/app:2"),
        Err(ImageError::NotFound { searched: 1, .. })
    ));
    let id = store.pull("example.com/app:1").unwrap();
    assert_eq!(store.pull("example.com/app:1").unwrap(), id);
    check_content(&store, "example.com/app:1");
    let record = store.status("example.com/app:1").unwrap();
    assert_eq!(record.id, id);
    assert_eq!(record.tags, BTreeSet::from(["example.com/app:1".to_owned()]));
    assert!(record.size > 9, "{}", record.size);
    assert_eq!(record.config.entrypoint, ["/bin/x"]);
    assert_eq!(record.config.user(), UserName::Uid(1000));
    let names = [id.to_string(), id.0.hex(), id.0.hex()[..12].to_owned()];
    for name in names.iter().chain(&record.digests) {
        assert_eq!(store.status(name), Some(record.clone()), "{name}");
    }
    assert_eq!(store.list(), [record]);
    let info = store.fs_info();
    assert!(info.mountpoint.is_dir() && info.used_bytes > 0 && info.inodes_used > 5, "{info:?}");
    store.remove(&id.to_string()).unwrap();
    store.remove(&id.to_string()).unwrap();
    assert_eq!(store.list(), []);
    assert!(matches!(store.rootfs("example.com/app:1"), Err(ImageError::Absent { .. })));
    assert_eq!(bench.leftovers(), NOTHING);
    assert_eq!(store.fs_info().used_bytes, 0);
}

#[test]
fn docker_archive_index_and_manifest_give_same_image() {
    let mut members = oci("1", &layers(), gzip);
    let mut manifest: serde_json::Value = serde_json::from_slice(&members.0["index.json"]).unwrap();
    manifest["manifests"][0]["annotations"]["io.containerd.image.name"] =
        "docker.io/library/app:1".into();
    members.document("index.json", &manifest);
    let config = Digest::of(&serde_json::to_vec(&config(&layers())).unwrap());
    let blobs: Vec<String> =
        layers().iter().map(|l| format!("blobs/sha256/{}", Digest::of(&gzip(l)).hex())).collect();
    let config = format!("blobs/sha256/{}", config.hex());
    members.document(
        "manifest.json",
        &serde_json::json!([{"Config": config, "RepoTags": ["app:1"], "Layers": blobs}]),
    );
    let bench = Bench::new();
    bench.offer("saved.tar", members.tar());
    let store = bench.open();
    store.pull("app:1").unwrap();
    check_content(&store, "app:1");
    assert_eq!(store.status("app:1").unwrap().digests.len(), 1);
}

#[rstest]
#[case::full_name(Some("example.com/a/b:7"), "example.com/a/b:7")]
#[case::familiar(Some("nginx:1"), "docker.io/library/nginx:1")]
#[case::bare_tag(Some("v2"), "crib.local/my-app:v2")]
#[case::no_name(None, "crib.local/my-app:latest")]
fn pull_resolves_names_of_layout_directory(#[case] name: Option<&str>, #[case] full: &str) {
    let bench = Bench::new();
    let mut members = Members::default();
    let manifest = oci_image(&mut members, &layers(), gzip);
    index(&mut members, &[name.map_or(manifest.clone(), |name| named(manifest, name))]);
    members.write_directory(&bench.dir.path().join("archives/My App"));
    let store = bench.open();
    store.pull(full).unwrap();
    assert_eq!(store.status(full).unwrap().tags, BTreeSet::from([full.to_owned()]));
}

#[test]
fn pull_by_digest_adds_no_tag() {
    let bench = Bench::new();
    let mut members = Members::default();
    let manifest = oci_image(&mut members, &layers(), gzip);
    index(&mut members, &[named(manifest.clone(), "example.com/app:1")]);
    bench.offer("a.tar", members.tar());
    let store = bench.open();
    let by_digest = format!("example.com/app@{}", manifest["digest"].as_str().unwrap());
    let id = store.pull(&by_digest).unwrap();
    let record = store.status(&by_digest).unwrap();
    assert_eq!((record.tags.len(), record.digests), (0, BTreeSet::from([by_digest.clone()])));
    assert!(store.pull(&by_digest.replace("app@", "other@")).is_err());
    assert_eq!(store.pull("example.com/app:1").unwrap(), id);
    assert_eq!(store.list().len(), 1);
    assert_eq!(store.status(&by_digest).unwrap().tags.len(), 1);
}

#[test]
fn pull_chooses_index_entry_of_own_platform() {
    let bench = Bench::new();
    let mut members = Members::default();
    let other = oci_image(&mut members, &[Tar::new().file("other", "").bytes()], gzip);
    let ours = oci_image(&mut members, &layers(), gzip);
    let platform = |mut d: serde_json::Value, os: &str, arch: &str| {
        d["platform"] = serde_json::json!({"os": os, "architecture": arch});
        d
    };
    let nested = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
        platform(other.clone(), "linux", "s390x"),
        platform(other.clone(), "windows", crate::formats::platform::architecture()),
        platform(ours.clone(), "linux", crate::formats::platform::architecture()),
    ]});
    let nested = members.blob(INDEX, &serde_json::to_vec(&nested).unwrap());
    let foreign = serde_json::json!({"schemaVersion": 2, "manifests": [platform(other.clone(), "linux", "s390x")]});
    let foreign = members.blob(INDEX, &serde_json::to_vec(&foreign).unwrap());
    let flat = [
        named(platform(other, "linux", "s390x"), "example.com/flat:1"),
        named(
            platform(ours, "linux", crate::formats::platform::architecture()),
            "example.com/flat:1",
        ),
    ];
    let mut all =
        vec![named(nested, "example.com/nested:1"), named(foreign, "example.com/foreign:1")];
    all.extend(flat);
    index(&mut members, &all);
    bench.offer("a.tar", members.tar());
    let store = bench.open();
    let id = store.pull("example.com/nested:1").unwrap();
    check_content(&store, "example.com/nested:1");
    assert_eq!(store.pull("example.com/flat:1").unwrap(), id);
    let error = store.pull("example.com/foreign:1").unwrap_err();
    let wanted = format!(
        "it has no image for linux/{}, only for linux/s390x",
        crate::formats::platform::architecture()
    );
    assert_eq!(error.source().unwrap().to_string(), wanted);
}

#[rstest]
fn host_image_can_always_be_pulled(
    #[values("crib.local/host", "crib.local/host:latest")] name: &str,
) {
    let bench = Bench::new();
    let store = bench.open();
    assert_eq!(store.status(name), None);
    let id = store.pull(name).unwrap();
    assert_eq!(store.pull("crib.local/host").unwrap(), id);
    let record = store.status(name).unwrap();
    assert_eq!(
        (record.pinned, record.tags.len(), store.rootfs(name).unwrap()),
        (false, 1, Rootfs::Host)
    );
    assert_eq!(record.size, store.configuration(&record).unwrap().len() as u64);
    drop(store);
    let store = bench.open();
    assert_eq!(store.list(), [record]);
    store.remove("crib.local/host").unwrap();
    assert_eq!(bench.leftovers(), NOTHING);
    assert!(matches!(store.pull("crib.local/host:2"), Err(ImageError::NotFound { .. })));
}

#[test]
fn pull_moves_tag_to_newer_image() {
    let bench = Bench::new();
    let path = bench.offer("a.tar", oci("example.com/app:1", &layers(), gzip).tar());
    let store = bench.open();
    let old = store.pull("example.com/app:1").unwrap();
    let changed = vec![layers()[0].clone(), Tar::new().file("newer", "").bytes()];
    fs::write(&path, oci("example.com/app:1", &changed, gzip).tar()).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_secs(1))
        .unwrap();
    let new = store.pull("example.com/app:1").unwrap();
    assert_ne!(old, new);
    let tags = |id: ImageId| store.status(&id.to_string()).unwrap().tags.len();
    assert_eq!((tags(old), tags(new)), (0, 1));
    // The bottom layer is stored once, for both images, and is kept for the remaining one.
    assert_eq!(fs::read_dir(bench.root().join("layers")).unwrap().count(), 3);
    store.remove(&old.to_string()).unwrap();
    assert_eq!(fs::read_dir(bench.root().join("layers")).unwrap().count(), 2);
    // As if killed between the two writes that move a name: both records have it.
    let old_record = ImageRecord {
        serial: 1,
        tags: BTreeSet::from(["example.com/app:1".to_owned()]),
        ..store.status(&new.to_string()).unwrap()
    };
    let old_record = ImageRecord { id: ImageId(Digest::of(b"old")), ..old_record };
    let file = bench.root().join(format!("images/{}.json", old_record.id.0.hex()));
    fs::write(file, serde_json::to_vec(&old_record).unwrap()).unwrap();
    drop(store);
    let store = bench.open();
    assert_eq!(store.list().len(), 2);
    assert_eq!(store.status("example.com/app:1").unwrap().id, new);
}

#[test]
fn open_restores_images_and_removes_garbage() {
    let bench = Bench::new();
    bench.offer("a.tar", oci("example.com/app:1", &layers(), gzip).tar());
    let before = {
        let store = bench.open();
        store.pull("example.com/app:1").unwrap();
        store.list()
    };
    let kept = bench.leftovers().len();
    let root = bench.root();
    fs::create_dir_all(root.join("tmp/layer-x/fs/deep")).unwrap();
    fs::create_dir_all(root.join(format!("layers/{}/fs", Digest::of(b"x").hex()))).unwrap();
    fs::write(root.join(format!("blobs/sha256/{}", Digest::of(b"y").hex())), "y").unwrap();
    fs::create_dir(root.join("layers/nonsense")).unwrap();
    let store = bench.open();
    assert_eq!(store.list(), before);
    assert_eq!(bench.leftovers().len(), kept);
    check_content(&store, "example.com/app:1");
    // An image whose layer is missing is dropped.
    drop(store);
    let layer = fs::read_dir(root.join("layers")).unwrap().next().unwrap().unwrap().path();
    file_tree::remove(&layer).unwrap();
    assert_eq!(bench.open().list(), []);
    assert_eq!(bench.leftovers(), NOTHING);
}

#[test]
fn remove_keeps_layers_of_held_image() {
    let bench = Bench::new();
    bench.offer("a.tar", oci("example.com/app:1", &layers(), gzip).tar());
    let store = bench.open();
    store.pull("example.com/app:1").unwrap();
    let Rootfs::Layers { lower } = store.hold("c1", "example.com/app:1").unwrap() else { panic!() };
    store.hold("c2", "example.com/app:1").unwrap();
    assert!(store.hold("../c3", "example.com/app:1").is_err());
    store.remove("example.com/app:1").unwrap();
    assert_eq!(store.list(), []);
    drop(store);
    let store = bench.open();
    assert!(lower.iter().all(|path| path.is_dir()));
    store.release("c1").unwrap();
    assert!(lower.iter().all(|path| path.is_dir()));
    store.release_all_but(|holder| holder == "c1").unwrap();
    assert_eq!(bench.leftovers(), NOTHING);
}

#[test]
fn rootfs_of_image_without_layers_is_empty() {
    let bench = Bench::new();
    bench.offer("a.tar", docker(&["scratch:1"], &[]).tar());
    let store = bench.open();
    store.pull("scratch:1").unwrap();
    let Rootfs::Layers { lower } = store.rootfs("scratch:1").unwrap() else { panic!() };
    assert_eq!((lower.len(), fs::read_dir(&lower[0]).unwrap().count()), (1, 0));
    assert!(store.status("scratch:1").unwrap().size > 0);
}

#[test]
fn open_reports_files_that_are_no_archive() {
    let bench = Bench::new();
    bench.offer("README.md", "not looked at");
    let store = bench.open();
    let error = store.pull("example.com/app:1").unwrap_err();
    assert_eq!(
        error.to_string(),
        "image example.com/app:1 is not here, no image archive was offered, and no registry was asked: \
         offer an archive that holds it, or use crib.local/host"
    );
    bench.offer("a.tar", Tar::new().file("x", "").bytes());
    let error = store.pull("example.com/app:1").unwrap_err();
    assert!(matches!(error, ImageError::NotFoundUnreadable { unreadable: 1, .. }), "{error:?}");
    let error = store.pull("Example/App").unwrap_err();
    assert!(
        matches!(
            error,
            ImageError::Reference {
                source: ReferenceError::Format | ReferenceError::Uppercase(_),
                ..
            }
        ),
        "{error:?}"
    );
    let options = ImageOptions {
        archives: vec![bench.dir.path().join("nowhere")],
        ..ImageOptions::new(bench.root())
    };
    let error = ImageStore::open(options).unwrap_err();
    assert!(error.to_string().starts_with("failed to find the image archive"), "{error}");
}

#[test]
fn device_is_refused_as_archive_at_start() {
    let bench = Bench::new();
    let options =
        ImageOptions { archives: vec!["/dev/zero".into()], ..ImageOptions::new(bench.root()) };
    let error = ImageStore::open(options).unwrap_err();
    assert_eq!(error.to_string(), "failed to find the image archive /dev/zero");
    let cause = error.source().unwrap().to_string();
    assert_eq!(cause, "it is neither a file nor a directory");
}

#[rstest]
#[case::empty(b"", "it holds neither index.json")]
#[case::text(b"FROM scratch\n", "the archive")]
#[case::packed_text(
    b"\x1f\x8b\x08\0\0\0\0\0\x02\x03s\x0b\xf2\xf7U(N.J,I\xce\xe0\x02\0\xc2W]\xf7\r\0\0\0",
    "the archive"
)]
fn file_that_is_no_archive_is_refused_at_start(#[case] content: &[u8], #[case] why: &str) {
    let bench = Bench::new();
    let archive = bench.dir.path().join("Dockerfile");
    fs::write(&archive, content).unwrap();
    let options =
        ImageOptions { archives: vec![archive.clone()], ..ImageOptions::new(bench.root()) };
    let error = ImageStore::open(options).unwrap_err();
    let refused = format!("image archive {} was refused", archive.display());
    assert_eq!(error.to_string(), refused);
    let told = error.source().unwrap().to_string();
    assert!(told.contains(why), "{told}");
}
