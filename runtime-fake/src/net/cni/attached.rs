//! What a pod was connected with, in a file of the sandbox's directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CniError;

const FILE: &str = "cni.json";

/// One connection, from before its first plugin runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Attached {
    /// The network's configuration as it was read.
    pub(super) network: Value,
    /// Where its plugins are.
    pub(super) bin_dirs: Vec<PathBuf>,
    /// `CNI_ARGS`.
    pub(super) arguments: String,
    /// What there was to tell of the pod, by capability.
    pub(super) runtime: Map<String, Value>,
    /// How many of the plugins may have done something.
    pub(super) begun: usize,
    /// What the last plugin that succeeded answered.
    pub(super) result: Option<Value>,
    /// All of it was undone.
    pub(super) detached: bool,
}

impl Attached {
    /// Whether anything is known of a connection, or of its end.
    pub(super) fn is_there(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    pub(super) fn load(directory: &Path) -> Result<Option<Self>, CniError> {
        let failed = |source| CniError::Io {
            what: "read how the pod was connected",
            source,
        };
        match fs::read(directory.join(FILE)) {
            // One that was cut short, or changed by hand, says nothing: as if it were not there.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn save(&self, directory: &Path) -> Result<(), CniError> {
        let (file, new) = (directory.join(FILE), directory.join("cni.json.new"));
        let write = || {
            fs::write(&new, serde_json::to_vec(self)?)?;
            fs::rename(&new, &file)
        };
        write().map_err(|source| CniError::Io {
            what: "write down how the pod is connected",
            source,
        })
    }
}
