//! Tables of admission decisions.
#![allow(clippy::unwrap_used)]
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;

fn pod(name: &str, spec: Value) -> Pod {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    fixtures::pod_of(name, name, spec)
}

fn node_info() -> NodeInfo {
    let texts = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    NodeInfo {
        node_name: "node".to_owned(),
        labels: Some(texts(&[("kubernetes.io/os", "linux"), ("disk", "ssd"), ("cores", "8")])),
        allocatable: texts(&[
            ("cpu", "2"),
            ("memory", "1Gi"),
            ("pods", "3"),
            ("example.com/gpu", "1"),
        ]),
        taints: vec![taint("maintenance", "NoExecute"), taint("new", "NoSchedule")],
        ..NodeInfo::default()
    }
}

fn taint(key: &str, effect: &str) -> Taint {
    serde_json::from_value(json!({"key": key, "value": "yes", "effect": effect})).unwrap()
}

/// The decision about the pod on the usual node: empty, or `Reason: message`. The pod tolerates the node's taint.
fn verdict(mut spec: Value, others: &[&Pod]) -> String {
    if spec.get("tolerations").is_none() {
        spec["tolerations"] = json!([{"operator": "Exists"}]);
    }
    let others: AdmittedPods = others.iter().map(|other| (*other).clone()).collect();
    match admit(&pod("new", spec), &others, &node_info()) {
        Ok(()) => String::new(),
        Err(rejection) => format!("{}: {}", rejection.reason, rejection.message),
    }
}

fn requests(amounts: Value) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts}}]})
}

const AFFINITY: &str = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";

#[rstest]
#[case::nothing(json!({}), "")]
#[case::fits(json!({"cpu": "2", "memory": "1Gi"}), "")]
#[case::cpu(json!({"cpu": "999"}), "OutOfcpu: Node didn't have enough resource: cpu, requested: 999000, used: 0, capacity: 2000")]
#[case::cpu_before_memory(json!({"memory": "2Gi", "cpu": "3"}), "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000")]
#[case::memory(json!({"memory": "2Gi"}), "OutOfmemory: Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824")]
#[case::storage_that_node_does_not_count(json!({"ephemeral-storage": "1"}), "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 1, used: 0, capacity: 0")]
#[case::extended(json!({"example.com/gpu": "2"}), "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1")]
#[case::extended_of_cluster(json!({"example.com/licence": "2"}), "")]
fn requests_have_to_fit(#[case] amounts: Value, #[case] expected: &str) {
    assert_eq!(verdict(requests(amounts), &[]), expected);
}

#[test]
fn extended_resources_by_a_claim_need_not_fit() {
    const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/gpu";
    let amounts = json!({"example.com/gpu": "2", OF_CLASS: "1"});
    let claimed = |container: &str| {
        let mapping = |resource: &str| json!({"containerName": container, "requestName": "r", "resourceName": resource});
        let mappings = [mapping("example.com/gpu"), mapping(OF_CLASS)];
        let claim = json!({"resourceClaimName": "e", "requestMappings": mappings});
        let mut api = pod("new", requests(amounts.clone())).api().clone();
        let status = json!({"extendedResourceClaimStatus": claim});
        api.status = Some(serde_json::from_value(status).unwrap());
        shortages_of(&Pod::new(api))
    };
    assert_eq!(claimed("c"), [""; 0]);
    assert_eq!(claimed("other"), [OF_CLASS, "example.com/gpu"]);
}

/// The resources of which the usual node has too little for the pod.
fn shortages_of(pod: &Pod) -> Vec<String> {
    let info = node_info();
    let shortages = resources::shortages(pod, &AdmittedPods::default(), &info.allocatable);
    shortages.into_iter().map(|shortage| shortage.resource).collect()
}

#[test]
fn other_pods_use_up_resources_and_places() {
    let other = pod("a", requests(json!({"cpu": "1500m"})));
    assert_eq!(
        verdict(requests(json!({"cpu": "600m"})), &[&other]),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 600, used: 1500, capacity: 2000"
    );
    assert_eq!(verdict(requests(json!({"cpu": "500m"})), &[&other]), "");
    let idle = ["b", "c", "d"].map(|name| pod(name, json!({})));
    assert_eq!(
        verdict(json!({}), &idle.each_ref()),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
}

#[rstest]
#[case::same(json!({"hostPort": 80}), json!({"hostPort": 80}), false)]
#[case::no_host_port(json!({}), json!({}), true)]
#[case::other_port(json!({"hostPort": 80}), json!({"hostPort": 81}), true)]
#[case::other_protocol(json!({"hostPort": 80}), json!({"hostPort": 80, "protocol": "UDP"}), true)]
#[case::default_protocol(json!({"hostPort": 80}), json!({"hostPort": 80, "protocol": "TCP"}), false)]
#[case::other_address(json!({"hostPort": 80, "hostIP": "127.0.0.1"}), json!({"hostPort": 80, "hostIP": "127.0.0.2"}), true)]
#[case::same_address(json!({"hostPort": 80, "hostIP": "127.0.0.1"}), json!({"hostPort": 80, "hostIP": "127.0.0.1"}), false)]
#[case::all_addresses(json!({"hostPort": 80, "hostIP": "127.0.0.1"}), json!({"hostPort": 80}), false)]
fn host_ports_have_to_be_free(
    #[case] mut mine: Value,
    #[case] mut theirs: Value,
    #[case] free: bool,
) {
    mine["containerPort"] = json!(8080);
    theirs["containerPort"] = json!(8080);
    let with = |port: &Value| json!({"containers": [{"name": "c", "image": "i", "ports": [port]}]});
    let other = pod("a", with(&theirs));
    let expected = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    assert_eq!(verdict(with(&mine), &[&other]), if free { "" } else { expected });
}

#[test]
fn ports_of_init_containers_count_while_they_run() {
    let init = |policy: Value| json!({"initContainers": [{"name": "i", "image": "i", "restartPolicy": policy, "ports": [{"containerPort": 1, "hostPort": 80}]}]});
    let other = pod("a", init(json!("Always")));
    assert!(verdict(init(json!("Always")), &[&other]).starts_with("NodePorts"));
    assert_eq!(verdict(init(Value::Null), &[&other]), "");
}

#[rstest]
#[case::selector(json!({"nodeSelector": {"disk": "ssd"}}), "")]
#[case::wrong_selector(json!({"nodeSelector": {"disk": "hdd"}}), AFFINITY)]
#[case::any_term(terms(json!([{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]}, {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}])), "")]
#[case::no_term(terms(json!([])), AFFINITY)]
#[case::empty_term(terms(json!([{}])), AFFINITY)]
#[case::all_requirements(terms(json!([{"matchExpressions": [{"key": "disk", "operator": "Exists"}, {"key": "disk", "operator": "NotIn", "values": ["ssd"]}]}])), AFFINITY)]
#[case::not_in_without_label(terms(json!([{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}])), "")]
#[case::does_not_exist(terms(json!([{"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]}])), AFFINITY)]
#[case::greater(terms(json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]}])), "")]
#[case::not_less(terms(json!([{"matchExpressions": [{"key": "cores", "operator": "Lt", "values": ["8"]}]}])), AFFINITY)]
#[case::no_number(terms(json!([{"matchExpressions": [{"key": "disk", "operator": "Gt", "values": ["4"]}]}])), AFFINITY)]
#[case::unknown_operator(terms(json!([{"matchExpressions": [{"key": "disk", "operator": "Like", "values": ["ssd"]}]}])), AFFINITY)]
#[case::name(terms(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}])), "")]
#[case::other_name(terms(json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node"]}]}])), AFFINITY)]
#[case::two_names(terms(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node", "other"]}]}])), AFFINITY)]
fn pod_is_admitted_only_by_its_named_node(#[case] spec: Value, #[case] expected: &str) {
    assert_eq!(verdict(spec, &[]), expected);
}

fn terms(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

#[rstest]
#[case::none(json!([]), false)]
#[case::all(json!([{"operator": "Exists"}]), true)]
#[case::key(json!([{"key": "maintenance", "operator": "Exists"}]), true)]
#[case::equal(json!([{"key": "maintenance", "value": "yes"}]), true)]
#[case::other_value(json!([{"key": "maintenance", "operator": "Equal", "value": "no"}]), false)]
#[case::other_effect(json!([{"key": "maintenance", "operator": "Exists", "effect": "NoSchedule"}]), false)]
#[case::numbers(json!([{"key": "maintenance", "operator": "Gt", "value": "1"}]), false)]
fn pod_has_to_tolerate_taints_that_end_pods(#[case] tolerations: Value, #[case] fits: bool) {
    let expected = "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    assert_eq!(verdict(json!({"tolerations": tolerations}), &[]), if fits { "" } else { expected });
}

/// A node with these pressure conditions: `m`emory, `d`isk, `p`rocess ids.
fn short_of(resources: &str) -> NodeInfo {
    let pressure = Pressure {
        memory: resources.contains('m'),
        disk: resources.contains('d'),
        pids: resources.contains('p'),
    };
    NodeInfo { pressure, allocatable: node_info().allocatable, ..NodeInfo::default() }
}

#[rstest]
#[case::enough("", json!({}), None)]
#[case::memory("m", json!({}), Some("[MemoryPressure]"))]
#[case::memory_for_burstable("m", requests(json!({"cpu": "1m"})), None)]
#[case::memory_tolerated("m", json!({"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]}), None)]
#[case::all_tolerated("m", json!({"tolerations": [{"operator": "Exists"}]}), None)]
#[case::another_effect("m", json!({"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoExecute"}]}), Some("[MemoryPressure]"))]
#[case::disk_for_burstable("d", requests(json!({"cpu": "1m"})), Some("[DiskPressure]"))]
#[case::disk_is_not_tolerated("d", json!({"tolerations": [{"operator": "Exists"}]}), Some("[DiskPressure]"))]
#[case::several("mdp", requests(json!({"cpu": "1m"})), Some("[MemoryPressure DiskPressure PIDPressure]"))]
#[case::critical("mdp", json!({"priority": 2_000_000_000}), None)]
fn node_under_pressure_rejects_pods(
    #[case] resources: &str,
    #[case] spec: Value,
    #[case] conditions: Option<&str>,
) {
    let admitted = admit(&pod("new", spec), &AdmittedPods::default(), &short_of(resources));
    let expected = conditions.map_or(Ok(()), |conditions| {
        Err(Rejection::new("Evicted", format!("The node had condition: {conditions}. ")))
    });
    assert_eq!(admitted, expected);
}

#[rstest]
#[case::less("Lt", "5", "4", true)]
#[case::not_less("Lt", "4", "4", false)]
#[case::more("Gt", "-5", "-4", true)]
#[case::not_more("Gt", "4", "4", false)]
#[case::no_number("Gt", "4", "five", false)]
#[case::superfluous_zero("Lt", "05", "4", false)]
fn toleration_compares_numbers_with_its_gate(
    #[case] operator: &str,
    #[case] wanted: &str,
    #[case] given: &str,
    #[case] is_tolerated: bool,
) {
    let toleration = json!({"key": "level", "operator": operator, "value": wanted});
    let pod = pod("new", json!({"tolerations": [toleration]}));
    let mut taint = taint("level", "NoExecute");
    taint.value = Some(given.to_owned());
    let node_info = NodeInfo { taints: vec![taint], compares_taints: true, ..NodeInfo::default() };
    assert_eq!(admit(&pod, &AdmittedPods::default(), &node_info).is_ok(), is_tolerated);
    let node_info = NodeInfo { compares_taints: false, ..node_info };
    assert!(admit(&pod, &AdmittedPods::default(), &node_info).is_err());
}

#[test]
fn static_pod_runs_despite_taints() {
    let mut api = pod("new", json!({})).api().clone();
    api.metadata.annotations =
        Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    assert_eq!(admit(&Pod::new(api), &AdmittedPods::default(), &node_info()), Ok(()));
}

#[rstest]
#[case::runtime_default("runtime/default", false, true)]
#[case::localhost("localhost/foo", false, true)]
#[case::empty("", false, true)]
#[case::unconfined("unconfined", false, false)]
#[case::with_apparmor("runtime/default", true, false)]
fn apparmor_annotation_needs_apparmor(
    #[case] profile: &str,
    #[case] app_armor: bool,
    #[case] rejected: bool,
) {
    let mut api = pod("new", json!({})).api().clone();
    let name = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
    api.metadata.annotations = Some([(name, profile.to_owned())].into());
    let node_info = NodeInfo { app_armor, ..NodeInfo::default() };
    let admitted = admit(&Pod::new(api), &AdmittedPods::default(), &node_info);
    let expected = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let expected = rejected.then(|| Rejection::new("AppArmor", expected));
    assert_eq!(admitted.err(), expected);
}

#[rstest]
#[case::safe(json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}), json!({}), "")]
#[case::with_slashes(json!({"sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "1"}]}), json!({}), "")]
#[case::unsafe_one(json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), json!({}), "SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted")]
#[case::host_network(json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}), json!({"hostNetwork": true}), "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled")]
#[case::host_ipc(json!({"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}), json!({"hostIPC": true}), "SysctlForbidden: forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host IPC enabled")]
#[case::strict_groups(json!({"supplementalGroupsPolicy": "Strict"}), json!({}), "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node")]
#[case::app_armor(json!({"appArmorProfile": {"type": "RuntimeDefault"}}), json!({}), "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host")]
#[case::no_app_armor(json!({"appArmorProfile": {"type": "Unconfined"}}), json!({}), "")]
#[case::os(json!({}), json!({"os": {"name": "windows"}}), "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS")]
#[case::node_name(json!({}), json!({"nodeName": "other"}), "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name")]
fn pod_with_unsupported_requirements_is_rejected(
    #[case] context: Value,
    #[case] mut spec: Value,
    #[case] expected: &str,
) {
    spec["securityContext"] = context;
    assert_eq!(verdict(spec, &[]), expected);
}

#[test]
fn unsafe_sysctls_can_be_allowed() {
    let spec = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}, {"name": "net.core.somaxconn", "value": "1"}]}});
    let node_info = NodeInfo {
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned(), "net/core/somaxconn".to_owned()],
        ..NodeInfo::default()
    };
    assert_eq!(admit(&pod("new", spec), &AdmittedPods::default(), &node_info), Ok(()));
}

#[test]
fn rejected_pod_has_failed() {
    let rejection = Rejection::new("OutOfcpu", "too little");
    let status = serde_json::to_value(rejection.status(&pod("new", json!({})))).unwrap();
    let expected = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: too little", "qosClass": "BestEffort"});
    assert_eq!(status, expected);
}
