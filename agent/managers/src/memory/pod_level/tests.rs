//! The memory of pods with pod-level resources and of their containers.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::{Value, json};

use super::super::checkpoint;
use super::*;
use crate::numa::Node;
use crate::topology::hint::Mask;

const GI: u64 = 1 << 30;

/// Two NUMA nodes of 10 GiB. The first reserves 1 GiB.
fn policy() -> (StaticPolicy, State) {
    let node = |id| Node { id, memory: 10 * GI, ..Node::default() };
    let nodes: Vec<Node> = (0..2).map(node).collect();
    let reserved = Map::from([(0, Amounts::from([("memory".to_owned(), GI)]))]);
    let policy = StaticPolicy::new(&nodes, &reserved, true).unwrap();
    let state = policy.start(State::default()).unwrap();
    (policy, state)
}

fn made(spec: &Value) -> Pod {
    let metadata = json!({"name": "u1", "namespace": "default", "uid": "u1"});
    Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

/// A pod with this many GiB. Names with `init` are init containers, and those with `side` are sidecars. Containers with 0 request
/// nothing.
fn pod(size: u64, containers: &[(&str, u64)]) -> Pod {
    let resources = |size: u64| match size {
        0 => json!({}),
        size => {
            let amounts = json!({"cpu": "1", "memory": format!("{size}Gi")});
            json!({"requests": amounts, "limits": amounts})
        }
    };
    let container = |(name, size): &(&str, u64)| {
        let policy = name.starts_with("side").then_some("Always");
        json!({"name": name, "image": "i", "resources": resources(*size), "restartPolicy": policy})
    };
    let is_init = |(name, _): &&(&str, u64)| name.starts_with("init") || name.starts_with("side");
    let (inits, apps): (Vec<_>, Vec<_>) = containers.iter().partition(is_init);
    made(&json!({
        "resources": resources(size),
        "initContainers": inits.into_iter().map(container).collect::<Vec<_>>(),
        "containers": apps.into_iter().map(container).collect::<Vec<_>>(),
    }))
}

fn free(state: &State) -> Vec<u64> {
    state.machine.values().map(|node| node.free("memory") / GI).collect()
}

fn sizes(blocks: &[Block]) -> Vec<u64> {
    blocks.iter().map(|block| block.size / GI).collect()
}

#[rstest]
#[case::exclusive(2, &[("a", 2)], &[2])]
#[case::shared(2, &[("a", 0), ("b", 0)], &[2, 2])]
#[case::mixed(4, &[("a", 1), ("b", 0), ("c", 0)], &[1, 3, 3])]
#[case::init_containers_that_end(2, &[("init-1", 2), ("init-2", 0), ("a", 1), ("b", 0)], &[2, 2, 1, 1])]
#[case::sidecars(5, &[("side-1", 1), ("init", 0), ("side-2", 0), ("a", 1), ("b", 0)], &[1, 4, 3, 1, 3])]
fn containers_get_parts_of_what_their_pod_gets(
    #[case] size: u64,
    #[case] containers: &[(&str, u64)],
    #[case] expected: &[u64],
) {
    let (policy, mut state) = policy();
    let empty = state.clone();
    let pod = pod(size, containers);
    assert_eq!(policy.allocate_pod(&mut state, &pod, Hint::default()), Ok(true));
    let of = pod.init_and_apps().flat_map(|it| sizes(state.of("u1", &it.name).unwrap()));
    assert_eq!(of.collect::<Vec<_>>(), expected);
    assert_eq!(sizes(&state.pods["u1"]), [size]);
    assert_eq!((free(&state), state.machine[&0].number_of_assignments), (vec![9 - size, 10], 1));
    let again = policy.start(state.clone()).unwrap();
    assert_eq!(again, state, "it is valid after a restart");
    let hint = Hint { nodes: Some(Mask::of([0])), preferred: true };
    let known = Hints::from([("memory".to_owned(), Some(vec![hint]))]);
    assert_eq!(policy.pod_level_hints(&again, &pod), known);
    assert_eq!(policy.allocate_pod(&mut state, &pod, hint), Ok(false));
    assert_eq!(again, state, "it keeps its memory");
    for (index, container) in pod.init_and_apps().enumerate() {
        assert_eq!(free(&state), [9 - size, 10], "{index}");
        assert!(policy.remove(&mut state, "u1", &container.name));
    }
    assert_eq!(state, empty);
}

#[rstest]
#[case::apps(
    2, &[("a", 1), ("b", 1), ("c", 0)],
    "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared containers")]
#[case::sidecar(
    2, &[("side", 0), ("a", 2)],
    "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared containers")]
#[case::init(
    2, &[("side", 2), ("init", 0), ("a", 1)],
    "pod rejected, pod has shared init containers but no memory available for them")]
fn pods_that_leave_nothing_to_share_are_rejected(
    #[case] size: u64,
    #[case] containers: &[(&str, u64)],
    #[case] why: &str,
) {
    let (policy, mut state) = policy();
    let before = state.clone();
    let pod = pod(size, containers);
    let error = policy.allocate_pod(&mut state, &pod, Hint::default()).unwrap_err();
    assert_eq!(error, MemoryError::EmptyPool(why.to_owned()));
    assert_eq!(state, before);
    let hints = policy.pod_level_hints(&state, &pod);
    assert_eq!(hints, Hints::from([("memory".to_owned(), Some(Vec::new()))]));
}

#[test]
fn pods_with_more_than_any_nodes_have_get_nothing() {
    let (policy, mut state) = policy();
    let before = state.clone();
    let error = policy.allocate_pod(&mut state, &pod(20, &[("a", 0)]), Hint::default());
    let why = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
    assert_eq!(error, Err(MemoryError::Other(why.to_owned())));
    assert_eq!(state, before);
}

#[test]
fn burstable_pods_get_nothing() {
    let (policy, mut state) = policy();
    let resources = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let pod = made(&json!({"resources": resources, "containers": [{"name": "a", "image": "i"}]}));
    assert_eq!(policy.allocate_pod(&mut state, &pod, Hint::default()), Ok(false));
    assert_eq!(policy.pod_level_hints(&state, &pod), Hints::new());
    assert_eq!(policy.count_requests(&pod), 0);
}

#[test]
fn chosen_nodes_are_extended_if_they_have_too_little() {
    let (policy, mut state) = policy();
    let first = Hint { nodes: Some(Mask::of([0])), preferred: false };
    policy.allocate_pod(&mut state, &pod(12, &[("a", 0)]), first).unwrap();
    assert_eq!(state.pods["u1"][0].nodes, [0, 1]);
    assert_eq!(free(&state), [0, 7]);
}

/// As in the kubelet, which finds no nodes for an empty request: without chosen nodes, a container that requests nothing fails.
#[test]
fn exclusive_containers_alone_get_memory_in_the_scope_of_containers() {
    let (mut policy, mut state) = policy();
    let pod = pod(4, &[("a", 1), ("b", 0)]);
    let chosen = Hint { nodes: Some(Mask::of([0])), preferred: true };
    let hints = pod.containers().iter().map(|it| policy.container_hints(&state, &pod, it).len());
    assert_eq!(hints.collect::<Vec<_>>(), [1, 0]);
    for container in pod.containers() {
        policy.allocate(&mut state, &pod, container, chosen).unwrap();
    }
    assert_eq!(state.blocks["u1"]["b"], []);
    assert_eq!((free(&state), state.pods.is_empty()), (vec![8, 10], true));
    policy.remove(&mut state, "u1", "b");
    let error = policy.allocate(&mut state, &pod, &pod.containers()[1], Hint::default());
    assert!(error.unwrap_err().contains("failed to get the default NUMA affinity"));
}

/// Recorded from Kubernetes 1.36.2: `AllocatePod`, `GetPodTopologyHints` and `RemoveContainer` of its policies on such a machine
/// with huge pages, with the resulting checkpoints.
const VECTORS: &str = include_str!("../../../tests/vectors/pod_level.jsonl");

#[test]
fn memory_and_its_files_are_those_of_a_kubelet() {
    let huge_pages = Map::from([(2 << 20, 512)]);
    let node = |id| Node { id, memory: 10 * GI, huge_pages: huge_pages.clone(), ..Node::default() };
    let nodes: Vec<Node> = (0..2).map(node).collect();
    let reserved = Map::from([(0, Amounts::from([("memory".to_owned(), GI)]))]);
    for line in VECTORS.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (name, expected) = (case["name"].as_str().unwrap(), &case["memory"]);
        if expected.is_null() {
            continue;
        }
        let policy = StaticPolicy::new(&nodes, &reserved, true).unwrap();
        let mut state = policy.start(State::default()).unwrap();
        let pod = made(&case["spec"]);
        let hints = policy.pod_level_hints(&state, &pod);
        assert_eq!(shown(&hints), expected["hints"], "{name}");
        let nodes: Option<Vec<usize>> = serde_json::from_value(case["nodes"].clone()).unwrap();
        let chosen = Hint { nodes: nodes.map(Mask::of), preferred: false };
        let allocated = policy.allocate_pod(&mut state, &pod, chosen);
        let error = allocated.err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), expected["error"].as_str(), "{name}");
        if error.is_some() {
            continue;
        }
        assert_eq!(file(&state), sorted(&expected["state"]), "{name}");
        let containers: Vec<&str> = pod.init_and_apps().map(|it| it.name.as_str()).collect();
        let (last, others) = containers.split_last().unwrap();
        for container in others {
            policy.remove(&mut state, "u1", container);
        }
        assert_eq!(file(&state), sorted(&expected["removed"]), "{name}");
        policy.remove(&mut state, "u1", last);
        assert_eq!(file(&state), sorted(&expected["removedAll"]), "{name}");
    }
}

fn shown(hints: &Hints) -> Value {
    let of = |list: &Option<Vec<Hint>>| -> Value {
        let hints = list.iter().flatten();
        hints.map(|hint| format!("{} {}", hint.nodes.unwrap(), hint.preferred)).collect()
    };
    hints.iter().map(|(kind, list)| (kind.clone(), of(list))).collect()
}

fn file(state: &State) -> Value {
    let directory = tempfile::tempdir().unwrap();
    checkpoint::write(directory.path(), "Static", state, true).unwrap();
    let known = checkpoint::read(directory.path(), "Static", true).unwrap();
    assert_eq!(known.as_ref(), Some(state));
    let text = std::fs::read(directory.path().join(checkpoint::FILE)).unwrap();
    sorted(&serde_json::from_slice(&text).unwrap())
}

/// The checkpoint with sorted blocks. If there are several, without its checksum, because the kubelet's order is random.
fn sorted(file: &Value) -> Value {
    let mut file = file.clone();
    let mut several = false;
    let containers = file["entries"]["u1"].as_object().cloned().unwrap_or_default();
    for (container, _) in containers {
        let blocks = file["entries"]["u1"][&container].as_array_mut().unwrap();
        blocks.sort_by_key(|block| block["type"].to_string());
        several |= blocks.len() > 1;
    }
    if let Some(blocks) = file["podEntries"]["u1"]["memoryBlocks"].as_array_mut() {
        blocks.sort_by_key(|block| block["type"].to_string());
        several |= blocks.len() > 1;
    }
    if several {
        file["checksum"] = Value::Null;
    }
    file
}
