//! The CPUs of pods with pod-level resources and of their containers.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::{Value, json};

use super::super::checkpoint;
use super::super::options::Options;
use super::super::policy::tests::layout;
use super::super::set::{format, parse};
use super::*;

fn policy() -> (StaticPolicy, State) {
    let options = Options { pod_level: true, ..Options::default() };
    let policy = StaticPolicy::new(layout(), options, 1, CpuSet::new()).unwrap();
    let state = policy.start(State::default()).unwrap();
    (policy, state)
}

/// A pod with this many CPUs. Names with `init` are init containers, and those with `side` are sidecars. Containers without an
/// amount request nothing.
fn pod(cpu: &str, containers: &[(&str, &str)]) -> Pod {
    let resources = |cpu: &str| match cpu {
        "" => json!({}),
        cpu => {
            let amounts = json!({"cpu": cpu, "memory": "64Mi"});
            json!({"requests": amounts, "limits": amounts})
        }
    };
    let container = |(name, cpu): &(&str, &str)| {
        let policy = name.starts_with("side").then_some("Always");
        json!({"name": name, "image": "i", "resources": resources(cpu), "restartPolicy": policy})
    };
    let is_init = |(name, _): &&(&str, &str)| name.starts_with("init") || name.starts_with("side");
    let (inits, apps): (Vec<_>, Vec<_>) = containers.iter().partition(is_init);
    let spec = json!({
        "resources": resources(cpu),
        "initContainers": inits.into_iter().map(container).collect::<Vec<_>>(),
        "containers": apps.into_iter().map(container).collect::<Vec<_>>(),
    });
    made(&spec)
}

fn made(spec: &Value) -> Pod {
    let metadata = json!({"name": "u1", "namespace": "default", "uid": "u1"});
    Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

/// The CPUs of the pod and of each container.
fn allocated(pod: &Pod) -> (State, String, Vec<String>) {
    let (policy, mut state) = policy();
    assert_eq!(policy.allocate_pod(&mut state, pod, None), Ok(true));
    let of = |name: &str| state.of("u1", name).map(format).unwrap_or_default();
    let of_containers = pod.init_and_apps().map(|container| of(&container.name)).collect();
    let of_pod = format(&state.pods["u1"]);
    (state, of_pod, of_containers)
}

#[rstest]
#[case::exclusive("2", &[("a", "2")], "1,9", &["1,9"])]
#[case::shared("2", &[("a", ""), ("b", "")], "1,9", &["1,9", "1,9"])]
#[case::mixed("4", &[("a", "1"), ("b", ""), ("c", "")], "1-2,9-10", &["1", "2,9-10", "2,9-10"])]
#[case::fraction("4", &[("a", "1500m"), ("b", "2")], "1-2,9-10", &["2,10", "1,9"])]
#[case::pool_without_containers("4", &[("a", "2")], "1-2,9-10", &["1,9"])]
#[case::init_containers_that_end(
    "2", &[("init-1", "2"), ("init-2", ""), ("a", "1"), ("b", "")], "1,9", &["1,9", "1,9", "1", "9"])]
#[case::sidecars(
    "4", &[("side-1", "1"), ("init", ""), ("side-2", ""), ("a", "1"), ("b", "")],
    "1-2,9-10", &["1", "2,9-10", "2,10", "9", "2,10"])]
fn containers_get_parts_of_what_their_pod_gets(
    #[case] cpu: &str,
    #[case] containers: &[(&str, &str)],
    #[case] of_pod: &str,
    #[case] of_containers: &[&str],
) {
    let pod = pod(cpu, containers);
    let (state, seen, of) = allocated(&pod);
    assert_eq!(
        (seen.as_str(), of),
        (of_pod, of_containers.iter().map(|it| (*it).to_owned()).collect())
    );
    assert_eq!(state.shared, &parse("0-15").unwrap() - &parse(of_pod).unwrap());
}

#[rstest]
#[case::apps(
    "2", &[("a", "1"), ("b", "1"), ("c", "")],
    "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers")]
#[case::sidecar(
    "2", &[("side", ""), ("a", "2")],
    "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers")]
#[case::init(
    "2", &[("side", "2"), ("init", ""), ("a", "")],
    "pod rejected, pod has shared init containers but no cpus available for them")]
fn pods_that_leave_nothing_to_share_are_rejected(
    #[case] cpu: &str,
    #[case] containers: &[(&str, &str)],
    #[case] why: &str,
) {
    let (policy, mut state) = policy();
    let before = state.clone();
    let pod = pod(cpu, containers);
    let error = policy.allocate_pod(&mut state, &pod, None).unwrap_err();
    assert_eq!(error, CpuError::EmptyPool(why.to_owned()));
    assert_eq!(state, before);
    let hints = policy.pod_level_hints(&state, &pod);
    assert_eq!(hints, Hints::from([("cpu".to_owned(), Some(Vec::new()))]));
}

#[rstest]
#[case::more_than_the_node("16", &[("a", "")], "not enough cpus available to satisfy request: requested=16, available=15")]
#[case::more_than_the_pod("2", &[("a", "2"), ("b", "1")], "not enough cpus available to satisfy request: requested=1, available=0")]
fn pods_that_fail_get_nothing(
    #[case] cpu: &str,
    #[case] containers: &[(&str, &str)],
    #[case] why: &str,
) {
    let (policy, mut state) = policy();
    let before = state.clone();
    let error = policy.allocate_pod(&mut state, &pod(cpu, containers), None).unwrap_err();
    assert_eq!(error, CpuError::Other(why.to_owned()));
    assert_eq!(state, before);
}

#[rstest]
#[case::fraction(pod("1500m", &[("a", "1")]))]
#[case::burstable(made(&json!({
    "resources": {"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"cpu": "2", "memory": "1Mi"}},
    "containers": [{"name": "a", "image": "i"}]})))]
fn other_pods_share_what_the_node_has(#[case] pod: Pod) {
    let (policy, mut state) = policy();
    let before = state.clone();
    assert_eq!(policy.allocate_pod(&mut state, &pod, None), Ok(false));
    assert_eq!(state, before);
    assert_eq!(policy.pod_level_hints(&state, &pod), Hints::new());
}

#[test]
fn processors_of_a_pod_are_free_when_its_last_container_has_none() {
    let pod = pod("4", &[("a", "1"), ("b", ""), ("c", "")]);
    let (mut state, _, _) = allocated(&pod);
    let (policy, empty) = policy();
    for container in ["a", "b"] {
        assert!(policy.remove(&mut state, "u1", container));
        assert_eq!(format(&state.shared), "0,3-8,11-15");
    }
    assert_eq!(policy.start(state.clone()), Ok(state.clone()), "it is valid after a restart");
    assert!(policy.remove(&mut state, "u1", "c"));
    assert_eq!(state, empty);
}

#[test]
fn pods_keep_their_processors_when_they_are_admitted_again() {
    let pod = pod("4", &[("a", "1"), ("b", "")]);
    let (state, _, _) = allocated(&pod);
    let (policy, _) = policy();
    let mut again = policy.start(state.clone()).unwrap();
    let hints = policy.pod_level_hints(&again, &pod);
    let nodes: Vec<String> =
        hints["cpu"].iter().flatten().map(|hint| hint.nodes.unwrap().to_string()).collect();
    assert_eq!(nodes, ["0", "0,1"], "those that have the processors");
    assert_eq!(policy.allocate_pod(&mut again, &pod, None), Ok(false));
    assert_eq!(again, state);
}

#[test]
fn exclusive_containers_alone_get_processors_in_the_scope_of_containers() {
    let pod = pod("4", &[("a", "1"), ("b", ""), ("c", "500m")]);
    let (mut policy, mut state) = policy();
    let mut of = Vec::new();
    for container in pod.containers() {
        policy.allocate(&mut state, &pod, container, None).unwrap();
        of.push(state.of("u1", &container.name).map(format));
    }
    assert_eq!(of, [Some("8".to_owned()), None, None]);
    assert!(state.pods.is_empty());
}

/// Recorded from Kubernetes 1.36.2: `AllocatePod`, `GetPodTopologyHints` and `RemoveContainer` of its policies on this machine,
/// with the resulting checkpoints.
const VECTORS: &str = include_str!("../../../tests/vectors/pod_level.jsonl");

#[test]
fn processors_and_their_files_are_those_of_a_kubelet() {
    for line in VECTORS.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (name, expected) = (case["name"].as_str().unwrap(), &case["cpus"]);
        let full_cores = case["options"]["full-pcpus-only"] == "true";
        let options = Options { pod_level: true, full_cores, ..Options::default() };
        let policy = StaticPolicy::new(layout(), options, 1, CpuSet::new()).unwrap();
        let mut state = policy.start(State::default()).unwrap();
        let pod = made(&case["spec"]);
        let hints = policy.pod_level_hints(&state, &pod);
        assert_eq!(shown(&hints), expected["hints"], "{name}");
        let nodes: Option<Vec<usize>> = serde_json::from_value(case["nodes"].clone()).unwrap();
        let allocated = policy.allocate_pod(&mut state, &pod, nodes.map(Mask::of));
        let error = allocated.err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), expected["error"].as_str(), "{name}");
        if error.is_some() {
            continue;
        }
        assert_eq!(file(&state), expected["state"], "{name}");
        let containers: Vec<&str> = pod.init_and_apps().map(|it| it.name.as_str()).collect();
        let (last, others) = containers.split_last().unwrap();
        for container in others {
            policy.remove(&mut state, "u1", container);
        }
        assert_eq!(file(&state), expected["removed"], "{name}");
        policy.remove(&mut state, "u1", last);
        assert_eq!(file(&state), expected["removedAll"], "{name}");
    }
}

fn shown(hints: &Hints) -> Value {
    let of = |list: &Option<Vec<crate::topology::hint::Hint>>| -> Value {
        let hints = list.iter().flatten();
        hints.map(|hint| format!("{} {}", hint.nodes.unwrap(), hint.preferred)).collect()
    };
    hints.iter().map(|(kind, list)| (kind.clone(), of(list))).collect()
}

fn file(state: &State) -> Value {
    let directory = tempfile::tempdir().unwrap();
    checkpoint::write(directory.path(), "static", state, true).unwrap();
    let known = checkpoint::read(directory.path(), "static", true).unwrap();
    assert_eq!(known.as_ref(), Some(state));
    serde_json::from_slice(&std::fs::read(directory.path().join(checkpoint::FILE)).unwrap())
        .unwrap()
}
