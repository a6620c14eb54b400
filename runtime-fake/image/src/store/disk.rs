//! Writes files atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Replaces `path` by `bytes` atomically: a reader, also one after a SIGKILL, finds the old or the new content.
/// The temporary file is made in `temporary`, on the same file system.
pub(crate) fn write(path: &Path, bytes: &[u8], temporary: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(temporary)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    sync_parent(path)
}

/// Like [`write`], but without fsync, for content that need not survive a power cut.
pub(crate) fn replace(path: &Path, bytes: &[u8], temporary: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(temporary)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Makes renames and removals in the directory of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
