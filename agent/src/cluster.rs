//! The cluster that the agent is a node of: one trait for everything that the agent reads from it and reports to it.
//!
//! The agent does not depend on the kind of cluster. `crib run` has a store in memory, `crib agent` an API server (package
//! `kube-node`) or, without one, a directory of objects ([`Standalone`]). Static pods do not come from the cluster but from
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

/// An agent's view of its cluster.
///
/// Every method has a default for a cluster without the feature: only [`Cluster::name`] and [`Cluster::objects`] must be
/// implemented.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Its name in logs: `API server https://10.0.0.1:6443`, `store`.
    fn name(&self) -> String;

    /// The known objects that pods refer to. A lookup returns the object, that it does not exist, or why it is unknown
    /// ([`ObjectMap::unknown`]: not yet read, or forbidden); a pod waits for an unknown object.
    fn objects(&self) -> Arc<ObjectStore>;

    /// Watches the pods that are bound to the node, from now on. `None`: the cluster binds no pods.
    fn watch_pods(&self) -> Option<Box<dyn PodWatch>> {
        None
    }

    /// Registers the objects that these pods refer to; from now on [`Cluster::objects`] includes them. Called for each pod before
    /// the agent admits it, and again when the pod changes. Returns when each object is read or failed, or after some seconds.
    async fn register(&self, _pods: &[Pod]) {}

    /// Called before a container starts whose variables refer to these objects. A cluster may have stopped watching objects that
    /// were not read for a long time; it watches them again. Returns when each object is read or failed.
    ///
    /// # Errors
    ///
    /// If an object is not read in time, with a kubelet's message.
    async fn sync_objects(
        &self,
        _namespace: &str,
        _objects: &[(ObjectKind, String)],
    ) -> Result<(), String> {
        Ok(())
    }

    /// Unregisters the objects of a pod, because the pod has ended or is no longer bound to the node.
    fn unregister(&self, _uid: &PodUid) {}

    /// Whether the cluster issues service account tokens. If not, the agent signs them itself.
    fn issues_tokens(&self) -> bool {
        false
    }

    /// Issues a token.
    ///
    /// # Errors
    ///
    /// The message of the failure.
    async fn issue_token(&self, _wanted: &TokenRequest) -> Result<IssuedToken, String> {
        Err("the cluster issues no tokens".to_owned())
    }

    /// Returns the current service account.
    ///
    /// # Errors
    ///
    /// The message of the failure.
    async fn service_account(&self, _ns: &str, _name: &str) -> Result<ServiceAccount, String> {
        Err("the cluster has no service accounts".to_owned())
    }

    /// Records the node, the statuses of its pods and their events in the cluster, and deletes pods that are completely removed
    /// from the node, as long as the agent runs. Returns, with the reason, only if the agent cannot be a node of the cluster.
    async fn record(&self, agent: Outputs) -> String {
        // Otherwise its queue of events would grow.
        drop(agent);
        std::future::pending().await
    }
}

/// Watches the pods that are bound to the node.
#[async_trait]
pub trait PodWatch: Send {
    /// Waits for changes, in order. The first change is [`PodChange::Listed`]. `None`: the watch has ended.
    async fn next(&mut self) -> Option<Vec<PodChange>>;
}

/// A change of the pods that are bound to the node.
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// The complete list of pods: at first, and after missed changes.
    Listed(Vec<Pod>),
    /// A pod was added or changed; this is its new version.
    Set(Pod),
    /// A pod was deleted or is no longer bound to the node.
    Removed(PodUid),
}

/// The agent's outputs for its cluster.
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
    /// The account's uid; `None`: any account with the name.
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
    /// The expiration time.
    pub expires_at: Timestamp,
}

/// No cluster: the agent is standalone. It has static pods, and objects that its caller sets or that are read from a directory.
#[derive(Debug, Default)]
pub struct Standalone {
    objects: Arc<ObjectStore>,
    /// The directory, and the objects from elsewhere; taken by [`Cluster::record`].
    directory: Mutex<Option<(ObjectsDirectory, ObjectMap)>>,
}

impl Standalone {
    /// Creates a standalone agent's cluster with the objects of this store.
    #[must_use]
    pub fn new(objects: Arc<ObjectStore>) -> Self {
        Self { objects, directory: Mutex::default() }
    }

    /// Creates it with the objects of a directory, which is read now and watched while the agent runs. They replace objects of
    /// `others` with the same names. Dropping it stops the watch.
    ///
    /// # Errors
    ///
    /// If the directory exceeds the size that the agent keeps in memory.
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
