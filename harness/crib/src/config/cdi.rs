//! Where the Container Device Interface's specifications are.

use std::path::PathBuf;

use runtime_fake::Config;
use serde::Deserialize;

/// The section `cdi`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CdiSection {
    /// Directories; a later one is stronger than an earlier one.
    spec_dirs: Option<Vec<PathBuf>>,
}

impl CdiSection {
    pub(super) fn apply(self, config: &mut Config) {
        if let Some(directories) = self.spec_dirs {
            config.cdi_dirs = directories;
        }
    }
}
