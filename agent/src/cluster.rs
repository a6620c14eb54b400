//! The cluster that the agent is a node of: one trait for all that the agent asks of it, and all that it reports to it.
//!
//! The agent does not know which kind of cluster it is in. `crib run` has a store in memory, `crib agent` an API server (package
//! `kube-node`) or, alone, a directory of objects ([`Standalone`]). Static pods are no cluster's: they come from
//! [`crate::source`]s.

use std::sync::{Arc, Mutex, PoisonError};

use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use tokio::sync::mpsc;

use crate::cri::Cri;
use crate::objects::directory::{ObjectsDirectory, TooLarge};
use crate::objects::{ObjectKind, ObjectMap, ObjectStore};
use crate::reporting::events::Event;
use crate::view::AgentView;

pub mod token;

/// What an agent knows of its cluster.
///
/// Every method has an answer for a cluster that does not have the thing: only [`Cluster::name`] and [`Cluster::objects`] must be
/// written.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Its name in logs: `API server https://10.0.0.1:6443`, `store`.
    fn name(&self) -> String;

    /// The objects that pods refer to, as far as they are known. Of each there are three answers: the object, no such object, or why
    /// it is not known ([`ObjectMap::unknown`]: it was not asked for long enough, or is forbidden), with which a pod waits.
    fn objects(&self) -> Arc<ObjectStore>;

    /// Follows the pods that are bound to the node, from now on. `None`: none ever is.
    fn watch_pods(&self) -> Option<Box<dyn PodWatch>> {
        None
    }

    /// Registers what these pods refer to, which [`Cluster::objects`] has from now on. Called for each pod before the agent takes it,
    /// and again when it changes. Returns when there is an answer about everything, or after some seconds.
    async fn register(&self, _pods: &[Pod]) {}

    /// Called before a container starts whose variables name these objects. A cluster may have stopped to watch objects that nothing
    /// has read for long: it watches them again. Returns when there is an answer about each.
    ///
    /// # Errors
    ///
    /// There is no answer about one of them in time; in a kubelet's words.
    async fn sync_objects(
        &self,
        _namespace: &str,
        _objects: &[(ObjectKind, String)],
    ) -> Result<(), String> {
        Ok(())
    }

    /// The pod needs its objects no longer: it has ended, or is not bound to the node any more.
    fn unregister(&self, _uid: &PodUid) {}

    /// Whether it issues the tokens of service accounts. If not, the agent signs them itself.
    fn issues_tokens(&self) -> bool {
        false
    }

    /// Issues a token.
    ///
    /// # Errors
    ///
    /// Why there is none, in words.
    async fn issue_token(&self, _wanted: &TokenRequest) -> Result<IssuedToken, String> {
        Err("the cluster issues no tokens".to_owned())
    }

    /// A service account, as it is now.
    ///
    /// # Errors
    ///
    /// Why it is not known, in words.
    async fn service_account(&self, _ns: &str, _name: &str) -> Result<ServiceAccount, String> {
        Err("the cluster has no service accounts".to_owned())
    }

    /// Records the node, the statuses of its pods and the events about them in the cluster, and deletes the pods of which nothing is
    /// left, for as long as the agent runs. Returns only if the agent cannot be a node of the cluster, with the reason in words.
    async fn record(&self, agent: Outputs) -> String {
        // Its queue of events would grow.
        drop(agent);
        std::future::pending().await
    }
}

/// Follows the pods that are bound to the node.
#[async_trait]
pub trait PodWatch: Send {
    /// Waits for changes, in their order. The first ones begin with [`PodChange::Listed`]. `None`: there will be no other.
    async fn next(&mut self) -> Option<Vec<PodChange>>;
}

/// A change of the pods that are bound to the node.
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// These are all: at first, and when changes were missed.
    Listed(Vec<Pod>),
    /// A pod is new, or has changed to this.
    Set(Pod),
    /// A pod is gone, or not bound to the node any more.
    Removed(PodUid),
}

/// What the agent has for its cluster.
pub struct Outputs {
    /// The node's state, its static pods, and the reports of all pods.
    pub view: AgentView,
    /// Every event about the pods, as a kubelet records them.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// The runtime, which the node's status shows.
    pub cri: Arc<dyn Cri>,
}

/// A request for a service account token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRequest {
    /// The pod that it is bound to.
    pub uid: PodUid,
    /// The pod's name.
    pub pod: String,
    /// The namespace of pod and account.
    pub namespace: String,
    /// The account.
    pub account: String,
    /// The account's uid; `None`: any account of the name will do.
    pub account_uid: Option<String>,
    /// The audience; `None`: the API server.
    pub audience: Option<String>,
    /// The requested lifetime in seconds.
    pub seconds: i64,
}

/// A token that a cluster issued.
#[derive(Clone)]
pub struct IssuedToken {
    /// The token.
    pub text: String,
    /// Until when it is good.
    pub expires_at: Timestamp,
}

/// No cluster: the agent stands alone. It has static pods, and objects that its caller sets, or that are read from a directory.
#[derive(Debug, Default)]
pub struct Standalone {
    objects: Arc<ObjectStore>,
    /// The directory, and the objects that are not from there; taken by [`Cluster::record`].
    directory: Mutex<Option<(ObjectsDirectory, ObjectMap)>>,
}

impl Standalone {
    /// With the objects that this store has.
    #[must_use]
    pub fn new(objects: Arc<ObjectStore>) -> Self {
        Self { objects, directory: Mutex::default() }
    }

    /// With the objects of a directory, which is read now and followed while the agent runs. They replace those of `others` that
    /// have their names. Can be dropped at any time, which ends the reading.
    ///
    /// # Errors
    ///
    /// The directory has more than the agent keeps in memory.
    pub async fn of_directory(
        mut directory: ObjectsDirectory,
        others: ObjectMap,
    ) -> Result<Self, TooLarge> {
        let objects = Arc::new(ObjectStore::new(directory.read(&others).await?));
        Ok(Self { objects, directory: Mutex::new(Some((directory, others))) })
    }
}

#[async_trait]
impl Cluster for Standalone {
    fn name(&self) -> String {
        "none".to_owned()
    }

    fn objects(&self) -> Arc<ObjectStore> {
        Arc::clone(&self.objects)
    }

    async fn record(&self, agent: Outputs) -> String {
        drop(agent);
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((directory, others)) = directory {
            directory.follow(others, &self.objects).await;
        }
        std::future::pending().await
    }
}
