//! Which files are read, and when.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::symlink;

use super::*;
use crate::fixtures::manifest;

fn kubelet(path: &Path) -> ManifestFiles {
    let node_name = "n".to_owned();
    ManifestFiles::new(path.to_owned(), ManifestMode::Kubelet { node_name, may_refer: false })
}

fn names(files: &mut ManifestFiles) -> Vec<String> {
    let pods = files.list(&Changed::Unknown, Timestamp::now()).unwrap();
    pods.iter().map(|pod| pod.name().to_owned()).collect()
}

#[test]
fn kubelet_reads_every_name_except_dotfiles_directories_and_fifos() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (file, pod) in [("noext", "a"), ("b.txt", "b"), (".hidden.yaml", "hidden")] {
        fs::write(at(file), manifest(pod)).unwrap();
    }
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/c.yaml"), manifest("c")).unwrap();
    symlink(at("sub/c.yaml"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    assert_eq!(names(&mut kubelet(dir.path())), ["b-n", "c-n", "a-n"]);
}

#[test]
fn kubelet_ends_the_pod_of_an_unreadable_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, manifest("a")).unwrap();
    let mut files = kubelet(dir.path());
    assert_eq!(names(&mut files), ["a-n"]);
    fs::write(&path, "kind: [").unwrap();
    assert_eq!(names(&mut files), [""; 0]);
}

#[test]
fn kubelet_keeps_pod_of_changed_manifest_that_became_invalid_until_next_listing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let event = Changed::Names(Set::from([OsString::from("a.yaml")]));
    let after_event = |files: &mut ManifestFiles| files.list(&event, Timestamp::now()).unwrap();
    fs::write(&path, manifest("a")).unwrap();
    let mut files = kubelet(dir.path());
    assert_eq!(names(&mut files), ["a-n"]);
    fs::write(&path, "kind: [").unwrap();
    assert_eq!(after_event(&mut files).len(), 1);
    fs::write(&path, manifest("a")).unwrap();
    assert_eq!(after_event(&mut files).len(), 1);
    assert_eq!(names(&mut files), ["a-n"]);
    fs::write(&path, "kind: [").unwrap();
    assert_eq!(after_event(&mut files).len(), 1);
    assert_eq!(names(&mut files), [""; 0]);
}

#[test]
fn kubelet_keeps_pod_of_renamed_manifest_until_next_listing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let event = Changed::Names(Set::from([OsString::from("a.yaml")]));
    let after_event = |files: &mut ManifestFiles| {
        let pods = files.list(&event, Timestamp::now()).unwrap();
        let names = pods.iter().map(|pod| pod.name().to_owned());
        names.collect::<Vec<_>>()
    };
    fs::write(&path, manifest("a")).unwrap();
    let mut files = kubelet(dir.path());
    assert_eq!(names(&mut files), ["a-n"]);
    fs::write(&path, manifest("b")).unwrap();
    assert_eq!(after_event(&mut files), ["b-n", "a-n"]);
    assert_eq!(after_event(&mut files), ["b-n", "a-n"]);
    assert_eq!(names(&mut files), ["b-n"]);
    fs::write(&path, manifest("a")).unwrap();
    assert_eq!(after_event(&mut files), ["a-n", "b-n"]);
    assert_eq!(names(&mut files), ["a-n"]);
}

#[test]
fn kubelet_keeps_the_pod_of_a_single_file_that_became_invalid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("only");
    fs::write(&path, manifest("a")).unwrap();
    let mut files = kubelet(&path);
    assert_eq!(names(&mut files), ["a-n"]);
    fs::write(&path, "kind: [").unwrap();
    assert!(matches!(files.list(&Changed::Unknown, Timestamp::now()), Err(ListError::Invalid)));
    fs::remove_file(&path).unwrap();
    assert_eq!(names(&mut files), [""; 0]);
}

#[test]
fn only_changed_files_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..20 {
        fs::write(dir.path().join(format!("{index}")), manifest(&format!("p{index}"))).unwrap();
    }
    let mut files = kubelet(dir.path());
    assert_eq!(names(&mut files).len(), 20);
    let changed = Changed::Names([OsString::from("7")].into());
    fs::write(dir.path().join("7"), manifest("other")).unwrap();
    let pods = files.list(&changed, Timestamp::now()).unwrap();
    assert!(pods.iter().any(|pod| pod.name() == "other-n"));
    // The previous pod of the file stays until the next listing.
    assert_eq!((pods.len(), files.reads), (21, 21));
    fs::remove_file(dir.path().join("7")).unwrap();
    assert_eq!(files.list(&changed, Timestamp::now()).unwrap().len(), 19);
    assert_eq!(files.reads, 21);
}

#[test]
fn recently_changed_files_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, manifest("one")).unwrap();
    let mut files = kubelet(dir.path());
    assert_eq!(names(&mut files), ["one-n"]);
    // Of equal length, and within one tick of the kernel's clock.
    fs::write(&path, manifest("two")).unwrap();
    assert_eq!(names(&mut files), ["two-n"]);
}

#[test]
fn directory_with_too_many_files_is_an_error_until_some_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut files = kubelet(dir.path());
    files.most = 2;
    // Files that are not manifests are not counted.
    for name in ["a", "b", ".hidden"] {
        fs::write(at(name), manifest(name.trim_start_matches('.'))).unwrap();
    }
    assert_eq!(names(&mut files), ["a-n", "b-n"]);
    fs::write(at("c"), manifest("c")).unwrap();
    let added = Changed::Names([OsString::from("c")].into());
    for changed in [added.clone(), Changed::Unknown, added.clone()] {
        let listed = files.list(&changed, Timestamp::now());
        assert!(matches!(listed, Err(ListError::TooMany(2))), "{changed:?}");
    }
    // A change during the failure is found although only one name is known to have changed.
    fs::remove_file(at("a")).unwrap();
    let pods = files.list(&added, Timestamp::now()).unwrap();
    assert_eq!(pods.iter().map(|pod| pod.name()).collect::<Vec<_>>(), ["b-n", "c-n"]);
}

#[test]
fn directory_with_the_most_files_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let put = |name: &str| fs::write(at(name), manifest(name)).unwrap();
    let changed = |names: &[&str]| {
        let names: Vec<OsString> = names.iter().map(OsString::from).collect();
        Changed::Names(names.into())
    };
    let listed = |files: &mut ManifestFiles, changed: &Changed| -> Vec<String> {
        let pods = files.list(changed, Timestamp::now()).unwrap();
        pods.iter().map(|pod| pod.name().to_owned()).collect()
    };
    let mut files = kubelet(dir.path());
    files.most = 2;
    put("b");
    put("c");
    fs::create_dir(at("directory")).unwrap();
    assert_eq!(names(&mut files), ["b-n", "c-n"]);
    // Neither a name of which nothing is left nor a directory is a file more.
    let nothing = changed(&["a", "directory"]);
    assert_eq!(listed(&mut files, &nothing), ["b-n", "c-n"]);
    // A file that comes in the place of another one is none more either, although its name is read first.
    fs::remove_file(at("c")).unwrap();
    put("a");
    assert_eq!(listed(&mut files, &changed(&["a", "c"])), ["a-n", "b-n"]);
    // Nor is one before the removal of another one is known.
    fs::remove_file(at("b")).unwrap();
    put("c");
    assert_eq!(listed(&mut files, &changed(&["c"])), ["a-n", "c-n"]);
    put("b");
    let listed = files.list(&changed(&["b"]), Timestamp::now());
    assert!(matches!(listed, Err(ListError::TooMany(2))), "{listed:?}");
}

#[test]
fn oversized_file_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.yaml");
    let file = fs::File::create(&path).unwrap();
    file.set_len(u64::try_from(MAX_BYTES).unwrap()).unwrap();
    assert_eq!(read(&path).unwrap_err().to_string(), "the file has 10 MiB or more");
}
