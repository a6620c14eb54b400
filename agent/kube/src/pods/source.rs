//! The pods that are bound to the node, and their changes.
//!
//! The agent's first list follows the server's first list. Until then the agent ends no unknown pod, and a later outage of the
//! server removes none.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/config/apiserver.go.

use std::sync::Arc;

use agent::cluster::{PodChange, PodWatch};
use agent::source::merge::{PodOp, SourceKind, SourcePods, SourceUpdate};
use api::manifest::pod_json;
use api::pod::Pod;
use async_trait::async_trait;
use compact::Map;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::KnownPods;
use super::mirror::is_mirror;
use crate::client::{ApiClient, Change, Reflector};

/// Follows the pods that are bound to a node.
pub(crate) struct ApiPods {
    server: String,
    client: ApiClient,
    reflector: Reflector,
    /// The pods by namespace and name, each with the version that it was decoded from.
    decoded: Map<(String, String), (String, Pod)>,
    merged: SourcePods,
    known: watch::Sender<Arc<KnownPods>>,
}

impl ApiPods {
    /// Creates the source of a node's pods. It publishes them in `known` before the agent gets them.
    pub(crate) fn new(client: ApiClient, node: &str, known: watch::Sender<Arc<KnownPods>>) -> Self {
        let server = client.server().to_owned();
        // The node authorizer allows a node to follow pods only with this selector.
        let selector = format!("spec.nodeName={node}");
        let reflector = Reflector::new(client.clone(), "/api/v1/pods").with_fields(selector);
        Self {
            server,
            client,
            reflector,
            decoded: Map::new(),
            merged: SourcePods::default(),
            known,
        }
    }

    /// Decodes the objects that have changed.
    fn pods(&mut self) -> Vec<Pod> {
        let mut before = std::mem::take(&mut self.decoded);
        for (key, object) in self.reflector.objects() {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let same = before.remove(key).filter(|(known, _)| known == version);
            match same.map_or_else(|| decode(object).map(|pod| (version.to_owned(), pod)), Ok) {
                Ok(decoded) => {
                    self.decoded.insert(key.clone(), decoded);
                }
                Err(error) => {
                    tracing::error!(pod = %format_args!("{}/{}", key.0, key.1), error, "failed to decode a pod from the API server; skipped it");
                }
            }
        }
        self.decoded.values().map(|(_, pod)| pod.clone()).collect()
    }

    /// Applies the server's current state. Returns the changes since the last call.
    fn changes(&mut self) -> Vec<PodChange> {
        let pods = self.pods();
        // The static pods behind mirror pods come from their own sources.
        let own: Vec<Pod> = pods.iter().filter(|pod| !is_mirror(pod)).cloned().collect();
        let (updates, _) = self.merged.merge(SourceKind::Api, own, Timestamp::now());
        // Status changes are usually this node's own writes.
        let news = updates.iter().filter(|update| update.op != PodOp::Reconcile);
        for update in news.filter(|update| !update.pods.is_empty()) {
            let pods: Vec<String> = update.pods.iter().map(Pod::full_name).collect();
            tracing::info!(source = %self.server, op = %update.op, ?pods, "pods of source changed");
        }
        let known: KnownPods = pods.into_iter().map(|pod| (pod.uid().clone(), pod)).collect();
        self.known.send_replace(Arc::new(known));
        updates.into_iter().flat_map(changes_of).collect()
    }
}

/// ◆ The changes of an update.
fn changes_of(update: SourceUpdate) -> impl Iterator<Item = PodChange> {
    let is_removed = update.op == PodOp::Remove;
    update.pods.into_iter().map(move |pod| match is_removed {
        true => PodChange::Removed(pod.uid().clone()),
        false => PodChange::Set(pod),
    })
}

fn decode(object: &Value) -> Result<Pod, String> {
    pod_json::from_json(object.clone()).map(Pod::new)
}

#[async_trait]
impl PodWatch for ApiPods {
    async fn next(&mut self) -> Option<Vec<PodChange>> {
        self.client.wait_for_credentials().await;
        loop {
            match self.reflector.next().await {
                Change::Listed => {
                    self.changes();
                    return Some(vec![PodChange::Listed(self.merged.pods())]);
                }
                Change::Object => match self.changes() {
                    // For example, a mirror pod.
                    none if none.is_empty() => {}
                    changes => return Some(changes),
                },
                Change::Failed(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(server = %self.server, error, "failed to watch the pods of the node; will retry");
                }
            }
        }
    }
}
