//! Which Services are served, on which addresses, and with which endpoints.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn service(spec: Value) -> Service {
    let mut spec = spec;
    let fields = spec.as_object_mut().unwrap();
    fields.entry("clusterIP").or_insert_with(|| json!("10.96.0.7"));
    fields.entry("ports").or_insert_with(|| json!([{"name": "web", "port": 80}]));
    let labels = fields.remove("labels").unwrap_or_default();
    let service =
        json!({"metadata": {"name": "web", "namespace": "ns", "labels": labels}, "spec": spec});
    serde_json::from_value(service).unwrap()
}

/// Endpoints with an address and further fields of each.
fn slice(endpoints: &[(&str, Value)]) -> EndpointSlice {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(address, fields)| {
            let mut endpoint = fields.clone();
            endpoint["addresses"] = json!([address]);
            endpoint
        })
        .collect();
    let slice = json!({
        "metadata": {"name": "web-1", "namespace": "ns", "labels": {SERVICE_NAME: "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}, {"name": "none", "protocol": "TCP"}],
        "endpoints": endpoints,
    });
    serde_json::from_value(slice).unwrap()
}

fn here() -> ProxyLocation {
    ProxyLocation { node: "n1".to_owned(), zone: Some("z1".to_owned()) }
}

fn plan(service: &Service, slices: &[EndpointSlice]) -> ServiceTable {
    plan_proxied([service], slices, &here())
}

/// The last bytes of the addresses of the first port's endpoints.
fn behind(table: &ServiceTable) -> Vec<u8> {
    table.balancers[0].backends.iter().map(|at| at.ip().octets()[3]).collect()
}

#[test]
fn cluster_ip_and_node_port_forward_to_the_endpoint_port() {
    let service = service(json!({
        "type": "NodePort",
        "ports": [{"name": "web", "port": 80, "targetPort": "http", "nodePort": 30080}],
        "sessionAffinity": "ClientIP",
    }));
    let table = plan(&service, &[slice(&[("10.244.0.2", json!({}))])]);
    let backends = vec![SocketAddrV4::new([10, 244, 0, 2].into(), 8080)];
    let balancer = |address, port| Balancer {
        name: "service ns/web: port 80".to_owned(),
        address,
        port,
        transport: Transport::Tcp,
        backends: backends.clone(),
        affinity: Some(Duration::from_secs(10_800)),
    };
    let address = Ipv4Addr::new(10, 96, 0, 7);
    assert_eq!(table.balancers, [balancer(Some(address), 80), balancer(None, 30080)]);
    assert_eq!(table.addresses, [address]);
    assert_eq!((table.names, table.zone), (Vec::new(), String::new()));
}

#[rstest]
#[case::headless(json!({"clusterIP": "None"}))]
#[case::not_yet(json!({"clusterIP": ""}))]
#[case::external_name(json!({"type": "ExternalName", "externalName": "a.example"}))]
#[case::other_proxy(json!({"labels": {"service.kubernetes.io/service-proxy-name": "x"}}))]
#[case::ipv6(json!({"clusterIP": "fd00::7"}))]
fn services_of_other_proxies_are_ignored(#[case] spec: Value) {
    let table = plan(&service(spec), &[slice(&[("10.244.0.2", json!({}))])]);
    assert_eq!(table, ServiceTable::default());
}

#[rstest]
#[case::sctp(json!({"ports": [{"name": "web", "port": 80, "protocol": "SCTP"}]}), None)]
#[case::other_name(json!({"ports": [{"name": "other", "port": 80}]}), Some(0))]
#[case::other_protocol(json!({"ports": [{"name": "web", "port": 80, "protocol": "UDP"}]}), Some(0))]
#[case::no_number(json!({"ports": [{"name": "none", "port": 80}]}), Some(0))]
#[case::second_family(json!({"clusterIP": "fd00::7", "clusterIPs": ["fd00::7", "10.96.0.7"]}), Some(1))]
fn ports_have_the_endpoints_of_their_name_and_protocol(
    #[case] spec: Value,
    #[case] endpoints: Option<usize>,
) {
    let table = plan(&service(spec), &[slice(&[("10.244.0.2", json!({}))])]);
    assert_eq!(table.balancers.first().map(|balancer| balancer.backends.len()), endpoints);
    assert_eq!(table.addresses.len(), 1);
}

fn conditions(ready: bool, serving: bool, terminating: bool) -> Value {
    json!({"conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
}

fn on(node: &str, ready: bool, terminating: bool) -> Value {
    let mut endpoint = conditions(ready, true, terminating);
    endpoint["nodeName"] = json!(node);
    endpoint
}

fn hinted(nodes: &[&str], zones: &[&str]) -> Value {
    let names = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    json!({"hints": {"forNodes": names(nodes), "forZones": names(zones)}})
}

#[rstest]
#[case::unknown_is_ready(&[json!({})], &[1])]
#[case::ready_ones(&[conditions(true, true, false), conditions(false, false, false)], &[1])]
#[case::terminating_ones_if_no_other(&[conditions(false, true, true), conditions(false, false, true), conditions(false, true, false)], &[1])]
#[case::terminating_ones_beside_a_ready_one(&[conditions(false, true, true), conditions(true, true, false)], &[2])]
#[case::none(&[conditions(false, false, false)], &[])]
#[case::hints_for_the_node(&[hinted(&["n1"], &["z1"]), hinted(&["n2"], &["z1"])], &[1])]
#[case::hints_for_the_zone(&[hinted(&[], &["z1"]), hinted(&[], &["z2"])], &[1])]
#[case::hints_for_others(&[hinted(&["n3"], &["z3"]), hinted(&["n2"], &["z2"])], &[1, 2])]
#[case::hints_of_some(&[hinted(&["n1"], &["z1"]), json!({})], &[1, 2])]
fn connections_go_to_endpoints_as_with_kube_proxy(
    #[case] endpoints: &[Value],
    #[case] expected: &[u8],
) {
    let addresses = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let endpoints: Vec<(&str, Value)> = addresses.into_iter().zip(endpoints.to_vec()).collect();
    assert_eq!(behind(&plan(&service(json!({})), &[slice(&endpoints)])), expected);
}

#[rstest]
#[case::own_node(&[on("n1", true, false), on("n2", true, false)], &[1])]
#[case::own_terminating_one(&[on("n1", false, true), on("n2", true, false)], &[1])]
#[case::others_alone(&[on("n2", true, false)], &[])]
fn local_policies_keep_connections_on_the_node(#[case] endpoints: &[Value], #[case] own: &[u8]) {
    let addresses = ["10.244.0.1", "10.244.0.2"];
    let endpoints: Vec<(&str, Value)> = addresses.into_iter().zip(endpoints.to_vec()).collect();
    let slices = [slice(&endpoints)];
    let inside = service(json!({"internalTrafficPolicy": "Local"}));
    assert_eq!(behind(&plan(&inside, &slices)), own);
    // A policy for one kind of port does not apply to the other.
    let mut spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
    spec["ports"] = json!([{"name": "web", "port": 80, "nodePort": 30080}]);
    let table = plan(&service(spec), &slices);
    let outside: Vec<u8> =
        table.balancers[1].backends.iter().map(|at| at.ip().octets()[3]).collect();
    assert_eq!(outside, own);
    assert_eq!(
        table.balancers[0].backends.len(),
        slices[0]
            .endpoints
            .iter()
            .flatten()
            .filter(|it| it.conditions.as_ref().unwrap().ready == Some(true))
            .count()
    );
}

#[test]
fn endpoint_of_two_slices_is_one() {
    let same = slice(&[("10.244.0.2", on("n1", true, false))]);
    let other = slice(&[("10.244.0.2", on("n2", true, false))]);
    for slices in [[same.clone(), other.clone()], [other, same]] {
        let local = service(json!({"internalTrafficPolicy": "Local"}));
        assert_eq!(behind(&plan(&local, &slices)), [2]);
    }
}
