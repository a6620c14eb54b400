//! ◆ NUMA affinity of devices: which devices are near the chosen nodes, and the topology hints of a request. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager/manager.go filterByAffinity, topology_hints.go.

use compact::{Map, Set};

use crate::topology::hint::{Hint, Mask, hints, subsets};

/// Device IDs.
pub(crate) type Ids = Set<String>;

/// A device, as reported by its plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) healthy: bool,
    /// The NUMA nodes that it is near to; empty if irrelevant or unknown.
    pub(crate) nodes: Vec<i64>,
}

/// Free devices by affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Affinity {
    /// Near the chosen nodes.
    pub(super) near: Ids,
    /// Near other nodes.
    pub(super) far: Ids,
    /// Without affinity, or no nodes are chosen.
    pub(super) none: Ids,
}

/// Sorts the available devices by affinity. The kubelet also groups a device near several nodes by the first of them that was
/// chosen.
pub(super) fn by_affinity(
    devices: &Map<String, Device>,
    available: &Ids,
    chosen: Option<Mask>,
) -> Affinity {
    let Some(chosen) = chosen.filter(|_| is_aligned(devices)) else {
        return Affinity { none: available.clone(), ..Affinity::default() };
    };
    let mut affinity = Affinity::default();
    for id in available {
        let nodes = devices.get(id).map_or(&[][..], |device| &device.nodes);
        let group = match nodes {
            [] => &mut affinity.none,
            nodes if chosen.has_any(nodes) => &mut affinity.near,
            _ => &mut affinity.far,
        };
        group.insert(id.clone());
    }
    affinity
}

/// Whether any device of the resource has NUMA affinity.
pub(crate) fn is_aligned(devices: &Map<String, Device>) -> bool {
    devices.values().any(|device| !device.nodes.is_empty())
}

/// The sets of nodes that provide `count` of these devices, from the available ones and all reusable ones.
pub(crate) fn device_hints(
    devices: &Map<String, Device>,
    available: &Ids,
    reusable: &Ids,
    count: usize,
    machine: &[usize],
) -> Vec<Hint> {
    let nodes = |id: &String| devices.get(id).map_or(&[][..], |device| &device.nodes);
    let with_devices: Vec<usize> = machine
        .iter()
        .copied()
        .filter(|node| devices.values().any(|device| Mask::of([*node]).has_any(&device.nodes)))
        .collect();
    let machine = if with_devices.is_empty() { machine } else { &with_devices };
    let mut least = machine.len();
    let mut masks = Vec::new();
    for mask in subsets(machine) {
        let of_mask = devices.values().filter(|device| mask.has_any(&device.nodes)).count();
        if of_mask >= count {
            least = least.min(mask.count());
        }
        let placed = || reusable.iter().filter(|id| !nodes(id).is_empty());
        if !placed().all(|id| mask.has_any(nodes(id))) {
            continue;
        }
        let near = available.iter().filter(|id| mask.has_any(nodes(id))).count();
        if placed().count() + near >= count {
            masks.push(mask);
        }
    }
    hints(masks, least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Ids {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn devices(devices: &[(&str, &[i64])]) -> Map<String, Device> {
        let device = |nodes: &[i64]| Device { healthy: true, nodes: nodes.to_vec() };
        devices.iter().map(|(id, nodes)| ((*id).to_owned(), device(nodes))).collect()
    }

    #[test]
    fn devices_are_near_far_or_nowhere() {
        let all = devices(&[("a", &[0]), ("b", &[1]), ("c", &[]), ("d", &[0, 1])]);
        let available = ids(&["a", "b", "c", "d"]);
        let chosen = by_affinity(&all, &available, Some(Mask::of([1])));
        assert_eq!(
            chosen,
            Affinity { near: ids(&["b", "d"]), far: ids(&["a"]), none: ids(&["c"]) }
        );
        let any = by_affinity(&all, &available, None);
        assert_eq!(any, Affinity { none: available, ..Affinity::default() });
    }

    fn shown(hints: &[Hint]) -> Vec<(String, bool)> {
        let shown = |hint: &Hint| {
            (hint.nodes.map(|nodes| nodes.to_string()).unwrap_or_default(), hint.preferred)
        };
        hints.iter().map(shown).collect()
    }

    #[test]
    fn smallest_sets_of_nodes_are_preferred_even_if_they_are_full() {
        let all = devices(&[("a", &[0]), ("b", &[0]), ("c", &[1]), ("d", &[1])]);
        let hints = device_hints(&all, &ids(&["b", "c"]), &Ids::new(), 2, &[0, 1]);
        assert_eq!(shown(&hints), [("0,1".to_owned(), false)], "one node has two, but not free");
        let hints = device_hints(&all, &ids(&["b", "c", "d"]), &Ids::new(), 2, &[0, 1]);
        assert_eq!(shown(&hints), [("1".to_owned(), true), ("0,1".to_owned(), false)]);
    }

    #[test]
    fn hints_include_reusable_devices() {
        let all = devices(&[("a", &[0]), ("b", &[1]), ("c", &[1])]);
        let hints = device_hints(&all, &ids(&["b", "c"]), &ids(&["a"]), 1, &[0, 1, 2]);
        assert_eq!(shown(&hints), [("0".to_owned(), true), ("0,1".to_owned(), false)]);
    }
}
