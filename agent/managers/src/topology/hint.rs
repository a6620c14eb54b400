//! ◆ What a manager would like the memory nodes of a container to be. Pure.

use std::collections::BTreeMap;

use super::mask::Mask;

/// Memory nodes on which a request can be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// `None`: any.
    pub(crate) nodes: Option<Mask>,
    /// Whether there are no fewer nodes that would do.
    pub(crate) preferred: bool,
}

/// The hints for each resource: `None`: the resource does not care; none: it cannot be satisfied.
pub(crate) type Hints = BTreeMap<String, Option<Vec<Hint>>>;

/// Hints with those nodes, of which the smallest sets that `least` counts are preferred.
pub(crate) fn hints(masks: Vec<Mask>, least: usize) -> Vec<Hint> {
    let hint = |mask: Mask| Hint { nodes: Some(mask), preferred: mask.count() == least };
    masks.into_iter().map(hint).collect()
}
