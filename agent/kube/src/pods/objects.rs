//! Follows the node itself and the objects that its pods need, each as long as a pod needs it. An immutable object is read once.
//! The watch of an object that only environment variables name stops while no starting container reads it.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/util/manager/watch_based_manager.go.

use std::sync::Arc;
use std::time::Duration;

use agent::objects::{ObjectKind, ObjectMap, ObjectStore};
use agent::pod_spec::admission::fields_of_other_nodes;
use api::pod::{Pod, PodUid};
use compact::{Map, Set};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval, timeout, timeout_at};

use super::claim::poll_claim;
use super::watch_targets::{
    ALWAYS, FIRST_ANSWERS, FORBIDDEN_RETRY, ObjectRef, WatchResult, WatchResults, WatchTarget, add,
    in_namespace, is_immutable, lasting, objects, sync_timeout_error, watch_targets,
};
use crate::client::{ApiClient, Change, Reflector};
use crate::node::{pod_cidr, registration};

/// How long the first pods wait for the node's own object.
const NODE_ANSWER: Duration = Duration::from_secs(10);
/// The minimum length of an object's watch.
const OBJECT_WATCH: Duration = Duration::from_secs(30 * 60);
/// The interval between searches for idle watches.
const IDLE_CHECK: Duration = Duration::from_secs(60);
/// The time without a read after which a watch stops: a number of resync periods, and at least a minimum.
const IDLE_PERIODS: u32 = 5;
const LEAST_IDLE: Duration = Duration::from_secs(60);

/// The objects that a pod refers to.
#[derive(Clone, Debug, PartialEq)]
struct PodNeeds {
    all: Set<WatchTarget>,
    /// The objects that are read repeatedly while the pod runs.
    lasting: Set<WatchTarget>,
}

impl PodNeeds {
    fn of(pod: &Pod) -> Self {
        let lasting = lasting(pod).into_iter().map(WatchTarget::Object);
        Self { all: watch_targets(pod).into_iter().collect(), lasting: lasting.collect() }
    }
}

/// The needs of each registered pod.
type Needs = Map<PodUid, PodNeeds>;

/// Everything to follow, and the part of it that is read repeatedly.
fn all_targets(needs: &Needs) -> (Set<WatchTarget>, Set<WatchTarget>) {
    let all = needs.values().flat_map(|needed| needed.all.iter().cloned());
    let lasting = needs.values().flat_map(|needed| needed.lasting.iter().cloned());
    (all.chain(ALWAYS).collect(), lasting.collect())
}

/// An announcement that objects are about to be read.
#[derive(Debug)]
struct ReadRequest {
    objects: Vec<ObjectRef>,
    /// Receives those of them that are followed.
    reply: oneshot::Sender<Vec<ObjectRef>>,
}

/// Registers what pods need, and waits for the server's answers. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    client: ApiClient,
    node: String,
    store: Arc<ObjectStore>,
    needs: watch::Sender<Needs>,
    known: watch::Receiver<Arc<Set<WatchTarget>>>,
    own_node: watch::Receiver<Option<Value>>,
    answers: mpsc::UnboundedSender<(WatchTarget, WatchResult)>,
    reads: mpsc::UnboundedSender<ReadRequest>,
}

impl Registry {
    /// Registers the objects that the pods refer to. For new pods, it waits (with timeouts) for answers about these objects and
    /// about the node, and until `sent_cidrs` shows that the runtime has the ranges of the pods' addresses.
    pub(crate) async fn register(
        &self,
        pods: &[Pod],
        mut sent_cidrs: watch::Receiver<Option<String>>,
    ) {
        let mut new = Vec::new();
        self.needs.send_if_modified(|needs| {
            let mut has_changed = false;
            for pod in pods {
                let needed = PodNeeds::of(pod);
                let before = needs.get(pod.uid());
                new.extend(before.is_none().then(|| pod.clone()));
                if before != Some(&needed) {
                    needs.insert(pod.uid().clone(), needed);
                    has_changed = true;
                }
            }
            has_changed
        });
        if new.is_empty() {
            return;
        }
        self.wait_for_node().await;
        self.wait_for(&new).await;
        pod_cidr::wait_until_sent(&self.store, &mut sent_cidrs).await;
        self.match_node(&new).await;
    }

    /// The last known state of the node's object.
    pub(crate) fn own_node(&self) -> watch::Receiver<Option<Value>> {
        self.own_node.clone()
    }

    /// Removes the needs of a pod.
    pub(crate) fn unregister(&self, uid: &PodUid) {
        self.needs.send_if_modified(|needs| needs.remove(uid).is_some());
    }

    /// Waits for the node's object, up to [`NODE_ANSWER`]: its labels and taints decide which pods it admits.
    async fn wait_for_node(&self) {
        let has_node = |known: &Arc<Set<WatchTarget>>| known.contains(&WatchTarget::Node);
        let _ = timeout(NODE_ANSWER, self.known.clone().wait_for(has_node)).await;
    }

    /// Waits for answers about everything that the pods refer to, up to [`FIRST_ANSWERS`].
    async fn wait_for(&self, pods: &[Pod]) {
        let needed: Set<WatchTarget> = pods.iter().flat_map(watch_targets).chain(ALWAYS).collect();
        let has_all = |known: &Arc<Set<WatchTarget>>| needed.is_subset(known);
        let answered = async {
            self.announce(pods.iter().flat_map(objects).collect()).await;
            let _ = self.known.clone().wait_for(has_all).await;
        };
        // After a timeout, each pod reports its missing objects itself.
        let _ = timeout(FIRST_ANSWERS, answered).await;
    }

    /// Announces that objects are about to be read, which restarts their stopped watches. Returns those that are followed.
    async fn announce(&self, objects: Vec<ObjectRef>) -> Vec<ObjectRef> {
        let (reply, followed) = oneshot::channel();
        // If the receiver is gone, nothing is followed.
        let _ = self.reads.send(ReadRequest { objects, reply });
        followed.await.unwrap_or_default()
    }

    /// Waits for an answer about each followed one of these objects, up to [`FIRST_ANSWERS`].
    ///
    /// # Errors
    ///
    /// If an answer is missing.
    pub(crate) async fn sync(
        &self,
        namespace: &str,
        objects: &[(ObjectKind, String)],
    ) -> Result<(), String> {
        let until = Instant::now() + FIRST_ANSWERS;
        let objects = in_namespace(namespace, objects.iter().cloned());
        // Nothing is followed until the node has a certificate.
        let Ok(followed) = timeout_at(until, self.announce(objects)).await else {
            return Ok(());
        };
        let has_all =
            |known: &Arc<Set<WatchTarget>>| followed.iter().all(|named| is_known(known, named));
        if timeout_at(until, self.known.clone().wait_for(has_all)).await.is_ok() {
            return Ok(());
        }
        let known = Arc::clone(&self.known.borrow());
        let missing = followed.iter().find(|named| !is_known(&known, named));
        missing.map_or(Ok(()), |named| Err(sync_timeout_error(named.kind)))
    }

    /// Gets the node again if it does not match the node selector or affinity of a pod: it may just have got the labels
    /// (Kubernetes 1.36, pkg/kubelet/lifecycle/predicate.go generalFilter).
    async fn match_node(&self, pods: &[Pod]) {
        let is_stale = {
            let objects = self.store.current();
            let labels = objects.node().map(|node| node.metadata.labels.clone());
            labels.map(Option::unwrap_or_default).is_some_and(|labels| {
                pods.iter().any(|pod| !fields_of_other_nodes(pod, &self.node, &labels).is_empty())
            })
        };
        if !is_stale {
            return;
        }
        match self.client.get(&registration::path(&self.node), &[]).await {
            Ok(node) => {
                let mut changes = self.store.changes();
                // The send fails only if [`Objects`] is gone.
                let _ = self.answers.send((WatchTarget::Node, WatchResult::Objects(vec![node])));
                let _ = timeout(FIRST_ANSWERS, changes.changed()).await;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(node = %self.node, error, "failed to get the node for a pod whose node selector does not match");
            }
        }
    }
}

fn is_known(known: &Set<WatchTarget>, named: &ObjectRef) -> bool {
    known.contains(&WatchTarget::Object(named.clone()))
}

/// The reflector of a watch target; `None` for a claim, which is polled.
fn reflector(client: &ApiClient, node: &str, watched: &WatchTarget) -> Option<Reflector> {
    Some(match watched {
        WatchTarget::Claim(..) => return None,
        WatchTarget::Node => {
            let fields = format!("metadata.name={node}");
            Reflector::new(client.clone(), "/api/v1/nodes").with_fields(fields)
        }
        WatchTarget::RuntimeClasses => {
            Reflector::new(client.clone(), "/apis/node.k8s.io/v1/runtimeclasses")
        }
        WatchTarget::Object(ObjectRef { kind, namespace, name }) => {
            let resource = match kind {
                ObjectKind::ConfigMap => "configmaps",
                ObjectKind::Secret => "secrets",
            };
            let path = format!("/api/v1/namespaces/{namespace}/{resource}");
            Reflector::new(client.clone(), path)
                .with_fields(format!("metadata.name={name}"))
                .with_min_watch(OBJECT_WATCH)
        }
        WatchTarget::Services => {
            Reflector::new(client.clone(), "/api/v1/services").with_fields("spec.clusterIP!=None")
        }
    })
}

/// Watches one target until it is immutable. A failed request leaves the known state unchanged. If the server forbids the first list,
/// that is no answer until `patience` has passed.
async fn follow(
    mut reflector: Reflector,
    watched: WatchTarget,
    answers: mpsc::UnboundedSender<(WatchTarget, WatchResult)>,
    patience: Duration,
) {
    let mut is_known = false;
    let patient_until = Instant::now() + patience;
    loop {
        let answer = match reflector.next().await {
            Change::Listed | Change::Object => {
                is_known = true;
                WatchResult::Objects(reflector.objects().values().cloned().collect())
            }
            Change::Failed(error) => {
                let is_early = Instant::now() + FORBIDDEN_RETRY <= patient_until;
                if !is_known && error.is_forbidden() && is_early {
                    reflector.retry_after(FORBIDDEN_RETRY);
                    continue;
                }
                let why = error.to_string();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(?watched, error, "failed to watch an object of pods; will retry");
                if is_known {
                    continue;
                }
                WatchResult::Refused(why)
            }
        };
        let is_final = is_immutable(&answer);
        if answers.send((watched.clone(), answer)).is_err() || is_final {
            return;
        }
    }
}

/// The state of a watch target.
struct WatchState {
    task: AbortHandle,
    /// Whether there was an answer since its watch started.
    is_answered: bool,
    /// The time of the last read.
    read_at: Instant,
    /// Whether its watch is stopped because of idleness.
    is_stopped: bool,
}

/// Follows the objects of all pods.
pub(crate) struct Objects {
    client: ApiClient,
    node: String,
    store: Arc<ObjectStore>,
    /// Objects that do not come from the server.
    others: ObjectMap,
    tasks: JoinSet<()>,
    following: Map<WatchTarget, WatchState>,
    /// The objects that are read repeatedly.
    lasting: Set<WatchTarget>,
    /// The time without a read after which the watches of other objects stop.
    idle_limit: Duration,
    answers: WatchResults,
    sender: mpsc::UnboundedSender<(WatchTarget, WatchResult)>,
    receiver: mpsc::UnboundedReceiver<(WatchTarget, WatchResult)>,
    announcer: mpsc::UnboundedSender<ReadRequest>,
    reads: mpsc::UnboundedReceiver<ReadRequest>,
    known: watch::Sender<Arc<Set<WatchTarget>>>,
    /// The node's object as the server sent it, including fields that this version of the API does not have.
    own_node: watch::Sender<Option<Value>>,
    needs: watch::Sender<Needs>,
}

impl Objects {
    /// Keeps the node's objects up to date in the store, in addition to `others`. `resync_period` is the interval between syncs
    /// of a pod.
    pub(crate) fn new(
        client: ApiClient,
        node: &str,
        store: Arc<ObjectStore>,
        others: ObjectMap,
        resync_period: Duration,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (announcer, reads) = mpsc::unbounded_channel();
        Self {
            client,
            node: node.to_owned(),
            store,
            others,
            tasks: JoinSet::new(),
            following: Map::new(),
            lasting: Set::new(),
            idle_limit: resync_period.saturating_mul(IDLE_PERIODS).max(LEAST_IDLE),
            answers: WatchResults::new(),
            sender,
            receiver,
            announcer,
            reads,
            known: watch::Sender::default(),
            own_node: watch::Sender::default(),
            needs: watch::Sender::default(),
        }
    }

    /// The handle for registering pods.
    pub(crate) fn registry(&self) -> Registry {
        Registry {
            client: self.client.clone(),
            node: self.node.clone(),
            store: Arc::clone(&self.store),
            needs: self.needs.clone(),
            known: self.known.subscribe(),
            own_node: self.own_node.subscribe(),
            answers: self.sender.clone(),
            reads: self.announcer.clone(),
        }
    }

    /// Follows what registered pods refer to.
    pub(crate) async fn run(mut self) {
        let mut needs = self.needs.subscribe();
        needs.mark_changed();
        let mut idle_checks = interval(IDLE_CHECK);
        loop {
            tokio::select! {
                Ok(()) = needs.changed() => {
                    let (targets, lasting) = all_targets(&needs.borrow_and_update());
                    self.set_targets(targets, lasting);
                }
                Some((watched, answer)) = self.receiver.recv() => self.record(watched, answer),
                Some(ReadRequest { objects, reply }) = self.reads.recv() => {
                    // The caller may have timed out.
                    let _ = reply.send(self.read(objects));
                }
                // Most of them were aborted.
                Some(ended) = self.tasks.join_next() => { tasks::output(ended); }
                _ = idle_checks.tick() => self.stop_idle(),
            }
        }
    }

    /// Records the server's answer about a watch target.
    fn record(&mut self, watched: WatchTarget, answer: WatchResult) {
        let Some(following) = self.following.get_mut(&watched) else {
            return;
        };
        following.is_answered = true;
        if let (WatchTarget::Node, WatchResult::Objects(found)) = (&watched, &answer) {
            self.own_node.send_replace(found.first().cloned());
        }
        self.answers.insert(watched, answer);
        self.publish();
    }

    /// Follows exactly these. `lasting` are read repeatedly.
    fn set_targets(&mut self, targets: Set<WatchTarget>, lasting: Set<WatchTarget>) {
        let before = self.following.len();
        self.following.retain(|watched, following| {
            let is_target = targets.contains(watched);
            if !is_target {
                following.task.abort();
                self.answers.remove(watched);
            }
            is_target
        });
        let now = Instant::now();
        for watched in std::mem::replace(&mut self.lasting, lasting).iter() {
            if let Some(following) = self.following.get_mut(watched) {
                following.read_at = now;
            }
        }
        let mut changed = self.following.len() != before;
        for watched in targets {
            let is_lasting = self.lasting.contains(&watched);
            let following = self.following.get(&watched);
            if following.is_none_or(|following| following.is_stopped && is_lasting) {
                self.start(watched);
                changed = true;
            }
        }
        if changed {
            self.publish();
        }
    }

    /// Starts to follow something. Its known state stays until there is an answer.
    fn start(&mut self, watched: WatchTarget) {
        let (own, answers) = (watched.clone(), self.sender.clone());
        let task = match (reflector(&self.client, &self.node, &watched), &watched) {
            (None, WatchTarget::Claim(namespace, name)) => {
                let (namespace, name) = (namespace.clone(), name.clone());
                let client = self.client.clone();
                self.tasks.spawn(tasks::boxed(poll_claim(client, namespace, name, own, answers)))
            }
            (Some(reflector), watched) => {
                // The permission to follow the others does not depend on pods.
                let is_object = matches!(watched, WatchTarget::Object(_));
                let patience = if is_object { FIRST_ANSWERS } else { Duration::ZERO };
                self.tasks.spawn(tasks::boxed(follow(reflector, own, answers, patience)))
            }
            (None, _) => return,
        };
        let read_at = Instant::now();
        let following = WatchState { task, is_answered: false, read_at, is_stopped: false };
        self.following.insert(watched, following);
    }

    /// Records that objects are about to be read, and restarts their stopped watches. Returns those that are followed.
    fn read(&mut self, objects: Vec<ObjectRef>) -> Vec<ObjectRef> {
        let now = Instant::now();
        let (mut followed, mut stopped) = (Vec::new(), Vec::new());
        for named in objects {
            let watched = WatchTarget::Object(named.clone());
            if let Some(following) = self.following.get_mut(&watched) {
                following.read_at = now;
                followed.push(named);
                if following.is_stopped {
                    stopped.push(watched);
                }
            }
        }
        if !stopped.is_empty() {
            stopped.into_iter().for_each(|watched| self.start(watched));
            self.publish_known();
        }
        followed
    }

    /// Stops the watches of objects that were not read for [`Self::idle_limit`].
    fn stop_idle(&mut self) {
        let now = Instant::now();
        for (watched, following) in &mut self.following {
            let is_read = self.lasting.contains(watched)
                || now.duration_since(following.read_at) <= self.idle_limit;
            let is_watched = following.is_answered && !following.is_stopped;
            let answer = self.answers.get(watched);
            let is_object = matches!(watched, WatchTarget::Object(_))
                && matches!(answer, Some(WatchResult::Objects(_)))
                && !answer.is_some_and(is_immutable);
            if is_object && is_watched && !is_read {
                tracing::debug!(?watched, "stopped watching an idle object");
                following.task.abort();
                following.is_stopped = true;
            }
        }
    }

    fn publish(&self) {
        let mut objects = self.others.clone();
        for watched in self.following.keys() {
            add(&mut objects, watched, self.answers.get(watched));
        }
        self.store.set(objects);
        self.publish_known();
    }

    fn publish_known(&self) {
        let answered = self.following.iter().filter(|(_, following)| following.is_answered);
        self.known.send_replace(Arc::new(answered.map(|(watched, _)| watched.clone()).collect()));
    }
}

#[cfg(test)]
mod tests;
