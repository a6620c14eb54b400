//! ◆ Services: their defaults and their validation. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go and pkg/apis/core/v1/defaults.go.

use std::ops::RangeInclusive;

use compact::Set;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::manifest::validate::{Check, FieldError, Rule, metadata, names, service_traffic};

/// The range of node ports (kube-apiserver, --service-node-port-range).
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Sets absent fields as an API server does.
pub(in crate::manifest) fn apply_defaults(service: &mut Service) {
    let spec = service.spec.get_or_insert_default();
    let text = |field: &mut Option<String>, default: &str| {
        if field.as_deref().unwrap_or_default().is_empty() {
            *field = Some(default.to_owned());
        }
    };
    text(&mut spec.type_, "ClusterIP");
    text(&mut spec.session_affinity, "None");
    for port in spec.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        let unset = match &port.target_port {
            None | Some(IntOrString::Int(0)) => true,
            Some(IntOrString::String(name)) => name.is_empty(),
            Some(IntOrString::Int(_)) => false,
        };
        if unset {
            port.target_port = Some(IntOrString::Int(port.port));
        }
    }
}

/// Validates a defaulted Service.
pub(in crate::manifest) fn service(service: &Service) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &service.metadata);
    let name = service.metadata.name.as_deref().unwrap_or_default();
    if !name.is_empty() && names::dns_subdomain(name).is_none() {
        check.formed("metadata.name", name, names::dns_label);
    }
    let none = ServiceSpec::default();
    let fields = service.spec.as_ref().unwrap_or(&none);
    spec(&mut check, fields);
    service_traffic::check(&mut check, fields);
    check.errors
}

fn spec(check: &mut Check, spec: &ServiceSpec) {
    let kind = spec.type_.as_deref().unwrap_or_default();
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    check.one_of("spec.type", kind, &types);
    let known = ["ClientIP", "None"];
    check.maybe_one_of("spec.sessionAffinity", spec.session_affinity.as_deref(), &known);
    check.keys("spec.selector", spec.selector.iter().flatten(), true);
    let is_headless = spec.cluster_ip.as_deref() == Some("None");
    let ports = spec.ports.as_deref().unwrap_or_default();
    if kind == "ExternalName" {
        match spec.external_name.as_deref().unwrap_or_default() {
            "" => check.required("spec.externalName", ""),
            name => {
                let name = name.strip_suffix('.').unwrap_or(name);
                check.formed("spec.externalName", name, names::dns_subdomain);
            }
        }
    } else if ports.is_empty() && !is_headless {
        check.required("spec.ports", "");
    }
    if let Some(ip) = spec.cluster_ip.as_deref()
        && !matches!(ip, "" | "None")
    {
        check.formed("spec.clusterIP", ip, names::ip_address);
    }
    if is_headless && matches!(kind, "LoadBalancer" | "NodePort") {
        let detail = format!("may not be set to \"None\" for {kind} services");
        check.invalid("spec.clusterIP", "None", detail);
    }
    let (mut port_names, mut numbers) = (Set::new(), Set::new());
    let mut node_ports = Set::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        self::port(check, &field, port, ports.len() > 1);
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() && !port_names.insert(name) {
            check.error(Rule::Duplicate, format!("{field}.name"), name, "");
        }
        let key = (port.protocol.clone(), port.port);
        if !numbers.insert(key) {
            check.error(Rule::Duplicate, field.clone(), port.port, "");
        }
        let node_port = port.node_port.unwrap_or_default();
        if node_port != 0 && !node_ports.insert((port.protocol.clone(), node_port)) {
            check.error(Rule::Duplicate, format!("{field}.nodePort"), node_port, "");
        }
        if node_port != 0 && matches!(kind, "ClusterIP" | "ExternalName") {
            let detail = format!("may not be used when `type` is {kind:?}");
            check.forbidden(format!("{field}.nodePort"), &detail);
        }
    }
}

fn port(check: &mut Check, field: &str, port: &ServicePort, needs_name: bool) {
    match port.name.as_deref().unwrap_or_default() {
        "" if needs_name => check.required(format!("{field}.name"), ""),
        "" => {}
        name => check.formed(format!("{field}.name"), name, names::dns_label),
    }
    check.range(format!("{field}.port"), i64::from(port.port), 1, 65535);
    let known = ["SCTP", "TCP", "UDP"];
    check.maybe_one_of(format!("{field}.protocol"), port.protocol.as_deref(), &known);
    let protocol = port.app_protocol.as_deref();
    check.maybe_formed(format!("{field}.appProtocol"), protocol, names::qualified);
    let target = format!("{field}.targetPort");
    match &port.target_port {
        Some(IntOrString::Int(number)) => check.range(target, i64::from(*number), 1, 65535),
        Some(IntOrString::String(name)) => check.formed(target, name, names::port_name),
        None => {}
    }
    if let Some(node_port) = port.node_port.filter(|port| *port != 0) {
        let number = u16::try_from(node_port).unwrap_or_default();
        if !NODE_PORTS.contains(&number) {
            // pkg/registry/core/service/portallocator/allocator.go, ErrNotInRange
            let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
            let detail = format!(
                "provided port is not in the valid range. The range of valid ports is {first}-{last}"
            );
            check.invalid(format!("{field}.nodePort"), node_port, detail);
        }
    }
}
