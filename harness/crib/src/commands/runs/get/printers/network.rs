//! ◆ The columns of Services and EndpointSlices. Pure.

use compact::Set;
use serde_json::Value;

use super::TableOptions;
use crib_base::columns::NONE;
use crib_base::columns::fields::{
    UNSET, age_of, field, list, number, or, pairs, text, text_or, texts,
};

/// The maximum number of ports and endpoints that are listed.
const NAMED: usize = 3;

pub(super) fn service(object: &Value, options: TableOptions) -> Vec<String> {
    let ports = list(object, "/spec/ports").iter().map(port).collect::<Vec<_>>();
    // The API server sets both fields, and the default type.
    let address = text_or(object, "/spec/clusterIPs/0", text(object, "/spec/clusterIP"));
    let kind = text_or(object, "/spec/type", "ClusterIP");
    let external = external(object, &kind);
    vec![
        kind,
        or(address, NONE),
        external,
        or(ports.join(","), NONE),
        age_of(object, options.now),
        pairs(object, "/spec/selector"),
    ]
}

fn port(port: &Value) -> String {
    let (number_of, node) = (number(port, "/port"), number(port, "/nodePort"));
    let protocol = text_or(port, "/protocol", "TCP");
    match node {
        1.. => format!("{number_of}:{node}/{protocol}"),
        _ => format!("{number_of}/{protocol}"),
    }
}

/// The external addresses. An API server returns all of them, also without `-o wide`.
fn external(object: &Value, kind: &str) -> String {
    let addresses = texts(object, "/spec/externalIPs").join(",");
    match kind {
        "ClusterIP" | "NodePort" => or(addresses, NONE),
        "LoadBalancer" => {
            let mut all = vec![load_balancer(object), addresses];
            all.retain(|part| !part.is_empty());
            or(all.join(","), "<pending>")
        }
        "ExternalName" => text(object, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn load_balancer(object: &Value) -> String {
    let all = list(object, "/status/loadBalancer/ingress").iter();
    let all = all.map(|ingress| text_or(ingress, "/ip", text(ingress, "/hostname")));
    let all: Set<String> = all.filter(|address| !address.is_empty()).collect();
    all.into_iter().collect::<Vec<_>>().join(",")
}

pub(super) fn endpoint_slice(object: &Value, options: TableOptions) -> Vec<String> {
    let ports = list(object, "/ports").iter().map(|port| {
        match field(port, "/port").and_then(Value::as_i64) {
            Some(number) => number.to_string(),
            None => text_or(port, "/name", "*"),
        }
    });
    let endpoints = list(object, "/endpoints").iter();
    let addresses = endpoints.flat_map(|endpoint| texts(endpoint, "/addresses"));
    vec![
        text(object, "/addressType").to_owned(),
        shortened(ports.collect()),
        shortened(addresses.map(str::to_owned).collect()),
        age_of(object, options.now),
    ]
}

/// The first entries of a long list.
fn shortened(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    match more {
        0 => or(all.join(","), UNSET),
        more => format!("{} + {more} more...", all.join(",")),
    }
}
