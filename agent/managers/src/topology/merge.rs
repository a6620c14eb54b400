//! ◆ Merges the hints of all managers into the NUMA nodes of a container. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/topologymanager/policy.go and the policies beside it, numa_info.go.

use compact::Map;

use super::hint::{Hint, Hints, Mask};

/// `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// No nodes are chosen.
    #[default]
    None,
    /// The best nodes are chosen.
    BestEffort,
    /// Pods without a preferred choice are rejected.
    Restricted,
    /// Pods that do not fit on a single node are rejected.
    SingleNumaNode,
}

/// The NUMA nodes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// Their numbers.
    pub(crate) ids: Vec<usize>,
    /// The distances from each node to all nodes, if the closest ones are preferred.
    pub(crate) distances: Option<Map<usize, Vec<u64>>>,
}

/// The best merged hint of all managers, and whether the policy admits the pod with it.
pub(crate) fn merge(policy: Policy, nodes: &Nodes, managers: &[Hints]) -> (Hint, bool) {
    let mut lists = lists(managers);
    match policy {
        Policy::None => (Hint::default(), true),
        Policy::BestEffort => (best(nodes, &lists, true), true),
        Policy::Restricted => {
            let best = best(nodes, &lists, true);
            (best, best.preferred)
        }
        Policy::SingleNumaNode => {
            let is_single =
                |hint: &Hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1);
            for list in &mut lists {
                list.retain(is_single);
            }
            let mut best = best(nodes, &lists, false);
            if best.nodes == Some(nodes.all()) {
                best.nodes = None;
            }
            (best, best.preferred)
        }
    }
}

/// A list of hints for each resource.
fn lists(managers: &[Hints]) -> Vec<Vec<Hint>> {
    let any = |preferred| vec![Hint { nodes: None, preferred }];
    let mut lists = Vec::new();
    for hints in managers {
        if hints.is_empty() {
            lists.push(any(true));
        }
        for of_resource in hints.values() {
            lists.push(match of_resource.as_deref() {
                None => any(true),
                Some([]) => any(false),
                Some(hints) => hints.to_vec(),
            });
        }
    }
    lists
}

/// The best merge over all combinations of one hint per resource.
fn best(nodes: &Nodes, lists: &[Vec<Hint>], may_be_closest: bool) -> Hint {
    let comparison = HintComparison {
        nodes,
        enough: enough(lists),
        closest: nodes.distances.as_ref().filter(|_| may_be_closest),
    };
    let mut best: Option<Hint> = None;
    let mut chosen = vec![0; lists.len()];
    let mut choice = Vec::with_capacity(lists.len());
    while lists.iter().all(|list| !list.is_empty()) {
        choice.clear();
        choice.extend(
            lists.iter().zip(&chosen).map(|(list, index): (&Vec<Hint>, &usize)| list[*index]),
        );
        best = comparison.prefer(best, comparison.merged(&choice));
        // The last list varies fastest.
        let Some(position) = (0..lists.len()).rev().find(|at| chosen[*at] + 1 < lists[*at].len())
        else {
            break;
        };
        chosen[position] += 1;
        chosen[position + 1..].fill(0);
    }
    best.unwrap_or(Hint { nodes: Some(nodes.all()), preferred: false })
}

/// The number of nodes that the most demanding resource needs.
fn enough(lists: &[Vec<Hint>]) -> usize {
    let least = |list: &Vec<Hint>| list.iter().filter_map(|hint| hint.nodes).map(Mask::count).min();
    lists.iter().filter_map(least).max().unwrap_or_default()
}

struct HintComparison<'a> {
    nodes: &'a Nodes,
    enough: usize,
    closest: Option<&'a Map<usize, Vec<u64>>>,
}

impl HintComparison<'_> {
    /// The intersection of the hints' nodes, preferred if all hints are preferred and equal.
    fn merged(&self, hints: &[Hint]) -> Hint {
        let mut masks = hints.iter().filter_map(|hint| hint.nodes);
        let first = masks.next();
        let are_equal = masks.all(|mask| Some(mask) == first);
        let preferred = are_equal && hints.iter().all(|hint| hint.preferred);
        let masks = hints.iter().filter_map(|hint| hint.nodes);
        let common = masks.fold(self.nodes.all(), Mask::and);
        Hint { nodes: Some(common), preferred }
    }

    fn prefer(&self, current: Option<Hint>, candidate: Hint) -> Option<Hint> {
        let size = |hint: &Hint| hint.nodes.map(Mask::count).unwrap_or_default();
        if size(&candidate) == 0 {
            return current;
        }
        let Some(current) = current else {
            return Some(candidate);
        };
        let prefer_fitting = || self.prefer_fitting(current, candidate);
        Some(match (current.preferred, candidate.preferred) {
            (false, true) => candidate,
            (true, false) => current,
            (true, true) => prefer_fitting(),
            // Prefer the needed number of nodes, or else the closest to it.
            (false, false) => {
                let (now, then) = (size(&current), size(&candidate));
                if now > self.enough {
                    prefer_fitting()
                } else if now == self.enough {
                    if then == now { prefer_fitting() } else { current }
                } else if then > self.enough {
                    current
                } else if then == self.enough || then > now {
                    candidate
                } else if then < now {
                    current
                } else {
                    prefer_fitting()
                }
            }
        })
    }

    fn prefer_fitting(&self, current: Hint, candidate: Hint) -> Hint {
        let (Some(one), Some(other)) = (current.nodes, candidate.nodes) else {
            return current;
        };
        let takes_other = match self.closest {
            Some(distances) if one.count() == other.count() => {
                let (near, far) = (average(distances, one), average(distances, other));
                if near == far { other < one } else { far < near }
            }
            Some(_) | None => other.is_narrower_than(one),
        };
        if takes_other { candidate } else { current }
    }
}

/// The sum of the distances between the nodes of a set. It orders sets of equal size like the mean, without rounding.
fn average(distances: &Map<usize, Vec<u64>>, mask: Mask) -> u64 {
    let nodes = mask.nodes();
    let of = |from: &usize, to: &usize| {
        let from = distances.get(from);
        from.and_then(|from| from.get(*to)).copied().unwrap_or_default()
    };
    nodes.iter().flat_map(|from| nodes.iter().map(move |to| of(from, to))).sum()
}

impl Nodes {
    pub(crate) fn all(&self) -> Mask {
        Mask::of(self.ids.iter().copied())
    }
}

#[cfg(test)]
mod tests;
