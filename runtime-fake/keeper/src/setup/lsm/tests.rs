//! Tests with a directory in place of the kernel's files.

use std::{
    os::{fd::AsFd as _, unix::fs::symlink},
    sync::Mutex,
};

use rstest::rstest;
use tempfile::TempDir;

use super::*;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn text(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn confine_writes_attributes_of_present_modules() {
    let confinement = |root: &TempDir| Confinement {
        apparmor_profile: Some("p".to_owned()),
        kernel: Some(root.path().to_owned()),
        ..Default::default()
    };
    let new = TempDir::new().unwrap();
    put(new.path(), "proc/self/attr/apparmor/exec", "");
    put(new.path(), "proc/self/attr/exec", "");
    let both = Confinement { selinux_label: Some("u:r:t:s0".to_owned()), ..confinement(&new) };
    confine(&both).unwrap();
    assert_eq!(text(new.path(), "proc/self/attr/apparmor/exec"), "exec p");
    assert_eq!(text(new.path(), "proc/self/attr/exec"), "u:r:t:s0");

    let old = TempDir::new().unwrap();
    put(old.path(), "proc/self/attr/exec", "");
    confine(&confinement(&old)).unwrap();
    assert_eq!(text(old.path(), "proc/self/attr/exec"), "exec p");

    // A missing file is not created.
    let none = TempDir::new().unwrap();
    let error = confine(&confinement(&none)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    confine(&Confinement::default()).unwrap();
}

#[test]
fn relabel_visits_tree_without_following_symlinks() {
    let root = TempDir::new().unwrap();
    put(root.path(), "a/b/deep", "");
    put(root.path(), "a/file", "");
    put(root.path(), "outside/secret", "");
    symlink("../outside", root.path().join("a/link")).unwrap();
    symlink("nowhere", root.path().join("a/b/dangling")).unwrap();
    let visited = Mutex::new(Vec::new());
    let note = |path: &Path| {
        // Resolve all links except the last.
        let parent = fs::canonicalize(path.parent().unwrap()).unwrap();
        let below = parent.join(path.file_name().unwrap());
        let below = below.strip_prefix(fs::canonicalize(&root).unwrap()).unwrap();
        visited.lock().unwrap().push(below.display().to_string());
        Ok(())
    };
    each_below(&root.path().join("a"), &note).unwrap();
    let mut visited = visited.into_inner().unwrap();
    let at = |name: &str| visited.iter().position(|v| v == name).unwrap();
    assert!(at("a/b/deep") < at("a/b"));
    visited.sort();
    assert_eq!(visited, ["a/b", "a/b/dangling", "a/b/deep", "a/file", "a/link"]);
    // A file has no entries below it.
    each_below(&root.path().join("a/file"), &|_| panic!()).unwrap();
}

#[test]
fn relabel_refuses_host_directories() {
    let root = TempDir::new().unwrap();
    symlink("/etc", root.path().join("etc")).unwrap();
    for path in
        [Path::new("/"), Path::new("/usr/"), Path::new("/usr/../etc"), &root.path().join("etc")]
    {
        let error = relabel(path, "u:r:t:s0").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
    }
}

#[test]
fn relabel_sets_label_of_files() {
    let root = TempDir::new().unwrap();
    put(root.path(), "volume/d/file", "");
    let volume = root.path().join("volume");
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    match relabel(&volume, label) {
        Ok(()) => {}
        // Without a security module, only root may set such attributes.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let _ = writeln!(
                io::LineWriter::new(io::stderr()),
                "skipped: relabel_sets_label_of_files: needs Root: only root may set {XATTR}"
            );
            return;
        }
        Err(error) => panic!("{error}"),
    }
    for path in [&volume, &volume.join("d"), &volume.join("d/file")] {
        let mut there = [0; 100];
        match lgetxattr(path, XATTR, &mut there[..]) {
            Ok(length) => assert_eq!(&there[..length], label.as_bytes()),
            Err(error) => assert_eq!(error, Errno::NODATA, "a file system without labels"),
        }
    }
    relabel(&volume, label).unwrap();
    let opened = File::open(volume.join("d")).unwrap();
    relabel_open(opened.as_fd(), "u:r:t:s0").unwrap();
    for (path, expected) in [("d", "u:r:t:s0"), ("d/file", "u:r:t:s0"), ("", label)] {
        let mut there = [0; 100];
        match lgetxattr(volume.join(path), XATTR, &mut there[..]) {
            Ok(length) => assert_eq!(&there[..length], expected.as_bytes(), "{path}"),
            Err(error) => assert_eq!(error, Errno::NODATA, "a file system without labels"),
        }
    }
}

#[rstest]
#[case("/", true)]
#[case("/usr", true)]
#[case("/etc", true)]
#[case("/var/lib", true)]
#[case("/var/lib/kubelet/pods/p/volumes/v", false)]
#[case("/home/me", false)]
#[case("/usr/local/share/x", false)]
fn system_directories_belong_to_host(#[case] path: &str, #[case] refused: bool) {
    assert_eq!(of_the_host(path), refused);
}
