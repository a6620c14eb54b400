//! Files of state: written beside their place and renamed into it, so that one that is read is whole.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file.
///
/// # Errors
/// The file cannot be written, or its directory is not there.
pub(crate) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    let mut written = File::options().write(true).create(true).truncate(true).open(&new)?;
    written.write_all(content)?;
    // It counts after a power cut too: devices are not to be given twice.
    written.sync_all()?;
    std::fs::rename(&new, file)
}

/// The content of a file; `None`: there is none.
///
/// # Errors
/// In words: it cannot be read.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
