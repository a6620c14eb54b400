//! How much of the disk the trees of a pod use.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use file_tree::{Entry, Errno, Mounts, Visitor};

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

#[derive(Default)]
struct Sum {
    bytes: u64,
    /// Files with several names, which count once.
    linked: BTreeSet<(u64, u64)>,
}

impl Visitor for Sum {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        // One that is gone uses nothing.
        let Ok(stat) = entry.stat() else {
            return Ok(());
        };
        let counts = entry.is_directory()
            || stat.st_nlink < 2
            || self.linked.insert((stat.st_dev, stat.st_ino));
        if counts {
            let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
            self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        }
        Ok(())
    }
}

/// The bytes that everything in a directory takes on the disk; 0 if there is no such directory. Other mounts are left out.
pub(crate) fn of_tree(path: &Path) -> io::Result<u64> {
    let top = match file_tree::open(path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut sum = Sum::default();
    file_tree::walk(top, Mounts::Stay, &mut sum)?;
    Ok(sum.bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn blocks_are_counted_once_whatever_their_names() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of_tree(&root.path().join("none")).unwrap(), 0);
        fs::create_dir(root.path().join("d")).unwrap();
        let file = root.path().join("d/f");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        let one = of_tree(root.path()).unwrap();
        assert!((1 << 20..1 << 21).contains(&one), "{one}");
        fs::hard_link(&file, root.path().join("again")).unwrap();
        assert_eq!(of_tree(root.path()).unwrap(), one);
        let sparse = fs::File::create(root.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        assert_eq!(of_tree(root.path()).unwrap(), one);
    }
}
