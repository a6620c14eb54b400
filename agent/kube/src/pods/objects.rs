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

use super::claim::follow_claim;
use super::followed::{
    ALWAYS, Answer, Answers, Followed, Named, add, followed, in_namespace, is_immutable, lasting,
    objects, unanswered,
};
use crate::client::{ApiClient, Change, Reflector};
use crate::node::{pod_cidr, registration};

/// How long the first pods wait for the node's own object.
const NODE_ANSWER: Duration = Duration::from_secs(10);
/// How long a new pod waits for the first answers about its objects.
const FIRST_ANSWERS: Duration = Duration::from_secs(1);
/// The minimum length of an object's watch.
const OBJECT_WATCH: Duration = Duration::from_secs(30 * 60);
/// The interval between searches for idle watches.
const IDLE_CHECK: Duration = Duration::from_secs(60);
/// The time without a read after which a watch stops: a number of resync periods, and at least a minimum.
const IDLE_PERIODS: u32 = 5;
const LEAST_IDLE: Duration = Duration::from_secs(60);

/// The objects that a pod refers to.
#[derive(Clone, Debug, PartialEq)]
struct Needed {
    all: Set<Followed>,
    /// The objects that are read repeatedly while the pod runs.
    lasting: Set<Followed>,
}

impl Needed {
    fn of(pod: &Pod) -> Self {
        let lasting = lasting(pod).into_iter().map(Followed::Object);
        Self { all: followed(pod).into_iter().collect(), lasting: lasting.collect() }
    }
}

/// The needs of each registered pod.
type Needs = Map<PodUid, Needed>;

/// Everything to follow, and the part of it that is read repeatedly.
fn united(needs: &Needs) -> (Set<Followed>, Set<Followed>) {
    let all = needs.values().flat_map(|needed| needed.all.iter().cloned());
    let lasting = needs.values().flat_map(|needed| needed.lasting.iter().cloned());
    (all.chain(ALWAYS).collect(), lasting.collect())
}

/// An announcement that objects are about to be read.
#[derive(Debug)]
struct Read {
    objects: Vec<Named>,
    /// Receives those of them that are followed.
    reply: oneshot::Sender<Vec<Named>>,
}

/// Registers what pods need, and waits for the server's answers. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    client: ApiClient,
    node: String,
    store: Arc<ObjectStore>,
    needs: watch::Sender<Needs>,
    known: watch::Receiver<Arc<Set<Followed>>>,
    own_node: watch::Receiver<Option<Value>>,
    answers: mpsc::UnboundedSender<(Followed, Answer)>,
    reads: mpsc::UnboundedSender<Read>,
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
                let needed = Needed::of(pod);
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
        let has_node = |known: &Arc<Set<Followed>>| known.contains(&Followed::Node);
        let _ = timeout(NODE_ANSWER, self.known.clone().wait_for(has_node)).await;
    }

    /// Waits for answers about everything that the pods refer to, up to [`FIRST_ANSWERS`].
    async fn wait_for(&self, pods: &[Pod]) {
        let needed: Set<Followed> = pods.iter().flat_map(followed).chain(ALWAYS).collect();
        let has_all = |known: &Arc<Set<Followed>>| needed.is_subset(known);
        let answered = async {
            self.announce(pods.iter().flat_map(objects).collect()).await;
            let _ = self.known.clone().wait_for(has_all).await;
        };
        // After a timeout, each pod reports its missing objects itself.
        let _ = timeout(FIRST_ANSWERS, answered).await;
    }

    /// Announces that objects are about to be read, which restarts their stopped watches. Returns those that are followed.
    async fn announce(&self, objects: Vec<Named>) -> Vec<Named> {
        let (reply, followed) = oneshot::channel();
        // If the receiver is gone, nothing is followed.
        let _ = self.reads.send(Read { objects, reply });
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
            |known: &Arc<Set<Followed>>| followed.iter().all(|named| is_known(known, named));
        if timeout_at(until, self.known.clone().wait_for(has_all)).await.is_ok() {
            return Ok(());
        }
        let known = Arc::clone(&self.known.borrow());
        let missing = followed.iter().find(|named| !is_known(&known, named));
        missing.map_or(Ok(()), |named| Err(unanswered(named.kind)))
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
                let _ = self.answers.send((Followed::Node, Answer::Objects(vec![node])));
                let _ = timeout(FIRST_ANSWERS, changes.changed()).await;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(node = %self.node, error, "failed to get the node again for a pod that names other labels");
            }
        }
    }
}

fn is_known(known: &Set<Followed>, named: &Named) -> bool {
    known.contains(&Followed::Object(named.clone()))
}

/// The reflector of something followed; `None` for a claim, which is polled.
fn reflector(client: &ApiClient, node: &str, of: &Followed) -> Option<Reflector> {
    Some(match of {
        Followed::Claim(..) => return None,
        Followed::Node => {
            let fields = format!("metadata.name={node}");
            Reflector::new(client.clone(), "/api/v1/nodes").with_fields(fields)
        }
        Followed::RuntimeClasses => {
            Reflector::new(client.clone(), "/apis/node.k8s.io/v1/runtimeclasses")
        }
        Followed::Object(Named { kind, namespace, name }) => {
            let resource = match kind {
                ObjectKind::ConfigMap => "configmaps",
                ObjectKind::Secret => "secrets",
            };
            let path = format!("/api/v1/namespaces/{namespace}/{resource}");
            Reflector::new(client.clone(), path)
                .with_fields(format!("metadata.name={name}"))
                .with_watches_of(OBJECT_WATCH)
        }
        Followed::Services => {
            Reflector::new(client.clone(), "/api/v1/services").with_fields("spec.clusterIP!=None")
        }
    })
}

/// Follows one thing until it is immutable. A failed request leaves the known state unchanged.
async fn follow(
    mut reflector: Reflector,
    of: Followed,
    answers: mpsc::UnboundedSender<(Followed, Answer)>,
) {
    let mut is_known = false;
    loop {
        let answer = match reflector.next().await {
            Change::Listed | Change::Object => {
                is_known = true;
                Answer::Objects(reflector.objects().values().cloned().collect())
            }
            Change::Failed(error) => {
                let why = error.to_string();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(?of, error, "failed to follow an object of pods; will retry");
                if is_known {
                    continue;
                }
                Answer::Refused(why)
            }
        };
        let is_final = is_immutable(&answer);
        if answers.send((of.clone(), answer)).is_err() || is_final {
            return;
        }
    }
}

/// The state of something followed.
struct Following {
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
    following: Map<Followed, Following>,
    /// The objects that are read repeatedly.
    lasting: Set<Followed>,
    /// The time without a read after which the watches of other objects stop.
    idle_limit: Duration,
    answers: Answers,
    sender: mpsc::UnboundedSender<(Followed, Answer)>,
    receiver: mpsc::UnboundedReceiver<(Followed, Answer)>,
    announcer: mpsc::UnboundedSender<Read>,
    reads: mpsc::UnboundedReceiver<Read>,
    known: watch::Sender<Arc<Set<Followed>>>,
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
            answers: Answers::new(),
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
                    let (wanted, lasting) = united(&needs.borrow_and_update());
                    self.want(wanted, lasting);
                }
                Some((of, answer)) = self.receiver.recv() => self.take(of, answer),
                Some(Read { objects, reply }) = self.reads.recv() => {
                    // The caller may have timed out.
                    let _ = reply.send(self.read(objects));
                }
                _ = idle_checks.tick() => self.stop_idle(),
            }
        }
    }

    /// Records the server's answer about something followed.
    fn take(&mut self, of: Followed, answer: Answer) {
        let Some(following) = self.following.get_mut(&of) else {
            return;
        };
        following.is_answered = true;
        if let (Followed::Node, Answer::Objects(found)) = (&of, &answer) {
            self.own_node.send_replace(found.first().cloned());
        }
        self.answers.insert(of, answer);
        self.publish();
    }

    /// Follows exactly these. `lasting` are read repeatedly.
    fn want(&mut self, wanted: Set<Followed>, lasting: Set<Followed>) {
        let before = self.following.len();
        self.following.retain(|of, following| {
            let is_wanted = wanted.contains(of);
            if !is_wanted {
                following.task.abort();
                self.answers.remove(of);
            }
            is_wanted
        });
        let now = Instant::now();
        for of in std::mem::replace(&mut self.lasting, lasting).iter() {
            if let Some(following) = self.following.get_mut(of) {
                following.read_at = now;
            }
        }
        let mut changed = self.following.len() != before;
        for of in wanted {
            let is_lasting = self.lasting.contains(&of);
            let following = self.following.get(&of);
            if following.is_none_or(|following| following.is_stopped && is_lasting) {
                self.start(of);
                changed = true;
            }
        }
        while self.tasks.try_join_next().is_some() {}
        if changed {
            self.publish();
        }
    }

    /// Starts to follow something. Its known state stays until there is an answer.
    fn start(&mut self, of: Followed) {
        let (own, answers) = (of.clone(), self.sender.clone());
        let task = match (reflector(&self.client, &self.node, &of), &of) {
            (None, Followed::Claim(namespace, name)) => {
                let (namespace, name) = (namespace.clone(), name.clone());
                let client = self.client.clone();
                self.tasks.spawn(tasks::boxed(follow_claim(client, namespace, name, own, answers)))
            }
            (Some(reflector), _) => self.tasks.spawn(tasks::boxed(follow(reflector, own, answers))),
            (None, _) => return,
        };
        let read_at = Instant::now();
        let following = Following { task, is_answered: false, read_at, is_stopped: false };
        self.following.insert(of, following);
    }

    /// Records that objects are about to be read, and restarts their stopped watches. Returns those that are followed.
    fn read(&mut self, objects: Vec<Named>) -> Vec<Named> {
        let now = Instant::now();
        let (mut followed, mut stopped) = (Vec::new(), Vec::new());
        for named in objects {
            let of = Followed::Object(named.clone());
            if let Some(following) = self.following.get_mut(&of) {
                following.read_at = now;
                followed.push(named);
                if following.is_stopped {
                    stopped.push(of);
                }
            }
        }
        if !stopped.is_empty() {
            stopped.into_iter().for_each(|of| self.start(of));
            self.publish_known();
        }
        followed
    }

    /// Stops the watches of objects that were not read for [`Self::idle_limit`].
    fn stop_idle(&mut self) {
        let now = Instant::now();
        for (of, following) in &mut self.following {
            let is_read = self.lasting.contains(of)
                || now.duration_since(following.read_at) <= self.idle_limit;
            let is_watched = following.is_answered && !following.is_stopped;
            let answer = self.answers.get(of);
            let is_object = matches!(of, Followed::Object(_))
                && matches!(answer, Some(Answer::Objects(_)))
                && !answer.is_some_and(is_immutable);
            if is_object && is_watched && !is_read {
                tracing::debug!(?of, "stopped to watch an object that was not read for long");
                following.task.abort();
                following.is_stopped = true;
            }
        }
    }

    fn publish(&self) {
        let mut objects = self.others.clone();
        for of in self.following.keys() {
            add(&mut objects, of, self.answers.get(of));
        }
        self.store.set(objects);
        self.publish_known();
    }

    fn publish_known(&self) {
        let answered = self.following.iter().filter(|(_, following)| following.is_answered);
        self.known.send_replace(Arc::new(answered.map(|(of, _)| of.clone()).collect()));
    }
}

#[cfg(test)]
mod tests;
