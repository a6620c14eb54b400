//! Follows the cluster's Services and EndpointSlices, and publishes their table to a service network, in place of kube-proxy.
//!
//! The last known state applies while the server is unreachable. If the agent does not serve Services, it requests nothing, and the
//! table is empty.

use std::sync::Arc;
use std::time::Duration;

use agent::objects::ObjectStore;
use agent::services::{ProxyLocation, ServiceNetwork, ServiceTable, plan_proxied};
use compact::Map;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::client::{ApiClient, Change, Key, Reflector};
use crate::node::limits::NodeLimits;
use crate::pods::KnownPods;

/// Excludes headless Services, and those of other proxies (Kubernetes 1.36, cmd/kube-proxy/app/server.go).
const SELECTOR: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
/// The node's zone label.
const ZONE: &str = "topology.kubernetes.io/zone";
/// How long changes are collected before the next table.
const BATCH_PERIOD: Duration = Duration::from_millis(200);
/// The reason of the limitation that ClusterIPs are not served.
const REASON: &str = "ServicesNotListed";

/// Whether the agent serves the cluster's Services to the pods of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceProxy {
    /// Yes, unless a pod of kube-proxy is on the node.
    #[default]
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

impl ServiceProxy {
    /// ◆ Whether Services are served while these pods exist.
    fn serves(self, pods: &KnownPods) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => !pods.values().any(|pod| {
                // The label that kubeadm, kind and minikube give kube-proxy.
                let labels = pod.api().metadata.labels.as_ref();
                let app = labels.and_then(|labels| labels.get("k8s-app"));
                pod.host_network() && !pod.has_ended() && app.is_some_and(|app| app == "kube-proxy")
            }),
        }
    }
}

/// The objects of one kind, decoded.
struct Decoded<T> {
    reflector: Reflector,
    /// Each object, with the version that it was decoded from.
    objects: Map<Key, (String, T)>,
    is_listed: bool,
}

impl<T: DeserializeOwned> Decoded<T> {
    fn new(client: &ApiClient, path: &str) -> Self {
        let reflector = Reflector::new(client.clone(), path).with_labels(SELECTOR);
        Self { reflector, objects: Map::new(), is_listed: false }
    }

    /// Applies a change. Returns the error of a failed request.
    fn apply(&mut self, change: Change) -> Option<String> {
        if let Change::Failed(error) = change {
            return Some(error.to_string());
        }
        self.is_listed = true;
        let mut before = std::mem::take(&mut self.objects);
        for (key, object) in self.reflector.objects() {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let same = before.remove(key).filter(|(known, _)| known == version);
            match same.map_or_else(|| decoded(object).map(|it| (version.to_owned(), it)), Ok) {
                Ok(decoded) => drop(self.objects.insert(key.clone(), decoded)),
                Err(error) => {
                    let (namespace, name) = key;
                    tracing::error!(namespace, name, %error, "failed to decode an object from the API server; skipped it");
                }
            }
        }
        None
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.objects.values().map(|(_, object)| object)
    }
}

fn decoded<T: DeserializeOwned>(object: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(object)
}

/// Serves the cluster's Services to the pods of one node.
pub(crate) struct Services {
    pub(crate) client: ApiClient,
    pub(crate) node: String,
    pub(crate) proxy: ServiceProxy,
    pub(crate) network: Arc<dyn ServiceNetwork>,
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) limits: NodeLimits,
}

impl Services {
    /// Publishes a table whenever it changes.
    pub(crate) async fn run(self, mut pods: watch::Receiver<Arc<KnownPods>>) {
        let mut serves = self.proxy == ServiceProxy::On;
        loop {
            if serves {
                tracing::info!("serving the cluster's Services to the pods of the node");
                self.serve(&mut pods).await;
                self.limits.set(REASON, None);
                self.network.publish(ServiceTable::default());
                tracing::info!("kube-proxy runs on the node; not serving Services");
            }
            // The first change is the initial list of the node's pods.
            if pods.changed().await.is_err() {
                return;
            }
            serves = self.proxy.serves(&pods.borrow_and_update());
        }
    }

    /// Serves until kube-proxy runs on the node.
    async fn serve(&self, pods: &mut watch::Receiver<Arc<KnownPods>>) {
        let mut services = Decoded::<Service>::new(&self.client, "/api/v1/services");
        let mut slices =
            Decoded::<EndpointSlice>::new(&self.client, "/apis/discovery.k8s.io/v1/endpointslices");
        let mut objects = self.store.changes();
        let mut published = None;
        let mut at = Instant::now();
        let mut is_due = false;
        let mut last_error = None;
        loop {
            let failed = tokio::select! {
                change = services.reflector.next() => services.apply(change),
                change = slices.reflector.next() => slices.apply(change),
                Ok(()) = objects.changed() => None,
                Ok(()) = pods.changed() => {
                    if !self.proxy.serves(&pods.borrow_and_update()) {
                        return;
                    }
                    continue;
                }
                () = sleep_until(at), if is_due => {
                    at = Instant::now() + BATCH_PERIOD;
                    is_due = false;
                    let table = plan_proxied(services.all(), slices.all(), &self.place());
                    if published.as_ref() != Some(&table) {
                        self.network.publish(table.clone());
                        published = Some(table);
                    }
                    continue;
                }
            };
            let is_known = services.is_listed && slices.is_listed;
            if let Some(why) = failed {
                // Log each error once: a missing permission fails every request.
                if last_error.as_ref() != Some(&why) {
                    tracing::warn!(error = why, "failed to watch Services; will retry");
                }
                last_error = Some(why.clone());
                if !is_known {
                    self.limits.set(REASON, Some(not_served_message(&why)));
                }
            } else if is_known {
                last_error = None;
                self.limits.set(REASON, None);
                is_due = true;
            }
        }
    }

    fn place(&self) -> ProxyLocation {
        let objects = self.store.current();
        let labels = objects.node().and_then(|node| node.metadata.labels.as_ref());
        ProxyLocation {
            node: self.node.clone(),
            zone: labels.and_then(|all| all.get(ZONE)).cloned(),
        }
    }
}

/// ◆ The reason that ClusterIPs are not served, and the remedy.
fn not_served_message(why: &str) -> String {
    format!(
        "ClusterIPs are not served by the agent, which cannot list Services and EndpointSlices: {why}: bind the ClusterRole system:node-proxier to the node's user, or run kube-proxy and set --service-proxy=off"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use api::pod::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn kube_proxy_on_the_node_serves_instead() {
        let pod = |app: &str, host_network: bool, phase: &str| {
            let pod = json!({
                "metadata": {"name": "p", "namespace": "kube-system", "uid": "u", "labels": {"k8s-app": app}},
                "spec": {"hostNetwork": host_network, "containers": [{"name": "c"}]},
                "status": {"phase": phase},
            });
            let pod = Pod::new(serde_json::from_value(pod).unwrap());
            KnownPods::from([(pod.uid().clone(), pod)])
        };
        for (pods, serves) in [
            (KnownPods::new(), true),
            (pod("kube-dns", true, "Running"), true),
            (pod("kube-proxy", true, "Pending"), false),
            (pod("kube-proxy", true, "Failed"), true),
            (pod("kube-proxy", false, "Running"), true),
        ] {
            assert_eq!(ServiceProxy::Auto.serves(&pods), serves, "{pods:?}");
            assert!(ServiceProxy::On.serves(&pods) && !ServiceProxy::Off.serves(&pods));
        }
    }
}
