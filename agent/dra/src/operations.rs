//! Prepares and unprepares the claims of pods: one operation at a time for each pod and each claim.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/manager.go. Unlike the kubelet, the agent takes the claims to unprepare from its
//! own records, not from the pod's specification, so that a pod that never got its claims removes none from other pods when it
//! ends.

use std::sync::{Arc, Mutex, PoisonError};

use api::pod::Pod;
use compact::{Map, Set};
use tokio::sync::OwnedMutexGuard;

use crate::claims::{Claim, Key, Wanted, check};
use crate::cluster::ClaimCluster;
use crate::measured::Measured;
use crate::references::{self, of_pod};
use crate::registry::Registry;
use crate::store::Store;

/// The state that operations share.
pub(crate) struct Operations {
    pub(crate) registry: Arc<Registry>,
    pub(crate) store: Store,
    pub(crate) cluster: Arc<dyn ClaimCluster>,
    pub(crate) locks: Locks,
    pub(crate) measures: Measured,
}

/// The key of a lock: a pod, or a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The pod's uid.
    Pod(String),
    Claim(Key),
}

/// The locks of operations in progress.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<Map<Subject, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    /// Acquires the lock of a pod or claim, after all earlier callers.
    async fn lock(&self, subject: Subject) -> OwnedMutexGuard<()> {
        let lock = {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove locks that only this map references: no operation holds or awaits them.
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(subject).or_default())
        };
        lock.lock_owned().await
    }

    /// Acquires the locks of several claims in sorted order, so that two operations never deadlock.
    async fn lock_claims(&self, keys: impl Iterator<Item = Key>) -> Vec<OwnedMutexGuard<()>> {
        let keys: Set<Key> = keys.collect();
        let mut guards = Vec::new();
        for key in keys.iter() {
            guards.push(self.lock(Subject::Claim(key.clone())).await);
        }
        guards
    }
}

impl Operations {
    /// Prepares the claims of a pod. Once it may call drivers, it runs to completion even if its caller is dropped.
    pub(crate) async fn prepare(self: Arc<Self>, pod: &Pod) -> Result<(), String> {
        let uid = pod.uid().as_str().to_owned();
        let turn = self.locks.lock(Subject::Pod(uid.clone())).await;
        let wanted = self.wanted(pod).await?;
        if wanted.is_empty() {
            return Ok(());
        }
        let operation = async move {
            let _turn = turn;
            self.prepare_all(&uid, &wanted).await
        };
        to_the_end(operation).await
    }

    /// Gets the claims of a pod from the cluster. If the pod may not use one of them, or a driver is missing, nothing is
    /// recorded, so nothing needs to be unprepared.
    async fn wanted(&self, pod: &Pod) -> Result<Vec<Wanted>, String> {
        let mut wanted = Vec::new();
        for reference in of_pod(pod)? {
            let name = &reference.name;
            let found = self.cluster.claim(pod.namespace(), name).await;
            let claim = found.map_err(|error| format!("fetch ResourceClaim {name}: {error}"))?;
            references::check(pod, &claim, &reference)?;
            let drivers = references::drivers(&claim)?;
            for driver in drivers.iter() {
                self.registry.plugin(driver)?;
            }
            wanted.push(Wanted {
                key: Key { namespace: pod.namespace().to_owned(), name: name.clone() },
                uid: claim.metadata.uid.unwrap_or_default(),
                drivers,
            });
        }
        Ok(wanted)
    }

    async fn prepare_all(&self, pod: &str, wanted: &[Wanted]) -> Result<(), String> {
        let _claims = self.locks.lock_claims(wanted.iter().map(|claim| claim.key.clone())).await;
        let unprepared = self.store.change("cache", |claims| claims.add(pod, wanted))?;
        if unprepared.is_empty() {
            return Ok(());
        }
        let mut prepared = Vec::new();
        for (driver, asked) in by_driver(&unprepared) {
            let plugin = self.registry.plugin(&driver)?;
            let path = plugin.service.prepare_path();
            let answers = self.measures.call(&driver, path, plugin.prepare(&asked)).await;
            let answers = answers.map_err(|error| format!("NodePrepareResources: {error}"))?;
            for (key, devices) in check("NodePrepareResources", &asked, answers)? {
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
        let turn = self.locks.lock(Subject::Pod(uid.clone())).await;
        if self.store.claims().of_pod(&uid).is_empty() {
            return Ok(());
        }
        let operation = async move {
            let _turn = turn;
            self.unprepare_all(&uid).await
        };
        to_the_end(operation).await
    }

    async fn unprepare_all(&self, pod: &str) -> Result<(), String> {
        let used = self.store.claims().of_pod(pod);
        let _claims = self.locks.lock_claims(used.into_iter()).await;
        let unused = self.store.change("state", |claims| Ok(claims.leave(pod)))?;
        if unused.is_empty() {
            return Ok(());
        }
        for (driver, asked) in by_driver(&unused) {
            let plugin = self.registry.plugin(&driver)?;
            let path = plugin.service.unprepare_path();
            let answers = self.measures.call(&driver, path, plugin.unprepare(&asked)).await;
            let answers = answers.map_err(|error| format!("NodeUnprepareResources: {error}"))?;
            check("NodeUnprepareResources", &asked, answers)?;
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
async fn to_the_end(
    operation: impl Future<Output = Result<(), String>> + Send + 'static,
) -> Result<(), String> {
    let done = tasks::spawn(operation).await;
    done.unwrap_or_else(|error| Err(format!("the operation ended early: {error}")))
}
