//! ◆ Endpoints and EndpointSlices. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation and pkg/apis/discovery/validation.

use std::net::IpAddr;

use compact::Set;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::manifest::validate::{Check, FieldError, Rule, metadata, names};

/// Validates Endpoints.
pub(in crate::manifest) fn endpoints(endpoints: &Endpoints) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &endpoints.metadata);
    for (index, subset) in endpoints.subsets.iter().flatten().enumerate() {
        let field = format!("subsets[{index}]");
        let ready = subset.addresses.as_deref().unwrap_or_default();
        let others = subset.not_ready_addresses.as_deref().unwrap_or_default();
        if ready.is_empty() && others.is_empty() {
            check.required(&field, "must specify `addresses` or `notReadyAddresses`");
        }
        addresses(&mut check, &format!("{field}.addresses"), ready);
        addresses(&mut check, &format!("{field}.notReadyAddresses"), others);
        let all = subset.ports.as_deref().unwrap_or_default();
        for (place, of) in all.iter().enumerate() {
            let field = format!("{field}.ports[{place}]");
            let name = of.name.as_deref().unwrap_or_default();
            if name.is_empty() && all.len() > 1 {
                check.required(format!("{field}.name"), "");
            }
            let protocol = of.protocol.as_deref();
            port(&mut check, &field, name, protocol, Some(of.port));
            let protocol = of.app_protocol.as_deref();
            check.maybe_formed(format!("{field}.appProtocol"), protocol, names::qualified);
        }
    }
    check.errors
}

/// Validates an EndpointSlice.
pub(in crate::manifest) fn endpoint_slice(slice: &EndpointSlice) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &slice.metadata);
    let family = slice.address_type.as_str();
    match family {
        "" => check.required("addressType", ""),
        _ => check.one_of("addressType", family, &["FQDN", "IPv4", "IPv6"]),
    }
    for (index, endpoint) in slice.endpoints.iter().flatten().enumerate() {
        let field = format!("endpoints[{index}]");
        if endpoint.addresses.is_empty() {
            let detail = "must contain at least 1 address";
            check.required(format!("{field}.addresses"), detail);
        }
        for (place, address) in endpoint.addresses.iter().enumerate() {
            let field = format!("{field}.addresses[{place}]");
            match (family, address.parse::<IpAddr>()) {
                ("FQDN", _) => check.formed(field, address, names::dns_subdomain),
                ("IPv4", Ok(IpAddr::V6(_))) => {
                    check.invalid(field, address, "must be a valid IPv4 address");
                }
                ("IPv6", Ok(IpAddr::V4(_))) => {
                    check.invalid(field, address, "must be a valid IPv6 address");
                }
                _ => reachable(&mut check, &field, address),
            }
        }
        let hostname = endpoint.hostname.as_deref();
        if let Some(hostname) = hostname.filter(|name| !name.is_empty()) {
            check.formed(format!("{field}.hostname"), hostname, names::dns_label);
        }
    }
    let mut seen = Set::new();
    for (index, of) in slice.ports.iter().flatten().enumerate() {
        let field = format!("ports[{index}]");
        let name = of.name.as_deref().unwrap_or_default();
        if !seen.insert(name) {
            check.error(Rule::Duplicate, format!("{field}.name"), name, "");
        }
        port(&mut check, &field, name, of.protocol.as_deref(), of.port);
    }
    check.errors
}

fn addresses(check: &mut Check, field: &str, addresses: &[EndpointAddress]) {
    for (index, address) in addresses.iter().enumerate() {
        let field = format!("{field}[{index}]");
        reachable(check, &format!("{field}.ip"), &address.ip);
        let hostname = address.hostname.as_deref();
        if let Some(hostname) = hostname.filter(|name| !name.is_empty()) {
            check.formed(format!("{field}.hostname"), hostname, names::dns_label);
        }
        let node = address.node_name.as_deref();
        check.maybe_formed(format!("{field}.nodeName"), node, names::dns_subdomain);
    }
}

/// Checks an address (ValidateEndpointIP).
pub(super) fn reachable(check: &mut Check, field: &str, address: &str) {
    let Ok(ip) = address.parse::<IpAddr>() else {
        return check.formed(field, address, names::ip_address);
    };
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let detail = if ip.is_unspecified() {
        "may not be unspecified (0.0.0.0 or ::)"
    } else if ip.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128): for a server of this machine, give an address of one of its \
         network interfaces"
    } else if is_link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    } else if ip.is_multicast() {
        "may not be a multicast address"
    } else {
        return;
    };
    check.invalid(field, address, detail);
}

fn port(check: &mut Check, field: &str, name: &str, protocol: Option<&str>, port: Option<i32>) {
    if !name.is_empty() {
        check.formed(format!("{field}.name"), name, names::dns_label);
    }
    if let Some(port) = port {
        check.range(format!("{field}.port"), i64::from(port), 1, 65535);
    }
    let protocol = protocol.filter(|protocol| !protocol.is_empty());
    let known = ["SCTP", "TCP", "UDP"];
    check.maybe_one_of(format!("{field}.protocol"), protocol, &known);
}
