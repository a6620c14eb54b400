//! The record of a pod's CNI attachment, a file in the sandbox's directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CniError, answer};
use crate::PodNetns;
use crate::links::pod_netns::Identity;

const FILE: &str = "cni.json";

/// One attachment, recorded before its first plugin runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Attached {
    /// The network's configuration as it was read.
    pub(super) network: Value,
    /// The directories of its plugins.
    pub(super) bin_dirs: Vec<PathBuf>,
    /// `CNI_ARGS`.
    pub(super) arguments: String,
    /// The pod's runtime configuration, by capability.
    pub(super) runtime: Map<String, Value>,
    /// The number of plugins that may have had an effect.
    pub(super) begun: usize,
    /// The result of the last plugin that succeeded.
    pub(super) result: Option<Value>,
    /// DEL has succeeded for all plugins.
    pub(super) detached: bool,
    /// The namespace that it was attached in; absent in records of earlier versions.
    #[serde(default)]
    pub(super) netns: Option<KnownNetns>,
}

/// A namespace and the path that plugins got for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KnownNetns {
    pub(super) path: String,
    pub(super) identity: Identity,
}

impl Attached {
    /// Whether there is a record of an attachment, or of its end.
    pub(super) fn is_there(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// Returns `netns`, unless it is not the namespace that the pod was attached in.
    pub(super) fn same<'a>(&self, netns: Option<&'a PodNetns>) -> Option<&'a PodNetns> {
        netns.filter(|netns| {
            let known = self.netns.as_ref();
            known.is_none_or(|known| known.identity == netns.identity())
        })
    }

    /// The result for a plugin that gets the namespace as `path`, which may differ from ADD's: plugins compare the
    /// two.
    pub(super) fn result_at(&self, path: Option<&str>) -> Option<Value> {
        let mut result = self.result.clone();
        if let (Some(result), Some(known), Some(path)) = (&mut result, &self.netns, path) {
            answer::move_sandbox(result, &known.path, path);
        }
        result
    }

    pub(super) fn load(directory: &Path) -> Result<Option<Self>, CniError> {
        let failed = |source| CniError::Io { what: "read the pod's CNI record", source };
        match fs::read(directory.join(FILE)) {
            // A truncated or edited record is treated as absent.
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
        write().map_err(|source| CniError::Io { what: "write the pod's CNI record", source })
    }
}
