//! The limits on one image, and the remaining budget while it is read.

use std::cell::Cell;

use crate::error::ContentError;

/// Limits on one image, against resource exhaustion. Every field is an inclusive maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a manifest, an index or a configuration.
    pub document_bytes: u64,
    /// Bytes of the settings for containers in a configuration, which the record of each container repeats.
    pub defaults_bytes: u64,
    /// Bytes of all layers of one image once decompressed, and of an archive once decompressed.
    pub unpacked_bytes: u64,
    /// Decompressed bytes for each compressed one, checked once [`Limits::ratio_from`] is exceeded.
    pub ratio: u64,
    /// Decompressed bytes up to which the ratio is not checked: small files of zeros compress well.
    pub ratio_from: u64,
    /// Files, directories and links of all layers of one image, and members of an archive.
    pub entries: u64,
    /// Layers of one image. The kernel supports 500 lower directories in one overlay mount.
    pub layers: usize,
    /// Directories above a file.
    pub depth: usize,
    /// Bytes of the paths of all directories of a layer, which are kept in memory while it is unpacked.
    pub paths: u64,
    /// Bytes of one extension header: a long name, or a set of extended attributes.
    pub extension_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            document_bytes: 4 << 20,
            defaults_bytes: 256 << 10,
            unpacked_bytes: 64 << 30,
            ratio: 200,
            ratio_from: 1 << 30,
            entries: 1_000_000,
            layers: 256,
            depth: 256,
            paths: 128 << 20,
            extension_bytes: 1 << 20,
        }
    }
}

/// The remaining budget of one image under its [`Limits`], shared by its layers.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    bytes: Cell<u64>,
    entries: Cell<u64>,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            limits: limits.clone(),
            bytes: Cell::new(limits.unpacked_bytes),
            entries: Cell::new(limits.entries),
        }
    }

    /// Takes `n` bytes from the budget; fails if it is exhausted.
    pub(crate) fn take_bytes(&self, n: u64, what: &str) -> Result<(), ContentError> {
        self.check_bytes(n, what)?;
        self.bytes.set(self.bytes.get() - n);
        Ok(())
    }

    /// Fails if `n` more bytes would exceed the budget: checks declared sizes before anything is read or written.
    pub(crate) fn check_bytes(&self, n: u64, what: &str) -> Result<(), ContentError> {
        if n > self.bytes.get() {
            return Err(ContentError::TooMuch {
                what: what.to_owned(),
                limit: self.limits.unpacked_bytes,
                unit: "unpacked bytes",
            });
        }
        Ok(())
    }

    /// Takes one entry from the budget; fails if it is exhausted.
    pub(crate) fn take_entry(&self, what: &str) -> Result<(), ContentError> {
        let left = self.entries.get().checked_sub(1).ok_or_else(|| ContentError::TooMuch {
            what: what.to_owned(),
            limit: self.limits.entries,
            unit: "entries",
        })?;
        self.entries.set(left);
        Ok(())
    }
}
