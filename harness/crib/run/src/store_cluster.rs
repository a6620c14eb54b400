//! The store of a run as the agent's cluster: the agent runs its pods, and writes their statuses and removals back to the store.
//!
//! A deleted pod is removed from the agent's set immediately. If its deletion has a grace period other than the one in its spec, a
//! last update sets this grace period. The agent ends pods that no source lists.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent::Reports;
use agent::clock::{Clock as _, SystemClock};
use agent::cluster::{Cluster, Outputs, PodChange, PodWatch};
use agent::objects::ObjectStore;
use api::manifest::{pod_json, to_json};
use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use cluster::{
    DeleteOptions, Error, Event, Key, Kind, List, Object, Part, Selection, Store, Watch,
};
use compact::Map;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;
use tokio::sync::watch;

/// The result of a write. Manifests are validated, so the store should reject nothing; if it does, the pods run nevertheless.
pub(super) fn written<T>(result: Result<T, Error>) -> Option<T> {
    result.inspect_err(|error| tracing::error!(%error, "store rejected an object")).ok()
}

/// The cluster of a run.
pub(super) struct StoreCluster {
    store: Store,
    /// The name of the node of all pods.
    node: String,
    /// The objects that pods refer to, from the manifests.
    objects: Arc<ObjectStore>,
    /// The statuses in the store.
    statuses: Mutex<Map<PodUid, Arc<PodStatus>>>,
    /// The reports whose statuses are in the store.
    recorded: watch::Sender<Arc<Reports>>,
}

impl StoreCluster {
    /// An empty store. Generated names and uids depend on `seed`.
    pub(super) fn new(node: String, objects: Arc<ObjectStore>, seed: u64) -> Self {
        Self {
            store: Store::new(seed),
            node,
            objects,
            statuses: Mutex::default(),
            recorded: watch::Sender::default(),
        }
    }

    /// The store.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// The node of all pods.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// A receiver of the latest reports whose statuses are in the store.
    pub(super) fn recorded(&self) -> watch::Receiver<Arc<Reports>> {
        self.recorded.subscribe()
    }

    /// Writes the latest reports to the store.
    pub(super) fn take(&self, reports: &mut watch::Receiver<Arc<Reports>>, now: Timestamp) {
        // The reports are read under the lock, so that older ones cannot overwrite newer ones.
        let mut statuses = self.statuses();
        let reports = Arc::clone(&reports.borrow_and_update());
        self.write(&reports, &mut statuses, now);
        self.recorded.send_replace(reports);
    }

    /// Writes changed statuses, and removes terminating pods that the agent has removed.
    fn write(&self, reports: &Reports, statuses: &mut Map<PodUid, Arc<PodStatus>>, now: Timestamp) {
        statuses.retain(|uid, _| reports.contains_key(uid));
        for (uid, report) in reports {
            let before = statuses.get(uid);
            let is_written = before.is_some_and(|before| Arc::ptr_eq(before, &report.status));
            if is_written && !report.removed {
                continue;
            }
            let key = Key::pod(&report.namespace, &report.name);
            // Another pod may have the same name.
            let object = self.store.get(&key).ok().filter(|object| object.uid() == uid.as_str());
            if !is_written {
                statuses.insert(uid.clone(), Arc::clone(&report.status));
                if object.is_some() {
                    let status = to_json(&*report.status);
                    written(self.store.change(&key, Part::Status, |value| {
                        value["status"] = status;
                        Ok(())
                    }));
                }
            }
            if report.removed && object.is_some_and(|object| object.is_terminating()) {
                let options = DeleteOptions::now().with_uid(uid.as_str());
                written(self.store.delete(&key, &options, now));
            }
        }
    }

    fn statuses(&self) -> MutexGuard<'_, Map<PodUid, Arc<PodStatus>>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a watch of the node's pods.
    fn follow(&self) -> Result<NodePods, Error> {
        let selection = Selection::of(Kind::pod()).with_field("spec.nodeName", &self.node);
        let list = self.store.list(&selection);
        let watch = self.store.watch(selection.clone(), list.version)?;
        let mut pods =
            NodePods { store: self.store.clone(), selection, watch, pods: Map::new(), first: None };
        pods.first = Some(pods.listed(list));
        Ok(pods)
    }
}

#[async_trait]
impl Cluster for StoreCluster {
    fn name(&self) -> String {
        "store".to_owned()
    }

    fn objects(&self) -> Arc<ObjectStore> {
        Arc::clone(&self.objects)
    }

    fn watch_pods(&self) -> Option<Box<dyn PodWatch>> {
        Some(Box::new(written(self.follow())?))
    }

    async fn record(&self, agent: Outputs) -> String {
        let mut reports = agent.view.reports();
        // Only reports are recorded; the event loop handles events.
        drop(agent);
        while reports.changed().await.is_ok() {
            self.take(&mut reports, SystemClock.now());
        }
        std::future::pending().await
    }
}

/// The changes of the node's pods.
struct NodePods {
    store: Store,
    selection: Selection,
    watch: Watch,
    /// The pods of the agent, in their last version.
    pods: Map<PodUid, Arc<Object>>,
    /// The initial changes.
    first: Option<Vec<PodChange>>,
}

impl NodePods {
    /// The changes after a list.
    fn listed(&mut self, list: List) -> Vec<PodChange> {
        let (ending, living): (Vec<Arc<Object>>, Vec<Arc<Object>>) =
            list.items.into_iter().partition(|object| object.is_terminating());
        let mut changes: Vec<PodChange> =
            ending.iter().flat_map(|object| self.ended(object)).collect();
        self.pods = living.iter().map(|it| (PodUid::new(it.uid()), Arc::clone(it))).collect();
        changes.push(PodChange::Listed(living.iter().filter_map(|it| pod(it)).collect()));
        changes
    }

    /// The changes after a watch event.
    fn changes(&mut self, event: &Event) -> Vec<PodChange> {
        let object = event.object();
        let uid = PodUid::new(object.uid());
        match event {
            Event::Deleted(_) => {
                let was_there = self.pods.remove(&uid).is_some();
                was_there.then_some(PodChange::Removed(uid)).into_iter().collect()
            }
            Event::Added(_) | Event::Modified(_) if object.is_terminating() => self.ended(object),
            Event::Added(_) | Event::Modified(_) => {
                let before = self.pods.insert(uid, Arc::clone(object));
                // The agent itself writes statuses.
                let is_new = before.is_none_or(|before| differs(&before, object));
                is_new.then(|| pod(object)).flatten().map(PodChange::Set).into_iter().collect()
            }
        }
    }

    /// Removes a deleted pod, after a last update if the grace period of its deletion differs from the one in its spec.
    fn ended(&mut self, object: &Object) -> Vec<PodChange> {
        let uid = PodUid::new(object.uid());
        if self.pods.remove(&uid).is_none() {
            return Vec::new();
        }
        let seconds = |pointer: &str| object.value.pointer(pointer).and_then(Value::as_i64);
        let has_other = seconds("/metadata/deletionGracePeriodSeconds")
            != seconds("/spec/terminationGracePeriodSeconds");
        let last = has_other.then(|| pod(object)).flatten().map(PodChange::Set);
        last.into_iter().chain([PodChange::Removed(uid)]).collect()
    }
}

#[async_trait]
impl PodWatch for NodePods {
    async fn next(&mut self) -> Option<Vec<PodChange>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let Ok(event) = self.watch.next().await else {
                // The watch has missed changes because the agent was too slow: list the pods again.
                let list = self.store.list(&self.selection);
                self.watch = written(self.store.watch(self.selection.clone(), list.version))?;
                return Some(self.listed(list));
            };
            let mut changes = self.changes(&event);
            // The next call returns an error again.
            while let Ok(Some(event)) = self.watch.try_next() {
                changes.extend(self.changes(&event));
            }
            if !changes.is_empty() {
                return Some(changes);
            }
        }
    }
}

/// Whether more than the status differs.
fn differs(before: &Object, after: &Object) -> bool {
    let part = |pointer: &str| before.value.pointer(pointer) != after.value.pointer(pointer);
    part("/spec") || part("/metadata/labels") || part("/metadata/annotations")
}

/// A pod for the agent: without the status and the metadata that the store sets.
fn pod(object: &Object) -> Option<Pod> {
    let mut value = object.value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        for field in ["creationTimestamp", "generation", "resourceVersion"] {
            metadata.remove(field);
        }
    }
    let decoded = pod_json::from_json(value);
    let decoded = decoded.inspect_err(|error| {
        tracing::error!(pod = %object.key, error, "failed to decode a pod in the store; skipping it");
    });
    decoded.ok().map(Pod::new)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use serde_json::json;

    use super::*;
    use crate::output::view::tests::{pod as report, reports};

    fn cluster() -> StoreCluster {
        StoreCluster::new("here".to_owned(), Arc::default(), 1)
    }

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    /// Creates a pod on the node.
    fn create(cluster: &StoreCluster, name: &str) -> Key {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name},
            "spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 20},
        });
        let key = cluster.store.create(pod, now()).unwrap().key.clone();
        cluster.store.bind(&key, "here", now()).unwrap();
        key
    }

    /// The available changes: `=` and names for a list, `a` set, `a~5` set with a grace period, `-a` removed.
    fn changes(watch: &mut NodePods) -> String {
        let mut all = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let mut next: Pin<Box<_>> = watch.next();
            let std::task::Poll::Ready(found) = next.as_mut().poll(&mut context) else {
                break;
            };
            for change in found.unwrap() {
                all.push(match change {
                    PodChange::Listed(pods) => {
                        let names = pods.iter().map(Pod::name).collect::<Vec<_>>();
                        format!("={}", names.join(","))
                    }
                    PodChange::Set(pod) => match pod.api().metadata.deletion_grace_period_seconds {
                        Some(seconds) => format!("{}~{seconds}", pod.name()),
                        None => pod.name().to_owned(),
                    },
                    PodChange::Removed(uid) => format!("-{uid}"),
                });
            }
        }
        all.join(" ")
    }

    #[test]
    fn agent_gets_pods_of_the_node_until_they_are_deleted() {
        let cluster = cluster();
        create(&cluster, "a");
        let mut watch = cluster.follow().unwrap();
        assert_eq!(changes(&mut watch), "=a");
        let b = create(&cluster, "b");
        let c = create(&cluster, "c");
        let elsewhere = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d"}, "spec": {"nodeName": "there"}});
        cluster.store.create(elsewhere, now()).unwrap();
        assert_eq!(changes(&mut watch), "b c");
        cluster.write(&reports(vec![report("b", "Running")]), &mut cluster.statuses(), now());
        assert_eq!(changes(&mut watch), "", "a status is the agent's own");
        cluster
            .store
            .change(&b, Part::Main, |value| {
                value["metadata"]["labels"] = json!({"x": "y"});
                Ok(())
            })
            .unwrap();
        assert_eq!(changes(&mut watch), "b");
        cluster.store.delete(&b, &DeleteOptions::default(), now()).unwrap();
        let options = DeleteOptions { grace_seconds: Some(5), ..DeleteOptions::default() };
        cluster.store.delete(&c, &options, now()).unwrap();
        assert_eq!(changes(&mut watch), "-b c~5 -c");
        cluster.store.delete(&c, &DeleteOptions::now(), now()).unwrap();
        assert_eq!(changes(&mut watch), "");
    }

    #[test]
    fn watch_that_fell_behind_lists_again() {
        let mut cluster = cluster();
        cluster.store = Store::with_history(1, 3);
        let a = create(&cluster, "a");
        let b = create(&cluster, "b");
        let mut watch = cluster.follow().unwrap();
        assert_eq!(changes(&mut watch), "=a,b");
        let options = DeleteOptions { grace_seconds: Some(5), ..DeleteOptions::default() };
        cluster.store.delete(&a, &options, now()).unwrap();
        for name in ["c", "d"] {
            create(&cluster, name);
        }
        assert_eq!(changes(&mut watch), "a~5 -a =b,c,d");
        cluster.store.delete(&b, &DeleteOptions::default(), now()).unwrap();
        assert_eq!(changes(&mut watch), "-b");
    }

    #[test]
    fn reports_become_statuses_and_ends() {
        let cluster = cluster();
        let key = create(&cluster, "p");
        let write = |phase: &str, uid: &str, removed: bool| {
            let mut own = report("p", phase);
            (own.uid, own.removed) = (PodUid::new(uid), removed);
            cluster.write(&reports(vec![own]), &mut cluster.statuses(), now());
        };
        let phase = || cluster.store.get(&key).map(|pod| pod.value["status"]["phase"].clone());
        write("Running", "p", false);
        assert_eq!(phase().unwrap(), "Running");
        write("Failed", "other", false);
        assert_eq!(phase().unwrap(), "Running", "another pod had the name");
        write("Running", "p", true);
        assert_eq!(phase().unwrap(), "Running", "it was not deleted");
        cluster.store.delete(&key, &DeleteOptions::default(), now()).unwrap();
        write("Failed", "other", true);
        assert_eq!(phase().unwrap(), "Running");
        write("Running", "p", true);
        assert!(phase().is_err());
    }
}
