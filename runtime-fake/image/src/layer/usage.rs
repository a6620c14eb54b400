//! Counts the disk usage of a layer, even when an entry replaces another.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The disk usage of an unpacked layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Sum of the lengths of its files.
    pub(crate) file_bytes: u64,
    /// Disk blocks of its files and directories, in bytes.
    pub(crate) disk_bytes: u64,
    /// Files, directories and links.
    pub(crate) inodes: u64,
}

impl Usage {
    /// Subtracts the usage of removed entries.
    pub(super) fn subtract(&mut self, removed: Self) {
        self.file_bytes = self.file_bytes.saturating_sub(removed.file_bytes);
        self.disk_bytes = self.disk_bytes.saturating_sub(removed.disk_bytes);
        self.inodes = self.inodes.saturating_sub(removed.inodes);
    }
}

/// The disk space of a file, in bytes.
pub(crate) fn blocks(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * 512
}

/// The usage that is freed when `name` in `parent` is removed, with everything below it; for a file with several names, only this
/// name's. The space of directories is counted when the layer is complete.
pub(super) fn of(parent: &OwnedFd, name: &[u8]) -> Result<Usage, Errno> {
    let mut usage = Usage::default();
    let mut open: Vec<(OwnedFd, Vec<Vec<u8>>)> = Vec::new();
    let mut next = Some(name.to_vec());
    while let Some(name) = next {
        let directory = open.last().map_or(parent.as_fd(), |(fd, _)| fd.as_fd());
        let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        usage.inodes += 1;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile && stat.st_nlink == 1 {
            usage.file_bytes += u64::try_from(stat.st_size).unwrap_or(0);
            usage.disk_bytes += blocks(&stat);
        }
        if kind == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(directory, &name, flags, Mode::empty())?;
            let names = file_tree::names(&inner)?;
            open.push((inner, names));
        }
        next = loop {
            match open.last_mut() {
                None => break None,
                Some((_, names)) => match names.pop() {
                    Some(name) => break Some(name),
                    None => open.pop(),
                },
            };
        };
    }
    Ok(usage)
}
