//! Creates and deletes mirror pods, so that the API server represents the static pods that the agent runs.

use std::sync::Arc;
use std::time::Duration;

use agent::objects::ObjectStore;
use agent::{AgentView, PodReport, Reports};
use api::pod::Pod;
use compact::Map;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::mirror::{
    FullName, MirrorAction, actions, is_mirror, is_same, object, reported_status, reported_uid,
};
use super::status_json::differs;
use super::{KnownPods, path};
use crate::chance::chance;
use crate::client::{ApiClient, ApiError, Backoff};

/// How long to wait for a created mirror pod to appear in the watch before it is created again.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Reconciles mirror pods.
pub(crate) struct MirrorWriter {
    client: ApiClient,
    node: String,
    /// The earliest time of the next action on each mirror pod, after an action or a failure.
    not_before: Map<FullName, Instant>,
    backoff: Backoff,
}

/// The inputs of the reconciliation.
pub(crate) struct MirrorInputs {
    pub(crate) view: AgentView,
    pub(crate) reports: watch::Receiver<Arc<Reports>>,
    /// The pods at the server.
    pub(crate) known: watch::Receiver<Arc<KnownPods>>,
    /// The store that has the node's object.
    pub(crate) store: Arc<ObjectStore>,
}

impl MirrorInputs {
    fn actions(&mut self) -> Vec<MirrorAction> {
        // Read before the pods: a source adds its pods before it counts as ready.
        let is_complete = self.view.sources_are_ready();
        let static_pods = self.view.static_pods();
        let known = Arc::clone(&self.known.borrow_and_update());
        let reports = Arc::clone(&self.reports.borrow_and_update());
        let is_ending = |mirror: &Pod| {
            let shows = |report: &PodReport| {
                let status = mirror.api().status.clone().unwrap_or_default();
                !differs(&status, &reported_status(mirror, &report.published))
            };
            let report = reports.get(&reported_uid(mirror));
            report.is_some_and(|report| !report.finished || !shows(report))
        };
        let mirrors = known.values().filter(|pod| is_mirror(pod));
        actions(&static_pods, mirrors, is_complete, is_ending)
    }
}

impl MirrorWriter {
    pub(crate) fn new(client: ApiClient, node: &str) -> Self {
        Self { client, node: node.to_owned(), not_before: Map::new(), backoff: Backoff::default() }
    }

    /// Reconciles on each change. It creates no mirror pod until the node exists.
    pub(crate) async fn run(mut self, mut inputs: MirrorInputs) {
        let mut objects = inputs.store.changes();
        loop {
            objects.mark_unchanged();
            self.reconcile(&mut inputs).await;
            let next = self.not_before.values().min().copied();
            tokio::select! {
                () = inputs.view.pods_changed() => {}
                Ok(()) = inputs.known.changed() => {}
                Ok(()) = inputs.reports.changed() => {}
                // The node may have been replaced.
                Ok(()) = objects.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    async fn reconcile(&mut self, inputs: &mut MirrorInputs) {
        let actions = inputs.actions();
        let names: Vec<FullName> = actions.iter().map(MirrorAction::name).collect();
        self.not_before.retain(|name, _| names.contains(name));
        for action in actions {
            let name = action.name();
            if self.not_before.get(&name).is_some_and(|until| Instant::now() < *until) {
                continue;
            }
            let done = match &action {
                MirrorAction::Delete(mirror) => self.delete(mirror).await.map(|_| true),
                MirrorAction::Create { pod, outdated } => {
                    self.create(pod, outdated.as_ref(), &inputs.store).await
                }
            };
            match done {
                Ok(true) => {
                    self.not_before.insert(name, Instant::now() + SEEN_WITHIN);
                }
                // No retry: the next change triggers it.
                Ok(false) => {
                    self.not_before.remove(&name);
                }
                Err(error) => {
                    let concerns_all = error.concerns_all_objects();
                    let at = self.backoff.failed(Instant::now().into_std(), chance());
                    self.not_before.insert(name.clone(), Instant::from_std(at));
                    let (namespace, name) = name;
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(pod = %format_args!("{namespace}/{name}"), error, "failed to update the mirror pod of a static pod; will retry");
                    // Requests for the other pods would fail as well.
                    if concerns_all {
                        return;
                    }
                }
            }
        }
    }

    /// Creates the mirror pod of a static pod after deleting an outdated one. Returns false if it must wait for another change.
    async fn create(
        &self,
        pod: &Pod,
        outdated: Option<&Pod>,
        store: &ObjectStore,
    ) -> Result<bool, ApiError> {
        // The deletion has the uid as a precondition. False: the mirror pod is already gone or replaced, and the watch will
        // report that.
        if let Some(outdated) = outdated
            && !self.delete(outdated).await?
        {
            return Ok(false);
        }
        let objects = store.current();
        let metadata = objects.node().map(|node| &node.metadata);
        let metadata = metadata.filter(|metadata| metadata.deletion_timestamp.is_none());
        let Some(uid) = metadata.and_then(|metadata| metadata.uid.as_deref()) else {
            return Ok(false);
        };
        let desired = object(pod, &self.node, uid);
        let pods = format!("/api/v1/namespaces/{}/pods", pod.namespace());
        match self.client.create(&pods, &desired).await {
            Ok(_) => {
                tracing::info!(pod = %pod.full_name(), "created mirror pod of static pod");
                Ok(true)
            }
            Err(error) if error.is_already_exists() => {
                let path = path(pod.namespace(), pod.name());
                let existing = self.client.get(&path, &[]).await?;
                if is_same(&existing, &desired) { Ok(true) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Returns false if the pod was already gone or replaced.
    async fn delete(&self, mirror: &Pod) -> Result<bool, ApiError> {
        let path = path(mirror.namespace(), mirror.name());
        match self.client.delete_now(&path, mirror.uid().as_str()).await {
            Ok(()) => {
                tracing::info!(pod = %mirror.full_name(), "deleted mirror pod");
                Ok(true)
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
