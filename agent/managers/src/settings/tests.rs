//! Policies in configurations, and the machines that allow them.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::numa;

/// Two NUMA nodes of 1 GiB and of four CPUs each.
fn nodes() -> Vec<Node> {
    let root = numa::tests::machine(2, 4, 1, 4);
    numa::read(root.path())
}

/// Settings with these fields, on a node that reserves half a CPU and 64 MiB.
fn settings(fields: Value) -> Settings {
    let reserved = [("cpu", "500m"), ("memory", "67108864")];
    Settings {
        file: serde_json::from_value(fields).unwrap(),
        reserved: reserved.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
        ..Settings::new(PathBuf::from("/root"))
    }
}

#[rstest]
#[case::none(json!({}), Ok(false))]
#[case::fixed(json!({"cpuManagerPolicy": "static"}), Ok(true))]
#[case::named(
    json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}),
    Err("new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of 0-1 did not equal 1)"))]
#[case::unknown(json!({"cpuManagerPolicy": "dynamic"}), Err("unknown policy: \"dynamic\""))]
#[case::options_of_none(
    json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
    Err("new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]"))]
#[case::alpha(
    json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"align-by-socket": "true"}}),
    Err("new static policy error: CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided"))]
#[case::alpha_with_gate(
    json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"align-by-socket": "true"},
           "featureGates": {"CPUManagerPolicyAlphaOptions": true}}),
    Ok(true))]
#[case::alpha_with_gate_of_all(
    json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"align-by-socket": "true"},
           "featureGates": {"AllAlpha": true}}),
    Ok(true))]
fn policy_of_processors_is_chosen(#[case] fields: Value, #[case] expected: Result<bool, &str>) {
    let policy = settings(fields).cpus(&nodes(), Policy::None);
    assert_eq!(policy.map(|policy| policy.is_some()), expected.map_err(str::to_owned));
}

#[test]
fn static_policy_needs_reserved_processors() {
    let mut settings = settings(json!({"cpuManagerPolicy": "static"}));
    settings.reserved.clear();
    let error = settings.cpus(&nodes(), Policy::None).unwrap_err();
    assert_eq!(
        error,
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    );
}

fn reserved(node: i32, memory: &str) -> Value {
    json!({"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": node, "limits": {"memory": memory}}]})
}

#[rstest]
#[case::none(json!({}), Ok(false))]
#[case::fixed(reserved(1, "64Mi"), Ok(true))]
#[case::nothing(json!({"memoryManagerPolicy": "Static"}), Err("the total amount \"0\" of type \"memory\" is not equal to the value \"67108864\" determined by Node Allocatable feature"))]
#[case::more(
    reserved(0, "65Mi"),
    Err(
        "the total amount \"68157440\" of type \"memory\" is not equal to the value \"67108864\" determined by Node Allocatable feature"
    )
)]
#[case::no_node(
    reserved(2, "64Mi"),
    Err(
        "the reserved memory configuration references a NUMA node 2 that does not exist on this machine"
    )
)]
#[case::unknown(json!({"memoryManagerPolicy": "Some"}), Err("unknown policy: \"Some\""))]
fn policy_of_memory_is_chosen(#[case] fields: Value, #[case] expected: Result<bool, &str>) {
    let policy = settings(fields).memory(&nodes());
    assert_eq!(policy.map(|policy| policy.is_some()), expected.map_err(str::to_owned));
}

#[rstest]
#[case::none(json!({}), Ok((Policy::None, false)))]
#[case::pods(json!({"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"}), Ok((Policy::Restricted, true)))]
#[case::more(
    json!({"topologyManagerPolicy": "best-effort", "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "12"}}),
    Ok((Policy::BestEffort, false)))]
#[case::fewer(
    json!({"topologyManagerPolicy": "best-effort", "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "2"}}),
    Err("the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"))]
#[case::negative(
    json!({"topologyManagerPolicy": "best-effort", "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "-9"}}),
    Err("the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"))]
#[case::unknown(
    json!({"topologyManagerPolicy": "best-effort", "topologyManagerPolicyOptions": {"x": "2"}}),
    Err("unknown Topology Manager Policy option: \"x\""))]
fn policy_of_memory_nodes_is_chosen(
    #[case] fields: Value,
    #[case] expected: Result<(Policy, bool), &str>,
) {
    let chosen = settings(fields).topology(&nodes());
    assert_eq!(
        chosen.map(|(policy, for_pods, _)| (policy, for_pods)),
        expected.map_err(str::to_owned)
    );
}

#[test]
fn distances_are_known_if_the_closest_nodes_are_wanted() {
    let options = json!({"prefer-closest-numa-nodes": "true"});
    let fields =
        json!({"topologyManagerPolicy": "best-effort", "topologyManagerPolicyOptions": options});
    let (_, _, chosen) = settings(fields.clone()).topology(&nodes()).unwrap();
    assert_eq!(chosen.distances, Some(Map::from([(0, vec![10, 21]), (1, vec![21, 10])])));
    let mut without = nodes();
    without[0].distances.clear();
    let error = settings(fields).topology(&without).unwrap_err();
    assert_eq!(error, "cannot discover NUMA topology: error getting NUMA distances from cadvisor");
    let many: Vec<Node> = (0..9).map(|id| Node { id, ..Node::default() }).collect();
    let error =
        settings(json!({"topologyManagerPolicy": "best-effort"})).topology(&many).unwrap_err();
    assert_eq!(error, "unsupported on machines with more than 8 NUMA Nodes");
}

#[rstest]
#[case::default(json!({}), false)]
#[case::on(json!({"featureGates": {"PodLevelResourceManagers": true}}), true)]
#[case::all_alpha(json!({"featureGates": {"AllAlpha": true}}), true)]
#[case::off(json!({"featureGates": {"AllAlpha": true, "PodLevelResourceManagers": false}}), false)]
fn pod_level_resources_are_managed_with_their_gate(#[case] fields: Value, #[case] expected: bool) {
    assert_eq!(settings(fields).pod_level(), expected);
}
