//! Fuzz target: unpacked archives stay in their destination.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use fuzz_target::Target;
use tar::{Builder, EntryType, Header};

use crate::member::Top;
use crate::pack::pack;
use crate::place::{Destination, Root, Source};
use crate::unpack::{Side, unpack};

const TARGETS: &[Target] = &[Target::new("copied_archive", copied, archives).slow(300)];

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    TARGETS.to_vec()
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}

/// Nothing but the destination changes, none of its links leads out, and the unpacked files can be packed again.
fn copied(data: &[u8]) {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("beside"), "beside").unwrap();
    let to = root.path().join("copy");
    let open = || Destination::open(&Root::own(), &to, OsStr::new("t")).unwrap();
    let _ = unpack(data, open(), Top::Named(b"t".to_vec()), Side::Host);
    let names = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.filter(|name| name != "copy").collect();
    names.sort();
    assert_eq!(names, ["beside"]);
    assert_eq!(fs::read(root.path().join("beside")).unwrap(), b"beside");
    if fs::symlink_metadata(&to).is_err() {
        return;
    }
    links_stay_inside(&to, &fs::canonicalize(&to).unwrap());
    // Its owner may not read everything.
    if let Ok(source) = Source::open(&Root::own(), &to) {
        let _ = pack(source, std::io::sink());
    }
}

fn links_stay_inside(directory: &Path, top: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            let to = fs::canonicalize(entry.path());
            assert!(to.is_err() || to.as_ref().unwrap().starts_with(top), "{to:?}");
        } else if kind.is_dir() {
            links_stay_inside(&entry.path(), top);
        }
    }
}

fn archives() -> Vec<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut add = |kind, path: &str, link: &str, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        if link.is_empty() {
            tar.append_data(&mut header, path, content).unwrap();
        } else {
            tar.append_link(&mut header, path, link).unwrap();
        }
    };
    add(EntryType::Directory, "t", "", b"");
    add(EntryType::Directory, "t/d", "", b"");
    add(EntryType::Regular, "t/d/f", "", b"text");
    add(EntryType::Symlink, "t/d/l", "../d/f", b"");
    add(EntryType::Symlink, "t/up", "d", b"");
    add(EntryType::Link, "t/h", "t/d/f", b"");
    add(EntryType::Regular, "t/up/x", "", b"y");
    vec![tar.into_inner().unwrap()]
}
