//! ◆ Distributes CPUs evenly over NUMA nodes, if one node does not have enough. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/cpu_assignment.go takeByTopologyNUMADistributed (KEP-2902).

use compact::Map;

use super::layout::{Layout, Part};
use super::set::CpuSet;
use super::take::{Accumulator, Order, packed};
use crate::topology::hint::combinations;

/// The best combination of nodes so far. A lower score means that the remaining CPUs are more evenly distributed.
struct Best {
    score: f64,
    combination: Vec<usize>,
    /// The nodes from which the indivisible remainder is taken.
    remainder: Vec<usize>,
}

/// Takes `count` of the available CPUs in groups of `group`, evenly from as few NUMA nodes as possible.
///
/// # Errors
/// The kubelet's error if there are too few.
pub(crate) fn distributed(
    layout: &Layout,
    available: &CpuSet,
    count: usize,
    group: usize,
    order: Order,
) -> Result<CpuSet, String> {
    if !count.is_multiple_of(group) {
        return packed(layout, available, count, order, false);
    }
    let mut accumulator = Accumulator::new(layout, available, count, order);
    if let Some(done) = accumulator.begin(available, count)? {
        return Ok(done);
    }
    let nodes = accumulator.sorted(Part::Node);
    let (least, most) = range(layout, &accumulator, group);
    for size in least..=most {
        let Some(best) = best(&accumulator, &nodes, size, count, group) else {
            continue;
        };
        let share = (count / size / group) * group;
        for node in &best.combination {
            take(layout, &mut accumulator, *node, share, order);
        }
        let mut remainder = count - share * size;
        while remainder > 0 {
            for node in &best.remainder {
                if remainder == 0 {
                    break;
                }
                if accumulator.free.count(Part::Node, *node) >= group {
                    take(layout, &mut accumulator, *node, group, order);
                    remainder -= group;
                }
            }
        }
        return match accumulator.taken.len() == count {
            true => Ok(accumulator.taken),
            false => {
                let left = accumulator.needed;
                Err(format!("accounting error, not enough CPUs allocated, remaining: {left}"))
            }
        };
    }
    packed(layout, available, count, order, false)
}

fn take(
    layout: &Layout,
    accumulator: &mut Accumulator<'_>,
    node: usize,
    count: usize,
    order: Order,
) {
    let free = accumulator.free.of(Part::Node, node);
    if let Ok(cpus) = packed(layout, &free, count, order, false) {
        accumulator.take(&cpus);
    }
}

/// The minimum and maximum number of nodes to use.
fn range(layout: &Layout, accumulator: &Accumulator<'_>, group: usize) -> (usize, usize) {
    let groups = layout.cpus.0.len().div_ceil(group);
    let of_node = groups.div_ceil(layout.nodes.max(1));
    let needed = accumulator.needed.div_ceil(group);
    let available = accumulator.free.parts(Part::Node).len();
    (needed.div_ceil(of_node.max(1)), needed.min(available))
}

/// Reproduces an aliasing bug of the kubelet: it keeps the best combination in the buffer of the iteration, which overwrites its
/// end, from the position at which Go's `append` last reallocated. Of four items that is the last one, if the first three are the
/// same.
fn overwrite(kept: &mut [usize], next: &[usize]) {
    let made_room_at = |size: usize| size == 1 || (size - 1).is_power_of_two();
    let fixed = (1..=next.len()).rev().find(|size| made_room_at(*size)).unwrap_or_default();
    if kept.len() == next.len() && kept[..fixed] == next[..fixed] {
        kept.copy_from_slice(next);
    }
}

/// The combination of `size` nodes that leaves the other CPUs most evenly distributed.
fn best(
    accumulator: &Accumulator<'_>,
    nodes: &[usize],
    size: usize,
    count: usize,
    group: usize,
) -> Option<Best> {
    let free: Map<usize, usize> =
        nodes.iter().map(|node| (*node, accumulator.free.count(Part::Node, *node))).collect();
    let mut best: Option<Best> = None;
    combinations(nodes, size, |combination| {
        if let Some(best) = &mut best {
            overwrite(&mut best.combination, combination);
        }
        if best.as_ref().is_some_and(|best| best.score == 0.0) {
            return false;
        }
        let share = (count / size / group) * group;
        let total: usize = combination.iter().map(|node| free[node]).sum();
        let in_groups: usize = combination.iter().map(|node| free[node] / group * group).sum();
        let has_shares = combination.iter().all(|node| free[node] >= share);
        if total < count || in_groups < count || !has_shares {
            return true;
        }
        let mut left = free.clone();
        for node in combination {
            if let Some(left) = left.get_mut(node) {
                *left -= share;
            }
        }
        let Some((score, remainder)) = spread(&left, combination, count - share * size, group)
        else {
            return true;
        };
        if best.as_ref().is_none_or(|best| score < best.score) {
            best = Some(Best { score, combination: combination.to_vec(), remainder });
        }
        true
    });
    best
}

/// The lowest score after the remainder is taken from some of the nodes, with these nodes; `None` if no subset has enough.
fn spread(
    left: &Map<usize, usize>,
    combination: &[usize],
    remainder: usize,
    group: usize,
) -> Option<(f64, Vec<usize>)> {
    if remainder == 0 {
        return Some((deviation(left), Vec::new()));
    }
    let able: Vec<usize> = combination.iter().copied().filter(|node| left[node] >= group).collect();
    let mut best: Option<(f64, Vec<usize>)> = None;
    for size in (1..=able.len()).rev() {
        combinations(&able, size, |subset| {
            if let Some((_, best)) = &mut best {
                overwrite(best, subset);
            }
            if subset.iter().map(|node| left[node]).sum::<usize>() < remainder {
                return true;
            }
            let Some(after) = without(left, subset, remainder, group) else {
                return true;
            };
            let score = deviation(&after);
            if best.as_ref().is_none_or(|(known, _)| score < *known) {
                best = Some((score, subset.to_vec()));
            }
            true
        });
    }
    best
}

/// The remaining CPUs after groups were taken from the nodes round-robin; `None` if there are not enough whole groups.
fn without(
    left: &Map<usize, usize>,
    subset: &[usize],
    mut remainder: usize,
    group: usize,
) -> Option<Map<usize, usize>> {
    let mut left = left.clone();
    while remainder > 0 {
        let before = remainder;
        for node in subset {
            if remainder == 0 {
                break;
            }
            if let Some(left) = left.get_mut(node).filter(|left| **left >= group) {
                *left -= group;
                remainder -= group;
            }
        }
        if remainder == before {
            return None;
        }
    }
    Some(left)
}

/// The standard deviation, rounded to three decimals as in the kubelet.
fn deviation(left: &Map<usize, usize>) -> f64 {
    let rounded = |number: f64| (number * 1000.0).round() / 1000.0;
    #[expect(clippy::cast_precision_loss, reason = "machines have fewer processors than 2^52")]
    let numbers: Vec<f64> = left.values().map(|count| *count as f64).collect();
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    let count = numbers.len() as f64;
    let mean = rounded(numbers.iter().sum::<f64>() / count);
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    rounded((squares / count).sqrt())
}
