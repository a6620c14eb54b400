//! The size of file systems.

use std::io;
use std::path::Path;

/// Size and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The size.
    pub capacity: u64,
    /// The bytes that an unprivileged user can still write.
    pub available: u64,
}

/// Measures the file system of this path.
///
/// # Errors
/// Fails if the path does not exist or is not accessible.
pub fn space(path: &Path) -> io::Result<Space> {
    let found = rustix::fs::statvfs(path)?;
    Ok(Space {
        capacity: found.f_blocks.saturating_mul(found.f_frsize),
        available: found.f_bavail.saturating_mul(found.f_frsize),
    })
}

/// The usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsUsage {
    /// Its size and free space.
    pub space: Space,
    /// Bytes in use, without the space reserved for privileged users.
    pub used: u64,
    /// All inodes; 0 if the file system has no fixed number.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// Measures the usage of the file system of this path.
///
/// # Errors
/// Fails if the path does not exist or is not accessible.
pub fn usage(path: &Path) -> io::Result<FsUsage> {
    let found = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(FsUsage {
        space: Space { capacity: bytes(found.f_blocks), available: bytes(found.f_bavail) },
        used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn free_space_is_at_most_total_size() {
        let found = space(Path::new("/")).unwrap();
        assert!(found.capacity > 0 && found.available <= found.capacity);
        assert!(space(Path::new("/no/such/path")).is_err());
        let usage = usage(Path::new("/")).unwrap();
        assert_eq!(usage.space.capacity, found.capacity);
        assert!(usage.used <= found.capacity && usage.inodes_free <= usage.inodes);
    }
}
