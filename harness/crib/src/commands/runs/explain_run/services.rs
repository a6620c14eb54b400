//! ◆ The names, ports and backends of a run's Services. Pure.

use api::manifest_set::named_pods;
use crib_run::Inputs;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

/// A Service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedService {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Such as `ClusterIP`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// What its name resolves to, such as `an address of the pods' network`.
    pub(super) address: String,
    pub(super) ports: Vec<ExplainedPort>,
    /// The targets of its connections, such as `deployment default/web`, or an address of an EndpointSlice.
    pub(super) backends: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedPort {
    pub(super) name: Option<String>,
    pub(super) port: i32,
    pub(super) protocol: String,
    /// A number, or the name of a container's port.
    pub(super) target_port: String,
    /// The port on this machine; `None` if there is none, or if it is selected at random.
    pub(super) node_port: Option<i32>,
    /// Whether it has a port on this machine.
    pub(super) is_published: bool,
}

/// The Services of the manifests.
pub(super) fn all(inputs: &Inputs) -> Vec<ExplainedService> {
    let services = inputs.objects.all_services();
    let services = services.iter();
    services.map(|service| explained(service, inputs)).collect()
}

fn explained(service: &Service, inputs: &Inputs) -> ExplainedService {
    let spec = service.spec.clone().unwrap_or_default();
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let kind = spec.type_.clone().unwrap_or_default();
    let has_node_ports = agent::services::has_node_ports(&spec);
    let ports = spec.ports.iter().flatten();
    ExplainedService {
        namespace: namespace.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        address: address(&spec),
        ports: ports.map(|of| port(of, has_node_ports)).collect(),
        backends: backends(service, inputs)
            .chain(agent::services::fixed_addresses(service, &inputs.objects))
            .collect(),
        kind,
    }
}

fn address(spec: &ServiceSpec) -> String {
    if spec.type_.as_deref() == Some("ExternalName") {
        let target = spec.external_name.as_deref().unwrap_or_default();
        return format!("an alias of {target}");
    }
    match spec.cluster_ip.as_deref() {
        Some("None") => "the addresses of its endpoints".to_owned(),
        _ => "an address of the pod network, assigned at the start".to_owned(),
    }
}

fn port(of: &ServicePort, has_node_port: bool) -> ExplainedPort {
    let target_port = match &of.target_port {
        None => of.port.to_string(),
        Some(IntOrString::Int(number)) => number.to_string(),
        Some(IntOrString::String(name)) => name.clone(),
    };
    ExplainedPort {
        name: of.name.clone().filter(|name| !name.is_empty()),
        port: of.port,
        protocol: of.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        target_port,
        node_port: of.node_port.filter(|port| has_node_port && *port != 0),
        is_published: has_node_port,
    }
}

/// The pods and workloads that the selector matches.
fn backends(service: &Service, inputs: &Inputs) -> impl Iterator<Item = String> {
    let all = named_pods(&inputs.pods, &inputs.workloads);
    let chosen = all.filter(|(_, pod)| agent::services::selects(service, pod));
    chosen.map(|(name, _)| name)
}
