//! What a writable layer takes on its file system.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::usage::Disk;

/// The bytes and inodes of everything below `directory`, itself included. What goes away meanwhile is not counted; a file
/// with several names counts once.
pub(crate) fn of_layer(directory: &Path) -> Disk {
    let mut disk = Disk::default();
    if let Ok(whole) = rustix::fs::statvfs(directory) {
        disk.limit = whole.f_blocks.saturating_mul(whole.f_frsize);
        disk.inodes_total = whole.f_files;
        disk.inodes_free = whole.f_ffree;
    }
    let mut linked = HashSet::new();
    let mut left: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let again = metadata.nlink() > 1
            && !metadata.is_dir()
            && !linked.insert((metadata.dev(), metadata.ino()));
        if again {
            continue;
        }
        disk.inodes += 1;
        disk.used += metadata.blocks() * 512;
        if metadata.is_dir()
            && let Ok(entries) = fs::read_dir(&path)
        {
            left.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    disk
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let empty = of_layer(directory.path());
        fs::create_dir(at("below")).unwrap();
        fs::write(at("below/file"), vec![1; 100_000]).unwrap();
        let one = of_layer(directory.path());
        fs::hard_link(at("below/file"), at("other")).unwrap();
        std::os::unix::fs::symlink("/", at("link")).unwrap();
        let both = of_layer(directory.path());
        assert_eq!(one.inodes, empty.inodes + 2);
        assert!(one.used >= empty.used + 100_000, "{one:?}");
        assert_eq!(both.inodes, one.inodes + 1, "the link to / is not followed");
        assert_eq!(both.limit, one.limit);
        assert!(both.used - one.used < 100_000, "{both:?}");
    }
}
