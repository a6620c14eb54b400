//! Has drivers prepare the claims of pods, and undo that: one operation at a time for each pod and each claim.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/manager.go. Other than a kubelet, the agent asks which claims a pod uses by what it has
//! noted of the pod, not by the pod's specification: a pod that never got its claims takes none from others when it ends.

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

/// What operations are made with.
pub(crate) struct Operations {
    pub(crate) registry: Arc<Registry>,
    pub(crate) store: Store,
    pub(crate) cluster: Arc<dyn ClaimCluster>,
    pub(crate) locks: Locks,
    pub(crate) measures: Measured,
}

/// What an operation has for itself: a pod, or a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// By uid.
    Pod(String),
    Claim(Key),
}

/// What has operations under way.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<Map<Subject, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    /// Waits for the operations that began before.
    async fn lock(&self, subject: Subject) -> OwnedMutexGuard<()> {
        let lock = {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // No operation holds or awaits a lock that is here alone.
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(subject).or_default())
        };
        lock.lock_owned().await
    }

    /// The same for several claims, in one order, so that two operations never wait for each other.
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
    /// Prepares the claims of a pod. Once drivers may be asked it goes on to its end, also if nothing waits for it any more.
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

    /// The claims of a pod, as the cluster has them. Nothing is noted of a pod that may not use one of them, or for which a driver is
    /// missing: there is nothing to be undone then.
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

    /// Undoes what was prepared for a pod, but for claims that other pods use.
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

/// The claims by the drivers that have a part in them.
fn by_driver(claims: &[Claim]) -> Map<String, Vec<Claim>> {
    let mut found: Map<String, Vec<Claim>> = Map::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            found.entry(driver.clone()).or_default().push(claim.clone());
        }
    }
    found
}

/// Runs an operation to its end, also if its caller is dropped: a driver does not stop either.
async fn to_the_end(
    operation: impl Future<Output = Result<(), String>> + Send + 'static,
) -> Result<(), String> {
    let done = tasks::spawn(operation).await;
    done.unwrap_or_else(|error| Err(format!("the operation ended early: {error}")))
}
