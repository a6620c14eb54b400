//! ◆ The fields of a Service about its addresses and the routes to them. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go.

use std::net::IpAddr;

use compact::Set;
use k8s_openapi::api::core::v1::ServiceSpec;

use crate::manifest::validate::{Check, Rule, endpoints, names};

/// The longest session affinity: a day, in seconds.
const LONGEST_AFFINITY: i32 = 86_400;
const LOAD_BALANCERS_ONLY: &str = "may only be used when `type` is LoadBalancer";

/// Validates these fields of a defaulted Service.
pub(super) fn check(check: &mut Check, spec: &ServiceSpec) {
    let kind = spec.type_.as_deref().unwrap_or_default();
    addresses(check, spec, kind);
    load_balancer(check, spec, kind == "LoadBalancer");
    policies(check, spec, kind);
    let affinity = spec.session_affinity_config.as_ref();
    let affinity = affinity.filter(|_| spec.session_affinity.as_deref() == Some("ClientIP"));
    let timeout = affinity.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    if let Some(seconds) = timeout.filter(|seconds| !(1..=LONGEST_AFFINITY).contains(seconds)) {
        let detail = format!("must be greater than 0 and at most {LONGEST_AFFINITY}");
        check.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, detail);
    }
}

fn addresses(check: &mut Check, spec: &ServiceSpec, kind: &str) {
    for (index, ip) in spec.external_ips.iter().flatten().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        match names::ip_address(ip) {
            Some(expected) => check.invalid(field, ip, expected),
            None => endpoints::reachable(check, &field, ip),
        }
    }
    let cluster_ip = spec.cluster_ip.as_deref().unwrap_or_default();
    let all = spec.cluster_ips.as_deref().unwrap_or_default();
    let families = spec.ip_families.as_deref().unwrap_or_default();
    if kind == "ExternalName" {
        let given = [
            ("clusterIPs", !all.is_empty() || !cluster_ip.is_empty()),
            ("ipFamilies", !families.is_empty()),
            ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
        ];
        for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            check.forbidden(format!("spec.{name}"), "may not be set for ExternalName services");
        }
        return;
    }
    match all.first() {
        Some(_) if cluster_ip.is_empty() => {
            let detail = "must be empty when `clusterIP` is not specified";
            check.invalid("spec.clusterIPs", all.join(", "), detail);
        }
        Some(first) if first != cluster_ip => {
            let detail = "first value must match `clusterIP`";
            check.invalid("spec.clusterIPs", all.join(", "), detail);
        }
        Some(_) | None => {}
    }
    let mut seen = Set::new();
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        check.one_of(&field, family, &["IPv4", "IPv6"]);
        if !seen.insert(family) {
            check.error(Rule::Duplicate, field, family, "");
        }
    }
    check.maybe_one_of(
        "spec.ipFamilyPolicy",
        spec.ip_family_policy.as_deref(),
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
    );
}

fn load_balancer(check: &mut Check, spec: &ServiceSpec, is_load_balancer: bool) {
    let ranges = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    for (index, range) in ranges.iter().enumerate() {
        // Blanks around a range are part of the API.
        let field = format!("spec.loadBalancerSourceRanges[{index}]");
        check.formed(field, range.trim(), cidr);
    }
    if is_load_balancer {
        let class = spec.load_balancer_class.as_deref();
        check.maybe_formed("spec.loadBalancerClass", class, names::qualified);
        return;
    }
    let given = [
        ("loadBalancerSourceRanges", !ranges.is_empty()),
        ("allocateLoadBalancerNodePorts", spec.allocate_load_balancer_node_ports.is_some()),
        ("loadBalancerClass", spec.load_balancer_class.is_some()),
    ];
    for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
        check.forbidden(format!("spec.{name}"), LOAD_BALANCERS_ONLY);
    }
}

fn policies(check: &mut Check, spec: &ServiceSpec, kind: &str) {
    let known = ["Cluster", "Local"];
    let external = spec.external_traffic_policy.as_deref().filter(|policy| !policy.is_empty());
    let has_external_ips = spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    let is_external =
        matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && has_external_ips);
    match external {
        Some(policy) if !is_external => {
            let detail = "may only be set for externally-accessible services";
            check.invalid("spec.externalTrafficPolicy", policy, detail);
        }
        Some(policy) => check.one_of("spec.externalTrafficPolicy", policy, &known),
        None => {}
    }
    let needs_health_check = kind == "LoadBalancer" && external == Some("Local");
    let health_port = spec.health_check_node_port.filter(|port| *port != 0);
    if let Some(port) = health_port.filter(|_| !needs_health_check) {
        let detail =
            "may only be set when `type` is LoadBalancer and `externalTrafficPolicy` is Local";
        check.invalid("spec.healthCheckNodePort", port, detail);
    }
    let internal = spec.internal_traffic_policy.as_deref();
    check.maybe_one_of("spec.internalTrafficPolicy", internal, &known);
    check.maybe_one_of(
        "spec.trafficDistribution",
        spec.traffic_distribution.as_deref(),
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
    );
}

/// A range of addresses: `10.9.8.0/24`.
fn cidr(text: &str) -> Option<&'static str> {
    const EXPECTED: &str = "must be a valid CIDR value, such as 10.9.8.0/24 or 2001:db8::/64";
    let Some((address, length)) = text.split_once('/') else {
        return Some(EXPECTED);
    };
    let length = length.parse::<u32>().ok().filter(|number| number.to_string() == length);
    let is_range = match (address.parse(), length) {
        (Ok(IpAddr::V4(ip)), Some(length @ 0..=32)) => length == 32 || ip.to_bits() << length == 0,
        (Ok(IpAddr::V6(ip)), Some(length @ 0..=128)) => {
            length == 128 || ip.to_bits() << length == 0
        }
        (Ok(IpAddr::V4(_) | IpAddr::V6(_)) | Err(_), _) => false,
    };
    (!is_range).then_some(EXPECTED)
}
