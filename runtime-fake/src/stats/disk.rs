//! Measures the disk usage of a writable layer.

use std::{collections::HashSet, path::Path};

use file_tree::{Entry, Mounts, Visitor};
use rustix::{
    fs::{FileType, Stat},
    io::Errno,
};

use super::usage::Disk;

/// The bytes and inodes of everything in `directory`, including itself. Entries that disappear during the walk
/// are not counted; a file with several names counts once.
pub(crate) fn of_layer(directory: &Path) -> Disk {
    let mut sum = Sum::default();
    if let Ok(whole) = rustix::fs::statvfs(directory) {
        sum.disk.limit = whole.f_blocks.saturating_mul(whole.f_frsize);
        sum.disk.inodes_total = whole.f_files;
        sum.disk.inodes_free = whole.f_ffree;
    }
    if let Ok(top) = file_tree::open(directory) {
        if let Ok(stat) = rustix::fs::fstat(&top) {
            sum.add(&stat);
        }
        if let Err(errno) = file_tree::walk(top, Mounts::Stay, &mut sum) {
            // The container moves directories during the walk; the next measurement starts over.
            tracing::debug!(directory = %directory.display(), %errno, "failed to measure all of a layer");
        }
    }
    sum.disk
}

/// The files of a sandbox's directory that are mounted in its containers, whose root may fill them.
const TEXTS: [&str; 3] = ["hostname", "hosts", "resolv.conf"];
/// The bytes of these files that are not counted: a file that the runtime wrote is far smaller.
const UNCOUNTED: u64 = 1 << 20;

/// The bytes of the files in a sandbox's directory that its containers have filled.
pub(crate) fn of_texts(sandbox: &Path) -> u64 {
    let stats = TEXTS.iter().filter_map(|name| rustix::fs::lstat(sandbox.join(name)).ok());
    let used: u64 = stats.map(|stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512).sum();
    if used > UNCOUNTED { used } else { 0 }
}

#[derive(Default)]
struct Sum {
    disk: Disk,
    linked: HashSet<(u64, u64)>,
}

impl Sum {
    fn add(&mut self, stat: &Stat) {
        let again = stat.st_nlink > 1
            && FileType::from_raw_mode(stat.st_mode) != FileType::Directory
            && !self.linked.insert((stat.st_dev, stat.st_ino));
        if !again {
            self.disk.inodes += 1;
            self.disk.used += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
    }
}

impl Visitor for Sum {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        if let Ok(stat) = entry.stat() {
            self.add(&stat);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn disk_usage_counts_hard_links_once() {
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

    #[test]
    fn files_of_pod_count_only_if_containers_have_filled_them() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("hostname"), "p\n").unwrap();
        fs::write(at("hosts"), vec![b'#'; 100_000]).unwrap();
        assert_eq!(of_texts(directory.path()), 0);
        fs::write(at("resolv.conf"), vec![b'#'; 2 << 20]).unwrap();
        assert!(of_texts(directory.path()) >= 2 << 20);
        assert_eq!(of_texts(&at("missing")), 0);
    }
}
