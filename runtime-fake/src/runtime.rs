//! The operations on sandboxes and containers, for every caller.
//!
//! The store owns the records and the keepers own the processes; an operation changes both.

mod checkpoint;
mod chown;
mod cleanup;
mod containers;
mod copies;
mod create;
mod devices;
mod error;
mod execs;
pub(crate) mod measure;
pub(crate) mod network;
pub(crate) mod pods;
mod ports;
mod program;
pub(crate) mod reconnect;
mod resources;
mod restore;
mod sandboxes;
pub(crate) mod seccomp;
mod streams;
mod volumes;
mod zygote;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use file_tree::Trash;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use copies::Copied;
pub(crate) use error::{Error, io};
use keeper::kernel::cgroup::Cgroups;
pub(crate) use network::{
    AttachedSandbox, Connected, EgressMode, Network, NetworkOptions, ReconfigureResult,
};
pub(crate) use pods::Pods;
pub(crate) use ports::PortError;
pub(crate) use program::Program;
pub(crate) use tasks::blocking;

use crate::{
    config::Config,
    id::{ContainerId, SandboxId},
    security_modules::Modules,
    store::{Store, container_dir, sandbox_dir},
};
use image::ImageStore;

/// The state shared by all operations. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) images: Arc<ImageStore>,
    pub(crate) network: Arc<Network>,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) modules: Arc<Modules>,
    pub(crate) pods: Arc<Pods>,
    /// Compiled seccomp filters.
    pub(crate) filters: Arc<seccomp::Filters>,
    /// The trash for removed directories.
    pub(crate) trash: Arc<Trash>,
    /// The previous measurements.
    pub(crate) rates: Arc<crate::stats::Rates>,
    /// The measurements of containers' layers.
    pub(crate) layer_usages: Arc<crate::stats::LayerUsages>,
    /// Operations that continue when their client disconnects.
    pub(crate) tasks: TaskTracker,
    /// The client whose Services are served.
    pub(crate) services: Arc<crate::services::client::ServicesClient>,
    /// Cancelled when the daemon stops; streams then end.
    pub(crate) stopping: CancellationToken,
    /// The containers that are being checkpointed.
    pub(crate) checkpoints: Arc<Mutex<BTreeSet<ContainerId>>>,
    /// Held while the weight of a QoS class is computed and written.
    pub(crate) class_weights: Arc<tokio::sync::Mutex<()>>,
    /// Set once mounting an overlay has failed on this machine: images are copied then.
    pub(crate) copies: Arc<AtomicBool>,
}

impl Runtime {
    pub(crate) fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        sandbox_dir(&self.config.state_dir, id)
    }

    fn container_dir(&self, sandbox: &SandboxId, id: &ContainerId) -> PathBuf {
        container_dir(&self.config.state_dir, sandbox, id)
    }

    /// Removes the directory of a failed creation. If that fails, the rest is removed with its sandbox or at the next start.
    fn discard(&self, directory: &Path) {
        if let Err(error) = self.trash.put(directory) {
            tracing::warn!(directory = %directory.display(), %error, "failed to remove directory");
        }
    }

    /// Runs an operation to completion even if its client disconnects, so that it is never left incomplete.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        match self.tasks.spawn(tasks::boxed(operation)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(crate::store::StateError::ShuttingDown.into()),
            },
        }
    }
}

/// The parameters for opening the network of `config`.
pub(crate) fn network_options(config: &Config) -> NetworkOptions {
    NetworkOptions {
        isolation: config.isolation,
        name: crate::instance_name(&config.state_dir),
        state_dir: config.state_dir.clone(),
        cni: config.cni.clone(),
        cidrs: network::pod_range::current(&config.state_dir, config.pod_cidrs),
    }
}
