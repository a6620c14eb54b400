//! Copies of images for pods with a user namespace of their own, where the file system has no idmapped mounts.

use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown},
    path::Path,
};

use crate::launch::IdMaps;

/// Gives everything in `directory`, itself too, to the owners of the same numbers in a user namespace with `ids`. What
/// belongs to an id that it does not have stays nobody's. Capabilities of files, which are the box's own, are lost.
pub(super) fn give(directory: &Path, ids: &IdMaps) -> io::Result<()> {
    let (mut left, mut seen) = (vec![directory.to_owned()], BTreeSet::new());
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path)?;
        // A file with several names is given once.
        let first = meta.is_dir() || meta.nlink() == 1 || seen.insert(meta.ino());
        if let Some((uid, gid)) = ids.shift(meta.uid(), meta.gid())
            && first
        {
            lchown(&path, Some(uid), Some(gid))?;
            // A change of owner takes these bits away.
            if meta.mode() & 0o6000 != 0 && !meta.is_symlink() {
                fs::set_permissions(&path, Permissions::from_mode(meta.mode() & 0o7777))?;
            }
        }
        if meta.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::launch::IdMap;

    #[test]
    fn everything_changes_hands_once() {
        if !nix::unistd::geteuid().is_root() {
            let line = "skipped: everything_changes_hands_once: only root can give files away";
            let _ = writeln!(io::stderr(), "{line}");
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
        let map = |outside| {
            vec![IdMap {
                inside: 0,
                outside,
                count: 1000,
            }]
        };
        let ids = IdMaps {
            uids: map(100),
            gids: map(200),
        };
        give(place.path(), &ids).unwrap();
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
