//! Unpacks layers built here and inspects the directories with ordinary system calls.
#![allow(clippy::unwrap_used)]

mod forms;
mod overlay;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use rstest::rstest;
use tar::EntryType;

use super::*;
use crate::formats::limits::Limits;
use crate::formats::tar_stream::Sequential;
use crate::testing::{Tar, in_user_namespace};

/// A stack of unpacked layers.
struct Pile {
    dir: tempfile::TempDir,
    style: Style,
    limits: Limits,
    /// Topmost first.
    layers: Vec<PathBuf>,
}

impl Pile {
    fn new() -> Self {
        Self::limited(Limits::default())
    }

    fn limited(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let style = Style::probe(fs::File::open(dir.path()).unwrap(), in_user_namespace(), false);
        Self { dir, style, limits, layers: Vec::new() }
    }

    fn push(&mut self, tar: Tar) -> Result<PathBuf, ContentError> {
        let bytes = tar.bytes();
        let into = self.dir.path().join(format!("root/{}", self.layers.len()));
        fs::create_dir_all(&into).unwrap();
        let reader =
            TarReader::new(Sequential(&bytes[..]), "the layer", self.limits.extension_bytes);
        unpack(reader, &into, &self.layers, &self.style, &Budget::new(&self.limits))?;
        self.layers.insert(0, into.clone());
        Ok(into)
    }

    fn is_whiteout(&self, path: &str) -> bool {
        let path = self.layers[0].join(path);
        let parent = fs::File::open(path.parent().unwrap()).unwrap();
        let name = path.file_name().unwrap().as_encoded_bytes();
        let stat = stack::status(&parent, name).unwrap();
        stat.is_some_and(|stat| self.style.is_whiteout(&parent, name, &stat))
    }

    fn is_opaque(&self, path: &str) -> bool {
        self.style.is_opaque(fs::File::open(self.layers[0].join(path)).unwrap())
    }
}

impl Drop for Pile {
    fn drop(&mut self) {
        file_tree::remove(&self.dir.path().join("root")).unwrap();
    }
}

fn unpack_one(tar: Tar) -> Result<(Pile, PathBuf), ContentError> {
    let mut pile = Pile::new();
    let root = pile.push(tar)?;
    Ok((pile, root))
}

#[test]
fn unpack_keeps_every_file_type_and_attribute() {
    let long = format!("d/{}", "n".repeat(200));
    let tar = Tar::new()
        .directory("./")
        .member(EntryType::Directory, "d/", "", b"", |h| h.set_mode(0o1577))
        .member(EntryType::Regular, "d/setuid", "", b"#!", |h| h.set_mode(0o6755))
        .hard_link("d/hard", "./d/setuid")
        .symlink("d/soft", "../d/setuid")
        .symlink("d/absolute", "/etc/passwd")
        .hard_link("d/hard-to-soft", "d/absolute")
        .member(EntryType::Fifo, "d/fifo", "", b"", |h| h.set_mode(0o620))
        .file(&long, "long")
        .pax(&[
            ("SCHILY.xattr.user.colour", b"blue"),
            ("SCHILY.xattr.security.selinux", b"x"),
            ("mtime", b"-1.5"),
        ])
        .file("d/attributes", "");
    let (_pile, root) = unpack_one(tar).unwrap();
    let status = |path: &str| fs::symlink_metadata(root.join(path)).unwrap();
    assert_eq!(status("d").mode() & 0o7777, 0o1577);
    assert_eq!(status("d").mtime(), 1_000_000_000);
    assert_eq!(status("d/setuid").mode() & 0o7777, 0o6755);
    assert_eq!(status("d/setuid").mtime(), 1_000_000_000);
    assert_eq!(status("d/hard").ino(), status("d/setuid").ino());
    assert_eq!(status("d/setuid").nlink(), 2);
    assert_eq!(fs::read_link(root.join("d/soft")).unwrap(), PathBuf::from("../d/setuid"));
    assert_eq!(fs::read_link(root.join("d/absolute")).unwrap(), PathBuf::from("/etc/passwd"));
    assert_eq!(status("d/absolute").mtime(), 1_000_000_000);
    assert_eq!(status("d/hard-to-soft").ino(), status("d/absolute").ino());
    assert!(status("d/fifo").file_type().is_fifo());
    assert_eq!(status("d/fifo").mode() & 0o7777, 0o620);
    assert_eq!(fs::read_to_string(root.join(long)).unwrap(), "long");
    let attributes = root.join("d/attributes");
    let mut value = [0u8; 16];
    let n = rustix::fs::getxattr(&attributes, "user.colour", &mut value).unwrap();
    assert_eq!(&value[..n], b"blue");
    assert_eq!(
        (status("d/attributes").mtime(), status("d/attributes").mtime_nsec()),
        (-2, 500_000_000)
    );
}

#[test]
fn unpack_keeps_owners_as_root_only() {
    let tar = Tar::new()
        .member(EntryType::Directory, "d", "", b"", |h| h.set_uid(33))
        .member(EntryType::Regular, "d/f", "", b"", |h| {
            h.set_uid(1234);
            h.set_gid(4321);
            h.set_mode(0o4755);
        })
        .member(EntryType::Symlink, "d/s", "f", b"", |h| h.set_uid(77));
    let (pile, root) = unpack_one(tar).unwrap();
    let owners = ["d", "d/f", "d/s"].map(|p| {
        let status = fs::symlink_metadata(root.join(p)).unwrap();
        (status.uid(), status.gid())
    });
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut want = [(33, 0), (1234, 4321), (77, 0)];
    if me.0 != 0 {
        want = [me; 3];
    } else if in_user_namespace() {
        want = want.map(|(uid, gid)| pile.style.owner(uid.into(), gid.into()).unwrap());
    }
    assert_eq!(owners, want);
    // chown(2) clears the setuid bit, so the mode is set after it.
    assert_eq!(fs::metadata(root.join("d/f")).unwrap().mode() & 0o7777, 0o4755);
}

#[test]
fn unpack_fills_read_only_directory() {
    let tar = Tar::new()
        .member(EntryType::Directory, "d", "", b"", |h| h.set_mode(0o555))
        .member(EntryType::Directory, "d/e", "", b"", |h| h.set_mode(0o000))
        .file("d/e/f", "x");
    let (_pile, root) = unpack_one(tar).unwrap();
    assert_eq!(fs::metadata(root.join("d")).unwrap().mode() & 0o777, 0o555);
    fs::set_permissions(root.join("d/e"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::read_to_string(root.join("d/e/f")).unwrap(), "x");
}

#[test]
fn whiteouts_hide_lower_layers_only() {
    let mut pile = Pile::new();
    pile.push(
        Tar::new().file("a/gone", "").file("a/stays", "").file("b/old", "").file("c/d/old", ""),
    )
    .unwrap();
    let tar = Tar::new()
        .file("a/.wh.gone", "")
        .file("b/.wh..wh..opq", "")
        .file("b/new", "")
        .file("c/.wh.d", "")
        .file("c/d/new", "")
        .file("a/stays", "new")
        .file("a/.wh.stays", "")
        .directory("e")
        .file(".wh.e", "")
        .device(EntryType::Char, "f", 0, 0);
    let root = pile.push(tar).unwrap();
    assert!(pile.is_whiteout("a/gone"));
    assert!(pile.is_whiteout("f"));
    assert_eq!(fs::read_to_string(root.join("a/stays")).unwrap(), "new");
    assert!(pile.is_opaque("b") && root.join("b/new").is_file());
    assert!(pile.is_opaque("c/d") && root.join("c/d/new").is_file());
    assert!(pile.is_opaque("e") && !pile.is_opaque("a"));
}

#[test]
fn whiteouts_in_bottom_layer_are_ignored() {
    let (pile, root) = unpack_one(Tar::new().file(".wh.a", "").file("b/.wh..wh..opq", "")).unwrap();
    assert!(!root.join("a").exists() && !root.join(".wh.a").exists());
    assert!(!pile.is_opaque("b"));
}

#[test]
fn implied_directories_keep_lower_attributes() {
    let mut pile = Pile::new();
    let base = Tar::new()
        .member(EntryType::Directory, "./", "", b"", |h| h.set_mode(0o711))
        .member(EntryType::Directory, "tmp", "", b"", |h| h.set_mode(0o1777))
        .member(EntryType::Directory, "gone", "", b"", |h| h.set_mode(0o700));
    pile.push(base).unwrap();
    pile.push(Tar::new().file(".wh.gone", "")).unwrap();
    let root = pile.push(Tar::new().file("tmp/x", "").file("gone/x", "")).unwrap();
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("."), mode("tmp"), mode("gone")), (0o711, 0o1777, 0o755));
}

#[test]
fn unpack_follows_directory_links_inside_root() {
    let mut pile = Pile::new();
    let base = Tar::new()
        .directory("usr/bin")
        .directory("run")
        .symlink("bin", "usr/bin")
        .symlink("var/run", "/run");
    pile.push(base).unwrap();
    let tar = Tar::new()
        .file("bin/tool", "")
        .file("var/run/file", "")
        .symlink("own", "usr/../usr/bin")
        .file("own/other", "")
        .hard_link("own/hard", "bin/tool");
    let root = pile.push(tar).unwrap();
    for path in ["usr/bin/tool", "run/file", "usr/bin/other", "usr/bin/hard"] {
        assert!(root.join(path).is_file(), "{path}");
    }
    assert!(!root.join("bin").exists() && !root.join("var/run").exists());
}

#[test]
fn unpack_keeps_last_of_repeated_members() {
    let (_pile, root) =
        unpack_one(Tar::new().file("a", "old").hard_link("b", "a").file("a", "new")).unwrap();
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "new");
    assert_eq!(fs::read_to_string(root.join("b")).unwrap(), "old");
}

#[rstest]
#[case::traversal(Tar::new().file("../evil", "x"))]
#[case::inner_traversal(Tar::new().directory("a").file("a/../../evil", "x"))]
#[case::absolute_traversal(Tar::new().file("/../evil", "x"))]
#[case::nul(Tar::new().file("evil\0.txt", "x"))]
#[case::pax_traversal(Tar::new().pax(&[("path", b"../evil")]).file("a", "x"))]
#[case::whiteout_traversal(Tar::new().file("../.wh.evil", ""))]
#[case::whiteout_of_parent(Tar::new().file("a/.wh...", ""))]
#[case::root_as_file(Tar::new().file("./", "x"))]
fn names_that_lead_out_are_refused(#[case] tar: Tar) {
    assert_refused(tar, |problem| matches!(problem, ContentError::Name { .. }));
}

#[rstest]
#[case::traversal(Tar::new().hard_link("l", "../evil"))]
#[case::absolute_traversal(Tar::new().hard_link("l", "/../evil"))]
fn hard_links_that_lead_out_are_refused(#[case] tar: Tar) {
    assert_refused(tar, |problem| matches!(problem, ContentError::LinkLeadsOut { .. }));
}

#[test]
fn unpack_rejects_link_loops() {
    let tar = Tar::new().symlink("a", "b").symlink("b", "a").file("a/evil", "x");
    assert_refused(tar, |problem| matches!(problem, ContentError::TooMuch { .. }));
}

/// Each tries to write `evil`, beside the layer's directory, through a link.
#[rstest]
#[case::climbing("../../evil")]
#[case::climbing_deep("../../../../../../../../evil")]
#[case::through_directories("d/../../../evil")]
fn links_that_climb_end_at_the_layers_root(#[case] target: &str) {
    let mut pile = Pile::new();
    let outside = pile.dir.path().join("evil");
    fs::create_dir(&outside).unwrap();
    let tar = Tar::new().directory("d").symlink("l", target).file("l/file", "x");
    let root = pile.push(tar).unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(root.join("evil/file")).unwrap(), "x");
    assert_eq!(fs::read_link(root.join("l")).unwrap(), PathBuf::from(target));
}

#[test]
fn absolute_links_resolve_in_layer_root() {
    let mut pile = Pile::new();
    let outside = pile.dir.path().join("evil");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "host").unwrap();
    let target = outside.to_str().unwrap();
    let tar = Tar::new().symlink("l", target).file("l/file", "x");
    let root = pile.push(tar).unwrap();
    let inside = root.join(target.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "x");
    assert!(!outside.join("file").exists());
    // A hard link must not give the image a host file either.
    let tar = Tar::new().symlink("l", target).hard_link("h", "l/secret");
    let error = pile.push(tar).unwrap_err();
    assert!(matches!(error, ContentError::HardLink { .. }), "{error:?}");
}

#[rstest]
#[case::missing(Tar::new().hard_link("l", "nothing"))]
#[case::later(Tar::new().hard_link("l", "a").file("a", ""))]
#[case::itself(Tar::new().file("a", "").hard_link("a", "./a"))]
#[case::directory(Tar::new().directory("d").hard_link("l", "d"))]
#[case::absolute(Tar::new().hard_link("l", "/etc/passwd"))]
#[case::through_a_link(Tar::new().symlink("d", "/etc").hard_link("l", "d/passwd"))]
#[case::in_its_own_place(Tar::new().file("d/f", "").hard_link("d", "d/f"))]
fn hard_links_without_a_file_are_refused(#[case] tar: Tar) {
    assert_refused(tar, |problem| matches!(problem, ContentError::HardLink { .. }));
}

#[test]
fn unpack_rejects_hard_link_to_lower_layer() {
    let mut pile = Pile::new();
    pile.push(Tar::new().file("a", "")).unwrap();
    let error = pile.push(Tar::new().hard_link("b", "a")).unwrap_err();
    assert!(matches!(error, ContentError::HardLink { .. }), "{error:?}");
}

#[rstest]
#[case::major(4096, 0)]
#[case::minor(1, 1 << 20)]
fn device_numbers_that_linux_has_not_are_refused(#[case] major: u32, #[case] minor: u32) {
    let mut pile = Pile::new();
    pile.style.nodes = true;
    let tar = Tar::new().device(EntryType::Char, "a", major, minor);
    let error = pile.push(tar).unwrap_err();
    assert!(matches!(error, ContentError::DeviceNumber { .. }), "{error:?}");
}

#[test]
fn unpack_rejects_member_below_file() {
    assert_refused(Tar::new().file("a", "").file("a/b", ""), |p| {
        matches!(p, ContentError::NotADirectory { .. })
    });
}

#[rstest]
#[case("trusted.overlay.opaque")]
#[case("user.overlay.redirect")]
fn attributes_of_the_overlay_are_refused(#[case] name: &str) {
    let tar = Tar::new().pax(&[(&format!("SCHILY.xattr.{name}"), b"y")]).directory("a");
    assert_refused(tar, |problem| matches!(problem, ContentError::Attribute { .. }));
}

#[test]
fn unpack_enforces_limits() {
    let refused = |limits: Limits, tar: Tar| {
        let mut pile = Pile::limited(limits);
        let error = pile.push(tar).unwrap_err();
        assert!(matches!(error, ContentError::TooMuch { .. }), "{error:?}");
    };
    let few = |entries| Limits { entries, ..Limits::default() };
    refused(few(2), Tar::new().file("a", "").file("b", "").file("c", ""));
    refused(Limits { depth: 3, ..Limits::default() }, Tar::new().file("1/2/3/4", ""));
    let deep = Tar::new().symlink("a/l", "../a/b").directory("a/b").file("a/l/1/2", "");
    refused(Limits { depth: 3, ..Limits::default() }, deep);
    let paths = |paths| Limits { paths, ..Limits::default() };
    let nested = Tar::new().directory("abcd").directory("abcd/ef").file("abcd/gh/i", "");
    refused(paths(17), nested.clone());
    Pile::limited(paths(18)).push(nested.directory("abcd")).unwrap();
    // A size without data: refused by the header alone.
    let huge = Tar::new().member(EntryType::Regular, "a", "", b"", |h| h.set_size(1 << 50));
    refused(Limits::default(), huge);
    let long = format!("a/{}", "b".repeat(2000));
    refused(Limits { extension_bytes: 1000, ..Limits::default() }, Tar::new().file(&long, ""));
    let mut pile = Pile::limited(few(3));
    pile.push(Tar::new().file("a", "").file("b", "").file("c", "")).unwrap();
}

#[test]
fn sparse_holes_count_against_budget() {
    let sparse = Tar::new()
        .pax(&[
            ("GNU.sparse.map", b"0,1"),
            ("GNU.sparse.numblocks", b"1"),
            ("GNU.sparse.size", b"1000000"),
        ])
        .file("a", "x");
    let limits = |unpacked_bytes| Limits { unpacked_bytes, ..Limits::default() };
    let mut pile = Pile::limited(limits(999_999));
    let error = pile.push(sparse.clone()).unwrap_err();
    assert!(matches!(error, ContentError::TooMuch { .. }), "{error:?}");
    let mut pile = Pile::limited(limits(1_000_000));
    pile.push(sparse).unwrap();
}

/// The layer is refused for the expected reason, and nothing appeared beside the directory.
fn assert_refused(tar: Tar, expected: impl Fn(&ContentError) -> bool) {
    let mut pile = Pile::new();
    let outside = pile.dir.path().join("evil");
    let error = pile.push(tar).unwrap_err();
    assert!(expected(&error), "{error:?}");
    assert!(!outside.exists());
    let beside: Vec<_> = fs::read_dir(pile.dir.path().join("root")).unwrap().collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
}

#[test]
fn usage_excludes_replaced_trees() {
    let count = |tar: Tar| {
        let bytes = tar.bytes();
        let pile = Pile::new();
        let into = pile.dir.path().join("root");
        fs::create_dir(&into).unwrap();
        let reader = TarReader::new(Sequential(&bytes[..]), "the layer", 1 << 20);
        let budget = Budget::new(&pile.limits);
        let none: [PathBuf; 0] = [];
        let usage = unpack(reader, &into, &none, &pile.style, &budget).unwrap();
        (usage.file_bytes, usage.inodes)
    };
    let tree = Tar::new().file("a/b/c", "12345").symlink("a/l", "b").directory("a/d");
    assert_eq!(count(tree.clone()), (5, 5));
    assert_eq!(count(tree.clone().file("a", "123")), (3, 1));
    assert_eq!(count(tree.symlink("a", "b").directory("a")), (0, 1));
    assert_eq!(count(Tar::new().file("a", "12345").file("a", "1")), (1, 1));
}
