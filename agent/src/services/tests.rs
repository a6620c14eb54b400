//! Tests of addresses and tables of Services.
#![allow(clippy::unwrap_used)]

use api::pod::Pod;
use compact::Map;
use k8s_openapi::api::core::v1::{PodStatus, Service};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;
use crate::objects::ObjectMap;

fn service(name: &str, spec: Value) -> Service {
    let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

fn pod(name: &str, spec: Value) -> Pod {
    let ports = json!([
        {"name": "http", "containerPort": 8080},
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
    ]);
    let containers = json!({"containers": [{"name": "main", "ports": ports}]});
    fixtures::pod(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": fixtures::with(containers, &spec),
    }))
}

fn status(ip: &str, ready: bool) -> PodStatus {
    serde_json::from_value(json!({
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": "fd00::9"}, {"ip": ip}],
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
    }))
    .unwrap()
}

/// The table of one Service before three pods: two are ready.
fn table(spec: Value) -> ServiceTable {
    let pods = [
        pod("web-0", json!({"hostname": "web-0", "subdomain": "web"})),
        pod("web-1", json!({"hostname": "web-1", "subdomain": "other"})),
        pod("web-2", json!({})),
    ];
    let statuses: Map<&str, PodStatus> = [
        ("web-0", status("10.0.0.5", true)),
        ("web-1", status("10.0.0.4", true)),
        ("web-2", status("10.0.0.6", false)),
    ]
    .into();
    let service = service("web", spec);
    plan("cluster.local", [&service], &pods, &[], |uid| statuses.get(uid.as_str()))
}

/// Names with their records, as text.
fn names(table: &ServiceTable) -> Vec<String> {
    let words = |name: &ServiceName| {
        let addresses = name.addresses.iter().map(ToString::to_string);
        let servers = name.servers.iter().map(|(target, port)| format!("{target}:{port}"));
        let alias = name.alias.iter().map(|alias| format!("={alias}"));
        let pointer = name.pointer.iter().map(|target| format!(">{target}"));
        let records = addresses.chain(servers).chain(alias).chain(pointer);
        format!("{} {}", name.name, records.collect::<Vec<_>>().join(" "))
            .replace("default.svc.cluster.local", "D")
    };
    table.names.iter().map(words).collect()
}

/// Ports with their backends, as text.
fn ports(table: &ServiceTable) -> Vec<String> {
    let words = |balancer: &Balancer| {
        let address = balancer.address.map_or("node".to_owned(), |ip| ip.to_string());
        let backends: Vec<String> = balancer.backends.iter().map(ToString::to_string).collect();
        let affinity = balancer.affinity.map(|time| format!(" for {time:?}"));
        let (transport, port) = (balancer.transport.name(), balancer.port);
        let affinity = affinity.unwrap_or_default();
        format!("{address} {transport} {port} → {}{affinity}", backends.join(" "))
    };
    table.balancers.iter().map(words).collect()
}

#[rstest]
#[case::number(json!({"ports": [{"port": 80}]}), &["10.1.0.1 tcp 80 → 10.0.0.4:80 10.0.0.5:80"])]
#[case::target(json!({"ports": [{"port": 80, "targetPort": 81}]}), &["10.1.0.1 tcp 80 → 10.0.0.4:81 10.0.0.5:81"])]
#[case::named(json!({"ports": [{"port": 80, "targetPort": "http"}]}), &["10.1.0.1 tcp 80 → 10.0.0.4:8080 10.0.0.5:8080"])]
#[case::named_of_other_protocol(json!({"ports": [{"port": 80, "targetPort": "dns"}]}), &["10.1.0.1 tcp 80 → "])]
#[case::several(
    json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP", "targetPort": "dns"}]}),
    &["10.1.0.1 tcp 80 → 10.0.0.4:80 10.0.0.5:80", "10.1.0.1 udp 53 → 10.0.0.4:53 10.0.0.5:53"]
)]
#[case::node_port(
    json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}),
    &["10.1.0.1 tcp 80 → 10.0.0.4:80 10.0.0.5:80", "node tcp 30080 → 10.0.0.4:80 10.0.0.5:80"]
)]
#[case::not_ready(
    json!({"publishNotReadyAddresses": true, "ports": [{"port": 80}]}),
    &["10.1.0.1 tcp 80 → 10.0.0.4:80 10.0.0.5:80 10.0.0.6:80"]
)]
#[case::affinity(
    json!({"sessionAffinity": "ClientIP", "ports": [{"port": 80}]}),
    &["10.1.0.1 tcp 80 → 10.0.0.4:80 10.0.0.5:80 for 10800s"]
)]
#[case::affinity_time(
    json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}, "ports": [{"port": 80}]}),
    &["10.1.0.1 tcp 80 → 10.0.0.4:80 10.0.0.5:80 for 7s"]
)]
#[case::no_such_pods(json!({"selector": {"app": "db"}, "ports": [{"port": 80}]}), &["10.1.0.1 tcp 80 → "])]
#[case::no_selector(json!({"selector": {}, "ports": [{"port": 80}]}), &["10.1.0.1 tcp 80 → "])]
#[case::sctp(json!({"ports": [{"port": 80, "protocol": "SCTP"}]}), &[])]
#[case::no_address_yet(json!({"clusterIP": "", "ports": [{"port": 80}]}), &[])]
fn ports_lead_to_pods(#[case] mut spec: Value, #[case] expected: &[&str]) {
    let fields = spec.as_object_mut().unwrap();
    fields.entry("clusterIP").or_insert(json!("10.1.0.1"));
    fields.entry("selector").or_insert(json!({"app": "web"}));
    assert_eq!(ports(&table(spec)), expected);
}

#[rstest]
#[case::cluster_ip(
    json!({"clusterIP": "10.1.0.1", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}),
    &["1.0.1.10.in-addr.arpa >web.D", "_http._tcp.web.D web.D:80", "web.D 10.1.0.1"]
)]
#[case::headless(
    json!({"clusterIP": "None", "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}),
    &[
        "10-0-0-4.web.D 10.0.0.4",
        "4.0.0.10.in-addr.arpa >10-0-0-4.web.D",
        "5.0.0.10.in-addr.arpa >web-0.web.D",
        "_http._tcp.web.D 10-0-0-4.web.D:8080 web-0.web.D:8080",
        "web-0.web.D 10.0.0.5",
        "web.D 10.0.0.4 10.0.0.5",
    ]
)]
#[case::headless_without_pods(json!({"clusterIP": "None", "selector": {"app": "db"}}), &["web.D "])]
#[case::external(json!({"type": "ExternalName", "externalName": "Db.example.org."}), &["web.D =Db.example.org"])]
fn names_are_those_of_the_specification(#[case] mut spec: Value, #[case] expected: &[&str]) {
    let fields = spec.as_object_mut().unwrap();
    fields.entry("selector").or_insert(json!({"app": "web"}));
    assert_eq!(names(&table(spec)), expected);
}

#[test]
fn ended_pod_is_no_endpoint() {
    let mut ended = status("10.0.0.5", true);
    ended.phase = Some("Succeeded".to_owned());
    let spec = json!({"clusterIP": "10.1.0.1", "publishNotReadyAddresses": true,
        "selector": {"app": "web"}, "ports": [{"port": 80}]});
    let (service, pods) = (service("web", spec), [pod("web-0", json!({}))]);
    let table = plan("cluster.local", [&service], &pods, &[], |_| Some(&ended));
    assert_eq!(ports(&table), ["10.1.0.1 tcp 80 → "]);
}

#[test]
fn pods_of_another_namespace_are_not_chosen() {
    let mut service = service(
        "web",
        json!({"clusterIP": "10.1.0.1", "selector": {"app": "web"}, "ports": [{"port": 80}]}),
    );
    service.metadata.namespace = Some("other".to_owned());
    let (ready, pods) = (status("10.0.0.5", true), [pod("web-0", json!({}))]);
    let table = plan("cluster.local", [&service], &pods, &[], |_| Some(&ready));
    assert_eq!(ports(&table), ["10.1.0.1 tcp 80 → "]);
}

/// The Services with their addresses and node ports, and the warnings.
fn assigned(specs: &[Value], seed: u64) -> (Vec<String>, Vec<String>) {
    let mut objects = ObjectMap::default();
    for (number, spec) in specs.iter().enumerate() {
        objects.insert_service(service(&format!("s{number}"), spec.clone()));
    }
    let mut assigner = Assigner::new(seed);
    let warnings = warnings(&objects);
    (assigned_by(&mut assigner, &mut objects), warnings)
}

/// Adds the missing addresses, the next ones of a network, and returns the Services with their addresses and node ports.
fn assigned_by(assigner: &mut Assigner, objects: &mut ObjectMap) -> Vec<String> {
    let missing = u8::try_from(assigner.missing_addresses(objects)).unwrap();
    let first = u8::try_from(assigner.leased()).unwrap() + 1;
    assigner.add_addresses((first..first + missing).map(|last| [10, 1, 0, last].into()));
    assigner.assign(objects);
    let words = |service: &Service| {
        let spec = service.spec.as_ref().unwrap();
        let ports = spec.ports.iter().flatten();
        let ports: Vec<String> =
            ports.filter_map(|port| Some(port.node_port?.to_string())).collect();
        format!("{} {}", spec.cluster_ip.as_deref().unwrap_or("-"), ports.join(" "))
    };
    let services = objects.all_services();
    services.iter().map(|service| words(service)).collect()
}

#[test]
fn changed_services_keep_addresses_and_node_ports() {
    let mut assigner = Assigner::new(5);
    let mut assigned = |services: &[(&str, Value)]| {
        let mut objects = ObjectMap::default();
        for (name, spec) in services {
            objects.insert_service(service(name, spec.clone()));
        }
        assigned_by(&mut assigner, &mut objects)
    };
    let ports = |ports: Value| json!({"type": "NodePort", "ports": ports});
    let (a, b) = (ports(json!([{"name": "x", "port": 80}])), ports(json!([{"port": 80}])));
    assert_eq!(
        assigned(&[("a", a.clone()), ("b", b.clone())]),
        ["10.1.0.1 30005", "10.1.0.2 30006"]
    );
    // Another number and a further port do not change existing ports, whatever the order of the Services.
    let more = ports(json!([{"name": "y", "port": 1}, {"name": "x", "port": 81}]));
    assert_eq!(
        assigned(&[("0", a.clone()), ("a", more), ("b", b.clone())]),
        ["10.1.0.3 30007", "10.1.0.1 30008 30005", "10.1.0.2 30006"]
    );
    // A new Service gets the address of a removed one.
    assert_eq!(
        assigned(&[("b", b.clone()), ("c", json!({"ports": [{"port": 1}]}))]),
        ["10.1.0.2 30006", "10.1.0.3 "]
    );
    // A port that a manifest specifies now is taken from the Service that kept it.
    let chosen = ports(json!([{"port": 1, "nodePort": 30006}]));
    assert_eq!(assigned(&[("b", b), ("d", chosen)]), ["10.1.0.2 30005", "10.1.0.1 30006"]);
    assert_eq!(assigned(&[]), [""; 0]);
}

#[test]
fn services_beyond_the_leased_addresses_have_none() {
    let mut objects = ObjectMap::default();
    let given = json!({"clusterIP": "10.96.0.9", "type": "NodePort", "ports": [{"port": 1}]});
    objects.insert_service(service("a", given));
    Assigner::new(0).assign(&mut objects);
    let spec = objects.all_services()[0].spec.clone().unwrap();
    assert_eq!((spec.cluster_ip, spec.cluster_ips), (None, None));
    assert_eq!(spec.ports.unwrap()[0].node_port, Some(30_000));
}

#[rstest]
#[case::other_service(&[("a", 80, "TCP"), ("b", 80, "TCP")], Some("default/a"))]
#[case::other_protocol_of_other_service(&[("a", 80, "TCP"), ("b", 80, "UDP")], Some("default/a"))]
#[case::protocols_of_one_port(&[("a", 53, "TCP"), ("a", 53, "UDP")], None)]
#[case::two_ports(&[("a", 53, "TCP"), ("a", 54, "UDP")], Some("default/a"))]
fn node_port_is_taken_once(#[case] ports: &[(&str, i32, &str)], #[case] holder: Option<&str>) {
    let mut taken = NodePorts::default();
    let problems = ports.iter().flat_map(|(name, port, protocol)| {
        let port = json!({"port": port, "protocol": protocol, "nodePort": 30100});
        taken.take(&service(name, json!({"type": "NodePort", "ports": [port]})))
    });
    let expected = holder.map(|holder| {
        format!(
            "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated: service {holder} has it"
        )
    });
    assert_eq!(problems.collect::<Vec<_>>(), Vec::from_iter(expected));
}

#[rstest]
#[case::tcp(json!({"port": 80, "nodePort": 30100}), &[("service default/web: port 80", 30100)])]
#[case::udp(json!({"port": 53, "nodePort": 30100, "protocol": "UDP"}), &[("service default/web: port 53/UDP", 30100)])]
#[case::sctp(json!({"port": 7, "nodePort": 30100, "protocol": "SCTP"}), &[])]
#[case::none(json!({"port": 80}), &[])]
fn served_node_ports_are_named(#[case] port: Value, #[case] expected: &[(&str, u16)]) {
    let service = service("web", json!({"type": "LoadBalancer", "ports": [port]}));
    let expected = expected.iter().map(|(words, port)| ((*words).to_owned(), *port));
    let found = node_ports(&service).into_iter();
    let found: Vec<_> = found.map(|(words, _, port)| (words, port)).collect();
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn each_service_gets_an_address_and_node_ports() {
    let select = json!({"app": "web"});
    let (services, warnings) = assigned(
        &[
            json!({"selector": select, "ports": [{"port": 80}]}),
            json!({"clusterIP": "None", "selector": select}),
            json!({"type": "ExternalName", "externalName": "example.org"}),
            json!({"type": "NodePort", "selector": select, "ports": [{"port": 80}, {"port": 81, "nodePort": 30000}]}),
            json!({"type": "NodePort", "selector": select, "ports": [{"port": 80}]}),
        ],
        2767,
    );
    // The search begins at the last port, continues with the first one, and skips an assigned one.
    assert_eq!(services, ["10.1.0.1 ", "None ", "- ", "10.1.0.2 32767 30000", "10.1.0.3 30001"]);
    assert_eq!(warnings, [""; 0]);
}

#[rstest]
#[case::load_balancer(json!({"type": "LoadBalancer"}), "type LoadBalancer is treated as NodePort: crib has no load balancer")]
#[case::given(json!({"clusterIP": "10.96.0.9"}), "clusterIP 10.96.0.9 is replaced by an address of the pod network: leave clusterIP out")]
#[case::no_selector(json!({"selector": null}), "refuses connections because it has no selector: add a selector, Endpoints s0, or an EndpointSlice with the label kubernetes.io/service-name: s0")]
#[case::ipv6(json!({"ipFamilies": ["IPv6"]}), "IPv6 is not supported: the Service gets an IPv4 address only")]
#[case::sctp(json!({"ports": [{"port": 7, "protocol": "SCTP"}]}), "port 7 is not served: SCTP is not supported, only TCP and UDP are")]
fn differing_service_fields_are_warned_of(#[case] fields: Value, #[case] expected: &str) {
    let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
    let (_, warnings) = assigned(&[fixtures::with(spec, &fields)], 0);
    assert_eq!(warnings, [format!("service default/s0: {expected}")]);
}

/// The objects of a manifest.
fn objects(text: &str) -> ObjectMap {
    fixtures::objects(fixtures::parsed(text).objects)
}

const WITHOUT_SELECTOR: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: db}\n\
    spec: {ports: [{name: sql, port: 5432}, {name: stats, port: 80}], clusterIP: CLUSTER_IP}\n---\n";
const ENDPOINTS: &str = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: db}\nsubsets:\n\
    - {addresses: [{ip: 192.0.2.7, hostname: one}, {ip: '2001:db8::7'}], notReadyAddresses: [{ip: 192.0.2.8}], ports: [{name: sql, port: 6432}]}\n\
    - {addresses: [{ip: 192.0.2.9}], ports: [{name: stats, port: 81}]}\n";
const SLICE: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x, labels: {kubernetes.io/service-name: db}}\n\
    addressType: IPv4\nendpoints:\n- {addresses: [192.0.2.7], hostname: one}\n- {addresses: [192.0.2.8], conditions: {ready: false}}\n\
    ports: [{name: sql, port: 6432}]\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
    metadata: {name: z, labels: {kubernetes.io/service-name: db}}\naddressType: IPv4\nendpoints: [{addresses: [192.0.2.9]}]\n\
    ports: [{name: stats, port: 81}]\n";

#[rstest]
fn addresses_of_endpoints_and_slices_are_balanced(#[values(ENDPOINTS, SLICE)] behind: &str) {
    let text = WITHOUT_SELECTOR.replace("CLUSTER_IP", "10.0.0.1");
    let objects = objects(&format!("{text}{behind}"));
    let (services, slices) = (objects.all_services(), objects.endpoint_slices());
    let services = services.iter().map(AsRef::as_ref);
    let table = plan("cluster.local", services, &[], &slices, |_| None);
    let backends: Vec<(u16, String)> = table
        .balancers
        .iter()
        .map(|balancer| {
            let backends = balancer.backends.iter().map(ToString::to_string);
            (balancer.port, backends.collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert_eq!(backends, [(5432, "192.0.2.7:6432".to_owned()), (80, "192.0.2.9:81".to_owned())]);
}

#[rstest]
fn headless_service_without_selector_is_its_addresses(#[values(ENDPOINTS, SLICE)] behind: &str) {
    let text = WITHOUT_SELECTOR.replace("CLUSTER_IP", "None");
    let objects = objects(&format!("{text}{behind}"));
    let (services, slices) = (objects.all_services(), objects.endpoint_slices());
    let services = services.iter().map(AsRef::as_ref);
    let table = plan("cluster.local", services, &[], &slices, |_| None);
    let of = |name: &str| {
        let name = format!("{name}db.default.svc.cluster.local");
        let mut names = table.names.iter();
        let found = names.find(|known| known.name == name).unwrap();
        (found.addresses.clone(), found.servers.clone())
    };
    let (one, two) = (Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::new(192, 0, 2, 9));
    assert_eq!(of(""), (vec![one, two], vec![]));
    assert_eq!(of("one."), (vec![one], vec![]));
    assert_eq!(of("192-0-2-9."), (vec![two], vec![]));
    let server = ("one.db.default.svc.cluster.local".to_owned(), 6432);
    assert_eq!(of("_sql._tcp."), (vec![], vec![server]));
}

#[rstest]
#[case::endpoints(ENDPOINTS, &["service default/db: addresses of type IPv6 are not served, only IPv4 addresses are: endpoints default/db"])]
#[case::slice(SLICE, &[])]
#[case::other_port(&SLICE.replace("stats", "other"), &["service default/db: port 80 refuses connections: endpointslice default/x, endpointslice default/z has no port named stats of the same protocol; give both ports the same name"])]
#[case::other_service(&SLICE.replace("labels: {kubernetes.io/service-name: db}", "labels: {a: b}"), &[
    "service default/db: refuses connections because it has no selector: add a selector, Endpoints db, or an EndpointSlice \
     with the label kubernetes.io/service-name: db",
    "endpointslice default/x has no effect, because no Service uses it: give it the label kubernetes.io/service-name with the name of a \
     Service, or leave it out",
    "endpointslice default/z has no effect, because no Service uses it: give it the label kubernetes.io/service-name with the name of a \
     Service, or leave it out",
])]
fn endpoints_that_are_not_served_are_warned_of(#[case] behind: &str, #[case] expected: &[&str]) {
    let text = WITHOUT_SELECTOR.replace(", clusterIP: CLUSTER_IP", "");
    assert_eq!(warnings(&objects(&format!("{text}{behind}"))), expected);
}
