//! Cells with the test data of Kubernetes 1.36, pkg/printers/internalversion/printers_test.go.

mod pod;

use rstest::rstest;
use serde_json::json;

use super::*;

const NOW: &str = "2026-03-04T05:06:07Z";

fn options(wide: bool) -> TableOptions {
    TableOptions { wide, now: NOW.parse().unwrap() }
}

/// The time this many seconds ago.
fn ago(seconds: i64) -> Value {
    let now: Timestamp = NOW.parse().unwrap();
    json!((now - jiff::SignedDuration::from_secs(seconds)).to_string())
}

/// The cells after NAME.
fn cells(group: &str, kind: &str, object: &Value, wide: bool) -> String {
    let of = |known: &&(&str, &str, Printer)| known.0 == group && known.1 == kind;
    let (_, _, printer) = PRINTERS.iter().find(of).unwrap();
    let options = options(wide);
    let cells = printer.cells(object, options);
    assert_eq!(cells.len(), printer.headings(options).count());
    cells.join(" | ")
}

fn template() -> Value {
    json!({"spec": {"containers": [
        {"name": "fake-container1", "image": "fake-image1"}, {"name": "fake-container2", "image": "fake-image2"},
    ]}})
}

const TEMPLATE_CELLS: &str = "fake-container1,fake-container2 | fake-image1,fake-image2";

#[test]
fn printers_have_as_many_cells_as_headings() {
    for (_, kind, printer) in PRINTERS {
        let cells = (printer.cells)(&json!({}), options(true));
        let headings = printer.headings.len() + printer.wide.len();
        // StatefulSets have no column for their selector.
        assert!(cells.len() == headings || kind == "StatefulSet", "{kind}: {cells:?}");
    }
}

#[test]
fn deployments_have_kubernetes_cells() {
    let object = json!({
        "metadata": {"name": "test1", "creationTimestamp": ago(-1)},
        "spec": {"replicas": 5, "template": template(), "selector": {"matchLabels": {"foo": "bar"}}},
        "status": {"replicas": 10, "updatedReplicas": 2, "availableReplicas": 1, "unavailableReplicas": 4},
    });
    assert_eq!(cells("apps", "Deployment", &object, false), "0/5 | 2 | 1 | 0s");
    let wide = format!("0/5 | 2 | 1 | 0s | {TEMPLATE_CELLS} | foo=bar");
    assert_eq!(cells("apps", "Deployment", &object, true), wide);
}

#[test]
fn replica_sets_have_kubernetes_cells() {
    let object = json!({
        "metadata": {"name": "test1", "creationTimestamp": ago(-1)},
        "spec": {"replicas": 5, "template": template(), "selector": {"matchLabels": {"foo": "bar"}}},
        "status": {"replicas": 5, "readyReplicas": 2},
    });
    assert_eq!(cells("apps", "ReplicaSet", &object, false), "5 | 5 | 2 | 0s");
    let wide = format!("5 | 5 | 2 | 0s | {TEMPLATE_CELLS} | foo=bar");
    assert_eq!(cells("apps", "ReplicaSet", &object, true), wide);
}

#[test]
fn replication_controllers_have_kubernetes_cells() {
    let object = json!({
        "metadata": {"name": "rc1", "namespace": "test-namespace"},
        "spec": {"replicas": 5, "template": template(), "selector": {"a": "1", "b": "2"}},
        "status": {"replicas": 5, "readyReplicas": 2},
    });
    assert_eq!(cells("", "ReplicationController", &object, false), "5 | 5 | 2 | <unknown>");
    let wide = format!("5 | 5 | 2 | <unknown> | {TEMPLATE_CELLS} | a=1,b=2");
    assert_eq!(cells("", "ReplicationController", &object, true), wide);
}

#[test]
fn stateful_sets_have_kubernetes_cells() {
    let object = json!({
        "metadata": {"name": "test1", "creationTimestamp": ago(-1)},
        "spec": {"replicas": 5, "template": template()},
        "status": {"replicas": 5, "readyReplicas": 2},
    });
    assert_eq!(cells("apps", "StatefulSet", &object, false), "2/5 | 0s");
    assert_eq!(cells("apps", "StatefulSet", &object, true), format!("2/5 | 0s | {TEMPLATE_CELLS}"));
}

#[test]
fn daemon_sets_have_kubernetes_cells() {
    let object = json!({
        "metadata": {"name": "test1", "creationTimestamp": ago(-1)},
        "spec": {"template": template(), "selector": {"matchLabels": {"foo": "bar"}}},
        "status": {
            "currentNumberScheduled": 2, "desiredNumberScheduled": 3, "numberReady": 1,
            "updatedNumberScheduled": 2, "numberAvailable": 0,
        },
    });
    assert_eq!(cells("apps", "DaemonSet", &object, false), "3 | 2 | 1 | 2 | 0 | <none> | 0s");
    let wide = format!("3 | 2 | 1 | 2 | 0 | <none> | 0s | {TEMPLATE_CELLS} | foo=bar");
    assert_eq!(cells("apps", "DaemonSet", &object, true), wide);
}

const YEARS: i64 = 10 * 365 * 24 * 3600;

#[rstest]
#[case::completions(json!({"spec": {"completions": 2}, "status": {"succeeded": 1}}), -1, "Running | 1/2 |  | 0s")]
#[case::old(json!({"spec": {}}), YEARS, "Running | 0/1 |  | 10y")]
#[case::parallel(json!({"spec": {"parallelism": 3}}), -1, "Running | 0/1 of 3 |  | 0s")]
#[case::duration(
    json!({"status": {"startTime": ago(1800), "completionTime": ago(0)}}), YEARS, "Running | 0/1 | 30m | 10y"
)]
#[case::runs(json!({"status": {"startTime": ago(1200)}}), YEARS, "Running | 0/1 | 20m | 10y")]
#[case::complete(
    json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}), -1, "Complete | 0/1 |  | 0s"
)]
#[case::failed(
    json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}), -1, "Failed | 0/1 |  | 0s"
)]
#[case::suspended(
    json!({"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}), -1, "Suspended | 0/1 |  | 0s"
)]
#[case::failure_target(
    json!({"status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}}), -1,
    "FailureTarget | 0/1 |  | 0s"
)]
#[case::terminating(json!({"metadata": {"deletionTimestamp": ago(-1)}}), -1, "Terminating | 0/1 |  | 0s")]
#[case::success_criteria(
    json!({"status": {"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}}), -1,
    "SuccessCriteriaMet | 0/1 |  | 0s"
)]
fn jobs_have_kubernetes_cells(
    #[case] mut object: Value,
    #[case] created: i64,
    #[case] expected: &str,
) {
    object["metadata"]["creationTimestamp"] = ago(created);
    assert_eq!(cells("batch", "Job", &object, false), expected);
    object["spec"]["template"] = template();
    object["spec"]["selector"] = json!({"matchLabels": {"job-label": "job-label-value"}});
    let wide = format!("{expected} | {TEMPLATE_CELLS} | job-label=job-label-value");
    assert_eq!(cells("batch", "Job", &object, true), wide);
}

#[rstest]
#[case::plain(json!({"suspend": false}), json!({"lastScheduleTime": ago(-1)}), -1, "<none> | False | 0 | 0s | 0s")]
#[case::time_zone(
    json!({"suspend": false, "timeZone": "LOCAL"}), json!({"lastScheduleTime": ago(-1)}), -1,
    "LOCAL | False | 0 | 0s | 0s"
)]
#[case::old(json!({"suspend": false}), json!({"lastScheduleTime": ago(30)}), 300, "<none> | False | 0 | 30s | 5m")]
#[case::never(json!({"suspend": true}), json!({}), 300, "<none> | True | 0 | <none> | 5m")]
#[case::active(json!({}), json!({"active": [{}, {}]}), 300, "<none> | <unset> | 2 | <none> | 5m")]
fn cron_jobs_have_kubernetes_cells(
    #[case] mut spec: Value,
    #[case] status: Value,
    #[case] created: i64,
    #[case] expected: &str,
) {
    spec["schedule"] = json!("0/5 * * * ?");
    spec["jobTemplate"]["spec"] =
        json!({"template": template(), "selector": {"matchLabels": {"a": "b"}}});
    let object =
        json!({"metadata": {"creationTimestamp": ago(created)}, "spec": spec, "status": status});
    let expected = format!("0/5 * * * ? | {expected}");
    assert_eq!(cells("batch", "CronJob", &object, false), expected);
    let wide = format!("{expected} | {TEMPLATE_CELLS} | a=b");
    assert_eq!(cells("batch", "CronJob", &object, true), wide);
}

fn ingress(addresses: &str) -> Value {
    let all: Vec<Value> = addresses.split_whitespace().map(|ip| json!({"ip": ip})).collect();
    json!({"loadBalancer": {"ingress": all}})
}

#[rstest]
#[case::cluster_ip("ClusterIP", "", "", "2233", "ClusterIP | 10.9.8.7 | <none> | 2233/TCP")]
#[case::external_ip(
    "ClusterIP",
    "80.11.12.10",
    "",
    "80",
    "ClusterIP | 10.9.8.7 | 80.11.12.10 | 80/TCP"
)]
#[case::node_port("NodePort", "", "", "8888:9999", "NodePort | 10.9.8.7 | <none> | 8888:9999/TCP")]
#[case::pending("LoadBalancer", "", "", "8888", "LoadBalancer | 10.9.8.7 | <pending> | 8888/TCP")]
#[case::no_status(
    "LoadBalancer",
    "80.11.12.10",
    "",
    "8888",
    "LoadBalancer | 10.9.8.7 | 80.11.12.10 | 8888/TCP"
)]
#[case::external_and_status(
    "LoadBalancer",
    "80.11.12.10",
    "3.4.5.6",
    "8888",
    "LoadBalancer | 10.9.8.7 | 3.4.5.6,80.11.12.10 | 8888/TCP"
)]
#[case::several(
    "LoadBalancer",
    "80.11.12.10 80.11.12.11",
    "2.3.4.5 3.4.5.6",
    "8888",
    "LoadBalancer | 10.9.8.7 | 2.3.4.5,3.4.5.6,80.11.12.10,80.11.12.11 | 8888/TCP"
)]
#[case::ports(
    "LoadBalancer",
    "",
    "2.3.4.5",
    "80 8090/UDP 8000 7777/SCTP",
    "LoadBalancer | 10.9.8.7 | 2.3.4.5 | 80/TCP,8090/UDP,8000/TCP,7777/SCTP"
)]
#[case::long(
    "LoadBalancer",
    "",
    "2.3.4.5 3.4.5.6 5.6.7.8",
    "80",
    "LoadBalancer | 10.9.8.7 | 2.3.4.5,3.4.5.6,5.6.7.8 | 80/TCP"
)]
#[case::external_name(
    "ExternalName",
    "",
    "",
    "",
    "ExternalName | <none> | my.database.example.com | <none>"
)]
fn services_have_kubernetes_cells(
    #[case] kind: &str,
    #[case] external: &str,
    #[case] addresses: &str,
    #[case] ports: &str,
    #[case] expected: &str,
) {
    let port = |text: &str| {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
        let (port, node) = port.split_once(':').unwrap_or((port, "0"));
        let number = |text: &str| text.parse::<i64>().unwrap();
        json!({"port": number(port), "nodePort": number(node), "protocol": protocol})
    };
    let mut spec = json!({
        "type": kind,
        "externalIPs": external.split_whitespace().collect::<Vec<_>>(),
        "ports": ports.split_whitespace().map(port).collect::<Vec<_>>(),
        "selector": {"foo": "bar"},
    });
    match kind {
        "ExternalName" => spec["externalName"] = json!("my.database.example.com"),
        _ => spec["clusterIPs"] = json!(["10.9.8.7"]),
    }
    let object = json!({"metadata": {}, "spec": spec, "status": ingress(addresses)});
    assert_eq!(cells("", "Service", &object, false), format!("{expected} | <unknown>"));
    assert_eq!(cells("", "Service", &object, true), format!("{expected} | <unknown> | foo=bar"));
}

#[rstest]
#[case::few(&["10.1.2.3 2001:db8::1234:5678"], &[80], "80 | 10.1.2.3,2001:db8::1234:5678")]
#[case::more_endpoints(
    &["10.1.2.3 2001:db8::1234:5678", "10.2.3.4 2001:db8::2345:6789"],
    &[80, 443],
    "80,443 | 10.1.2.3,2001:db8::1234:5678,10.2.3.4 + 1 more..."
)]
#[case::more_ports(&["10.1.2.3"], &[80, 443, 3000, 3001], "80,443,3000 + 1 more... | 10.1.2.3")]
#[case::nothing(&[], &[], "<unset> | <unset>")]
fn endpoint_slices_have_kubernetes_cells(
    #[case] endpoints: &[&str],
    #[case] ports: &[i64],
    #[case] expected: &str,
) {
    let addresses = |text: &&str| json!({"addresses": text.split_whitespace().collect::<Vec<_>>()});
    let object = json!({
        "metadata": {"creationTimestamp": ago(300)},
        "addressType": "IPv4",
        "ports": ports.iter().map(|port| json!({"name": "x", "port": port})).collect::<Vec<_>>(),
        "endpoints": endpoints.iter().map(addresses).collect::<Vec<_>>(),
    });
    let expected = format!("IPv4 | {expected} | 5m");
    assert_eq!(cells("discovery.k8s.io", "EndpointSlice", &object, false), expected);
}

#[rstest]
#[case::bound(
    "Bound",
    "4Gi",
    "ReadOnlyMany",
    None,
    None,
    "4Gi | ROX |  | Bound | default/test |  | <unset>"
)]
#[case::failed(
    "Failed",
    "4Gi",
    "ReadOnlyMany",
    None,
    None,
    "4Gi | ROX |  | Failed | default/test |  | <unset>"
)]
#[case::many(
    "Pending",
    "10Gi",
    "ReadWriteMany",
    None,
    None,
    "10Gi | RWX |  | Pending | default/test |  | <unset>"
)]
#[case::class(
    "Available",
    "10Gi",
    "ReadWriteOnce",
    Some("my-scn"),
    None,
    "10Gi | RWO |  | Available | default/test | my-scn | <unset>"
)]
#[case::attributes(
    "Pending",
    "10Gi",
    "ReadWriteOnce",
    Some("my-scn"),
    Some("my-vacn"),
    "10Gi | RWO |  | Pending | default/test | my-scn | my-vacn"
)]
fn volumes_have_kubernetes_cells(
    #[case] phase: &str,
    #[case] capacity: &str,
    #[case] mode: &str,
    #[case] class: Option<&str>,
    #[case] attributes: Option<&str>,
    #[case] expected: &str,
) {
    let object = json!({
        "metadata": {"name": "test1"},
        "spec": {
            "claimRef": {"namespace": "default", "name": "test"},
            "accessModes": [mode],
            "capacity": {"storage": capacity},
            "storageClassName": class,
            "volumeAttributesClassName": attributes,
        },
        "status": {"phase": phase},
    });
    let expected = format!("{expected} |  | <unknown> | <unset>");
    assert_eq!(cells("", "PersistentVolume", &object, true), expected);
}

#[rstest]
#[case::bound(
    "Bound",
    "my-volume",
    "ReadOnlyMany",
    None,
    None,
    "Bound | my-volume | 4Gi | ROX |  | <unset>"
)]
#[case::lost("Lost", "", "ReadOnlyMany", None, None, "Lost |  |  |  |  | <unset>")]
#[case::class(
    "Pending",
    "my-volume",
    "ReadWriteOnce",
    Some("my-scn"),
    None,
    "Pending | my-volume | 4Gi | RWO | my-scn | <unset>"
)]
#[case::attributes(
    "Pending",
    "my-volume",
    "ReadWriteOncePod",
    Some("my-scn"),
    Some("my-vacn"),
    "Pending | my-volume | 4Gi | RWOP | my-scn | my-vacn"
)]
fn claims_have_kubernetes_cells(
    #[case] phase: &str,
    #[case] volume: &str,
    #[case] mode: &str,
    #[case] class: Option<&str>,
    #[case] attributes: Option<&str>,
    #[case] expected: &str,
) {
    let object = json!({
        "metadata": {"name": "test1"},
        "spec": {
            "volumeName": volume,
            "volumeMode": "Filesystem",
            "storageClassName": class,
            "volumeAttributesClassName": attributes,
        },
        "status": {"phase": phase, "accessModes": [mode], "capacity": {"storage": "4Gi"}},
    });
    let expected = format!("{expected} | <unknown> | Filesystem");
    assert_eq!(cells("", "PersistentVolumeClaim", &object, true), expected);
}

#[rstest]
#[case("", "ConfigMap", json!({}), "0")]
#[case("", "ConfigMap", json!({"data": {"foo": "bar"}}), "1")]
#[case("", "ConfigMap", json!({"data": {"foo": "bar"}, "binaryData": {"bin": "eA=="}}), "2")]
#[case("", "Secret", json!({"type": "Opaque", "data": {"token": "eA=="}}), "Opaque | 1")]
#[case("", "Secret", json!({"type": "Opaque"}), "Opaque | 0")]
#[case("", "Namespace", json!({"status": {"phase": "Active"}}), "Active")]
#[case("node.k8s.io", "RuntimeClass", json!({"handler": "h2"}), "h2")]
fn small_kinds_have_kubernetes_cells(
    #[case] group: &str,
    #[case] kind: &str,
    #[case] mut object: Value,
    #[case] expected: &str,
) {
    object["metadata"] = json!({"name": "x", "creationTimestamp": ago(300)});
    assert_eq!(cells(group, kind, &object, false), format!("{expected} | 5m"));
}

#[test]
fn events_have_kubernetes_cells() {
    let object = json!({
        "metadata": {"name": "event4"},
        "firstTimestamp": ago(300),
        "lastTimestamp": ago(3),
        "count": 4,
        "type": "Warning",
        "reason": "Item Reason",
        "message": " Item Message\n",
        "source": {"component": "kubelet", "host": "Node1"},
        "involvedObject": {"kind": "Pod", "name": "Pod Name", "fieldPath": "spec.containers{foo}"},
    });
    let short = "3s | Warning | Item Reason | pod/Pod Name | Item Message";
    assert_eq!(cells("", "Event", &object, false), short);
    let wide = WIDE_EVENTS.cells(&object, options(true)).join(" | ");
    assert_eq!(
        wide,
        "3s | Warning | Item Reason | pod/Pod Name | spec.containers{foo} | kubelet, Node1 | Item Message | 5m | 4 | event4"
    );
    assert_eq!(WIDE_EVENTS.headings(options(true)).count(), wide.split(" | ").count());
}

#[rstest]
#[case(json!({"value": 1}), "1 | false | 5m | PreemptLowerPriority")]
#[case(
    json!({"value": 1_000_000_000, "globalDefault": true, "preemptionPolicy": "Never"}),
    "1000000000 | true | 5m | Never"
)]
fn priority_classes_have_kubernetes_cells(#[case] mut object: Value, #[case] expected: &str) {
    object["metadata"] = json!({"name": "x", "creationTimestamp": ago(300)});
    assert_eq!(cells("scheduling.k8s.io", "PriorityClass", &object, false), expected);
}

#[rstest]
#[case(json!({"spec": {"signerName": "test-signer-name"}}), "test-signer-name")]
#[case(json!({"spec": {}}), "<none>")]
fn cluster_trust_bundles_have_kubernetes_cells(#[case] object: Value, #[case] expected: &str) {
    assert_eq!(cells("certificates.k8s.io", "ClusterTrustBundle", &object, false), expected);
}

#[rstest]
#[case(json!(null), "<none>")]
#[case(json!({}), "<none>")]
#[case(json!({"matchLabels": {"b": "c", "a": "b"}}), "a=b,b=c")]
#[case(
    json!({
        "matchLabels": {"m": "x"},
        "matchExpressions": [
            {"key": "z", "operator": "NotIn", "values": ["b", "a"]}, {"key": "c", "operator": "Exists"},
            {"key": "d", "operator": "DoesNotExist"}, {"key": "a", "operator": "In", "values": ["x"]},
        ],
    }),
    "a in (x),c,!d,m=x,z notin (a,b)"
)]
fn selectors_are_written_as_in_kubernetes(#[case] selector: Value, #[case] expected: &str) {
    assert_eq!(fields::selector(&json!({"s": selector}), "/s"), expected);
}
