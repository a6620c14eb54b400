//! Round trips, and archives that try to leave their destination.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rstest::rstest;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::pack::pack;
use crate::place::{Root, Source};

fn packed(path: &Path) -> (Vec<u8>, Vec<String>) {
    let mut archive = Vec::new();
    let notes = pack(Source::open(&Root::own(), path).unwrap(), &mut archive).unwrap();
    (archive, notes.lines())
}

/// Unpacks an archive from a pod, called `top`.
fn unpacked(archive: &[u8], to: &Path, top: &str) -> Result<Vec<String>, String> {
    let to = Destination::open(&Root::own(), to, OsStr::new(top)).unwrap();
    let notes = unpack(archive, to, Top::Named(top.as_bytes().to_vec()), Side::Host);
    notes.map(Notes::lines).map_err(|error| error.to_string())
}

/// Members: kind, path, link target, content.
fn archive(members: &[(EntryType, &str, &str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (kind, path, link, content) in members {
        let mut header = Header::new_gnu();
        // The tar crate would refuse such names.
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o6755);
        header.set_size(content.len() as u64);
        header.set_cksum();
        tar.append(&header, content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

#[test]
fn tree_is_the_same_after_a_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("deep/file"), "text").unwrap();
    fs::write(tree.join(format!("deep/{}", "n".repeat(200))), vec![7; 200_000]).unwrap();
    fs::hard_link(tree.join("deep/file"), tree.join("deep/er/same")).unwrap();
    symlink("../deep/file", tree.join("deep/link")).unwrap();
    fs::set_permissions(tree.join("deep/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(tree.join("deep/er"), fs::Permissions::from_mode(0o550)).unwrap();
    let times = |seconds, nanos| {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
        Timestamps { last_access: time, last_modification: time }
    };
    let past = |path: &str, seconds, nanos| {
        let at = AtFlags::SYMLINK_NOFOLLOW;
        utimensat(rustix::fs::CWD, tree.join(path), &times(seconds, nanos), at).unwrap();
    };
    past("deep/file", 1_000_000_000, 123_456_789);
    past("deep/link", 5, 0);
    past("empty", -2, 250_000_000);
    past("deep", 77, 0);
    let (archive, notes) = packed(&tree);
    assert_eq!(notes, [""; 0]);
    // Busybox stops at a header without a name.
    let mut raw = tar::Archive::new(&archive[..]);
    for header in raw.entries().unwrap().raw(true) {
        assert!(!header.unwrap().path_bytes().is_empty());
    }
    assert_eq!(unpacked(&archive, &root.path().join("copy"), "tree").unwrap(), [""; 0]);
    let state = |path: &str| {
        let at = root.path().join(path);
        let found = fs::symlink_metadata(&at).unwrap();
        (found.mode(), found.mtime(), found.mtime_nsec(), fs::read(at).ok())
    };
    for path in ["deep", "deep/file", "deep/link", "deep/er", "deep/er/same", "empty"] {
        assert_eq!(state(&format!("copy/{path}")), state(&format!("tree/{path}")), "{path}");
    }
    let inode = |path: &str| fs::metadata(root.path().join(path)).unwrap().ino();
    assert_eq!(inode("copy/deep/file"), inode("copy/deep/er/same"));
    assert_eq!(
        fs::read_link(root.path().join("copy/deep/link")).unwrap(),
        Path::new("../deep/file")
    );
    fs::set_permissions(tree.join("deep/er"), fs::Permissions::from_mode(0o755)).unwrap();
    let copied = root.path().join("copy/deep/er");
    fs::set_permissions(copied, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn existing_directory_gets_the_copy_by_its_name() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("to")).unwrap();
    fs::create_dir_all(root.path().join("from")).unwrap();
    fs::write(root.path().join("from/a"), "new").unwrap();
    let (whole, _) = packed(&root.path().join("from"));
    let (file, _) = packed(&root.path().join("from/a"));
    let (content, _) = packed(&root.path().join("from/."));
    unpacked(&whole, &root.path().join("to"), "from").unwrap();
    unpacked(&file, &root.path().join("to/b"), "a").unwrap();
    unpacked(&content, &root.path().join("to"), ".").unwrap();
    unpacked(&content, &root.path().join("to/c"), ".").unwrap();
    for path in ["to/from/a", "to/b", "to/a", "to/c/a"] {
        assert_eq!(fs::read_to_string(root.path().join(path)).unwrap(), "new", "{path}");
    }
    let missing = Destination::open(&Root::own(), &root.path().join("no/a"), OsStr::new("a"));
    assert!(missing.unwrap_err().to_string().starts_with("failed to open the directory"));
    let slash = Destination::open(&Root::own(), &root.path().join("no/"), OsStr::new("a"));
    assert!(slash.unwrap_err().to_string().contains("leave out the slash"));
}

#[test]
fn special_files_are_left_out_and_named() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    fs::create_dir(&tree).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), Mode::RUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    let (archive, mut notes) = packed(&tree);
    notes.sort();
    assert_eq!(notes, ["\"tree/fifo\": it is a FIFO", "\"tree/socket\": it is a socket"]);
    unpacked(&archive, &root.path().join("copy"), "tree").unwrap();
    assert_eq!(fs::read_dir(root.path().join("copy")).unwrap().count(), 0);
}

#[test]
fn files_of_the_kernel_are_not_read() {
    for path in ["/proc/self/status", "/proc/self/", "/sys"] {
        let source = Source::open(&Root::own(), Path::new(path)).unwrap();
        let error = pack(source, io::sink()).unwrap_err().to_string();
        assert!(error.contains("file system of the kernel"), "{error}");
    }
    let to = Destination::open(&Root::own(), Path::new("/proc/self"), OsStr::new("comm")).unwrap();
    let archive = archive(&[(EntryType::Regular, "comm", "", "x")]);
    let error = unpack(&archive[..], to, Top::First, Side::Container).unwrap_err().to_string();
    assert!(error.contains("file system of the kernel"), "{error}");
}

use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};

/// Unpacks a hostile archive called `t` beside files that it must not reach. Nothing but `copy` is changed.
#[rstest]
#[case::parent(&[(Regular, "t/../../secret", "", "x")], Err("leads out"))]
#[case::absolute(&[(Regular, "/t/x", "", "x")], Err("absolute"))]
#[case::beside(&[(Directory, "t", "", ""), (Regular, ".bashrc", "", "x")], Err("beside"))]
#[case::link_out(&[(Directory, "t", "", ""), (Symlink, "t/l", "../secret", "")], Ok(1))]
#[case::absolute_link(&[(Directory, "t", "", ""), (Symlink, "t/l", "/etc", "")], Ok(1))]
#[case::top_is_link(&[(Symlink, "t", "secret", "")], Ok(1))]
#[case::write_through_link_inside(
    &[(Directory, "t", "", ""), (Symlink, "t/l", ".", ""), (Regular, "t/l/x", "", "x")],
    Err("is a link")
)]
#[case::directory_through_link(
    &[(Directory, "t", "", ""), (Symlink, "t/l", "d", ""), (Directory, "t/l", "", "")],
    Err("is not a directory")
)]
#[case::write_through_skipped_link(
    &[(Directory, "t", "", ""), (Symlink, "t/l", "..", ""), (Regular, "t/l/secret", "", "x")],
    Ok(1)
)]
#[case::hard_link_out(&[(Directory, "t", "", ""), (Link, "t/l", "../secret", "")], Err("leads out"))]
#[case::absolute_hard_link(&[(Directory, "t", "", ""), (Link, "t/l", "/etc/passwd", "")], Err("absolute"))]
#[case::hard_link_beside(&[(Directory, "t", "", ""), (Link, "t/l", "secret", "")], Err("beside"))]
#[case::hard_link_through_link(
    &[(Directory, "t", "", ""), (Symlink, "t/a", ".", ""), (Link, "t/l", "t/a/x", "")],
    Err("is a link")
)]
#[case::devices(
    &[(Directory, "t", "", ""), (Char, "t/c", "", ""), (Block, "t/b", "", ""), (Fifo, "t/f", "", "")],
    Ok(3)
)]
#[case::nothing(&[(Directory, "./", "", "")], Err("beside"))]
fn archives_do_not_leave_their_destination(
    #[case] members: &[(EntryType, &str, &str, &str)],
    #[case] expected: Result<usize, &str>,
) {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("secret"), "secret").unwrap();
    let done = unpacked(&archive(members), &root.path().join("copy"), "t");
    match (done, expected) {
        (Ok(notes), Ok(count)) => assert_eq!(notes.len(), count, "{notes:?}"),
        (Err(error), Err(why)) => assert!(error.contains(why), "{error}"),
        (done, _) => panic!("{done:?}"),
    }
    assert_eq!(fs::read_to_string(root.path().join("secret")).unwrap(), "secret");
    let mut names: Vec<_> =
        fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| name != "copy");
    assert_eq!(names, ["secret"]);
}

#[test]
fn links_of_the_destination_are_replaced_or_refused() {
    let root = tempfile::tempdir().unwrap();
    let to = root.path().join("t");
    fs::create_dir_all(root.path().join("outside")).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(root.path().join("outside/file"), "kept").unwrap();
    symlink("../outside/file", to.join("file")).unwrap();
    symlink("../outside", to.join("directory")).unwrap();
    let file = archive(&[(Directory, "t", "", ""), (Regular, "t/file", "", "new")]);
    unpacked(&file, root.path(), "t").unwrap();
    assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "new");
    let below = archive(&[(Directory, "t", "", ""), (Regular, "t/directory/file", "", "new")]);
    let error = unpacked(&below, root.path(), "t").unwrap_err();
    assert!(error.contains("is a link"), "{error}");
    assert_eq!(fs::read_to_string(root.path().join("outside/file")).unwrap(), "kept");
}

#[test]
fn set_user_id_bits_are_left_out_on_this_machine() {
    let root = tempfile::tempdir().unwrap();
    let program = archive(&[(Regular, "t", "", "x")]);
    let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().mode() & 0o7777;
    unpacked(&program, &root.path().join("a"), "t").unwrap();
    assert_eq!(mode("a"), 0o755);
    let to = Destination::open(&Root::own(), &root.path().join("b"), OsStr::new("t")).unwrap();
    unpack(&program[..], to, Top::First, Side::Container).unwrap();
    assert_eq!(mode("b"), 0o6755);
}

#[test]
fn overwritten_file_is_as_long_as_the_new_one() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), "a longer text").unwrap();
    unpacked(&archive(&[(Regular, "t", "", "x")]), &root.path().join("a"), "t").unwrap();
    assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "x");
    fs::create_dir(root.path().join("d")).unwrap();
    let to_directory = archive(&[(Regular, "t/d", "", "x"), (Regular, "t/d/e", "", "x")]);
    let error = unpacked(&to_directory, &root.path().join("c"), "t").unwrap_err();
    assert!(error.contains("failed to open the directory"), "{error}");
}

#[test]
fn cut_archive_is_an_error() {
    let whole = archive(&[(Regular, "t", "", "some text")]);
    let root = tempfile::tempdir().unwrap();
    let cut = whole.get(..515).unwrap();
    let error = unpacked(cut, &root.path().join("a"), "t").unwrap_err();
    assert!(error.contains("archive"), "{error}");
}

/// A process of the container replaces a directory by a link to outside while files are written below it.
#[test]
fn unpack_stays_inside_when_directories_are_swapped() {
    let root = tempfile::tempdir().unwrap();
    let inside = root.path().join("root");
    fs::create_dir_all(inside.join("etc/d")).unwrap();
    fs::create_dir_all(root.path().join("outside/d")).unwrap();
    symlink("../outside", inside.join("etc2")).unwrap();
    let (done, mut written, mut refused) = (AtomicBool::new(false), 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let (one, other) = (inside.join("etc"), inside.join("etc2"));
            while !done.load(Ordering::Relaxed) {
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, &one, cwd, &other, flags).unwrap();
            }
        });
        let file = archive(&[(Regular, "t", "", "x")]);
        // Repeat until both cases have occurred: on a busy machine the other thread may not run for thousands of these.
        let limit = Instant::now() + Duration::from_secs(60);
        while written + refused < 2000 || (written.min(refused) == 0 && Instant::now() < limit) {
            let directory = OFlags::PATH | OFlags::DIRECTORY;
            let top = openat(rustix::fs::CWD, &inside, directory, Mode::empty()).unwrap();
            let to =
                Destination::open(&Root::of_container(top), Path::new("/etc/d"), OsStr::new("t"));
            // While the path is a link, its target does not exist in the root.
            let done = to.and_then(|to| unpack(&file[..], to, Top::First, Side::Container));
            match done {
                Ok(_) => written += 1,
                Err(_) => refused += 1,
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(written > 0 && refused > 0, "{written} written, {refused} refused");
    assert_eq!(fs::read_dir(root.path().join("outside/d")).unwrap().count(), 0);
}
