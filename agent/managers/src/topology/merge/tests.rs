//! The merge of several managers' hints.
use rstest::rstest;

use super::*;

fn hint(nodes: &[usize], preferred: bool) -> Hint {
    Hint { nodes: Some(Mask::of(nodes.iter().copied())), preferred }
}

fn hints(of: &[(&str, Option<Vec<Hint>>)]) -> Hints {
    of.iter().map(|(name, hints)| ((*name).to_owned(), hints.clone())).collect()
}

fn nodes(count: usize) -> Nodes {
    Nodes { ids: (0..count).collect(), distances: None }
}

#[rstest]
#[case::nobody_cares(&[], &[0, 1], true)]
#[case::one_node(
    &[("cpu", Some(vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)])),
      ("gpu", Some(vec![hint(&[1], true)]))],
    &[1], true)]
#[case::no_common_node(
    &[("cpu", Some(vec![hint(&[0], true), hint(&[0, 1], false)])),
      ("gpu", Some(vec![hint(&[1], true)]))],
    &[1], false)]
#[case::impossible(&[("gpu", Some(vec![]))], &[0, 1], false)]
#[case::indifferent(&[("gpu", None), ("cpu", Some(vec![hint(&[0], true)]))], &[0], true)]
#[case::needs_both(&[("cpu", Some(vec![hint(&[0, 1], true)]))], &[0, 1], true)]
fn hints_are_merged(
    #[case] given: &[(&str, Option<Vec<Hint>>)],
    #[case] chosen: &[usize],
    #[case] preferred: bool,
) {
    let managers = [hints(given)];
    let expected = hint(chosen, preferred);
    assert_eq!(merge(Policy::BestEffort, &nodes(2), &managers), (expected, true));
    assert_eq!(merge(Policy::Restricted, &nodes(2), &managers), (expected, preferred));
    assert_eq!(merge(Policy::None, &nodes(2), &managers), (Hint::default(), true));
}

#[rstest]
#[case::one_node(vec![hint(&[1], true), hint(&[0, 1], false)], Some(&[1][..]), true)]
#[case::needs_both(vec![hint(&[0, 1], true)], None, false)]
fn single_node_is_all_or_nothing(
    #[case] given: Vec<Hint>,
    #[case] chosen: Option<&[usize]>,
    #[case] admitted: bool,
) {
    let managers = [hints(&[("cpu", Some(given))])];
    let nodes = nodes(2);
    let (best, admits) = merge(Policy::SingleNumaNode, &nodes, &managers);
    assert_eq!(best.nodes, chosen.map(|chosen| Mask::of(chosen.iter().copied())));
    assert_eq!((best.preferred, admits), (admitted, admitted));
}

#[test]
fn closest_nodes_are_preferred_with_the_option() {
    let distances =
        Map::from([(0, vec![10, 30, 11]), (1, vec![30, 10, 30]), (2, vec![11, 30, 10])]);
    let near = Nodes { distances: Some(distances), ..nodes(3) };
    let all = vec![hint(&[0, 1], true), hint(&[0, 2], true), hint(&[1, 2], true)];
    let managers = [hints(&[("cpu", Some(all))])];
    assert_eq!(merge(Policy::BestEffort, &nodes(3), &managers).0, hint(&[0, 1], true));
    assert_eq!(merge(Policy::BestEffort, &near, &managers).0, hint(&[0, 2], true));
}

/// Lines with the policy, the distances between all nodes, whether the closest nodes are preferred, the hints, and the result:
/// nodes, whether preferred, whether admitted. Each manager has one list of hints, such as `0+1!,2`, where `!` marks preferred
/// ones. Recorded from Kubernetes 1.36.2, pkg/kubelet/cm/topologymanager.
const VECTORS: &str = include_str!("../../../tests/vectors/topology_merge.tsv");

fn mask(text: &str) -> Mask {
    Mask::of(text.split('+').filter_map(|node| node.parse().ok()))
}

#[test]
fn hints_are_merged_as_by_a_kubelet() {
    let mut wrong = Vec::new();
    for line in VECTORS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [policy, distances, closest, managers, nodes, preferred, admitted] = fields[..] else {
            panic!("{line}")
        };
        let policy = match policy {
            "best-effort" => Policy::BestEffort,
            "restricted" => Policy::Restricted,
            _ => Policy::SingleNumaNode,
        };
        let distances: Vec<u64> = distances.split(',').filter_map(|it| it.parse().ok()).collect();
        let count = distances.len().isqrt();
        let rows = distances.chunks(count).map(<[u64]>::to_vec).enumerate();
        let distances = (closest == "true").then(|| rows.collect());
        let of_nodes = Nodes { ids: (0..count).collect(), distances };
        let manager = |text: &str| match text {
            "none" => Hints::new(),
            "nil" => hints(&[("r", None)]),
            "empty" => hints(&[("r", Some(Vec::new()))]),
            list => {
                let hint = |text: &str| Hint {
                    nodes: Some(mask(text.trim_end_matches('!'))),
                    preferred: text.ends_with('!'),
                };
                hints(&[("r", Some(list.split(',').map(hint).collect()))])
            }
        };
        let managers: Vec<Hints> = managers.split(';').map(manager).collect();
        let nodes = (nodes != "any").then(|| mask(nodes));
        let expected = (Hint { nodes, preferred: preferred == "true" }, admitted == "true");
        let merged = merge(policy, &of_nodes, &managers);
        if merged != expected {
            wrong.push(format!("{line}: {merged:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert_eq!(VECTORS.lines().count(), 900);
}
