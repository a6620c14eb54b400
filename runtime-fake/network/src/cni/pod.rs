//! The pod as CNI plugins see it: `CNI_ARGS` and runtime configuration.

use std::{collections::HashMap, net::IpAddr, path::PathBuf};

use serde_json::{Map, Value, json};

use super::answer::rate;

/// Annotations that limit a pod's bandwidth, in bits per second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The burst size: practically unlimited, and the largest that the bandwidth plugin accepts.
const BURST: i32 = i32::MAX;

/// A pod, as CNI plugins see it.
#[derive(Debug, Clone, Default)]
pub struct CniPod {
    /// The sandbox's id.
    pub id: String,
    /// The sandbox's directory.
    pub directory: PathBuf,
    /// Its name.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its Kubernetes UID.
    pub uid: String,
    /// The network that it requests.
    pub request: CniRequest,
}

/// The network that a pod requests.
#[derive(Debug, Clone, Default)]
pub struct CniRequest {
    /// Protocol, host address, host port, container port.
    pub ports: Vec<(String, Option<IpAddr>, u16, u16)>,
    /// Its annotations.
    pub annotations: HashMap<String, String>,
    /// The resolver configuration that it requests.
    pub dns: Option<super::Dns>,
    /// The IP ranges to allocate addresses from.
    pub ranges: Vec<String>,
}

impl CniPod {
    /// `CNI_ARGS`, in the format that every Kubernetes runtime uses.
    pub(super) fn arguments(&self) -> String {
        // A semicolon would begin another argument. Kubernetes names contain none.
        let plain = |text: &str| text.replace([';', '='], "_");
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            plain(&self.namespace),
            plain(&self.name),
            self.id,
            plain(&self.uid)
        )
    }

    /// The runtime configuration by capability; a plugin gets the capabilities that it declares.
    pub(super) fn runtime(&self) -> Map<String, Value> {
        let request = &self.request;
        let mut told = Map::new();
        if !request.ports.is_empty() {
            let ports = request.ports.iter().map(|(transport, host, host_port, pod_port)| {
                json!({
                    "protocol": transport.to_lowercase(),
                    "hostPort": host_port,
                    "containerPort": pod_port,
                    "hostIP": host.map(|ip| ip.to_string()).unwrap_or_default(),
                })
            });
            told.insert("portMappings".to_owned(), ports.collect());
        }
        let rate = |name| request.annotations.get(name).and_then(|text| rate(text));
        let mut bandwidth = Map::new();
        for (name, key) in [(INGRESS, "ingress"), (EGRESS, "egress")] {
            if let Some(rate) = rate(name) {
                bandwidth.insert(format!("{key}Rate"), json!(rate));
                bandwidth.insert(format!("{key}Burst"), json!(BURST));
            }
        }
        if !bandwidth.is_empty() {
            told.insert("bandwidth".to_owned(), Value::Object(bandwidth));
        }
        if let Some(dns) = &request.dns {
            let dns =
                json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
            told.insert("dns".to_owned(), dns);
        }
        if !request.ranges.is_empty() {
            let ranges = request.ranges.iter().map(|subnet| json!([{"subnet": subnet}]));
            told.insert("ipRanges".to_owned(), ranges.collect());
        }
        if !request.annotations.is_empty() {
            // The key is containerd's own; plugins expect it.
            told.insert("io.kubernetes.cri.pod-annotations".to_owned(), json!(request.annotations));
        }
        told
    }
}

/// Whether the pod's bandwidth annotations are valid; the error names the invalid one.
pub fn annotations_fit(annotations: &HashMap<String, String>) -> Result<(), String> {
    for name in [INGRESS, EGRESS] {
        if let Some(text) = annotations.get(name)
            && rate(text).is_none()
        {
            return Err(format!(
                "the annotation {name} is {text:?}: a quantity of bits a second from 1k to 1P is needed, such as 10M"
            ));
        }
    }
    Ok(())
}
