//! The objects that pods of the node need, and the node itself: each is followed as long as a pod needs it.

use std::sync::Arc;
use std::time::Duration;

use agent::objects::{ObjectKind, ObjectMap, ObjectStore};
use agent::pod_spec::admission::fields_of_other_nodes;
use api::pod::{Pod, PodUid};
use compact::{Map, Set};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::claim::follow_claim;
use super::followed::{ALWAYS, Answer, Answers, Followed, Named, add, followed};
use crate::client::{ApiClient, Change, Reflector};
use crate::node::{pod_cidr, registration};

/// How long the first pods wait for the node's own object.
const NODE_ANSWER: Duration = Duration::from_secs(10);
/// How long a new pod waits for the first answers about its objects.
const FIRST_ANSWERS: Duration = Duration::from_secs(1);

/// What each pod that needs something refers to.
type Needs = Map<PodUid, Set<Followed>>;

/// Registers what pods need, and tells when that is known. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    client: ApiClient,
    node: String,
    store: Arc<ObjectStore>,
    needs: watch::Sender<Needs>,
    known: watch::Receiver<Arc<Set<Followed>>>,
    own_node: watch::Receiver<Option<Value>>,
    answers: mpsc::UnboundedSender<(Followed, Answer)>,
}

impl Registry {
    /// Registers what the pods refer to. For new ones it waits until there is an answer about all that, about the node itself, and
    /// until the runtime has been `told` the ranges of their addresses; for some seconds at most.
    pub(crate) async fn register(&self, pods: &[Pod], mut told: watch::Receiver<Option<String>>) {
        let mut new = Vec::new();
        self.needs.send_if_modified(|needs| {
            let mut has_changed = false;
            for pod in pods {
                let needed: Set<Followed> = followed(pod).into_iter().collect();
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
        pod_cidr::wait_until_told(&self.store, &mut told).await;
        self.match_node(&new).await;
    }

    /// The node at the server, as far as it is known.
    pub(crate) fn own_node(&self) -> watch::Receiver<Option<Value>> {
        self.own_node.clone()
    }

    /// The pod needs nothing any more.
    pub(crate) fn unregister(&self, uid: &PodUid) {
        self.needs.send_if_modified(|needs| needs.remove(uid).is_some());
    }

    /// Waits until the server has said what the node is, for some seconds at most: its labels and taints decide which pods it takes.
    async fn wait_for_node(&self) {
        let has_node = |known: &Arc<Set<Followed>>| known.contains(&Followed::Node);
        let _ = timeout(NODE_ANSWER, self.known.clone().wait_for(has_node)).await;
    }

    /// Waits until there is an answer about all that the pods refer to, for a second at most.
    async fn wait_for(&self, pods: &[Pod]) {
        let needed: Set<Followed> = pods.iter().flat_map(followed).chain(ALWAYS).collect();
        let has_all = |known: &Arc<Set<Followed>>| needed.is_subset(known);
        // Later, the pods say themselves what they lack.
        let _ = timeout(FIRST_ANSWERS, self.known.clone().wait_for(has_all)).await;
    }

    /// Asks for the node again if it does not have the labels that one of the pods names: it may have got them a moment ago
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
                // Without its receiver nobody runs pods.
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

/// What follows a thing; `None`: a claim, which is asked for.
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
            Reflector::new(client.clone(), path).with_fields(format!("metadata.name={name}"))
        }
        Followed::Services => {
            Reflector::new(client.clone(), "/api/v1/services").with_fields("spec.clusterIP!=None")
        }
    })
}

/// Follows one thing, for ever. What is known of it stays when a request fails.
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
        if answers.send((of.clone(), answer)).is_err() {
            return;
        }
    }
}

/// The objects of all pods.
pub(crate) struct Objects {
    client: ApiClient,
    node: String,
    store: Arc<ObjectStore>,
    /// Those that are not the server's.
    others: ObjectMap,
    tasks: JoinSet<()>,
    following: Map<Followed, AbortHandle>,
    answers: Answers,
    sender: mpsc::UnboundedSender<(Followed, Answer)>,
    receiver: mpsc::UnboundedReceiver<(Followed, Answer)>,
    known: watch::Sender<Arc<Set<Followed>>>,
    /// The node as the server has it, with fields that this version of the API does not know.
    own_node: watch::Sender<Option<Value>>,
    needs: watch::Sender<Needs>,
}

impl Objects {
    /// Keeps the objects of the server that the node of this name needs in the store, beside `others`.
    pub(crate) fn new(
        client: ApiClient,
        node: &str,
        store: Arc<ObjectStore>,
        others: ObjectMap,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self {
            client,
            node: node.to_owned(),
            store,
            others,
            tasks: JoinSet::new(),
            following: Map::new(),
            answers: Answers::new(),
            sender,
            receiver,
            known: watch::Sender::default(),
            own_node: watch::Sender::default(),
            needs: watch::Sender::default(),
        }
    }

    /// Where pods are registered.
    pub(crate) fn registry(&self) -> Registry {
        Registry {
            client: self.client.clone(),
            node: self.node.clone(),
            store: Arc::clone(&self.store),
            needs: self.needs.clone(),
            known: self.known.subscribe(),
            own_node: self.own_node.subscribe(),
            answers: self.sender.clone(),
        }
    }

    /// Follows what registered pods refer to, for ever.
    pub(crate) async fn run(mut self) {
        let mut needs = self.needs.subscribe();
        needs.mark_changed();
        loop {
            tokio::select! {
                Ok(()) = needs.changed() => {
                    let wanted: Set<Followed> =
                        needs.borrow_and_update().values().flatten().cloned().collect();
                    self.want(wanted.into_iter().chain(ALWAYS).collect());
                }
                Some((of, answer)) = self.receiver.recv() => {
                    if self.following.contains_key(&of) {
                        if let (Followed::Node, Answer::Objects(found)) = (&of, &answer) {
                            self.own_node.send_replace(found.first().cloned());
                        }
                        self.answers.insert(of, answer);
                        self.publish();
                    }
                }
            }
        }
    }

    /// Follows these, and nothing else.
    fn want(&mut self, wanted: Set<Followed>) {
        let before = self.following.len();
        self.following.retain(|of, task| {
            let is_wanted = wanted.contains(of);
            if !is_wanted {
                task.abort();
                self.answers.remove(of);
            }
            is_wanted
        });
        let mut changed = self.following.len() != before;
        for of in wanted {
            if !self.following.contains_key(&of) {
                let (own, answers) = (of.clone(), self.sender.clone());
                let task = match (reflector(&self.client, &self.node, &of), &of) {
                    (None, Followed::Claim(namespace, name)) => {
                        let (namespace, name) = (namespace.clone(), name.clone());
                        let client = self.client.clone();
                        self.tasks.spawn(tasks::boxed(follow_claim(
                            client, namespace, name, own, answers,
                        )))
                    }
                    (Some(reflector), _) => {
                        self.tasks.spawn(tasks::boxed(follow(reflector, own, answers)))
                    }
                    (None, _) => continue,
                };
                self.following.insert(of, task);
                changed = true;
            }
        }
        while self.tasks.try_join_next().is_some() {}
        if changed {
            self.publish();
        }
    }

    fn publish(&self) {
        let mut objects = self.others.clone();
        for of in self.following.keys() {
            add(&mut objects, of, self.answers.get(of));
        }
        self.store.set(objects);
        self.known.send_replace(Arc::new(self.answers.keys().cloned().collect()));
    }
}
