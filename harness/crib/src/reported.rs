//! The files that reports are written to.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::client::CallError;

/// Fails where a file cannot be written, before what is to be reported takes minutes. It leaves the file as it is.
///
/// # Errors
/// Bad usage: the file cannot be written.
pub(crate) fn ensure_writable(file: &Path) -> Result<(), CallError> {
    let opened = match std::fs::metadata(file) {
        // Opening a FIFO would wait for its reader, and end what it reads.
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(()),
        Ok(_) => File::options().append(true).open(file).map(drop),
        Err(_) => File::create(file).and_then(|_| std::fs::remove_file(file)),
    };
    opened
        .map_err(|source| CallError::Usage(format!("failed to write {}: {source}", file.display())))
}

/// Fails where two reports would go to one file.
///
/// # Errors
/// Bad usage: the file that is named twice.
pub(crate) fn ensure_distinct<'a>(
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<(), CallError> {
    let mut seen = BTreeSet::new();
    for file in files {
        // What is no file takes any number of them, as /dev/stdout.
        let is_special = file.metadata().is_ok_and(|found| !found.is_file());
        if !is_special && !seen.insert(std::path::absolute(file).unwrap_or_else(|_| file.clone())) {
            let message = format!("{} is named for two reports", file.display());
            return Err(CallError::Usage(message));
        }
    }
    Ok(())
}

/// Writes a report.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_file(file: &Path, text: &str) -> Result<(), CallError> {
    std::fs::write(file, text).map_err(|source| CallError::Io {
        doing: format!("write {}", file.display()),
        source,
    })
}
