//! The operations on sandboxes and containers, for every kind of caller.
//!
//! Records are the store's, processes the keepers'; this is the walk between the two.

mod checkpoint;
mod chown;
mod cleanup;
mod clients;
mod containers;
mod create;
mod criu;
mod devices;
mod error;
mod execs;
pub(crate) mod measure;
mod network;
pub(crate) mod pods;
mod ports;
mod program;
pub(crate) mod reach;
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

pub(crate) use error::{Error, io};
use keeper::cgroup::Cgroups;
pub(crate) use network::{Connected, Network, Opening, ReconfigureResult, Target};
pub(crate) use pods::Pods;
pub(crate) use ports::PortError;
pub(crate) use program::Program;

use crate::{
    config::Config,
    id::{ContainerId, SandboxId},
    security_modules::Modules,
    store::{Store, container_dir, sandbox_dir},
};
use image::ImageStore;

/// Everything that a call may need. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) images: Arc<ImageStore>,
    pub(crate) network: Arc<Network>,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) modules: Arc<Modules>,
    pub(crate) pods: Arc<Pods>,
    /// The seccomp filters that were made.
    pub(crate) filters: Arc<seccomp::Filters>,
    /// Where directories go that are to be deleted.
    pub(crate) trash: Arc<Trash>,
    /// What was measured last.
    pub(crate) rates: Arc<crate::stats::Rates>,
    /// Operations that go on when their client is gone.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the daemon stops: streams end.
    pub(crate) stopping: CancellationToken,
    /// The containers that are being checkpointed.
    pub(crate) checkpoints: Arc<Mutex<BTreeSet<ContainerId>>>,
    /// Set once overlayfs was found not to work here: images are copied.
    pub(crate) copies: Arc<AtomicBool>,
}

impl Runtime {
    pub(crate) fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        sandbox_dir(&self.config.state_dir, id)
    }

    fn container_dir(&self, sandbox: &SandboxId, id: &ContainerId) -> PathBuf {
        container_dir(&self.config.state_dir, sandbox, id)
    }

    /// Removes a directory of something that did not come to be. What is left of it goes with its sandbox or at the next start.
    fn discard(&self, directory: &Path) {
        if let Err(error) = self.trash.put(directory) {
            tracing::warn!(directory = %directory.display(), %error, "failed to remove directory");
        }
    }

    /// Runs an operation to its end, even if the client that asked for it goes away: half of it must never be left.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        match self.tasks.spawn(operation).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(crate::store::Refused::ShuttingDown.into()),
            },
        }
    }
}

/// How the network is opened that `config` asks for.
pub(crate) fn opening(config: &Config) -> Opening {
    Opening {
        isolation: config.isolation,
        name: crate::instance_name(&config.state_dir),
        cni: config.cni.clone(),
        cidrs: config.pod_cidrs,
    }
}

/// Runs `work`, which blocks, where it may.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Blocking work is never cancelled once it runs, and the pool ends after the last task.
            Err(error) => panic!("blocking work was cancelled: {error}"),
        },
    }
}
