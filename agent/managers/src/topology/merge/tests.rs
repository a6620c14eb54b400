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
fn closest_nodes_are_chosen_if_that_is_asked_for() {
    let distances =
        BTreeMap::from([(0, vec![10, 30, 11]), (1, vec![30, 10, 30]), (2, vec![11, 30, 10])]);
    let near = Nodes { distances: Some(distances), ..nodes(3) };
    let all = vec![hint(&[0, 1], true), hint(&[0, 2], true), hint(&[1, 2], true)];
    let managers = [hints(&[("cpu", Some(all))])];
    assert_eq!(merge(Policy::BestEffort, &nodes(3), &managers).0, hint(&[0, 1], true));
    assert_eq!(merge(Policy::BestEffort, &near, &managers).0, hint(&[0, 2], true));
}
