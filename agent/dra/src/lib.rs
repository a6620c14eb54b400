//! Dynamic resource allocation (DRA): drivers prepare the devices of ResourceClaims for the node's pods, as with the kubelet.
//!
//! | file | what |
//! |---|---|
//! | `registry` | the drivers' plugins that the plugin watcher finds; `services` ◆ chooses the API version, `grpc` makes the calls |
//! | `operations` | prepares claims before a pod starts, and unprepares them after it has ended |
//! | `references` ◆ | the claims that pods and containers name, and whether the pod may use them |
//! | `claims` ◆, `store`, `checkpoint` ◆ | which pods use which claims, and the prepared devices, in memory and in the kubelet's file |
//! | `slices`, `slice_deletions` ◆ | deletes the ResourceSlices of unreachable drivers |
//! | `monitor`, `health` ◆ | follows the health of devices that drivers report, and saves it in the kubelet's file |
//! | `measured` | durations of operations and calls |
//! | [`ClaimCluster`] | the interface to the cluster, which another package implements |
//!
//! # Invariants
//! - A claim is in the file before a driver prepares it, and stays in it until its drivers have unprepared it.
//! - Calls for one claim never run concurrently.
//! - No claim is unprepared while a pod uses it that may still run.
//!
//! # Tasks
//!
//! | task | owns | input | output |
//! |---|---|---|---|
//! | upkeep | the times of deletions of slices | registrations, the agent's pods, time | NodeUnprepareResources, deletions |
//! | an operation, one for each call of the agent | the lock of its pod and claims | the call | the file, calls of drivers |
//! | a follower, one for each plugin | the plugin's stream | its reports | the health of its driver's devices, and its file |

mod checkpoint;
mod claims;
mod cluster;
mod grpc;
mod health;
mod measured;
mod monitor;
mod operations;
mod references;
mod registry;
mod services;
mod slice_deletions;
mod slices;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::AgentView;
use agent::managers::claims::{ClaimManager, ClaimMeasures, PreparedClaim};
use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use compact::Set;
use k8s_openapi::api::core::v1::{Container, ResourceHealth, ResourceStatus};
use plugins::PluginHandler;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

pub use cluster::ClaimCluster;

use claims::{Claim, Key};
use measured::Durations;
use monitor::HealthMonitor;
use operations::{Locks, Operations};
use registry::{DriverHandler, Registry};
use store::Store;

/// The interval between searches for prepared claims of pods that no longer exist.
const RECONCILE: Duration = Duration::from_secs(60);

/// The claims of a node. Clones share them.
#[derive(Clone)]
pub struct NodeClaims {
    operations: Arc<Operations>,
    health: Arc<HealthMonitor>,
}

impl NodeClaims {
    /// Opens the claims that an earlier agent or a kubelet has prepared, with the file in this directory. It unprepares nothing,
    /// and deletes no ResourceSlice, before [`NodeClaims::run`].
    ///
    /// # Errors
    /// The kubelet's error if the file cannot be used.
    pub fn open(root_dir: &Path, cluster: Arc<dyn ClaimCluster>) -> Result<Self, String> {
        let (registry, locks) = (Arc::new(Registry::default()), Locks::default());
        let store = Store::open(root_dir)?;
        let measures = Durations::default();
        let operations = Operations { registry, store, cluster, locks, measures };
        Ok(Self { operations: Arc::new(operations), health: HealthMonitor::open(root_dir) })
    }

    /// The handler that registers drivers.
    #[must_use]
    pub fn plugin_handler(&self) -> Arc<dyn PluginHandler> {
        let registry = Arc::clone(&self.operations.registry);
        Arc::new(DriverHandler { registry, health: Arc::clone(&self.health) })
    }

    /// Unprepares the claims of pods that no longer exist, and deletes the ResourceSlices of unreachable drivers, until the
    /// future is dropped.
    pub async fn run(self, agent: AgentView) {
        let slices = slices::run(
            Arc::clone(&self.operations.registry),
            Arc::clone(&self.operations.cluster),
        );
        tokio::join!(slices, self.reconcile(&agent), self.health.expire());
    }

    async fn reconcile(&self, agent: &AgentView) {
        let mut rounds = interval(RECONCILE);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            if !agent.sources_are_ready() {
                continue;
            }
            // The order matters: each listed pod that still runs is among the active pods, which are read later.
            let users = self.operations.store.claims().pods();
            let active: Set<PodUid> = agent.active_uids().into_iter().collect();
            self.unprepare_removed(
                users.iter().filter(|pod| !active.contains(&PodUid::new(pod.as_str()))),
            )
            .await;
        }
    }

    /// Unprepares the claims of pods that no longer exist.
    async fn unprepare_removed(&self, removed: impl Iterator<Item = &String>) {
        for pod in removed {
            if let Err(error) = Arc::clone(&self.operations).unprepare(pod).await {
                tracing::warn!(
                    pod,
                    error,
                    "failed to unprepare ResourceClaims of a deleted pod; will retry"
                );
            }
        }
    }
}

impl NodeClaims {
    /// The health of the devices of a claim's request, without duplicates.
    fn health_of(&self, claim: &Claim, request: &str) -> Vec<ResourceHealth> {
        let mut found: Vec<ResourceHealth> = Vec::new();
        for (driver, device) in claim.devices(request) {
            let (pool, name) = (&device.pool, &device.name);
            let first = device.cdi_devices.first();
            let resource_id = first.cloned().unwrap_or_else(|| format!("{driver}/{pool}/{name}"));
            if found.iter().any(|it| it.resource_id == resource_id) {
                continue;
            }
            let (health, message) = self.health.of(driver, pool, name);
            let health = Some(health.as_str().to_owned());
            found.push(ResourceHealth { resource_id, health, message });
        }
        found
    }
}

#[async_trait]
impl ClaimManager for NodeClaims {
    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let operations = &self.operations;
        let preparing = Arc::clone(operations).prepare(pod);
        let prepared = operations.measures.operation("PrepareResources", preparing).await;
        prepared.map_err(|error| format!("prepare dynamic resources: {error}"))
    }

    fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let claims = self.operations.store.claims();
        let mut devices = Vec::new();
        for of_claim in references::of_container(pod, container)? {
            let key = Key { namespace: pod.namespace().to_owned(), name: of_claim.claim };
            devices.extend(claims.cdi_devices(&key, &of_claim.requests)?);
        }
        Ok(devices)
    }

    async fn unprepare(&self, pod: &PodUid) -> Result<(), String> {
        let operations = &self.operations;
        let undoing = Arc::clone(operations).unprepare(pod.as_str());
        let unprepared = operations.measures.operation("UnprepareResources", undoing).await;
        unprepared.map_err(|error| format!("unprepare dynamic resources: {error}"))
    }

    fn claims(&self, pod: &Pod, container: &Container) -> Vec<PreparedClaim> {
        let claims = self.operations.store.claims();
        let used = references::of_container(pod, container).unwrap_or_default().into_iter();
        let keys = used.map(|it| Key { namespace: pod.namespace().to_owned(), name: it.claim });
        keys.filter_map(|key| claims.prepared(&key)).collect()
    }

    fn health(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let claims = self.operations.store.claims();
        let mut statuses: Vec<ResourceStatus> = Vec::new();
        for (name, of_claim) in references::named(pod, container) {
            let key = Key { namespace: pod.namespace().to_owned(), name: of_claim.claim };
            let request = of_claim.requests.first().map(String::as_str).unwrap_or_default();
            let Some(claim) = claims.get(&key) else { continue };
            let resources = self.health_of(claim, request);
            if !resources.is_empty() {
                statuses.push(ResourceStatus { name, resources: Some(resources) });
            }
        }
        statuses
    }

    fn health_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.health.changes())
    }

    fn measures(&self) -> ClaimMeasures {
        let in_use = self.operations.store.claims().in_use();
        ClaimMeasures { in_use, ..self.operations.measures.all() }
    }
}

#[cfg(test)]
mod tests;
