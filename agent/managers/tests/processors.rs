//! CPUs, memory and NUMA nodes of containers, on machines that are directory trees.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "node/machine.rs"]
mod machine;
#[path = "node/agent.rs"]
#[allow(dead_code, reason = "shared with the tests of devices")]
mod node;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::clock::SystemClock;
use agent::cri::fake::FakeCri;
use agent::managers::{ManagerValue, Managers as _};
use agent::pod_spec::spec::Resources;
use api::pod::Pod;
use managers::{NodeManagers, Settings};
use node::{Node, pod_of};
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

/// Two NUMA nodes of four cores with two threads each: core n has the CPUs n and n + 8. A node has 1 GiB.
fn two_nodes() -> TempDir {
    machine::machine(2, 4, 2, 4)
}

/// Sets these fields for a machine that reserves half a CPU and 64 MiB.
fn change(settings: &mut Settings, machine: &Path, fields: Value) {
    settings.machine = machine.to_owned();
    settings.file = serde_json::from_value(fields).unwrap();
    let reserved = [("cpu", "500m"), ("memory", "67108864")];
    settings.reserved = reserved.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
}

fn with(machine: &TempDir, fields: Value) -> Node {
    Node::with(|settings| change(settings, machine.path(), fields))
}

fn container(name: &str, cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"name": name, "image": "app", "resources": {"requests": amounts, "limits": amounts}})
}

/// A Guaranteed pod.
fn pod(uid: &str, cpu: &str, memory: &str) -> Pod {
    pod_of(uid, json!({"containers": [container(uid, cpu, memory)]}))
}

async fn resources(node: &Node, pod: &Pod) -> Resources {
    node.until_running(pod).await;
    node.fake.spec(pod.uid().as_str()).unwrap().resources
}

#[tokio::test]
async fn guaranteed_pods_have_exclusive_cpus() {
    let machine = two_nodes();
    let mut node =
        with(&machine, json!({"cpuManagerPolicy": "static", "cpuManagerReconcilePeriod": "100ms"}));
    // At most 8 CPUs of this machine, which has at least one.
    let shared = pod_of("u1", json!({"containers": [{"name": "u1", "image": "app"}]}));
    node.want(&[&shared]);
    assert_eq!(resources(&node, &shared).await.cpuset_cpus, "0-15");
    let own = pod("u2", "1", "1Mi");
    node.want(&[&shared, &own]);
    let exclusive = resources(&node, &own).await;
    assert_eq!((exclusive.cpuset_cpus.as_str(), exclusive.cpu_quota), ("8", -1));
    let left = async {
        while node.fake.spec("u1").unwrap().resources.cpuset_cpus != "0-7,9-15" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), left).await.expect("the runtime is told what is left");

    node.kill_agent().await;
    node.start_agent();
    node.want(&[&shared, &own]);
    node.until_running(&own).await;
    let state = std::fs::read_to_string(node.root_dir().join("cpu_manager_state")).unwrap();
    assert!(state.contains(r#""defaultCpuSet":"0-7,9-15","entries":{"u2":{"u2":"8"}}"#), "{state}");
    node.want(&[&shared]);
    let freed = async {
        while node.fake.spec("u1").unwrap().resources.cpuset_cpus != "0-15" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), freed).await.expect("what ended pods had is shared again");
}

#[rstest]
#[case::cores(
    json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
    "1", "SMTAlignmentError",
    "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2")]
#[case::too_many(
    json!({"cpuManagerPolicy": "static"}), "16", "UnexpectedAdmissionError",
    "Allocate failed due to not enough cpus available to satisfy request: requested=16, available=15, which is unexpected")]
#[case::nodes(
    json!({"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node"}), "9", "TopologyAffinityError",
    "Resources cannot be allocated with Topology locality")]
#[tokio::test]
async fn pods_with_unavailable_cpus_are_rejected(
    #[case] fields: Value,
    #[case] cpu: &str,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let machine = two_nodes();
    let node = with(&machine, fields);
    let own = pod("u1", cpu, "1Mi");
    node.want(&[&own]);
    let rejected = node.until_rejected(&own).await;
    assert_eq!(rejected, (reason.to_owned(), format!("Pod was rejected: {message}")));
}

fn managers(root: &TempDir, machine: &TempDir, fields: Value) -> Result<NodeManagers, String> {
    let mut settings = Settings::new(root.path().to_owned());
    change(&mut settings, machine.path(), fields);
    NodeManagers::open(&settings, Arc::new(FakeCri::new(Arc::new(SystemClock))))
}

/// The CPUs and NUMA nodes that each container is created with.
async fn assigned(managers: &NodeManagers, pod: &Pod) -> Vec<(String, String)> {
    let active = [pod.uid().clone(), api::pod::PodUid::new("u1")].into();
    managers.allocate(pod, Some(active)).await.unwrap();
    let mut all = Vec::new();
    for container in pod.init_and_apps() {
        let assigned = managers.prepare(pod, container).await.unwrap();
        all.push((assigned.cpus, assigned.memory_nodes));
    }
    all
}

#[rstest]
#[case::containers("container", [("8", "0"), ("4-7,12-15", "1")])]
#[case::pod("pod", [("8", "0,1"), ("4-7,12-15", "0,1")])]
#[tokio::test]
async fn processors_and_memory_are_of_the_same_nodes(
    #[case] scope: &str,
    #[case] expected: [(&str, &str); 2],
) {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let fields = json!({
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
        "topologyManagerPolicy": "best-effort",
        "topologyManagerScope": scope,
    });
    let managers = managers(&root, &machine, fields).unwrap();
    let containers = [container("a", "1", "900Mi"), container("b", "8", "900Mi")];
    let two = pod_of("u1", json!({"containers": containers}));
    let expected = expected.map(|(cpus, nodes)| (cpus.to_owned(), nodes.to_owned()));
    assert_eq!(assigned(&managers, &two).await, expected);
    assert_eq!(assigned(&managers, &two).await, expected, "it has that");
    assert!(root.path().join("memory_manager_state").exists());
}

#[rstest]
#[case::without_topology("none", 0)]
#[case::with_topology("best-effort", 1)]
#[tokio::test]
async fn requests_and_failures_are_counted(#[case] policy: &str, #[case] rejections: u64) {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let fields = json!({
        "topologyManagerPolicy": policy,
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
    });
    let managers = managers(&root, &machine, fields).unwrap();
    let shared = pod_of("u0", json!({"containers": [{"name": "a", "image": "app"}]}));
    for pod in [shared, pod("u1", "1", "1Mi"), pod("u2", "100m", "1000Gi")] {
        let _ = managers.allocate(&pod, None).await;
    }
    let count = |name: &str| count(&managers, name);
    for (name, requests, errors) in [
        ("kubelet_topology_manager_admission", 3, rejections),
        ("kubelet_cpu_manager_pinning", 1, 0),
        ("kubelet_memory_manager_pinning", 2, 1),
    ] {
        let seen = ["requests", "errors"].map(|what| count(&format!("{name}_{what}_total")));
        assert_eq!(seen, [requests, errors], "{name}");
    }
}

#[tokio::test]
async fn pods_without_allocation_are_counted_as_admitted() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let managers = managers(&root, &machine, json!({})).unwrap();
    managers.admitted_without_allocation();
    let of = |what: &str| count(&managers, &format!("kubelet_topology_manager_admission_{what}"));
    assert_eq!(["requests_total", "errors_total", "duration_ms"].map(of), [1, 0, 1]);
}

/// The value of a counter without labels.
fn count(managers: &NodeManagers, name: &str) -> u64 {
    let metric = managers.metrics().into_iter().find(|it| it.name == name).unwrap();
    number(&metric.value)
}

fn number(value: &ManagerValue) -> u64 {
    match value {
        ManagerValue::Count(number) | ManagerValue::Gauge(number) => *number,
        ManagerValue::Durations(durations) => durations.count(),
    }
}

/// The metrics whose names begin with `prefix`: the rest of the name with the label values, and the count.
fn metrics(managers: &NodeManagers, prefix: &str) -> Vec<(String, u64)> {
    let mut named = Vec::new();
    for metric in managers.metrics() {
        if let Some(name) = metric.name.strip_prefix(prefix) {
            let labels: Vec<&str> = metric.labels.iter().map(|(_, value)| value.as_str()).collect();
            named.push((format!("{name} {}", labels.join(" ")), number(&metric.value)));
        }
    }
    named
}

/// The sources of CPU and memory allocations, with their counts.
fn outcomes(managers: &NodeManagers) -> Vec<(String, u64)> {
    metrics(managers, "resource_manager_")
}

/// The counts of aligned allocations, and of those that could not be aligned.
fn aligned(managers: &NodeManagers) -> Vec<(String, u64)> {
    metrics(managers, "kubelet_container_aligned_compute_resources_")
}

#[rstest]
#[case::containers("container", [
    ("count container numa_node", 2), ("failure_count container numa_node", 1),
    ("count pod numa_node", 0), ("failure_count pod numa_node", 0),
    ("count container physical_cpu", 2), ("failure_count container physical_cpu", 1),
    ("count container uncore_cache", 2),
])]
#[case::pods("pod", [
    ("count container numa_node", 0), ("failure_count container numa_node", 0),
    ("count pod numa_node", 2), ("failure_count pod numa_node", 1),
    ("count container physical_cpu", 2), ("failure_count container physical_cpu", 1),
    ("count container uncore_cache", 2),
])]
#[tokio::test]
async fn alignment_is_counted_where_it_is_guaranteed(
    #[case] scope: &str,
    #[case] expected: [(&str, u64); 7],
) {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let fields = json!({
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": scope,
    });
    let managers = managers(&root, &machine, fields).unwrap();
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    // Two pods that fit, one that would share a core, and one that is too large for any NUMA node.
    for pod in [
        pod("u1", "2", "1Mi"),
        pod("u2", "2", "1Mi"),
        pod("u3", "1", "1Mi"),
        pod("u4", "10", "1Mi"),
    ] {
        let _ = managers.allocate(&pod, None).await;
    }
    assert_eq!(aligned(&managers), expected);
    assert_eq!(count(&managers, "kubelet_topology_manager_admission_duration_ms"), 4);
}

#[tokio::test]
async fn cpus_are_counted_as_shared_or_exclusive() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let of_cpus = |managers: &NodeManagers| metrics(managers, "kubelet_cpu_manager_");
    let none = managers(&root, &machine, json!({})).unwrap();
    assert_eq!(aligned(&none), []);
    let expected = [("shared_pool_size_millicores ", 0), ("exclusive_cpu_allocation_count ", 0)];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(of_cpus(&none)[2..], expected);
    let root = tempfile::tempdir().unwrap();
    let managers = managers(&root, &machine, json!({"cpuManagerPolicy": "static"})).unwrap();
    let usage = |managers: &NodeManagers| -> Vec<u64> {
        of_cpus(managers)[2..].iter().map(|(_, count)| *count).collect()
    };
    // One of sixteen CPUs is reserved.
    assert_eq!(usage(&managers), [15_000, 0, 0, 0]);
    let pod = pod("u1", "3", "1Mi");
    managers.allocate(&pod, None).await.unwrap();
    assert_eq!(usage(&managers), [12_000, 3, 3, 0]);
    managers.release(pod.uid());
    assert_eq!(usage(&managers), [15_000, 0, 0, 0]);
}

#[tokio::test]
async fn outcomes_are_counted_with_the_gate_for_pod_level_managers() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let mut fields = pod_level("pod");
    fields["topologyManagerPolicy"] = json!("best-effort");
    let managers = managers(&root, &machine, fields).unwrap();
    let pods = [whole("u1", "3", "100Mi"), whole("u2", "1", "100Mi"), pod("u3", "2", "1Mi")];
    for pod in pods.iter().chain(&pods[..1]) {
        let _ = managers.allocate(pod, None).await;
    }
    let expected = [
        ("allocations_total cpu node", 1),
        ("allocations_total cpu pod", 2),
        ("allocation_errors_total cpu pod", 1),
        ("container_assignments cpu node_exclusive", 1),
        ("container_assignments cpu pod_exclusive", 1),
        ("container_assignments cpu pod_shared", 1),
        ("allocations_total memory node", 1),
        ("allocations_total memory pod", 2),
        ("container_assignments memory node_exclusive", 1),
        ("container_assignments memory pod_exclusive", 1),
        ("container_assignments memory pod_shared", 1),
    ];
    assert_eq!(outcomes(&managers), expected.map(|(name, count)| (name.to_owned(), count)));
}

#[tokio::test]
async fn outcomes_are_not_counted_without_the_gate() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let fields = json!({"cpuManagerPolicy": "static"});
    let managers = managers(&root, &machine, fields).unwrap();
    managers.allocate(&pod("u1", "2", "1Mi"), None).await.unwrap();
    assert_eq!(outcomes(&managers), []);
}

/// A configuration with pod-level resource managers.
fn pod_level(scope: &str) -> Value {
    json!({
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": scope,
        "featureGates": {"PodLevelResourceManagers": true},
    })
}

/// A pod with pod-level resources, an exclusive container with one CPU, and one that requests nothing.
fn whole(uid: &str, cpu: &str, memory: &str) -> Pod {
    let amounts = json!({"cpu": cpu, "memory": memory});
    let shared = json!({"name": "shared", "image": "app"});
    pod_of(
        uid,
        json!({
            "resources": {"requests": amounts, "limits": amounts},
            "containers": [container("own", "1", "1Mi"), shared],
        }),
    )
}

#[rstest]
#[case::pod("pod", two_nodes(), [("8", "0"), ("1,9", "0")])]
#[case::container("container", machine::machine(1, 8, 2, 4), [("8", "0"), ("0-7,9-15", "")])]
#[tokio::test]
async fn containers_share_what_their_pod_has_in_the_scope_of_pods(
    #[case] scope: &str,
    #[case] machine: TempDir,
    #[case] expected: [(&str, &str); 2],
) {
    let root = tempfile::tempdir().unwrap();
    let expected = expected.map(|(cpus, nodes)| (cpus.to_owned(), nodes.to_owned()));
    let pod = whole("u1", "3", "100Mi");
    for start in ["first", "second"] {
        let managers = managers(&root, &machine, pod_level(scope)).unwrap();
        assert_eq!(assigned(&managers, &pod).await, expected, "{start}");
        let own = ["own", "shared"].map(|name| managers.has_own_cpus(pod.uid(), name));
        assert_eq!(own, [true, false], "{start}");
    }
    let managers = managers(&root, &machine, pod_level(scope)).unwrap();
    managers.release(pod.uid());
    let state = std::fs::read_to_string(root.path().join("cpu_manager_state")).unwrap();
    assert!(state.contains(r#""defaultCpuSet":"0-15","checksum""#), "{state}");
    let state = std::fs::read_to_string(root.path().join("memory_manager_state")).unwrap();
    assert!(!state.contains("ntries") && state.contains(r#""numberOfAssignments":0"#), "{state}");
}

#[rstest]
#[case::quota_is_lifted(true)]
#[case::quota_stays(false)]
#[tokio::test]
async fn exclusive_processors_lift_the_quota_with_the_gate(#[case] is_on: bool) {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let mut fields = pod_level("pod");
    fields["featureGates"]["DisableCPUQuotaWithExclusiveCPUs"] = json!(is_on);
    let managers = managers(&root, &machine, fields).unwrap();
    let pod = whole("u1", "3", "100Mi");
    assigned(&managers, &pod).await;
    let own = managers.prepare(&pod, &pod.spec().containers[0]).await.unwrap();
    assert_eq!((own.cpus.as_str(), own.cpus_are_exclusive), ("8", is_on));
    assert_eq!(managers.has_own_cpus(pod.uid(), "own"), is_on);
}

#[rstest]
#[case::no_pool_in_best_effort(
    json!({"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}), whole("u1", "1", "100Mi"),
    "EmptyPodSharedPoolError",
    "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers")]
#[case::no_memory_to_share(
    json!({"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}), whole("u1", "2", "1Mi"),
    "EmptyPodSharedPoolError",
    "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared containers")]
#[case::no_pool_in_restricted(
    json!({}), whole("u1", "1", "100Mi"), "TopologyAffinityError",
    "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager")]
#[case::scope_of_containers(
    json!({"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "container"}),
    pod_of("u1", json!({
        "resources": {"requests": {"cpu": "9", "memory": "9Mi"}, "limits": {"cpu": "9", "memory": "9Mi"}},
        "containers": [container("own", "9", "9Mi")]})),
    "TopologyAffinityError",
    "Pod Scope pod with pod-level resources failed admission with a container-level topology manager")]
// As in the kubelet, a container without requests must be on all nodes, and one of them is used alone.
#[case::shared_container_on_several_nodes(
    json!({"topologyManagerScope": "container"}), whole("u1", "3", "100Mi"), "UnexpectedAdmissionError",
    "Allocate failed due to [memorymanager] preferred hint violates NUMA node allocation, which is unexpected")]
#[tokio::test]
async fn pods_without_their_pod_level_resources_are_rejected(
    #[case] change: Value,
    #[case] pod: Pod,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let mut fields = pod_level("pod");
    for (name, value) in change.as_object().unwrap() {
        fields[name] = value.clone();
    }
    let managers = managers(&root, &machine, fields).unwrap();
    let rejected = managers.allocate(&pod, None).await.unwrap_err();
    assert_eq!((rejected.reason.as_str(), rejected.message.as_str()), (reason, message));
}

#[tokio::test]
async fn requests_of_pods_are_counted_in_the_scope_of_pods() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let mut fields = pod_level("pod");
    fields["topologyManagerPolicy"] = json!("best-effort");
    let managers = managers(&root, &machine, fields).unwrap();
    let pods = [whole("u1", "3", "100Mi"), whole("u2", "1", "100Mi"), whole("u3", "3", "1Mi")];
    for pod in &pods {
        let _ = managers.allocate(pod, None).await;
    }
    let count = |name: &str| count(&managers, name);
    for (name, requests, errors) in [
        ("kubelet_topology_manager_admission", 3, 2),
        // One for each exclusive container of the pods that have CPUs.
        ("kubelet_cpu_manager_pinning", 2, 1),
        // The first pod and its exclusive container, and the last pod.
        ("kubelet_memory_manager_pinning", 3, 1),
    ] {
        let seen = ["requests", "errors"].map(|what| count(&format!("{name}_{what}_total")));
        assert_eq!(seen, [requests, errors], "{name}");
    }
}

#[tokio::test]
async fn pods_with_pod_level_resources_share_the_node_without_the_gate() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let mut fields = pod_level("pod");
    fields["featureGates"] = json!({});
    let managers = managers(&root, &machine, fields).unwrap();
    let shared = ("0-15".to_owned(), String::new());
    assert_eq!(assigned(&managers, &whole("u1", "3", "100Mi")).await, [shared.clone(), shared]);
}

#[tokio::test]
async fn changed_policy_stops_the_node() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    drop(managers(&root, &machine, json!({})).unwrap());
    let error = managers(&root, &machine, json!({"cpuManagerPolicy": "static"})).err().unwrap();
    let file = root.path().join("cpu_manager_state");
    assert_eq!(
        error,
        format!(
            "could not restore state from checkpoint: configured policy \"static\" differs from state checkpoint policy \"none\", \
             please drain this node and delete the CPU manager checkpoint file {:?} before restarting Kubelet",
            file.display()
        )
    );
    std::fs::remove_file(file).unwrap();
    drop(managers(&root, &machine, json!({"cpuManagerPolicy": "static"})).unwrap());
}

#[tokio::test]
async fn guaranteed_pods_with_own_processors_cannot_be_resized() {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let managers = managers(&root, &machine, json!({"cpuManagerPolicy": "static"})).unwrap();
    let (one, other) = (pod("u1", "1", "1Mi"), pod("u1", "2", "1Mi"));
    assert_eq!(
        managers.forbids_resize(&one, &other).unwrap().message,
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
    );
    assert_eq!(managers.forbids_resize(&one, &pod("u1", "1", "2Mi")), None, "memory is no matter");
    let shared = pod_of("u1", json!({"containers": [{"name": "a", "image": "app"}]}));
    assert_eq!(managers.forbids_resize(&shared, &shared), None);
}

#[rstest]
#[case::none(&[], [true, true])]
#[case::cpus(&["CPUs"], [false, true])]
#[case::memory(&["Memory"], [true, false])]
#[case::both(&["CPUs", "Memory"], [false, false])]
#[tokio::test]
async fn guaranteed_pods_can_be_resized_with_the_gates(
    #[case] gates: &[&str],
    #[case] expected: [bool; 2],
) {
    let (root, machine) = (tempfile::tempdir().unwrap(), two_nodes());
    let mut fields = pod_level("container");
    for gate in gates {
        let gate = format!("InPlacePodVerticalScalingExclusive{gate}");
        fields["featureGates"][gate] = json!(true);
    }
    let managers = managers(&root, &machine, fields).unwrap();
    let forbids = |other: Pod| managers.forbids_resize(&pod("u1", "1", "1Mi"), &other).is_some();
    assert_eq!([forbids(pod("u1", "2", "1Mi")), forbids(pod("u1", "1", "2Mi"))], expected);
}
