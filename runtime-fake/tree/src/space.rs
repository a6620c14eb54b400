//! The size of file systems.

use std::io;
use std::path::Path;

/// Size and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The whole.
    pub capacity: u64,
    /// What a user without privileges can still write.
    pub available: u64,
}

/// Measures the file system that has this path.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn free_space_is_part_of_the_whole() {
        let found = space(Path::new("/")).unwrap();
        assert!(found.capacity > 0 && found.available <= found.capacity);
        assert!(space(Path::new("/no/such/path")).is_err());
    }
}
