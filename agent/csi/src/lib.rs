//! Mounts the volumes of pods through drivers of the Container Storage Interface (CSI), as the kubelet does.
//!
//! | file | what |
//! |---|---|
//! | `registration` | registers and deregisters the drivers whose sockets the plugin watcher finds (`registry`; `version` ◆) |
//! | `volumes`, `unmount` | stage, publish, unpublish and unstage volumes; `request` ◆ builds the requests, `grpc` sends them |
//! | `uses`, `record`, `paths`, `locks` | which pods use which volumes, on disk and in memory; one operation at a time per volume |
//! | `names` ◆ | directories, handles and names in the kubelet's format |
//! | `expand` | expands volumes; `expansion` ◆ decides which, and computes the status of their claims; `sizes` has the known sizes |
//! | `stats` ◆ | the usage of volumes, as drivers measure it |
//! | `limits` | publishes the numbers of volumes that drivers can attach, periodically |
//! | `tokens` | service account tokens for drivers |
//! | [`VolumeCluster`] | the interface to the cluster, which another package implements |
//!
//! # Invariants
//! - No volume is mounted without a record on disk, and no record is removed while its mount point has a mount. A block device
//!   counts as mounted where its driver publishes it.
//! - Calls of one volume never run concurrently.
//! - No volume is unstaged while a pod uses it, or may use it because a record cannot be read.
//!
//! # Tasks
//!
//! | task | owns | input | output |
//! |---|---|---|---|
//! | upkeep | nothing | unused volumes, registrations, CSIDriver objects, time | NodeUnstageVolume, limits |
//! | an operation, one for each call of the agent | the lock of its volume | the call | records, calls of the driver |

mod cluster;
mod expand;
mod expansion;
mod grpc;
mod limits;
mod locks;
mod names;
mod paths;
mod record;
mod registration;
mod registry;
mod request;
mod sizes;
mod stats;
mod tokens;
mod unmount;
mod uses;
mod version;
mod volumes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::machine::Machine;
use agent::storage::drivers::{
    DriverCalls, DriverError, DriverStep, DriverUsage, DriverVolume, Expansion, MountedVolume,
    VolumeDrivers,
};
use api::pod::Pod;
use async_trait::async_trait;
use plugins::PluginHandler;
use tokio::sync::watch;
use tokio::time::sleep;

pub use cluster::{NodeDriver, UpdatePeriods, VolumeCluster};

use registration::DriverHandler;
use volumes::Volumes;

/// The interval at which volumes with `requiresRepublish` are published again. The kubelet does so at each sync of a pod, which
/// is as often.
const RENEWAL: Duration = Duration::from_secs(60);

/// The first delay before a failed unstage is retried, and the maximum. The delay doubles each time.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// The drivers of a node. Clones share them.
#[derive(Clone)]
pub struct CsiDrivers {
    volumes: Arc<Volumes>,
    cluster: Arc<dyn VolumeCluster>,
    /// Whether the mounted volumes are known.
    volumes_are_known: watch::Sender<bool>,
}

impl CsiDrivers {
    /// Creates the drivers of a node, with the agent's directory. Nothing happens before [`CsiDrivers::run`].
    #[must_use]
    pub fn new(
        root_dir: &Path,
        node_name: &str,
        cluster: Arc<dyn VolumeCluster>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        let (root, node) = (root_dir.to_owned(), node_name.to_owned());
        let volumes = Arc::new(Volumes::new(root, node, Arc::clone(&cluster), machine));
        Self { volumes, cluster, volumes_are_known: watch::Sender::new(false) }
    }

    /// The handler that registers drivers, once [`CsiDrivers::run`] has found the mounted volumes.
    #[must_use]
    pub fn plugin_handler(&self) -> Arc<dyn PluginHandler> {
        Arc::new(DriverHandler {
            registry: Arc::clone(&self.volumes.registry),
            cluster: Arc::clone(&self.cluster),
            volumes_are_known: self.volumes_are_known.subscribe(),
        })
    }

    /// Unstages unused volumes and updates the limits of drivers until the future is dropped.
    pub async fn run(self) {
        self.volumes.find().await;
        self.volumes_are_known.send_replace(true);
        tokio::join!(self.unstage_unused_volumes(), self.volumes.update_limits());
    }

    async fn unstage_unused_volumes(&self) {
        let mut registrations = self.volumes.registry.registrations();
        let mut wait = RETRY;
        loop {
            let is_left = self.volumes.unstage_all_unused().await;
            if !is_left {
                wait = RETRY;
            }
            tokio::select! {
                () = sleep(wait), if is_left => wait = wait.saturating_mul(2).min(RETRY_MAX),
                () = self.volumes.uses.wait_until_unused(), if !is_left => {}
                // It cannot fail: `self` owns the sender.
                Ok(()) = registrations.changed() => {}
            }
        }
    }

    /// Runs an operation to completion even if its caller is dropped, because the driver does not stop either.
    async fn run_to_completion<T: Send + 'static>(
        &self,
        step: DriverStep,
        volume: &str,
        operation: impl Future<Output = Result<T, DriverError>> + Send + 'static,
    ) -> Result<T, DriverError> {
        let done = tasks::spawn(operation).await;
        done.unwrap_or_else(|error| {
            let message = format!("operation panicked: {error}");
            let volume = volume.to_owned();
            Err(DriverError { step, volume, message, waits: false, is_exhausted: false })
        })
    }

    async fn mount_volume(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
        republishes: bool,
    ) -> Result<MountedVolume, DriverError> {
        let volumes = Arc::clone(&self.volumes);
        let (pod, pod_dir, owned_volume) = (pod.clone(), pod_dir.to_owned(), volume.clone());
        let operation =
            async move { volumes.mount(&pod, &pod_dir, &owned_volume, republishes).await };
        self.run_to_completion(DriverStep::SetUp, &volume.spec_name, operation).await
    }
}

#[async_trait]
impl VolumeDrivers for CsiDrivers {
    async fn mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<MountedVolume, DriverError> {
        self.mount_volume(pod, pod_dir, volume, false).await
    }

    async fn renew(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<(), DriverError> {
        self.mount_volume(pod, pod_dir, volume, true).await.map(drop)
    }

    async fn expand(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<Expansion, DriverError> {
        let volumes = Arc::clone(&self.volumes);
        let (pod, pod_dir, owned_volume) = (pod.clone(), pod_dir.to_owned(), volume.clone());
        let operation = async move { volumes.expand_online(&pod, &pod_dir, &owned_volume).await };
        self.run_to_completion(DriverStep::Expand, &volume.spec_name, operation).await
    }

    fn renewal_period(&self) -> Duration {
        RENEWAL
    }

    async fn unmount(&self, pod_dir: &Path) -> Result<(), DriverError> {
        let (volumes, of) = (Arc::clone(&self.volumes), pod_dir.to_owned());
        let name = pod_dir.file_name().unwrap_or_default().to_string_lossy();
        self.run_to_completion(
            DriverStep::TearDown,
            &name,
            async move { volumes.unmount(&of).await },
        )
        .await
    }

    async fn usage(&self, pod_dir: &Path, spec_name: &str) -> Result<Option<DriverUsage>, String> {
        self.volumes.usage(pod_dir, spec_name).await
    }

    fn call_durations(&self) -> DriverCalls {
        self.volumes.registry.call_durations()
    }
}
