//! ◆ The part of a node's capacity that pods may request.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/node_container_manager_linux.go (getNodeAllocatableAbsoluteImpl): the capacity less the
//! resources reserved for the system and for Kubernetes, and less the hard eviction thresholds of memory and of the node's file
//! system; pkg/kubelet/nodestatus/setters.go: memory less the huge pages, which the kernel takes from it.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use compact::Set;

use crate::local_node::eviction::Signal;
use crate::local_node::eviction::config::Threshold;

/// The highest CPU number in a list: more than any kernel supports.
const MOST_CPUS: u32 = 65_535;

/// The allocatable quantities by resource name: `capacity` less each list of `reserved`, and never less than zero. An amount that
/// is not a valid quantity stays unchanged.
#[must_use]
pub fn allocatable(
    capacity: &BTreeMap<String, String>,
    reserved: &[&BTreeMap<String, String>],
    thresholds: &[Threshold],
) -> BTreeMap<String, String> {
    let left = |name: &str, text: &str| {
        let mut left = Quantity::parse(text).ok()?;
        let whole = left.value();
        for amount in reserved.iter().filter_map(|list| list.get(name)) {
            left = left.minus(Quantity::parse(amount).ok()?);
        }
        for threshold in thresholds.iter().filter(|threshold| {
            threshold.grace_period.is_zero() && reserves(threshold.signal) == Some(name)
        }) {
            left = left.minus(threshold.value.amount(whole));
        }
        left = left.max(Quantity::ZERO);
        if name == "memory" {
            let huge_pages = capacity.iter().filter(|(name, _)| is_huge_pages(name));
            for (_, amount) in huge_pages {
                left = left.minus(Quantity::parse(amount).ok()?);
            }
        }
        Some(left.max(Quantity::ZERO).to_string())
    };
    capacity
        .iter()
        .map(|(name, text)| {
            let left = left(name, text).unwrap_or_else(|| text.clone());
            (name.clone(), left)
        })
        .collect()
}

/// The number of CPUs in a list such as `0-3,7` (cpuset(7)).
#[must_use]
pub fn cpus(list: &str) -> Option<usize> {
    let mut named = Set::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last || last > MOST_CPUS {
            return None;
        }
        named.extend(first..=last);
    }
    Some(named.len())
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// The resource that a hard threshold of this signal keeps free.
fn reserves(signal: Signal) -> Option<&'static str> {
    match signal {
        Signal::MemoryAvailable => Some("memory"),
        Signal::NodeFsAvailable => Some("ephemeral-storage"),
        Signal::AllocatableMemoryAvailable
        | Signal::ContainerFsAvailable
        | Signal::ContainerFsInodesFree
        | Signal::ImageFsAvailable
        | Signal::ImageFsInodesFree
        | Signal::NodeFsInodesFree
        | Signal::PidAvailable => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::local_node::eviction::config::EvictionConfig;

    #[rstest]
    #[case("0", Some(1))]
    #[case("0-3,7,3", Some(5))]
    #[case("3-1", None)]
    #[case("0-4294967295", None)]
    #[case("", None)]
    fn list_of_processors_is_counted(#[case] list: &str, #[case] expected: Option<usize>) {
        assert_eq!(cpus(list), expected);
    }

    fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
    }

    #[test]
    fn allocatable_excludes_reservations_and_hard_thresholds() {
        let capacity = amounts(&[
            ("cpu", "4"),
            ("memory", "1073741824"),
            ("ephemeral-storage", "1000"),
            ("pods", "110"),
        ]);
        let config = EvictionConfig {
            hard: amounts(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]),
            ..EvictionConfig::default()
        };
        let thresholds = config.thresholds().unwrap_or_default();
        let reserved = [
            &amounts(&[("cpu", "500m"), ("memory", "24Mi")]),
            &amounts(&[("cpu", "1"), ("gpu", "1")]),
        ];
        assert_eq!(
            allocatable(&capacity, &reserved, &thresholds),
            amounts(&[
                ("cpu", "2500m"),
                ("memory", "943718400"),
                ("ephemeral-storage", "900"),
                ("pods", "110")
            ])
        );
    }

    #[test]
    fn huge_pages_are_not_memory_for_pods() {
        let capacity = amounts(&[("memory", "1Gi"), ("hugepages-2Mi", "64Mi")]);
        let expected = amounts(&[("memory", "960Mi"), ("hugepages-2Mi", "64Mi")]);
        assert_eq!(allocatable(&capacity, &[], &[]), expected);
    }

    #[test]
    fn more_reserved_than_there_is_leaves_nothing() {
        let all = allocatable(&amounts(&[("cpu", "1")]), &[&amounts(&[("cpu", "2")])], &[]);
        assert_eq!(all, amounts(&[("cpu", "0")]));
    }
}
