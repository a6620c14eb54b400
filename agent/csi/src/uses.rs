//! Tracks which pods use which volumes, and which volumes are staged. The initial state is read from disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use compact::{Map, Set};
use tokio::sync::Notify;

use crate::cluster::VolumeCluster;
use crate::names::VolumeKey;
use crate::paths;
use crate::record::{self, Found};

/// Which pods use which volumes, and which volumes are staged.
pub(crate) struct Uses {
    state: Mutex<State>,
    cluster: Arc<dyn VolumeCluster>,
    /// Notified when a staged volume may have become unused.
    unused: Notify,
}

/// ◆ The known state of volumes.
#[derive(Debug, Default)]
struct State {
    /// The directories of the pods that use, or are about to use, a volume.
    users: Map<VolumeKey, Set<PathBuf>>,
    /// The target paths that this agent has published.
    published: Set<PathBuf>,
    /// The volumes that are or may be staged. True: this agent has staged the volume.
    staged: Map<VolumeKey, bool>,
    /// Whether a driver's volumes must be attached to nodes.
    attaches: Map<String, bool>,
    /// Volumes that are not attached, regardless of their driver: inline volumes.
    unattached: Set<VolumeKey>,
    /// Whether the state on disk has been read.
    is_loaded: bool,
    /// Directories with unreadable records: it is unknown which volumes they use.
    unreadable: Set<PathBuf>,
}

impl State {
    /// The unique names of the volumes that must not be detached.
    fn in_use(&self) -> Set<String> {
        let keys = self.users.keys().chain(self.staged.keys());
        let attached = keys.filter(|key| {
            !self.unattached.contains(key) && self.attaches.get(&key.driver) != Some(&false)
        });
        attached.map(VolumeKey::unique_name).collect()
    }

    /// Whether a volume is, or may be, staged, and no pod uses it.
    fn is_unused(&self, key: &VolumeKey) -> bool {
        self.is_loaded
            && self.unreadable.is_empty()
            && self.staged.contains_key(key)
            && !self.users.contains_key(key)
    }
}

impl Uses {
    pub(crate) fn new(cluster: Arc<dyn VolumeCluster>) -> Self {
        Self { state: Mutex::default(), cluster, unused: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the records below the agent's directory. Blocks.
    pub(crate) fn find(&self, root: &Path) -> io::Result<()> {
        let mut found = State { is_loaded: true, ..State::default() };
        for pod in record::pods(root)? {
            for paths in paths::of_pod(root, &pod)? {
                match paths.read() {
                    Found::Record(record) => {
                        if !record.is_persistent {
                            found.unattached.insert(record.key.clone());
                        }
                        found.users.entry(record.key).or_default().insert(pod.clone());
                    }
                    Found::Missing => {}
                    Found::Unreadable(error) => {
                        let (_, at) = paths.teardown();
                        tracing::warn!(volume = %at.display(), %error, "failed to read the record of a pod's volume; not unstaging any volume until the pod has ended");
                        found.unreadable.insert(at.to_owned());
                    }
                }
            }
        }
        found.staged.extend(find_staged(root, &found.users)?.into_iter().map(|key| (key, false)));
        let mut state = self.lock();
        // Pods may have started to use volumes in the meantime.
        for (key, pods) in found.users {
            state.users.entry(key).or_default().extend(pods);
        }
        for (key, known) in found.staged {
            state.staged.entry(key).or_insert(known);
        }
        state.unattached.extend(found.unattached);
        state.unreadable = found.unreadable;
        state.is_loaded = true;
        drop(state);
        self.unused.notify_one();
        Ok(())
    }

    /// The drivers for which it is unknown whether their volumes are attached.
    pub(crate) fn drivers_without_attach_setting(&self) -> Set<String> {
        let state = self.lock();
        let keys = state.users.keys().chain(state.staged.keys());
        let drivers = keys.map(|key| &key.driver);
        drivers.filter(|driver| !state.attaches.contains_key(*driver)).cloned().collect()
    }

    /// Records whether a driver's volumes are attached to nodes.
    pub(crate) fn set_attaches(&self, driver: &str, attaches: bool) {
        self.lock().attaches.insert(driver.to_owned(), attaches);
    }

    /// Reports the volumes in use to the cluster.
    pub(crate) fn report_in_use(&self) {
        let state = self.lock();
        if state.is_loaded {
            self.cluster.set_in_use(state.in_use());
        }
    }

    /// Records that a pod is about to use a volume, and whether the volume is attached to the node.
    pub(crate) fn add_use(&self, key: &VolumeKey, pod_dir: &Path, attaches: bool) {
        let mut state = self.lock();
        state.users.entry(key.clone()).or_default().insert(pod_dir.to_owned());
        if attaches {
            state.attaches.insert(key.driver.clone(), true);
            state.unattached.remove(key);
        } else {
            state.unattached.insert(key.clone());
        }
        drop(state);
        self.report_in_use();
    }

    pub(crate) fn is_published(&self, target: &Path) -> bool {
        self.lock().published.contains(target)
    }

    pub(crate) fn published(&self, target: &Path) {
        self.lock().published.insert(target.to_owned());
    }

    pub(crate) fn unpublished(&self, target: &Path) {
        self.lock().published.remove(target);
    }

    /// Whether this agent has staged the volume.
    pub(crate) fn is_staged(&self, key: &VolumeKey) -> bool {
        self.lock().staged.get(key) == Some(&true)
    }

    /// Records that a driver is about to stage a volume.
    pub(crate) fn begin_staging(&self, key: &VolumeKey) {
        self.lock().staged.entry(key.clone()).or_insert(false);
    }

    pub(crate) fn staged(&self, key: &VolumeKey) {
        self.lock().staged.insert(key.clone(), true);
    }

    pub(crate) fn unstaged(&self, key: &VolumeKey) {
        let mut state = self.lock();
        state.staged.remove(key);
        if !state.users.contains_key(key) {
            state.unattached.remove(key);
        }
        drop(state);
        self.report_in_use();
    }

    /// Records that a pod no longer uses a volume.
    pub(crate) fn remove_use(&self, key: &VolumeKey, pod_dir: &Path) {
        let mut state = self.lock();
        if let Some(pods) = state.users.get_mut(key) {
            pods.remove(pod_dir);
            if pods.is_empty() {
                state.users.remove(key);
            }
        }
        if !state.users.contains_key(key) && !state.staged.contains_key(key) {
            state.unattached.remove(key);
        }
        drop(state);
        self.report_in_use();
    }

    /// Whether a pod uses, or is about to use, a volume.
    pub(crate) fn is_used(&self, key: &VolumeKey) -> bool {
        self.lock().users.contains_key(key)
    }

    /// Whether a volume is, or may be, staged.
    pub(crate) fn is_maybe_staged(&self, key: &VolumeKey) -> bool {
        self.lock().staged.contains_key(key)
    }

    /// Records that a pod uses no volumes any more. Returns the volumes that it used.
    pub(crate) fn forget(&self, pod_dir: &Path) -> Vec<VolumeKey> {
        let keys: Vec<VolumeKey> = {
            let mut state = self.lock();
            state.unreadable.retain(|directory| !directory.starts_with(pod_dir));
            let users = state.users.iter();
            let used = users.filter(|(_, pods)| pods.contains(pod_dir));
            used.map(|(key, _)| key.clone()).collect()
        };
        for key in &keys {
            self.remove_use(key, pod_dir);
        }
        keys
    }

    /// The volumes that are, or may be, staged, and that no pod uses.
    pub(crate) fn unused(&self) -> Vec<VolumeKey> {
        let state = self.lock();
        state.staged.keys().filter(|key| state.is_unused(key)).cloned().collect()
    }

    pub(crate) fn is_unused(&self, key: &VolumeKey) -> bool {
        self.lock().is_unused(key)
    }

    /// Makes the upkeep task check for unused volumes again.
    pub(crate) fn retry_unstaging(&self) {
        self.unused.notify_one();
    }

    /// Waits until a volume may have become unused. Cancel-safe.
    pub(crate) async fn wait_until_unused(&self) {
        self.unused.notified().await;
    }
}

/// Finds the volumes that are, or may be, staged. `users` are those of the pods' records.
fn find_staged(root: &Path, users: &Map<VolumeKey, Set<PathBuf>>) -> io::Result<Vec<VolumeKey>> {
    let mut staged = Vec::new();
    for (directory, found) in paths::device_records(root)? {
        match found {
            Found::Record(record) if record.key.staging(root).exists() => staged.push(record.key),
            Found::Record(_) | Found::Missing => {}
            Found::Unreadable(error) => warn_unidentified(&directory, &error),
        }
    }
    for directory in record::staged(root)? {
        match record::read(&directory) {
            Found::Record(record) => staged.push(record.key),
            Found::Missing => {}
            Found::Unreadable(error) => {
                // The directory has the digest of the handle as its name, and is below that of the driver, so only one volume can be
                // staged in it.
                let mut keys = users.keys().filter(|key| key.device.is_none());
                let key = keys.find(|key| key.staging(root).parent() == Some(directory.as_path()));
                let Some(key) = key else {
                    warn_unidentified(&directory, &error);
                    continue;
                };
                // The pod's record is removed before the volume is unstaged.
                let written = record::write_staged(key, &key.staging(root));
                let result =
                    written.map_or_else(|error| error.to_string(), |()| "written".to_owned());
                tracing::warn!(directory = %directory.display(), %error, result, "failed to read the record of a staged volume; writing it again from the record of a pod");
                staged.push(key.clone());
            }
        }
    }
    Ok(staged)
}

/// Warns of a staged volume without a known handle: there is no request for the driver, and it is not reported as in use.
fn warn_unidentified(directory: &Path, error: &io::Error) {
    let record = directory.join(record::FILE);
    tracing::warn!(record = %record.display(), %error, "failed to read the record of a staged volume; not unstaging it: unmount it, and remove the record");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;
    use crate::names::target;
    use crate::tokens::tests::Numbered;

    fn key(handle: &str) -> VolumeKey {
        VolumeKey { driver: "d".to_owned(), handle: handle.to_owned(), device: None }
    }

    #[test]
    fn unreadable_record_of_staged_volume_is_written_again_from_that_of_a_pod() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let directory = |handle: &str| key(handle).staging(root).parent().unwrap().to_owned();
        for handle in ["known", "unknown"] {
            fs::create_dir_all(key(handle).staging(root)).unwrap();
            fs::write(directory(handle).join(record::FILE), "{").unwrap();
        }
        let pod_dir = root.join("pods/u1");
        let published = target(&pod_dir, "pv").parent().unwrap().to_owned();
        fs::create_dir_all(&published).unwrap();
        let text =
            r#"{"driverName":"d","volumeHandle":"known","volumeLifecycleMode":"Persistent"}"#;
        fs::write(published.join(record::FILE), text).unwrap();
        let uses = Uses::new(Arc::new(Numbered::default()));
        uses.find(root).unwrap();
        assert_eq!(uses.unused(), []);
        uses.remove_use(&key("known"), &pod_dir);
        assert_eq!(uses.unused(), [key("known")]);
        let in_use: Vec<String> = uses.lock().in_use().into_iter().collect();
        assert_eq!(in_use, [key("known").unique_name()], "it must not be detached");
        // The pod's record may be gone after a restart.
        fs::remove_file(published.join(record::FILE)).unwrap();
        let restarted = Uses::new(Arc::new(Numbered::default()));
        restarted.find(root).unwrap();
        assert_eq!(restarted.unused(), [key("known")]);
        assert!(matches!(record::read(&directory("unknown")), Found::Unreadable(_)), "it is kept");
    }
}
