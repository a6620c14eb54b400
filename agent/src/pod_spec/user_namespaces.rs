//! The id ranges of pods with their own user namespace (`hostUsers: false`).
//!
//! Source: Kubernetes 1.36, pkg/kubelet/userns/userns_manager.go. Each pod has 65,536 ids, recorded in its directory in a kubelet's
//! format: a restarted agent, or a kubelet, finds the record, and the range is free once the directory is removed. Subordinate ids
//! of a user named `kubelet` are not used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use compact::Set;
use serde::{Deserialize, Serialize};

use crate::pod_spec::spec::UserNamespace;

/// The number of ids of a pod.
const IDS: u32 = 65_536;
/// The name of a pod's record.
const RECORD: &str = "userns";

/// Why a pod cannot get ids.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserNamespaceError {
    /// The record cannot be read or written.
    #[error("failed to use record of user namespace {path}")]
    Io {
        /// Its path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The record has invalid content.
    #[error("invalid record of user namespace {path}; remove it when the pod is gone")]
    Invalid {
        /// Its path.
        path: String,
    },
}

/// A record in a kubelet's format.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl Record {
    fn new(host_id: u32) -> Self {
        let mapping = Mapping { host_id, container_id: 0, length: IDS };
        Self { uid_mappings: vec![mapping.clone()], gid_mappings: vec![mapping] }
    }

    /// The first id, if the record has the agent's form.
    fn host_id(&self) -> Option<u32> {
        let host_id = self.uid_mappings.first()?.host_id;
        let valid = host_id >= IDS && host_id.is_multiple_of(IDS) && *self == Self::new(host_id);
        valid.then_some(host_id)
    }
}

/// Allocates ids. The records are the state; the lock prevents that two pods get the same range.
#[derive(Debug)]
pub(crate) struct UserNamespaces {
    /// The directory of the pods' directories.
    pods: PathBuf,
    granting: Mutex<()>,
}

impl UserNamespaces {
    pub(crate) fn new(root: &Path) -> Self {
        Self { pods: root.join("pods"), granting: Mutex::default() }
    }

    /// The ids of the pod with this directory: the recorded ones, or new ones. `None` if no range is free. Blocks on the file
    /// system.
    pub(crate) fn grant(&self, pod: &Path) -> Result<Option<UserNamespace>, UserNamespaceError> {
        let _guard = self.granting.lock().unwrap_or_else(PoisonError::into_inner);
        let path = pod.join(RECORD);
        let host_id = match read(&path)? {
            Some(host_id) => host_id,
            None => {
                let Some(host_id) = first_free(&self.taken()) else {
                    return Ok(None);
                };
                write(&path, host_id)?;
                host_id
            }
        };
        Ok(Some(UserNamespace { host_id, container_id: 0, length: IDS }))
    }

    /// The first ids of all recorded ranges. An unreadable record is an error only for its own pod.
    fn taken(&self) -> Set<u32> {
        let pods = fs::read_dir(&self.pods).into_iter().flatten().flatten();
        pods.filter_map(|pod| match read(&pod.path().join(RECORD)) {
            Ok(host_id) => host_id,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "ignored unreadable user namespace record"
                );
                None
            }
        })
        .collect()
    }
}

/// The lowest free range. The first range belongs to the node.
fn first_free(taken: &Set<u32>) -> Option<u32> {
    let ranges = (1..=u32::MAX / IDS).map(|number| number * IDS);
    ranges.into_iter().find(|host_id| !taken.contains(host_id))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> UserNamespaceError {
    let path = path.display().to_string();
    move |source| UserNamespaceError::Io { path, source }
}

fn read(path: &Path) -> Result<Option<u32>, UserNamespaceError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path)(error)),
    };
    let record = serde_json::from_slice::<Record>(&text).ok();
    let host_id = record.and_then(|record| record.host_id());
    host_id
        .map(Some)
        .ok_or_else(|| UserNamespaceError::Invalid { path: path.display().to_string() })
}

/// Writes a record atomically.
fn write(path: &Path, host_id: u32) -> Result<(), UserNamespaceError> {
    let new = path.with_extension("new");
    let text = serde_json::to_vec(&Record::new(host_id)).map_err(io::Error::from);
    text.and_then(|text| fs::write(&new, text))
        .and_then(|()| fs::rename(&new, path))
        .map_err(failed(path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn pod(root: &Path, name: &str) -> PathBuf {
        let pod = root.join("pods").join(name);
        fs::create_dir_all(&pod).unwrap();
        pod
    }

    fn first_id(ids: &UserNamespaces, pod: &Path) -> u32 {
        ids.grant(pod).unwrap().unwrap().host_id
    }

    #[test]
    fn every_pod_has_a_range_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let ids = UserNamespaces::new(root.path());
        let (a, b, c) = (pod(root.path(), "a"), pod(root.path(), "b"), pod(root.path(), "c"));
        assert_eq!((first_id(&ids, &a), first_id(&ids, &b)), (65_536, 131_072));
        // Another agent finds the ids that this one allocated.
        let ids = UserNamespaces::new(root.path());
        assert_eq!((first_id(&ids, &b), first_id(&ids, &a)), (131_072, 65_536));
        fs::remove_dir(root.path().join("pods/a")).unwrap_err();
        fs::remove_file(a.join(RECORD)).unwrap();
        assert_eq!(first_id(&ids, &c), 65_536, "the range of a pod that is gone is free");
    }

    #[test]
    fn record_of_a_kubelet_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let ids = UserNamespaces::new(root.path());
        let (a, b) = (pod(root.path(), "a"), pod(root.path(), "b"));
        let text = r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#;
        fs::write(a.join(RECORD), text).unwrap();
        assert_eq!(first_id(&ids, &b), 131_072);
        assert_eq!(first_id(&ids, &a), 65_536);
    }

    #[test]
    fn invalid_record_fails_its_own_pod_only() {
        let root = tempfile::tempdir().unwrap();
        let ids = UserNamespaces::new(root.path());
        let (a, b) = (pod(root.path(), "a"), pod(root.path(), "b"));
        for host_id in [0, 65_537] {
            let text = serde_json::to_vec(&Record::new(host_id)).unwrap();
            fs::write(a.join(RECORD), text).unwrap();
            let error = ids.grant(&a).unwrap_err();
            assert!(matches!(error, UserNamespaceError::Invalid { .. }), "{error}");
        }
        assert_eq!(first_id(&ids, &b), 65_536);
    }

    #[test]
    fn no_range_is_left_when_all_are_taken() {
        let taken: Set<u32> = (1..=65_535).map(|number| number * IDS).collect();
        assert_eq!(first_free(&taken), None);
        assert_eq!(first_free(&Set::new()), Some(IDS));
    }
}
