//! The NUMA nodes of containers' memory.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::json;

use super::*;

const GI: u64 = 1 << 30;

/// NUMA nodes of 10 GiB each. The first reserves 1 GiB.
fn policy(count: usize) -> (StaticPolicy, State) {
    let node = |id| Node { id, memory: 10 * GI, ..Node::default() };
    let nodes: Vec<Node> = (0..count).map(node).collect();
    let reserved = Map::from([(0, Amounts::from([(MEMORY.to_owned(), GI)]))]);
    let policy = StaticPolicy::new(&nodes, &reserved, false).unwrap();
    let state = policy.start(State::default()).unwrap();
    (policy, state)
}

/// A Guaranteed pod with containers of this many GiB. Names with `init` are init containers.
fn pod(uid: &str, containers: &[(&str, u64)]) -> Pod {
    let container = |(name, size): &(&str, u64)| {
        let amounts = json!({"cpu": "1", "memory": format!("{size}Gi")});
        json!({"name": name, "image": "i", "resources": {"requests": amounts, "limits": amounts}})
    };
    let (inits, apps): (Vec<_>, Vec<_>) =
        containers.iter().partition(|(name, _)| name.starts_with("init"));
    let spec = json!({
        "initContainers": inits.into_iter().map(container).collect::<Vec<_>>(),
        "containers": apps.into_iter().map(container).collect::<Vec<_>>(),
    });
    let metadata = json!({"name": uid, "namespace": "default", "uid": uid});
    Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

fn allocate(
    policy: &mut StaticPolicy,
    state: &mut State,
    pod: &Pod,
    chosen: Hint,
) -> Result<(), String> {
    for container in pod.init_and_apps() {
        policy.allocate(state, pod, container, chosen)?;
    }
    Ok(())
}

fn nodes(state: &State, uid: &str, container: &str) -> Vec<usize> {
    state.nodes_of(uid, container).into_iter().collect()
}

fn free(state: &State) -> Vec<u64> {
    state.machine.values().map(|node| node.free(MEMORY) / GI).collect()
}

#[test]
fn memory_comes_from_one_node_if_it_suffices() {
    let (mut policy, mut state) = policy(2);
    allocate(&mut policy, &mut state, &pod("u1", &[("a", 6)]), Hint::default()).unwrap();
    allocate(&mut policy, &mut state, &pod("u2", &[("a", 6)]), Hint::default()).unwrap();
    assert_eq!((nodes(&state, "u1", "a"), nodes(&state, "u2", "a")), (vec![0], vec![1]));
    assert_eq!(free(&state), [3, 4]);
    let more = allocate(&mut policy, &mut state, &pod("u3", &[("a", 5)]), Hint::default());
    assert_eq!(
        more.unwrap_err(),
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    );
    assert!(policy.remove(&mut state, "u1", "a"));
    assert_eq!(free(&state), [9, 4]);
}

#[test]
fn grouped_nodes_are_exclusive_to_the_group() {
    let (mut policy, mut state) = policy(3);
    allocate(&mut policy, &mut state, &pod("u1", &[("a", 15)]), Hint::default()).unwrap();
    assert_eq!(nodes(&state, "u1", "a"), [0, 1]);
    assert_eq!(free(&state), [0, 4, 10]);
    allocate(&mut policy, &mut state, &pod("u2", &[("a", 2)]), Hint::default()).unwrap();
    assert_eq!(nodes(&state, "u2", "a"), [2], "the second node is part of a group");
    allocate(&mut policy, &mut state, &pod("u3", &[("a", 12)]), Hint::default()).unwrap_err();
    let group = Hint { nodes: Some(Mask::of([0, 1])), preferred: false };
    allocate(&mut policy, &mut state, &pod("u4", &[("a", 4)]), group).unwrap();
    assert_eq!(nodes(&state, "u4", "a"), [0, 1]);
    let other = Hint { nodes: Some(Mask::of([1, 2])), preferred: false };
    let error = allocate(&mut policy, &mut state, &pod("u5", &[("a", 1)]), other).unwrap_err();
    assert_eq!(error, "[memorymanager] preferred hint violates NUMA node allocation");
    for (uid, count) in [("u1", 2), ("u4", 1)] {
        assert_eq!(state.machine[&0].number_of_assignments, count);
        policy.remove(&mut state, uid, "a");
    }
    assert_eq!(state.machine[&0].cells, [0]);
    assert_eq!(free(&state), [9, 10, 8]);
}

#[test]
fn chosen_nodes_are_extended_if_they_have_too_little() {
    let (mut policy, mut state) = policy(2);
    let first = Hint { nodes: Some(Mask::of([0])), preferred: false };
    allocate(&mut policy, &mut state, &pod("u1", &[("a", 12)]), first).unwrap();
    assert_eq!(nodes(&state, "u1", "a"), [0, 1]);
}

#[test]
fn later_containers_reuse_memory_of_init_containers() {
    let (mut policy, mut state) = policy(1);
    let one = pod("u1", &[("init", 6), ("a", 4), ("b", 3)]);
    allocate(&mut policy, &mut state, &one, Hint::default()).unwrap();
    assert_eq!(free(&state), [2], "of 9, 4 and 3 are used, which include the 6");
    let size = |state: &State, name: &str| state.of("u1", name).unwrap()[0].size / GI;
    assert_eq!([size(&state, "init"), size(&state, "a"), size(&state, "b")], [0, 4, 3]);
    for name in ["init", "a", "b"] {
        policy.remove(&mut state, "u1", name);
    }
    assert_eq!(free(&state), [9]);
}

#[test]
fn hints_name_the_smallest_groups() {
    let (policy, mut state) = policy(2);
    let shown = |state: &State, size: u64| -> Vec<(String, bool)> {
        let pod = pod("u1", &[("a", size)]);
        let hints = policy.container_hints(state, &pod, &pod.containers()[0]);
        assert_eq!(hints, policy.pod_hints(state, &pod));
        let of = hints.get(MEMORY).cloned().flatten().unwrap_or_default();
        of.iter().map(|hint| (hint.nodes.unwrap().to_string(), hint.preferred)).collect()
    };
    let text = str::to_owned;
    assert_eq!(shown(&state, 4), [(text("0"), true), (text("1"), true), (text("0,1"), false)]);
    assert_eq!(shown(&state, 12), [(text("0,1"), true)]);
    assert_eq!(shown(&state, 20), []);
    policy
        .clone()
        .allocate(
            &mut state,
            &pod("u2", &[("a", 6)]),
            &pod("u2", &[("a", 6)]).containers()[0],
            Hint::default(),
        )
        .unwrap();
    assert_eq!(shown(&state, 4), [(text("1"), true)], "no group with a node that is used alone");
}

#[rstest]
#[case::changed(|state: &mut State| state.machine.get_mut(&0).unwrap().memory_map.get_mut(MEMORY).unwrap().total += 1, "[memorymanager] the expected machine state is different from the real one")]
#[case::fewer(|state: &mut State| drop(state.machine.remove(&1)), "[memorymanager] the expected machine state is different from the real one")]
#[case::no_node(|state: &mut State| state.blocks.get_mut("u1").unwrap().get_mut("a").unwrap()[0].nodes = vec![7], "[memorymanager] (pod: u1, container: a) the memory assignment uses the NUMA that does not exist")]
#[case::empty(|state: &mut State| state.machine.clear(), "[memorymanager] machine state can not be empty when it has memory assignments")]
fn start_rejects_inconsistent_state(#[case] change: fn(&mut State), #[case] expected: &str) {
    let (mut policy, mut state) = policy(2);
    allocate(&mut policy, &mut state, &pod("u1", &[("a", 6)]), Hint::default()).unwrap();
    assert_eq!(policy.start(state.clone()), Ok(state.clone()));
    change(&mut state);
    assert_eq!(policy.start(state).unwrap_err(), expected);
}

#[test]
fn huge_pages_are_not_memory() {
    let node =
        Node { id: 0, memory: 10 * GI, huge_pages: Map::from([(2 << 20, 512)]), ..Node::default() };
    let reserved = Map::from([(0, Amounts::from([(MEMORY.to_owned(), GI)]))]);
    let policy = StaticPolicy::new(&[node], &reserved, false).unwrap();
    let blocks: Vec<(String, u64)> =
        policy.allocatable().into_iter().map(|block| (block.kind, block.size / GI)).collect();
    assert_eq!(blocks, [("hugepages-2Mi".to_owned(), 1), (MEMORY.to_owned(), 8)]);
    let nothing = StaticPolicy::new(&[], &Map::new(), false).unwrap_err();
    assert_eq!(nothing, "[memorymanager] you should specify the system reserved memory");
}
