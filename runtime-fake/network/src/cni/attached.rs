//! What a pod was connected with, in a file of the sandbox's directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CniError, answer};
use crate::{PodNetns, pod_netns::Identity};

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
    /// The namespace that it was connected in; unknown of connections of earlier versions.
    #[serde(default)]
    pub(super) netns: Option<KnownNetns>,
}

/// A namespace as plugins were told of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KnownNetns {
    pub(super) path: String,
    pub(super) identity: Identity,
}

impl Attached {
    /// Whether anything is known of a connection, or of its end.
    pub(super) fn is_there(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// `netns`, unless it is another one than the pod was connected in.
    pub(super) fn same<'a>(&self, netns: Option<&'a PodNetns>) -> Option<&'a PodNetns> {
        netns.filter(|netns| {
            let known = self.netns.as_ref();
            known.is_none_or(|known| known.identity == netns.identity())
        })
    }

    /// The result for a plugin that is told of the namespace by `path`, which may be another one than ADD had: plugins
    /// compare them.
    pub(super) fn result_at(&self, path: Option<&str>) -> Option<Value> {
        let mut result = self.result.clone();
        if let (Some(result), Some(known), Some(path)) = (&mut result, &self.netns, path) {
            answer::move_sandbox(result, &known.path, path);
        }
        result
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
