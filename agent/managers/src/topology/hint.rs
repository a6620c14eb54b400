//! ◆ Sets of NUMA nodes, and topology hints of managers. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/topologymanager/bitmask/bitmask.go: nodes have the numbers 0 to 63.

use std::fmt;

use compact::Map;

/// A set of NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mask(u64);

impl Mask {
    /// The set of these nodes; node numbers above 63 are omitted.
    pub(crate) fn of(nodes: impl IntoIterator<Item = usize>) -> Self {
        let bit = |node: usize| u32::try_from(node).ok().and_then(|node| 1_u64.checked_shl(node));
        Self(nodes.into_iter().filter_map(bit).fold(0, |all, bit| all | bit))
    }

    pub(crate) fn has(self, node: usize) -> bool {
        Self::of([node]).0 & self.0 != 0
    }

    /// Whether the set contains one of these nodes, whose numbers may be negative.
    pub(crate) fn has_any(self, nodes: &[i64]) -> bool {
        nodes.iter().any(|node| usize::try_from(*node).is_ok_and(|node| self.has(node)))
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn count(self) -> usize {
        usize::try_from(self.0.count_ones()).unwrap_or(usize::MAX)
    }

    /// The nodes, in ascending order.
    pub(crate) fn nodes(self) -> Vec<usize> {
        (0..64).filter(|node| self.has(*node)).collect()
    }

    /// Whether it has fewer nodes, or as many with lower numbers.
    pub(crate) fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self) < (other.count(), other)
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes().iter().map(usize::to_string).collect();
        f.write_str(&nodes.join(","))
    }
}

/// All non-empty subsets of these nodes, sorted by size, then by node order.
pub(crate) fn subsets(nodes: &[usize]) -> Vec<Mask> {
    let mut all = Vec::new();
    for size in 1..=nodes.len() {
        combinations(nodes, size, |combination| {
            all.push(Mask::of(combination.iter().copied()));
            true
        });
    }
    all
}

/// Calls `visit` with each combination of `size` items, in order, until it returns false.
pub(crate) fn combinations(items: &[usize], size: usize, mut visit: impl FnMut(&[usize]) -> bool) {
    if size == 0 || size > items.len() {
        return;
    }
    let mut chosen: Vec<usize> = (0..size).collect();
    let mut combination: Vec<usize> = items[..size].to_vec();
    loop {
        if !visit(&combination) {
            return;
        }
        // Advance the last position that can move, and reset those after it.
        let last = items.len() - size;
        let Some(position) = (0..size).rev().find(|position| chosen[*position] < last + position)
        else {
            return;
        };
        let from = chosen[position] + 1;
        for (offset, at) in (position..size).enumerate() {
            chosen[at] = from + offset;
            combination[at] = items[from + offset];
        }
    }
}

/// NUMA nodes that can satisfy a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// `None`: any nodes.
    pub(crate) nodes: Option<Mask>,
    /// Whether no smaller set of nodes could satisfy the request.
    pub(crate) preferred: bool,
}

/// The hints for each resource. `None`: no preference; empty: the request cannot be satisfied.
pub(crate) type Hints = Map<String, Option<Vec<Hint>>>;

/// Hints for these sets. Those with `least` nodes are preferred.
pub(crate) fn hints(masks: Vec<Mask>, least: usize) -> Vec<Hint> {
    let hint = |mask: Mask| Hint { nodes: Some(mask), preferred: mask.count() == least };
    masks.into_iter().map(hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_grow_and_keep_the_order_of_the_nodes() {
        let all: Vec<Vec<usize>> = subsets(&[0, 1, 3]).into_iter().map(Mask::nodes).collect();
        let expected =
            [vec![0], vec![1], vec![3], vec![0, 1], vec![0, 3], vec![1, 3], vec![0, 1, 3]];
        assert_eq!(all, expected);
        assert_eq!(subsets(&[]), []);
    }

    #[test]
    fn narrower_sets_have_fewer_or_lower_nodes() {
        let mask = |nodes: &[usize]| Mask::of(nodes.iter().copied());
        assert!(mask(&[7]).is_narrower_than(mask(&[0, 1])));
        assert!(mask(&[0, 2]).is_narrower_than(mask(&[1, 2])));
        assert!(!mask(&[1]).is_narrower_than(mask(&[1])));
    }

    #[test]
    fn nodes_that_no_set_can_have_are_in_none() {
        assert_eq!(Mask::of([64, 1000]), Mask::default());
        assert!(!Mask::of([3]).has_any(&[-1, 64]) && Mask::of([3]).has_any(&[-1, 3]));
    }
}
