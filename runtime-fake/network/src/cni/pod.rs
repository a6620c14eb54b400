//! What plugins are told of a pod.

use std::{collections::HashMap, net::IpAddr, path::PathBuf};

use serde_json::{Map, Value, json};

use super::answer::rate;

/// Annotations that limit a pod's bandwidth, in bits a second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The most that may be sent in a burst: as good as unlimited, and what the bandwidth plugin still takes.
const BURST: i32 = i32::MAX;

/// A pod, as plugins know it.
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
    /// What it asks for.
    pub request: CniRequest,
}

/// What a pod wants of its network.
#[derive(Debug, Clone, Default)]
pub struct CniRequest {
    /// Transport, host address, host port, pod's port.
    pub ports: Vec<(String, Option<IpAddr>, u16, u16)>,
    /// Its annotations.
    pub annotations: HashMap<String, String>,
    /// The resolver that it asks for.
    pub dns: Option<super::Dns>,
    /// Where addresses are to be taken from.
    pub ranges: Vec<String>,
}

impl CniPod {
    /// `CNI_ARGS`, as every runtime of Kubernetes' has it.
    pub(super) fn arguments(&self) -> String {
        // A semicolon would begin another one. Kubernetes' names have none.
        let plain = |text: &str| text.replace([';', '='], "_");
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            plain(&self.namespace),
            plain(&self.name),
            self.id,
            plain(&self.uid)
        )
    }

    /// What there is to tell, by capability: a plugin is told what it declares.
    pub(super) fn runtime(&self) -> Map<String, Value> {
        let request = &self.request;
        let mut told = Map::new();
        if !request.ports.is_empty() {
            let ports = request
                .ports
                .iter()
                .map(|(transport, host, host_port, pod_port)| {
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
            let ranges = request
                .ranges
                .iter()
                .map(|subnet| json!([{"subnet": subnet}]));
            told.insert("ipRanges".to_owned(), ranges.collect());
        }
        if !request.annotations.is_empty() {
            // The name that containerd made up for it, which plugins know.
            told.insert(
                "io.kubernetes.cri.pod-annotations".to_owned(),
                json!(request.annotations),
            );
        }
        told
    }
}

/// Whether the annotations about a pod's network can be understood; the error says which one cannot.
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
