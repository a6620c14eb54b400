//! Dynamic resource allocation: has drivers prepare the devices of ResourceClaims for the pods of a node, as a kubelet does.
//!
//! | file | what |
//! |---|---|
//! | `registry` | the plugins of drivers that the watcher of plugins finds; `services` ◆ decides how they are called, `grpc` calls them |
//! | `operations` | has claims prepared before a pod starts, and undoes that when it has ended |
//! | `references` ◆ | which claims pods and containers name, and whether they may |
//! | `claims` ◆, `store`, `checkpoint` ◆ | which pods use which claims and what is prepared of them, in memory and in a kubelet's file |
//! | `slices`, `wipes` ◆ | deletes the ResourceSlices of drivers that are away |
//! | [`ClaimCluster`] | what is needed of the cluster, which another package implements |
//!
//! # Invariants
//! - No driver is asked to prepare a claim that is not in the file, and none is removed from it before its drivers have undone that.
//! - No two calls about one claim are under way at the same time.
//! - No claim is undone that a pod uses which may still run.
//!
//! # Tasks
//!
//! | task | owns | input | output |
//! |---|---|---|---|
//! | upkeep | when slices are deleted | registrations, the agent's pods, time | NodeUnprepareResources for pods that are gone, deletions |
//! | an operation, one for each call of the agent | the lock of its pod and claims | the call | the file, calls of drivers |

mod checkpoint;
mod claims;
mod cluster;
mod grpc;
mod operations;
mod references;
mod registry;
mod services;
mod slices;
mod store;
mod wipes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::AgentView;
use agent::managers::claims::{ClaimManager, PreparedClaim};
use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use compact::Set;
use k8s_openapi::api::core::v1::Container;
use plugins::PluginHandler;
use tokio::time::{MissedTickBehavior, interval};

pub use cluster::ClaimCluster;

use claims::Key;
use operations::{Locks, Operations};
use registry::{DriverHandler, Registry};
use store::Store;

/// How often it is seen whether claims are prepared for pods that are gone.
const RECONCILE: Duration = Duration::from_secs(60);

/// The claims of a node. Clones are the same.
#[derive(Clone)]
pub struct NodeClaims(Arc<Operations>);

impl NodeClaims {
    /// The claims that an earlier agent or a kubelet has had prepared, whose file is in this directory. Nothing is undone, and no
    /// ResourceSlice deleted, before [`NodeClaims::run`].
    ///
    /// # Errors
    /// In a kubelet's words: the file cannot be used.
    pub fn open(root_dir: &Path, cluster: Arc<dyn ClaimCluster>) -> Result<Self, String> {
        let (registry, locks) = (Arc::new(Registry::default()), Locks::default());
        let store = Store::open(root_dir)?;
        Ok(Self(Arc::new(Operations { registry, store, cluster, locks })))
    }

    /// Registers drivers.
    #[must_use]
    pub fn plugin_handler(&self) -> Arc<dyn PluginHandler> {
        Arc::new(DriverHandler { registry: Arc::clone(&self.0.registry) })
    }

    /// Undoes what is prepared for pods that are gone, and deletes ResourceSlices of drivers that are away, until the future is dropped.
    pub async fn run(self, agent: AgentView) {
        let slices = slices::keep(Arc::clone(&self.0.registry), Arc::clone(&self.0.cluster));
        tokio::join!(slices, self.reconcile(&agent));
    }

    async fn reconcile(&self, agent: &AgentView) {
        let mut rounds = interval(RECONCILE);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            if !agent.sources_are_ready() {
                continue;
            }
            // In this order: a pod that uses claims by now is among the active ones.
            let users = self.0.store.claims().pods();
            let active: Set<PodUid> = agent.active_uids().into_iter().collect();
            self.undo(users.iter().filter(|pod| !active.contains(&PodUid::new(pod.as_str()))))
                .await;
        }
    }

    /// Undoes what is prepared for pods that are gone.
    async fn undo(&self, gone: impl Iterator<Item = &String>) {
        for pod in gone {
            if let Err(error) = Arc::clone(&self.0).unprepare(pod).await {
                tracing::warn!(
                    pod,
                    error,
                    "failed to undo the preparation of ResourceClaims of a pod that is gone; will retry"
                );
            }
        }
    }
}

#[async_trait]
impl ClaimManager for NodeClaims {
    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let prepared = Arc::clone(&self.0).prepare(pod).await;
        prepared.map_err(|error| format!("prepare dynamic resources: {error}"))
    }

    fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let claims = self.0.store.claims();
        let mut devices = Vec::new();
        for of_claim in references::of_container(pod, container)? {
            let key = Key { namespace: pod.namespace().to_owned(), name: of_claim.claim };
            devices.extend(claims.cdi_devices(&key, &of_claim.requests)?);
        }
        Ok(devices)
    }

    async fn unprepare(&self, pod: &PodUid) -> Result<(), String> {
        let unprepared = Arc::clone(&self.0).unprepare(pod.as_str()).await;
        unprepared.map_err(|error| format!("unprepare dynamic resources: {error}"))
    }

    fn claims(&self, pod: &Pod, container: &Container) -> Vec<PreparedClaim> {
        let claims = self.0.store.claims();
        let used = references::of_container(pod, container).unwrap_or_default().into_iter();
        let keys = used.map(|it| Key { namespace: pod.namespace().to_owned(), name: it.claim });
        keys.filter_map(|key| claims.prepared(&key)).collect()
    }
}

#[cfg(test)]
mod tests;
