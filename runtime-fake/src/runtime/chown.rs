//! Changes the owners of image copies for pods with their own user namespace, where the file system does not
//! support idmapped mounts.

use std::{collections::BTreeSet, ffi::CStr, io, os::fd::AsFd, path::Path};

use file_tree::{Entry, Mounts, Visitor};
use keeper::contract::plan::IdMappings;
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, Stat, Uid},
    io::Errno,
};

/// Changes the owners of everything in `directory`, including itself, to the mapped ids of `ids`. Files of unmapped ids are given
/// to the overflow user. File capabilities, which are bound to the machine, are lost.
pub(super) fn shift_owners(directory: &Path, ids: &IdMappings) -> io::Result<()> {
    let top = file_tree::open(directory)?;
    let mut visitor = ChownVisitor { ids, seen: BTreeSet::new() };
    visitor.chown(&top, c".", &rustix::fs::fstat(&top)?)?;
    Ok(file_tree::walk(top, Mounts::Stay, &mut visitor)?)
}

struct ChownVisitor<'a> {
    ids: &'a IdMappings,
    /// Files with several names.
    seen: BTreeSet<u64>,
}

impl ChownVisitor<'_> {
    fn chown(&mut self, parent: impl AsFd, name: &CStr, stat: &Stat) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        // Change a file with several names only once.
        let first =
            kind == FileType::Directory || stat.st_nlink == 1 || self.seen.insert(stat.st_ino);
        let Some((uid, gid)) = self.ids.shift(stat.st_uid, stat.st_gid).filter(|_| first) else {
            return Ok(());
        };
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&parent, name, Some(uid), Some(gid), flags)?;
        // chown(2) clears these bits.
        if stat.st_mode & 0o6000 != 0 && kind != FileType::Symlink {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::chmodat(&parent, name, mode, AtFlags::empty())?;
        }
        Ok(())
    }
}

impl Visitor for ChownVisitor<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        self.chown(entry.parent, entry.name, &entry.stat()?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        fs::{self, Permissions},
        io::Write as _,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown},
    };

    use super::*;
    use keeper::contract::plan::LinuxIdMapping;

    #[test]
    fn chown_shifts_each_file_once() {
        if !nix::unistd::geteuid().is_root() {
            let line =
                "skipped: chown_shifts_each_file_once: needs Root: only root can give files away";
            let _ = writeln!(io::LineWriter::new(io::stderr()), "{line}");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/program"), "").unwrap();
        lchown(path("d/program"), Some(7), Some(8)).unwrap();
        fs::set_permissions(path("d/program"), Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(path("d/program"), path("again")).unwrap();
        std::os::unix::fs::symlink("/nowhere", path("link")).unwrap();
        fs::write(path("foreign"), "").unwrap();
        lchown(path("foreign"), Some(5000), Some(0)).unwrap();
        let map = |outside| vec![LinuxIdMapping { container_id: 0, host_id: outside, size: 1000 }];
        let ids = IdMappings { uid_mappings: map(100), gid_mappings: map(200) };
        shift_owners(place.path(), &ids).unwrap();
        let owner = |name: &str| {
            let meta = fs::symlink_metadata(path(name)).unwrap();
            (meta.uid(), meta.gid())
        };
        assert_eq!(owner(""), (100, 200));
        assert_eq!(owner("d"), (100, 200));
        assert_eq!(owner("d/program"), (107, 208));
        assert_eq!(owner("link"), (100, 200));
        assert_eq!(owner("foreign"), (5000, 0));
        let mode = fs::metadata(path("again")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o4755);
    }
}
