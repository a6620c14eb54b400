//! ◆ The values of the cgroups that the agent creates: of pods, of QoS classes, of all pods, and of reserved resources.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm: helpers_linux.go, qos_container_manager_linux.go, node_container_manager_linux.go,
//! cgroup_manager_linux.go maybeSetHugetlb.

use std::collections::BTreeMap;

use api::pod::Pod;
use api::qos::{QosClass, qos_class};
use api::quantity::Quantity;
use compact::Map;

use super::{PodCgroup, pod_cgroup};
use crate::machine::cgroups::CgroupValues;
use crate::node::{CgroupVersion, MemoryReservation, Node, ProtectedMemory};
use crate::pod_spec::spec::amounts::{HUGE_PAGES, Kind, get, with_overhead};
use crate::pod_spec::spec::{cpu, page_size_name};

/// A limit that no machine reaches, which a kubelet sets for the huge pages of classes.
const UNBOUNDED: i64 = 1 << 62;

/// The values with which a pod's cgroup is created. `pids`: the maximum number of processes of a pod.
pub(crate) fn of_pod(pod: &Pod, node: &Node, pids: Option<i64>) -> CgroupValues {
    let PodCgroup { cpu_shares, cpu_quota, memory, hugepages } = pod_cgroup(pod, node);
    let named = hugepages.iter().filter_map(|(size, limit)| Some((page_size_name(*size)?, *limit)));
    CgroupValues {
        cpu_shares: Some(cpu_shares),
        cpu_quota,
        memory: memory.filter(|limit| *limit > 0),
        pids: pids.filter(|most| *most > 0),
        huge_pages: huge_pages(&named.collect(), node),
        unified: protected_memory(pod, node),
    }
}

/// The limits of huge pages of all sizes of the machine: 0 for a size without a limit in `named`.
fn huge_pages(named: &Map<String, i64>, node: &Node) -> Map<String, i64> {
    let limit = |size: &String| (size.clone(), named.get(size).copied().unwrap_or_default());
    node.hugepage_sizes.iter().map(limit).collect()
}

/// The memory protection of a pod, if the node protects memory.
fn protected_memory(pod: &Pod, node: &Node) -> BTreeMap<String, String> {
    let request = get(&with_overhead(pod, Kind::Requests), "memory").value();
    if !protects_memory(node) || request <= 0 {
        return BTreeMap::new();
    }
    let file = match qos_class(pod) {
        QosClass::Guaranteed => "memory.min",
        QosClass::Burstable | QosClass::BestEffort => "memory.low",
    };
    BTreeMap::from([(file.to_owned(), request.to_string())])
}

fn has_memory_qos(node: &Node) -> bool {
    node.memory_qos.is_some() && node.cgroup_version == CgroupVersion::V2
}

fn protects_memory(node: &Node) -> bool {
    let reservation = node.memory_qos.map(|qos| qos.reservation);
    has_memory_qos(node) && reservation == Some(MemoryReservation::TieredReservation)
}

/// The values of the cgroups of QoS classes; Guaranteed is the cgroup of all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassValues {
    pub(crate) guaranteed: CgroupValues,
    pub(crate) burstable: CgroupValues,
    pub(crate) best_effort: CgroupValues,
    /// The memory that is protected for the pods themselves; `None`: the node has no Memory QoS.
    pub(crate) protected_memory: Option<ProtectedMemory>,
}

/// The values of the classes, computed from the active pods. `reserved`: the percentage of the memory requests of a class that is
/// reserved against the classes below it.
pub(crate) fn of_classes<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    node: &Node,
    reserved: Option<i64>,
) -> ClassValues {
    let (mut milli, mut burstable, mut guaranteed) = (0_i64, 0_i64, 0_i64);
    for pod in pods {
        let requests = || with_overhead(pod, Kind::Requests);
        match qos_class(pod) {
            QosClass::BestEffort => {}
            QosClass::Guaranteed => {
                guaranteed = guaranteed.saturating_add(get(&requests(), "memory").value());
            }
            QosClass::Burstable => {
                let requests = requests();
                milli = milli.saturating_add(get(&requests, "cpu").milli_value());
                burstable = burstable.saturating_add(get(&requests, "memory").value());
            }
        }
    }
    let unbounded = |size: &String| (size.clone(), UNBOUNDED);
    let unbounded: Map<String, i64> = node.hugepage_sizes.iter().map(unbounded).collect();
    let mut values = ClassValues {
        guaranteed: CgroupValues::default(),
        burstable: CgroupValues {
            cpu_shares: Some(cpu::shares(milli)),
            huge_pages: unbounded.clone(),
            ..CgroupValues::default()
        },
        best_effort: CgroupValues {
            cpu_shares: Some(cpu::shares(0)),
            huge_pages: unbounded,
            ..CgroupValues::default()
        },
        protected_memory: None,
    };
    if let (Some(percent), Some(all)) = (reserved, allocatable_memory(node)) {
        let share = |requests: i64| requests / 100 * percent + requests % 100 * percent / 100;
        let of_burstable = all.saturating_sub(share(guaranteed));
        values.burstable.memory = Some(of_burstable.max(0));
        values.best_effort.memory = Some(of_burstable.saturating_sub(share(burstable)).max(0));
    }
    if has_memory_qos(node) {
        let kept = match protects_memory(node) {
            true => ProtectedMemory { guaranteed, burstable },
            false => ProtectedMemory::default(),
        };
        let file = |name: &str, value: i64| BTreeMap::from([(name.to_owned(), value.to_string())]);
        // Memory that is protected for pods must also be protected for their parents.
        let all = kept.guaranteed.saturating_add(kept.burstable);
        values.guaranteed.unified = file("memory.min", all);
        values.burstable.unified = file("memory.low", kept.burstable);
        values.protected_memory = Some(kept);
    }
    values
}

fn allocatable_memory(node: &Node) -> Option<i64> {
    let memory = Quantity::parse(node.allocatable.get("memory")?).ok()?.value();
    (memory > 0).then_some(memory)
}

/// The values for a list of resources, by name: of all pods, or of reserved resources. `pid` is the number of processes.
/// `compressible`: only compressible resources (CPU).
pub(crate) fn of_resources(
    list: &BTreeMap<String, String>,
    node: &Node,
    compressible: bool,
) -> CgroupValues {
    let amount = |name: &str| list.get(name).and_then(|text| Quantity::parse(text).ok());
    let cpu_shares = amount("cpu").map(|cpu| cpu::shares(cpu.milli_value()));
    if compressible {
        return CgroupValues { cpu_shares, ..CgroupValues::default() };
    }
    let sizes = list.iter().filter_map(|(name, text)| {
        let size = Quantity::parse(name.strip_prefix(HUGE_PAGES)?).ok()?.value();
        Some((page_size_name(size)?, Quantity::parse(text).ok()?.value()))
    });
    CgroupValues {
        cpu_shares,
        cpu_quota: None,
        memory: amount("memory").map(|memory| memory.value()),
        pids: amount("pid").map(|pids| pids.value()),
        huge_pages: huge_pages(&sizes.collect(), node),
        unified: BTreeMap::new(),
    }
}

/// A capacity less each list of reserved resources, and never less than zero. Unlike allocatable resources, it includes the
/// eviction thresholds and the memory of huge pages.
pub(crate) fn unreserved(
    capacity: &BTreeMap<String, String>,
    reserved: &[&BTreeMap<String, String>],
) -> BTreeMap<String, String> {
    let left = |name: &str, text: &str| {
        let mut left = Quantity::parse(text).ok()?;
        for amount in reserved.iter().filter_map(|list| list.get(name)) {
            left = left.minus(Quantity::parse(amount).ok()?);
        }
        Some(left.max(Quantity::ZERO).to_string())
    };
    let all = capacity.iter();
    all.map(|(name, text)| (name.clone(), left(name, text).unwrap_or_else(|| text.clone())))
        .collect()
}

/// The uid of the pod whose cgroup has this name within its class. The name of a slice begins with those of its parents, and has
/// `_` for the `-` of a uid.
pub(crate) fn uid_of(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        None => name.strip_prefix("pod")?.to_owned(),
        Some(slice) => slice.rsplit('-').next()?.strip_prefix("pod")?.replace('_', "-"),
    };
    Some(uid).filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::node::MemoryQos;

    const MI: i64 = 1 << 20;

    fn pod(resources: Value) -> Pod {
        fixtures::pod(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
        }))
    }

    fn guaranteed(memory: &str) -> Pod {
        let both = json!({"cpu": "500m", "memory": memory});
        pod(json!({"requests": both, "limits": both}))
    }

    fn burstable(cpu: &str, memory: &str) -> Pod {
        pod(json!({"requests": {"cpu": cpu, "memory": memory}}))
    }

    fn node() -> Node {
        let mut node = Node::new("n", "/r", "/l");
        node.hugepage_sizes = vec!["2MB".to_owned()];
        node.allocatable = fixtures_list(&[("memory", "1000Mi")]);
        node
    }

    fn fixtures_list(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    fn with_memory_qos(reservation: MemoryReservation) -> Node {
        let mut node = node();
        let throttling_factor = MemoryQos::THROTTLING_FACTOR;
        node.memory_qos = Some(MemoryQos { throttling_factor, reservation });
        node
    }

    fn text(values: &CgroupValues) -> String {
        let CgroupValues { cpu_shares, cpu_quota, memory, pids, huge_pages, unified } = values;
        format!("{cpu_shares:?} {cpu_quota:?} {memory:?} {pids:?} {huge_pages:?} {unified:?}")
    }

    #[rstest]
    #[case::guaranteed(
        guaranteed("64Mi"),
        Some(10),
        "Some(512) Some((50000, 100000)) Some(67108864) Some(10) {\"2MB\": 0} {}"
    )]
    #[case::burstable(burstable("100m", "1Mi"), None, "Some(102) None None None {\"2MB\": 0} {}")]
    #[case::best_effort(pod(json!({})), Some(-1), "Some(2) None None None {\"2MB\": 0} {}")]
    #[case::huge_pages(
        pod(json!({"requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}})),
        None,
        "Some(1024) None None None {\"2MB\": 4194304} {}"
    )]
    fn pod_is_limited_as_by_a_kubelet(
        #[case] pod: Pod,
        #[case] pids: Option<i64>,
        #[case] expected: &str,
    ) {
        assert_eq!(text(&of_pod(&pod, &node(), pids)), expected);
    }

    #[test]
    fn memory_is_kept_for_pods_and_their_classes() {
        let node = with_memory_qos(MemoryReservation::TieredReservation);
        let pods = [guaranteed("4096"), burstable("1", "8192"), pod(json!({}))];
        let files = |pod: &Pod| of_pod(pod, &node, None).unified;
        assert_eq!(files(&pods[0]), fixtures_list(&[("memory.min", "4096")]));
        assert_eq!(files(&pods[1]), fixtures_list(&[("memory.low", "8192")]));
        assert_eq!(files(&pods[2]), BTreeMap::new());
        let classes = of_classes(pods.iter(), &node, None);
        assert_eq!(classes.guaranteed.unified, fixtures_list(&[("memory.min", "12288")]));
        assert_eq!(classes.burstable.unified, fixtures_list(&[("memory.low", "8192")]));
        assert_eq!(
            classes.protected_memory,
            Some(ProtectedMemory { guaranteed: 4096, burstable: 8192 })
        );
        let none = with_memory_qos(MemoryReservation::None);
        let classes = of_classes(pods.iter(), &none, None);
        assert_eq!(classes.guaranteed.unified, fixtures_list(&[("memory.min", "0")]));
        assert_eq!(classes.protected_memory, Some(ProtectedMemory::default()));
        assert_eq!(of_pod(&pods[0], &none, None).unified, BTreeMap::new());
        let mut v1 = node;
        v1.cgroup_version = CgroupVersion::V1;
        let classes = of_classes(pods.iter(), &v1, None);
        assert!(classes.guaranteed.is_empty() && classes.protected_memory.is_none());
    }

    #[rstest]
    #[case::none(&[], 2)]
    #[case::one(&["100m"], 102)]
    // A kubelet sums requests, not shares: shares of 102 and 102 would be less.
    #[case::sum(&["100m", "101m"], 205)]
    fn burstable_weight_is_the_sum_of_requests(#[case] cpus: &[&str], #[case] shares: i64) {
        let mut pods: Vec<Pod> = cpus.iter().map(|cpu| burstable(cpu, "1")).collect();
        pods.push(guaranteed("1Mi"));
        let classes = of_classes(pods.iter(), &node(), None);
        assert_eq!(classes.burstable.cpu_shares, Some(shares));
        assert_eq!(classes.best_effort.cpu_shares, Some(2));
        assert_eq!(classes.best_effort.huge_pages["2MB"], UNBOUNDED);
        assert!(classes.guaranteed.is_empty());
    }

    #[test]
    fn reserved_memory_is_kept_from_classes_below() {
        let pods = [guaranteed("100Mi"), burstable("1", "200Mi"), pod(json!({}))];
        let limits = |percent| {
            let classes = of_classes(pods.iter(), &node(), percent);
            let of = |values: CgroupValues| values.memory.map(|bytes| bytes / MI);
            (of(classes.burstable), of(classes.best_effort))
        };
        assert_eq!(limits(None), (None, None));
        assert_eq!(limits(Some(50)), (Some(950), Some(850)));
        assert_eq!(limits(Some(100)), (Some(900), Some(700)));
    }

    #[test]
    fn pods_cgroup_has_unreserved_resources() {
        let capacity = fixtures_list(&[
            ("cpu", "4"),
            ("memory", "8Gi"),
            ("pid", "1000"),
            ("hugepages-2Mi", "64Mi"),
            ("pods", "110"),
        ]);
        let system = fixtures_list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")]);
        let kube = fixtures_list(&[("cpu", "500m"), ("memory", "9Gi")]);
        let left = unreserved(&capacity, &[&system, &kube]);
        let values = of_resources(&left, &node(), false);
        let expected = "Some(3072) None Some(0) Some(900) {\"2MB\": 67108864} {}";
        assert_eq!(text(&values), expected);
        let compressible = of_resources(&system, &node(), true);
        assert_eq!(text(&compressible), "Some(512) None None None {} {}");
    }

    #[rstest]
    #[case("poda-b", Some("a-b"))]
    #[case("pod", None)]
    #[case("burstable", None)]
    #[case("kubepods-poda_b.slice", Some("a-b"))]
    #[case("kubepods-burstable-poda_b.slice", Some("a-b"))]
    #[case("kubepods-burstable.slice", None)]
    #[case("kubepods-pod.slice", None)]
    fn cgroup_names_identify_pods(#[case] name: &str, #[case] uid: Option<&str>) {
        assert_eq!(uid_of(name).as_deref(), uid);
    }
}
