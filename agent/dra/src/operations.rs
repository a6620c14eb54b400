//! Prepares and unprepares the claims of pods: one operation at a time for each pod and each claim.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/manager.go. Unlike the kubelet, the agent takes the claims to unprepare from its
//! own records, not from the pod's specification, so that a pod that never got its claims removes none from other pods when it
//! ends.

use std::sync::{Arc, Mutex, PoisonError};

use api::pod::Pod;
use compact::{Map, Set};
use tokio::sync::OwnedMutexGuard;

use crate::claims::{Claim, Key, RequiredClaim, check};
use crate::cluster::ClaimCluster;
use crate::measured::Durations;
use crate::references::{self, of_pod};
use crate::registry::Registry;
use crate::store::Store;

/// The state that operations share.
pub(crate) struct Operations {
    pub(crate) registry: Arc<Registry>,
    pub(crate) store: Store,
    pub(crate) cluster: Arc<dyn ClaimCluster>,
    pub(crate) locks: Locks,
    pub(crate) measures: Durations,
}

/// The key of a lock: a pod, or a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockKey {
    /// The pod's uid.
    Pod(String),
    Claim(Key),
}

/// The locks of operations in progress.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<Map<LockKey, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    /// Acquires the lock of a pod or claim, after all earlier callers.
    async fn lock(&self, key: LockKey) -> OwnedMutexGuard<()> {
        let lock = {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove locks that only this map references: no operation holds or awaits them.
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(key).or_default())
        };
        lock.lock_owned().await
    }

    /// Acquires the locks of several claims in sorted order, so that two operations never deadlock.
    async fn lock_claims(&self, keys: impl Iterator<Item = Key>) -> Vec<OwnedMutexGuard<()>> {
        let keys: Set<Key> = keys.collect();
        let mut guards = Vec::new();
        for key in keys.iter() {
            guards.push(self.lock(LockKey::Claim(key.clone())).await);
        }
        guards
    }
}

impl Operations {
    /// Prepares the claims of a pod. Once it may call drivers, it runs to completion even if its caller is dropped.
    pub(crate) async fn prepare(self: Arc<Self>, pod: &Pod) -> Result<(), String> {
        let uid = pod.uid().as_str().to_owned();
        let turn = self.locks.lock(LockKey::Pod(uid.clone())).await;
        let required = self.required(pod).await?;
        if required.is_empty() {
            return Ok(());
        }
        let operation = async move {
            let _turn = turn;
            self.prepare_all(&uid, &required).await
        };
        run_to_completion(operation).await
    }

    /// Gets the claims of a pod from the cluster. If the pod may not use one of them, or a driver is missing, nothing is
    /// recorded, so nothing needs to be unprepared.
    async fn required(&self, pod: &Pod) -> Result<Vec<RequiredClaim>, String> {
        let mut required = Vec::new();
        for reference in of_pod(pod)? {
            let name = &reference.name;
            let found = self.cluster.claim(pod.namespace(), name).await;
            let claim = found.map_err(|error| format!("fetch ResourceClaim {name}: {error}"))?;
            references::check(pod, &claim, &reference)?;
            let drivers = references::drivers(&claim)?;
            for driver in drivers.iter() {
                self.registry.plugin(driver)?;
            }
            required.push(RequiredClaim {
                key: Key { namespace: pod.namespace().to_owned(), name: name.clone() },
                uid: claim.metadata.uid.unwrap_or_default(),
                drivers,
            });
        }
        Ok(required)
    }

    async fn prepare_all(&self, pod: &str, required: &[RequiredClaim]) -> Result<(), String> {
        let _claims = self.locks.lock_claims(required.iter().map(|claim| claim.key.clone())).await;
        let unprepared = self.store.change("cache", |claims| claims.add(pod, required))?;
        if unprepared.is_empty() {
            return Ok(());
        }
        let mut prepared = Vec::new();
        for (driver, requested) in by_driver(&unprepared) {
            let plugin = self.registry.plugin(&driver)?;
            let path = plugin.service.prepare_path();
            let answers = self.measures.call(&driver, path, plugin.prepare(&requested)).await;
            let answers = answers.map_err(|error| format!("NodePrepareResources: {error}"))?;
            for (key, devices) in check("NodePrepareResources", &requested, answers)? {
                prepared.push((key, driver.clone(), devices));
            }
        }
        self.store.change("state", |claims| {
            for (key, driver, devices) in prepared {
                claims.set_devices(&key, &driver, devices);
            }
            unprepared.iter().for_each(|claim| claims.set_prepared(&claim.key()));
            Ok(())
        })
    }

    /// Unprepares the claims of a pod, except those that other pods use.
    pub(crate) async fn unprepare(self: Arc<Self>, pod: &str) -> Result<(), String> {
        let uid = pod.to_owned();
        let turn = self.locks.lock(LockKey::Pod(uid.clone())).await;
        if self.store.claims().of_pod(&uid).is_empty() {
            return Ok(());
        }
        let operation = async move {
            let _turn = turn;
            self.unprepare_all(&uid).await
        };
        run_to_completion(operation).await
    }

    async fn unprepare_all(&self, pod: &str) -> Result<(), String> {
        let used = self.store.claims().of_pod(pod);
        let _claims = self.locks.lock_claims(used.into_iter()).await;
        let unused = self.store.change("state", |claims| Ok(claims.remove_pod(pod)))?;
        if unused.is_empty() {
            return Ok(());
        }
        for (driver, requested) in by_driver(&unused) {
            let plugin = self.registry.plugin(&driver)?;
            let path = plugin.service.unprepare_path();
            let answers = self.measures.call(&driver, path, plugin.unprepare(&requested)).await;
            let answers = answers.map_err(|error| format!("NodeUnprepareResources: {error}"))?;
            check("NodeUnprepareResources", &requested, answers)?;
        }
        self.store.change("state", |claims| {
            unused.iter().for_each(|claim| claims.remove(&claim.key()));
            Ok(())
        })
    }
}

/// Groups claims by the drivers of their allocations.
fn by_driver(claims: &[Claim]) -> Map<String, Vec<Claim>> {
    let mut found: Map<String, Vec<Claim>> = Map::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            found.entry(driver.clone()).or_default().push(claim.clone());
        }
    }
    found
}

/// Runs an operation to completion even if its caller is dropped, because a driver does not stop either.
async fn run_to_completion(
    operation: impl Future<Output = Result<(), String>> + Send + 'static,
) -> Result<(), String> {
    let done = tasks::spawn(operation).await;
    done.unwrap_or_else(|error| Err(format!("operation panicked: {error}")))
}
