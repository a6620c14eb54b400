//! Errors of a copy, and notes about skipped files.

use std::io;

use image::ContentError;
use rustix::io::Errno;

/// Why a copy ended before it was complete. The files copied until then stay.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The kernel refused an operation.
    #[error("failed to {doing} {path:?}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its file.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A path, or a member of an archive, cannot be copied.
    #[error("{path:?} {why}")]
    Refused {
        /// The path.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// The archive is malformed, or its sender failed.
    #[error("the archive cannot be read")]
    Archive(#[from] ContentError),
    /// The archive's receiver failed.
    #[error("failed to write the archive")]
    Receiver(#[source] io::Error),
}

impl CopyError {
    pub(crate) fn errno(doing: &'static str, path: &[u8]) -> impl Fn(Errno) -> Self {
        let path = lossy(path);
        move |errno| Self::Io { doing, path: path.clone(), source: errno.into() }
    }

    pub(crate) fn refused(path: &[u8], why: &'static str) -> Self {
        Self::Refused { path: lossy(path), why }
    }
}

pub(crate) fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Limit on the named files.
const NOTES: usize = 20;

/// The files that a copy skipped, with reasons. An archive can be full of such files, so only the first ones are named.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Notes {
    first: Vec<String>,
    more: u64,
}

impl Notes {
    pub(crate) fn add(&mut self, path: &[u8], why: &str) {
        match self.first.len() < NOTES {
            true => self.first.push(format!("{:?}: {why}", lossy(path))),
            false => self.more += 1,
        }
    }

    /// One line for each file, and one for the number of files not named.
    #[must_use]
    pub fn lines(self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("{} more files", self.more));
        self.first.into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_first_entries_and_count_the_rest() {
        let mut notes = Notes::default();
        (0..25).for_each(|number| notes.add(format!("f{number}").as_bytes(), "a socket"));
        let lines = notes.lines();
        assert_eq!(lines.len(), 21);
        assert_eq!(lines.first().map(String::as_str), Some("\"f0\": a socket"));
        assert_eq!(lines.last().map(String::as_str), Some("5 more files"));
    }
}
