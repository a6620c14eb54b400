//! The pods that are bound to the node, as a source of the agent: the whole set after each change.
//!
//! The source is ready once the server has listed them. Until then the agent ends no pod that it does not know, and a server that
//! goes away later takes none away.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/config/apiserver.go.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent::source::PodSource;
use agent::source::merge::{PodOp, SourceKind, SourcePods};
use api::manifest::pod_json;
use api::pod::Pod;
use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::KnownPods;
use super::mirror::is_mirror;
use super::objects::Known;
use crate::client::{ApiClient, Change, Reflector};

/// A source of the pods that are bound to a node.
pub struct ApiPods {
    server: String,
    client: ApiClient,
    reflector: Reflector,
    /// The pods by namespace and name, each with the version that it was decoded from.
    decoded: BTreeMap<(String, String), (String, Pod)>,
    merged: SourcePods,
    known: watch::Sender<Arc<KnownPods>>,
    objects: Known,
    told: watch::Receiver<Option<String>>,
    /// The node's own object was waited for.
    has_node: bool,
}

impl ApiPods {
    /// The pods of a node. They are known to others before the agent has them, and their `objects` too, as a rule; the runtime has been
    /// `told` the ranges of their addresses.
    pub(crate) fn new(
        client: ApiClient,
        node: &str,
        known: watch::Sender<Arc<KnownPods>>,
        (objects, told): (Known, watch::Receiver<Option<String>>),
    ) -> Self {
        let server = client.server().to_owned();
        // The node authorizer lets a node follow its own pods, by this selector alone.
        let selector = format!("spec.nodeName={node}");
        let reflector = Reflector::new(client.clone(), "/api/v1/pods").with_fields(selector);
        Self {
            server,
            client,
            reflector,
            decoded: BTreeMap::new(),
            merged: SourcePods::default(),
            known,
            objects,
            told,
            has_node: false,
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
                    tracing::error!(pod = %format_args!("{}/{}", key.0, key.1), error, "failed to decode a pod of the API server; it is not run");
                }
            }
        }
        self.decoded.values().map(|(_, pod)| pod.clone()).collect()
    }

    /// The whole set, as the agent gets it.
    async fn set(&mut self) -> Arc<[Pod]> {
        let pods = self.pods();
        // Those that mirror pods show come from their own sources.
        let own: Vec<Pod> = pods.iter().filter(|pod| !is_mirror(pod)).cloned().collect();
        let (updates, _) = self.merged.merge(SourceKind::Api, own, Timestamp::now());
        // Statuses are this node's own, as a rule.
        let news = updates.iter().filter(|update| update.op != PodOp::Reconcile);
        for update in news.filter(|update| !update.pods.is_empty()) {
            let pods: Vec<String> = update.pods.iter().map(Pod::full_name).collect();
            tracing::info!(source = %self.server, op = %update.op, ?pods, "pods of source changed");
        }
        let known: KnownPods = pods.into_iter().map(|pod| (pod.uid().clone(), pod)).collect();
        let known = Arc::new(known);
        let before = self.known.send_replace(Arc::clone(&known));
        let new = known.iter().filter(|(uid, _)| !before.contains_key(*uid));
        let new = new.map(|(_, pod)| pod).filter(|pod| !pod.has_ended() && !is_mirror(pod));
        let new: Vec<Pod> = new.cloned().collect();
        if !std::mem::replace(&mut self.has_node, true) {
            self.objects.wait_for_node().await;
        }
        self.objects.wait_for(&new).await;
        if !new.is_empty() {
            self.objects.wait_until_told(&mut self.told).await;
        }
        self.objects.match_node(&new).await;
        self.merged.pods().into()
    }
}

fn decode(object: &Value) -> Result<Pod, String> {
    pod_json::from_json(object.clone()).map(Pod::new)
}

#[async_trait]
impl PodSource for ApiPods {
    fn name(&self) -> String {
        format!("API server {}", self.server)
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        self.client.known().await;
        loop {
            match self.reflector.next().await {
                Change::Listed | Change::Object => return Some(self.set().await),
                Change::Failed(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(server = %self.server, error, "failed to follow the pods of the node; will retry");
                }
            }
        }
    }
}
