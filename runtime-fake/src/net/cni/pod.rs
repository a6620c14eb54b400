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
pub(crate) struct CniPod {
    /// The sandbox's id.
    pub(crate) id: String,
    /// The sandbox's directory.
    pub(crate) directory: PathBuf,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) wishes: Wishes,
}

/// What a pod wants of its network.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wishes {
    /// Transport, host address, host port, pod's port.
    pub(crate) ports: Vec<(String, Option<IpAddr>, u16, u16)>,
    pub(crate) annotations: HashMap<String, String>,
    pub(crate) dns: Option<super::Dns>,
    /// Where addresses are to be taken from.
    pub(crate) ranges: Vec<String>,
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
        let wishes = &self.wishes;
        let mut told = Map::new();
        if !wishes.ports.is_empty() {
            let ports = wishes
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
        let rate = |name| wishes.annotations.get(name).and_then(|text| rate(text));
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
        if let Some(dns) = &wishes.dns {
            let dns =
                json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
            told.insert("dns".to_owned(), dns);
        }
        if !wishes.ranges.is_empty() {
            let ranges = wishes
                .ranges
                .iter()
                .map(|subnet| json!([{"subnet": subnet}]));
            told.insert("ipRanges".to_owned(), ranges.collect());
        }
        if !wishes.annotations.is_empty() {
            // The name that containerd made up for it, which plugins know.
            told.insert(
                "io.kubernetes.cri.pod-annotations".to_owned(),
                json!(wishes.annotations),
            );
        }
        told
    }
}

/// Whether the annotations about a pod's network can be understood; the error says which one cannot.
pub(crate) fn annotations_fit(annotations: &HashMap<String, String>) -> Result<(), String> {
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
