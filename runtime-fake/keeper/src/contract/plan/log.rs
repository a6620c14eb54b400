//! The log file of a container.

use std::{num::NonZeroU64, path::PathBuf};

use serde::{Deserialize, Serialize};

/// A log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlan {
    /// The absolute directory that the file must stay in.
    pub directory: PathBuf,
    /// The path relative to that directory.
    pub path: PathBuf,
    /// The maximum size in bytes; a log that would exceed it is truncated first.
    #[serde(default)]
    pub max: Option<NonZeroU64>,
}

impl LogPlan {
    /// The absolute path.
    pub fn whole(&self) -> PathBuf {
        self.directory.join(&self.path)
    }
}
