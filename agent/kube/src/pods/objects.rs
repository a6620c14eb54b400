//! The ConfigMaps and Secrets that pods of the node refer to, and the Services: each is followed as long as a pod needs it.
//!
//! The node authorizer lets a node follow an object by its name alone, and only while a pod that is bound to the node refers to it.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/util/manager/watch_based_manager.go; plugin/pkg/auth/authorizer/node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent::objects::{ObjectKind, ObjectMap, ObjectStore};
use agent::pod_spec::references::named;
use api::pod::Pod;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::KnownPods;
use crate::client::{ApiClient, Change, Reflector};

/// How long a new pod waits for the first answers about its objects.
const FIRST_ANSWERS: Duration = Duration::from_secs(1);

/// An object that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    kind: ObjectKind,
    namespace: String,
    name: String,
}

/// What is followed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Followed {
    /// One object.
    Object(Named),
    /// All Services that have an address: pods have them in their environment.
    Services,
}

/// What the server says of something.
#[derive(Clone, Debug)]
enum Answer {
    /// The objects; none if there is no such object.
    Objects(Vec<Value>),
    /// It does not say.
    Refused(String),
}

type Answers = BTreeMap<Followed, Answer>;

/// Tells when the objects of pods are known.
#[derive(Clone, Debug)]
pub(crate) struct Known(watch::Receiver<Arc<BTreeSet<Followed>>>);

impl Known {
    /// Waits until there is an answer about all that the pods refer to, for a second at most.
    pub(crate) async fn wait_for(&mut self, pods: &[Pod]) {
        if pods.is_empty() {
            return;
        }
        let needed: BTreeSet<Followed> =
            pods.iter().flat_map(followed).chain([Followed::Services]).collect();
        let has_all = |known: &Arc<BTreeSet<Followed>>| needed.is_subset(known);
        // Later, the pods say themselves what they lack.
        let _ = timeout(FIRST_ANSWERS, self.0.wait_for(has_all)).await;
    }
}

/// ◆ What a pod refers to.
fn followed(pod: &Pod) -> Vec<Followed> {
    let object = |(kind, name): (ObjectKind, String)| {
        Followed::Object(Named { kind, namespace: pod.namespace().to_owned(), name })
    };
    named(pod).into_iter().map(object).collect()
}

fn reflector(client: &ApiClient, of: &Followed) -> Reflector {
    match of {
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
    }
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
    store: Arc<ObjectStore>,
    /// Those that are not the server's.
    others: ObjectMap,
    tasks: JoinSet<()>,
    following: BTreeMap<Followed, AbortHandle>,
    answers: Answers,
    known: watch::Sender<Arc<BTreeSet<Followed>>>,
}

impl Objects {
    /// Keeps the objects of the server in the store, beside `others`.
    pub(crate) fn new(client: ApiClient, store: Arc<ObjectStore>, others: ObjectMap) -> Self {
        Self {
            client,
            store,
            others,
            tasks: JoinSet::new(),
            following: BTreeMap::new(),
            answers: Answers::new(),
            known: watch::Sender::default(),
        }
    }

    /// When the objects of pods are known.
    pub(crate) fn known(&self) -> Known {
        Known(self.known.subscribe())
    }

    /// Follows what the pods refer to, for ever.
    pub(crate) async fn run(mut self, mut pods: watch::Receiver<Arc<KnownPods>>) {
        let (sender, mut answers) = mpsc::unbounded_channel();
        self.want([Followed::Services].into(), &sender);
        loop {
            tokio::select! {
                Ok(()) = pods.changed() => {
                    let pods = Arc::clone(&pods.borrow_and_update());
                    // One that has ended needs nothing any more.
                    let running = pods.values().filter(|pod| !pod.has_ended());
                    let wanted = running.flat_map(followed).chain([Followed::Services]).collect();
                    self.want(wanted, &sender);
                }
                Some((of, answer)) = answers.recv() => {
                    if self.following.contains_key(&of) {
                        self.answers.insert(of, answer);
                        self.publish();
                    }
                }
            }
        }
    }

    /// Follows these, and nothing else.
    fn want(
        &mut self,
        wanted: BTreeSet<Followed>,
        sender: &mpsc::UnboundedSender<(Followed, Answer)>,
    ) {
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
                let reflector = reflector(&self.client, &of);
                let task = self.tasks.spawn(follow(reflector, of.clone(), sender.clone()));
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

/// ◆ Adds what is known of one thing.
fn add(objects: &mut ObjectMap, of: &Followed, answer: Option<&Answer>) {
    let found = match answer {
        Some(Answer::Objects(found)) => found.as_slice(),
        Some(Answer::Refused(_)) | None => &[],
    };
    match of {
        Followed::Services => {
            found.iter().filter_map(decoded).for_each(|service| objects.insert_service(service));
        }
        Followed::Object(named) => {
            match named.kind {
                ObjectKind::ConfigMap => {
                    found.iter().filter_map(decoded).for_each(|map| objects.insert_config_map(map));
                }
                ObjectKind::Secret => {
                    found.iter().filter_map(decoded).for_each(|it| objects.insert_secret(it));
                }
            }
            let why = match answer {
                Some(Answer::Objects(_)) => return,
                Some(Answer::Refused(why)) => why.clone(),
                None => format!(
                    "failed to sync {} cache: timed out waiting for the condition",
                    named.kind
                ),
            };
            objects.set_unknown(named.kind, &named.namespace, &named.name, why);
        }
    }
}

fn decoded<T: DeserializeOwned>(object: &Value) -> Option<T> {
    let decoded = T::deserialize(object);
    if let Err(error) = &decoded {
        let name = &object["metadata"]["name"];
        tracing::error!(%name, %error, "failed to decode an object of the API server");
    }
    decoded.ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn named(kind: ObjectKind, name: &str) -> Followed {
        Followed::Object(Named { kind, namespace: "ns".to_owned(), name: name.to_owned() })
    }

    fn pod(spec: Value) -> Pod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        Pod::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn pods_need_what_their_containers_volumes_and_pulls_name() {
        let spec = json!({
            "containers": [{
                "name": "c",
                "envFrom": [{"configMapRef": {"name": "all"}}],
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}],
            }],
            "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "root"}}]}}],
            "imagePullSecrets": [{"name": "login"}],
        });
        let mut found = followed(&pod(spec));
        found.sort();
        let expected = [
            named(ObjectKind::ConfigMap, "all"),
            named(ObjectKind::ConfigMap, "root"),
            named(ObjectKind::Secret, "login"),
            named(ObjectKind::Secret, "one"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn answers_are_there_not_there_and_not_known() {
        let mut objects = ObjectMap::default();
        let map = json!({"metadata": {"name": "a", "namespace": "ns"}, "data": {"k": "v"}});
        let table = [
            (named(ObjectKind::ConfigMap, "a"), Some(Answer::Objects(vec![map]))),
            (named(ObjectKind::ConfigMap, "b"), Some(Answer::Objects(Vec::new()))),
            (named(ObjectKind::ConfigMap, "c"), Some(Answer::Refused("forbidden".to_owned()))),
            (named(ObjectKind::Secret, "d"), None),
        ];
        for (of, answer) in &table {
            add(&mut objects, of, answer.as_ref());
        }
        let map = |name| objects.config_map("ns", name);
        assert_eq!(map("a").unwrap().data.as_ref().unwrap()["k"], "v");
        assert_eq!((map("b"), map("c")), (None, None));
        let why = |kind, name| objects.unknown(kind, "ns", name).map(ToOwned::to_owned);
        assert_eq!(why(ObjectKind::ConfigMap, "a"), None);
        assert_eq!(why(ObjectKind::ConfigMap, "b"), None);
        assert_eq!(why(ObjectKind::ConfigMap, "c").as_deref(), Some("forbidden"));
        let unanswered = "failed to sync secret cache: timed out waiting for the condition";
        assert_eq!(why(ObjectKind::Secret, "d").as_deref(), Some(unanswered));
    }
}
