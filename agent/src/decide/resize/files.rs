//! The files with a pod's allocated and actuated resources, for the next agent. They are removed with the pod's directory.

use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::pod::Pod;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::actuated::{Actuated, has_resources};
use super::allocation::Allocation;
use tasks::blocking;

const ALLOCATED: &str = "allocated-resources.json";
const ACTUATED: &str = "actuated-resources.json";

/// The resources that an earlier agent granted a pod.
pub(crate) fn allocated(directory: &Path) -> Option<Allocation> {
    read(&directory.join(ALLOCATED))
}

/// Records the resources granted to a pod, which replace `before`. A pod without CPU and memory needs no file.
pub(crate) fn keep_allocated(directory: &Path, pod: &Pod, before: Option<&Allocation>) {
    let allocation = Allocation::of(pod);
    if has_resources(pod) && before != Some(&allocation) {
        keep(directory, ALLOCATED, &allocation);
    }
}

/// The resources last passed to the runtime for a pod, by this agent or an earlier one. The worker creates it, its executor changes
/// it.
#[derive(Clone, Debug)]
pub(crate) struct ActuatedRecord {
    directory: PathBuf,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    now: Arc<Actuated>,
    /// Whether `now` is in the file.
    is_kept: bool,
}

impl ActuatedRecord {
    /// Opens the record in a pod's directory. Without one, all running containers count as having the resources `assumed`.
    pub(crate) fn open(directory: PathBuf, assumed: Actuated) -> Self {
        let recorded: Option<Actuated> = read(&directory.join(ACTUATED));
        let inner =
            Inner { is_kept: recorded.is_some(), now: Arc::new(recorded.unwrap_or(assumed)) };
        Self { directory, inner: Arc::new(Mutex::new(inner)) }
    }

    /// The resources last passed to the runtime.
    pub(crate) fn now(&self) -> Arc<Actuated> {
        Arc::clone(&self.lock().now)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the record, and waits until the file is written.
    pub(crate) async fn change(&self, change: impl FnOnce(&mut Actuated)) {
        let now = {
            let mut inner = self.lock();
            let before = Arc::clone(&inner.now);
            change(Arc::make_mut(&mut inner.now));
            if inner.is_kept && inner.now == before {
                return;
            }
            inner.is_kept = true;
            Arc::clone(&inner.now)
        };
        let directory = self.directory.clone();
        blocking(move || keep(&directory, ACTUATED, &*now)).await;
    }
}

fn read<T: DeserializeOwned>(file: &Path) -> Option<T> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %file.display(), %error, "failed to read resources of a pod");
            return None;
        }
    };
    serde_json::from_slice(&text)
        .inspect_err(|error| {
            tracing::warn!(path = %file.display(), %error, "failed to decode resources of a pod");
        })
        .ok()
}

/// Writes a file of a pod. If the write fails, the next agent only repeats calls.
fn keep(directory: &Path, name: &str, content: &impl Serialize) {
    if let Err(error) = write(directory, name, content) {
        tracing::warn!(path = %directory.join(name).display(), %error, "failed to record resources of a pod");
    }
}

/// Writes a file and renames it into place, so that a crash leaves the old or the new one.
fn write(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
    let unfinished = directory.join(format!("{name}.tmp"));
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&unfinished)?;
    io::Write::write_all(&mut file, &serde_json::to_vec(content)?)?;
    std::fs::rename(&unfinished, directory.join(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::pod_spec::spec::Node;

    fn pod(resources: serde_json::Value) -> Pod {
        fixtures::pod(json!({"spec": {"containers": [{"name": "a", "resources": resources}]}}))
    }

    #[test]
    fn allocation_is_kept_for_pods_with_resources() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("pod");
        keep_allocated(&directory, &pod(json!({})), None);
        assert!(!directory.exists());
        let with = pod(json!({"requests": {"cpu": "1"}}));
        keep_allocated(&directory, &with, None);
        assert_eq!(allocated(&directory), Some(Allocation::of(&with)));
        std::fs::write(directory.join(ALLOCATED), "{").unwrap();
        assert_eq!(allocated(&directory), None);
    }

    #[tokio::test]
    async fn actuated_resources_survive_agent_restart() {
        let root = tempfile::tempdir().unwrap();
        let node = Node::new("n", "/r", "/l");
        let assumed = Actuated::new(&pod(json!({"requests": {"cpu": "1"}})), &node);
        let open = || ActuatedRecord::open(root.path().join("pod"), assumed.clone());
        let record = open();
        assert_eq!(record.now().container("a").cpu_request, 1000);
        record
            .change(|now| {
                now.containers.entry("a".to_owned()).or_default().cpu_request = 7;
            })
            .await;
        assert_eq!(open().now().container("a").cpu_request, 7);
    }
}
