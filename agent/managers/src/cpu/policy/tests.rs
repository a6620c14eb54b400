//! The CPUs that containers get.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::json;

use super::super::set::parse;
use super::*;
use crate::numa;

/// Two sockets, each a NUMA node, of four cores with two threads: core n has the CPUs n and n + 8.
pub(in crate::cpu) fn layout() -> Layout {
    let root = numa::tests::machine(2, 4, 2, 4);
    Layout::of(&numa::read(root.path()))
}

fn set(text: &str) -> CpuSet {
    parse(text).unwrap()
}

fn policy(options: Options) -> (StaticPolicy, State) {
    let policy = StaticPolicy::new(layout(), options, 1, CpuSet::new()).unwrap();
    let state = policy.start(State::default()).unwrap();
    (policy, state)
}

/// A Guaranteed pod with these containers. Names with `init` are init containers.
fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let container = |(name, cpu): &(&str, &str)| {
        let amounts = json!({"cpu": cpu, "memory": "64Mi"});
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

/// Allocates for all containers.
fn allocate(
    policy: &mut StaticPolicy,
    state: &mut State,
    pod: &Pod,
    nodes: Option<Mask>,
) -> Result<Vec<String>, CpuError> {
    let mut taken = Vec::new();
    for container in pod.init_and_apps() {
        policy.allocate(state, pod, container, nodes)?;
        let cpus = state.of(pod.uid().as_str(), &container.name);
        taken.push(cpus.map(format).unwrap_or_default());
    }
    Ok(taken)
}

#[test]
fn exclusive_cpus_are_taken_from_the_shared_pool_and_returned() {
    let (mut policy, mut state) = policy(Options::default());
    let one = pod("u1", &[("a", "2"), ("b", "500m"), ("c", "1")]);
    let taken = allocate(&mut policy, &mut state, &one, None).unwrap();
    assert_eq!(
        taken,
        ["1,9", "", "8"],
        "of the fullest socket: a core, and what is left of another"
    );
    assert_eq!(format(&state.shared), "0,2-7,10-15");
    assert_eq!(allocate(&mut policy, &mut state, &one, None).unwrap(), taken, "it has them");
    for container in ["a", "b", "c"] {
        policy.remove(&mut state, "u1", container);
    }
    assert_eq!(state, policy.start(State::default()).unwrap());
}

#[test]
fn burstable_pods_use_shared_cpus() {
    let (mut policy, mut state) = policy(Options::default());
    let container = json!({"name": "a", "image": "i", "resources": {"requests": {"cpu": "2", "memory": "1Mi"}}});
    let pod = json!({"metadata": {"name": "p", "uid": "u1"}, "spec": {"containers": [container]}});
    let pod = Pod::new(serde_json::from_value(pod).unwrap());
    assert_eq!(allocate(&mut policy, &mut state, &pod, None).unwrap(), [""]);
}

#[test]
fn later_containers_reuse_cpus_of_init_containers() {
    let (mut policy, mut state) = policy(Options::default());
    let one = pod("u1", &[("init", "4"), ("a", "2"), ("b", "2")]);
    let taken = allocate(&mut policy, &mut state, &one, None).unwrap();
    let [init, a, b] = [0, 1, 2].map(|at: usize| set(&taken[at]));
    assert!(a.is_subset(&init) && b.is_subset(&init) && a.is_disjoint(&b), "{taken:?}");
    assert_eq!(state.shared.len(), 12);
    policy.remove(&mut state, "u1", "init");
    assert_eq!(state.shared.len(), 12, "the others have them");
}

#[rstest]
#[case::default(Options::default(), "0-15")]
#[case::strict(Options { strict: true, ..Options::default() }, "1-15")]
fn reserved_processors_are_shared_or_not(#[case] options: Options, #[case] shared: &str) {
    let (mut policy, mut state) = policy(options);
    assert_eq!(format(&state.shared), shared);
    let all = allocate(&mut policy, &mut state, &pod("u1", &[("a", "16")]), None);
    assert!(all.is_err());
    let most = allocate(&mut policy, &mut state, &pod("u2", &[("a", "15")]), None);
    assert_eq!(most.unwrap(), ["1-15"]);
}

#[rstest]
#[case("3", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")]
#[case(
    "16",
    "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, requested CPUs = 16, CPUs per core = 2"
)]
fn full_pcpus_only_rejects_partial_cores(#[case] cpu: &str, #[case] expected: &str) {
    let (mut policy, mut state) = policy(Options { full_cores: true, ..Options::default() });
    let error = allocate(&mut policy, &mut state, &pod("u1", &[("a", cpu)]), None).unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, CpuError::Alignment(_)));
}

#[test]
fn processors_are_taken_of_the_chosen_nodes_first() {
    let (mut policy, mut state) = policy(Options::default());
    let second = Some(Mask::of([1]));
    let taken = allocate(&mut policy, &mut state, &pod("u1", &[("a", "6")]), second).unwrap();
    assert_eq!(taken, ["4-6,12-14"]);
    let taken = allocate(&mut policy, &mut state, &pod("u2", &[("a", "4")]), second).unwrap();
    assert_eq!(taken, ["1,7,9,15"]);
}

#[test]
fn nodes_with_enough_processors_are_preferred() {
    let (policy, state) = policy(Options::default());
    let shown = |count: &str| -> Vec<(String, bool)> {
        let pod = pod("u1", &[("a", count)]);
        let hints = policy.container_hints(&state, &pod, &pod.containers()[0]);
        assert_eq!(hints, policy.pod_hints(&state, &pod));
        let of = hints.get("cpu").cloned().flatten().unwrap_or_default();
        of.iter().map(|hint| (hint.nodes.unwrap().to_string(), hint.preferred)).collect()
    };
    let text = str::to_owned;
    assert_eq!(shown("2"), [(text("0"), true), (text("1"), true), (text("0,1"), false)]);
    // One CPU of the first node is reserved.
    assert_eq!(shown("8"), [(text("1"), true), (text("0,1"), false)]);
    assert_eq!(shown("15"), [(text("0,1"), true)]);
    assert_eq!(shown("500m"), []);
}

#[rstest]
#[case::not_reserved(
    "1-15",
    "",
    "not all reserved cpus: \"0\" are present in defaultCpuSet: \"1-15\""
)]
#[case::overlap(
    "0-15",
    "3",
    "pod: u1, container: a cpuset: \"3\" overlaps with default cpuset \"0-15\""
)]
#[case::fewer(
    "0-14",
    "",
    "current set of available CPUs \"0-15\" doesn't match with CPUs in state \"0-14\""
)]
#[case::nothing_shared("", "3", "default cpuset cannot be empty")]
fn start_rejects_inconsistent_state(
    #[case] shared: &str,
    #[case] exclusive: &str,
    #[case] expected: &str,
) {
    let (policy, _) = policy(Options::default());
    let mut state = State { shared: set(shared), ..State::default() };
    if !exclusive.is_empty() {
        let of = Map::from([("a".to_owned(), set(exclusive))]);
        state.exclusive.insert("u1".to_owned(), of);
    }
    assert_eq!(policy.start(state).unwrap_err(), expected);
}

#[test]
fn reserved_cpus_can_be_specified() {
    let named = StaticPolicy::new(layout(), Options::default(), 2, set("3,5")).unwrap();
    assert_eq!(format(&named.allocatable()), "0-2,4,6-15");
    let error = StaticPolicy::new(layout(), Options::default(), 1, set("3,5")).unwrap_err();
    assert!(error.ends_with("(size of 3,5 did not equal 1)"), "{error}");
    assert!(StaticPolicy::new(layout(), Options::default(), 1, set("99")).is_err());
}
