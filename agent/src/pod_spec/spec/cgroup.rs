//! ◆ The cgroups of QoS classes and pods: their paths and values.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm: cgroup_manager_linux.go, qos_container_manager_linux.go,
//! pod_container_manager_linux.go, helpers_linux.go.

pub(crate) mod values;

use api::pod::{Pod, PodUid};
use api::qos::{QosClass, qos_class};
use api::quantity::Quantity;
use compact::Map;

use crate::node::{CgroupDriver, Node};
use crate::pod_spec::spec::amounts::{self, Amounts, HUGE_PAGES, Kind, get};
use crate::pod_spec::spec::cpu;

/// The cgroup that contains those of all pods.
const PODS: &str = "kubepods";

/// The path of the cgroup with these components, below the root of the hierarchy, in the form of a driver.
fn path(driver: CgroupDriver, components: &[&str]) -> String {
    match driver {
        CgroupDriver::Cgroupfs => format!("/{}", components.join("/")),
        CgroupDriver::Systemd => {
            // In the name of a slice, `-` separates the names of its parents: a-b.slice is in a.slice.
            let mut path = String::new();
            let mut slice = String::new();
            for component in components {
                if !slice.is_empty() {
                    slice.push('-');
                }
                slice.push_str(&component.replace('-', "_"));
                path = format!("{path}/{slice}.slice");
            }
            path
        }
    }
}

fn parts(root: &str) -> impl Iterator<Item = &str> {
    root.split('/').filter(|part| !part.is_empty())
}

fn below_root<'a>(node: &'a Node, further: &[&'a str]) -> Vec<&'a str> {
    parts(&node.cgroup_root).chain([PODS]).chain(further.iter().copied()).collect()
}

/// The configured root cgroup of pods, or the cgroup of all pods if that is the root of the hierarchy: the agent may create and
/// remove cgroups from there on.
#[must_use]
pub fn root_path(driver: CgroupDriver, root: &str) -> String {
    match parts(root).collect::<Vec<_>>().as_slice() {
        [] => path(driver, &[PODS]),
        components => path(driver, components),
    }
}

fn of_class(node: &Node, class: QosClass) -> Vec<&str> {
    match class {
        // The cgroups of Guaranteed pods are beside those of the other classes.
        QosClass::Guaranteed => below_root(node, &[]),
        QosClass::Burstable => below_root(node, &["burstable"]),
        QosClass::BestEffort => below_root(node, &["besteffort"]),
    }
}

/// The path of the cgroup of a QoS class; `None` on a node without such cgroups.
pub fn class_path(node: &Node, class: QosClass) -> Option<String> {
    node.cgroups_per_qos.then(|| path(node.cgroup_driver, &of_class(node, class)))
}

/// The path of a pod's cgroup; `None` on a node without such cgroups.
pub fn pod_path(pod: &Pod, node: &Node) -> Option<String> {
    let own = format!("pod{}", pod.uid());
    node.cgroups_per_qos.then(|| {
        let mut components = of_class(node, qos_class(pod));
        components.push(&own);
        path(node.cgroup_driver, &components)
    })
}

/// The possible paths of a pod's cgroup, for every class; none on a node without such cgroups.
pub(crate) fn paths_of(uid: &PodUid, node: &Node) -> Vec<String> {
    if !node.cgroups_per_qos {
        return Vec::new();
    }
    let own = format!("pod{uid}");
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
    let path_of = |class| {
        let mut components = of_class(node, class);
        components.push(&own);
        path(node.cgroup_driver, &components)
    };
    classes.into_iter().map(path_of).collect()
}

/// The values of a pod's cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    /// CPU shares (cgroup v1 scale); [`cpu::weight`] has the value for cgroup v2.
    pub cpu_shares: i64,
    /// CFS quota in microseconds, 0 or -1 for no limit, and period; `None`: not set.
    pub cpu_quota: Option<(i64, i64)>,
    /// Memory limit in bytes, 0 for none; `None`: not set.
    pub memory: Option<i64>,
    /// Limits of huge pages in bytes, by page size in bytes.
    pub hugepages: Map<i64, i64>,
}

/// Annotation of sandboxes: which of the sandbox's resources limit the pod as a whole (docs/cri.md).
pub(crate) const LIMITS_ANNOTATION: &str = "crib.local/pod-limits";

/// The annotation that requests crib's runtime to limit a pod in the cgroup that it creates, as a kubelet does in its own; `None`
/// if nothing limits the pod as a whole.
pub(crate) fn limits_annotation(pod: &Pod, node: &Node) -> Option<String> {
    let cgroup = pod_cgroup(pod, node);
    let cpu = cgroup.cpu_quota.is_some_and(|(quota, _)| quota > 0);
    let memory = cgroup.memory.is_some_and(|limit| limit > 0);
    let named = [("cpu", cpu), ("memory", memory)];
    let names: Vec<&str> = named.iter().filter(|it| it.1).map(|it| it.0).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Annotation of sandboxes: the pod's QoS class (docs/cri.md).
pub(crate) const CLASS_ANNOTATION: &str = "crib.local/qos-class";

/// The annotation that requests crib's runtime to set the weights of the cgroups of a pod and its QoS class, as a kubelet does in
/// its own; `None` on a node without such cgroups.
pub(crate) fn class_annotation(pod: &Pod, node: &Node) -> Option<&'static str> {
    node.cgroups_per_qos.then(|| qos_class(pod).as_str())
}

/// Computes the values of a pod's cgroup.
pub fn pod_cgroup(pod: &Pod, node: &Node) -> PodCgroup {
    let requests = amounts::with_overhead(pod, Kind::Requests);
    let limits = amounts::with_overhead(pod, Kind::Limits);
    let hugepages = hugepages(&requests);
    let class = qos_class(pod);
    if class == QosClass::BestEffort {
        return PodCgroup { cpu_shares: cpu::shares(0), hugepages, ..PodCgroup::default() };
    }
    let milli = get(&limits, "cpu").milli_value();
    let quota = if node.cpu_quota { cpu::quota(milli, node.cpu_quota_period) } else { -1 };
    let set = |name: &str| class == QosClass::Guaranteed || all_limited(pod, name);
    PodCgroup {
        cpu_shares: cpu::shares(get(&requests, "cpu").milli_value()),
        cpu_quota: set("cpu").then_some((quota, node.cpu_quota_period)),
        memory: set("memory").then(|| get(&limits, "memory").value()),
        hugepages,
    }
}

/// Whether the pod as a whole, or each of its containers, has a limit, so that the sum is a limit.
fn all_limited(pod: &Pod, name: &str) -> bool {
    let limited = |amounts: &Amounts| !get(amounts, name).is_zero();
    let (apps, inits) = amounts::steps(pod, Kind::Limits);
    limited(&amounts::pod_level(pod, Kind::Limits)) || apps.iter().chain(&inits).all(limited)
}

fn hugepages(requests: &Amounts) -> Map<i64, i64> {
    let mut limits = Map::new();
    for (name, amount) in requests {
        let Some(size) = name.strip_prefix(HUGE_PAGES) else {
            continue;
        };
        let size = Quantity::parse(size).unwrap_or(Quantity::ZERO).value();
        let limit: &mut i64 = limits.entry(size).or_default();
        *limit = limit.saturating_add(amount.value());
    }
    limits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[rstest]
    #[case(CgroupDriver::Cgroupfs, "/", "/kubepods/besteffort/poda-b")]
    #[case(CgroupDriver::Cgroupfs, "/x/y-z", "/x/y-z/kubepods/besteffort/poda-b")]
    #[case(
        CgroupDriver::Systemd,
        "/",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"
    )]
    #[case(
        CgroupDriver::Systemd,
        "/x",
        "/x.slice/x-kubepods.slice/x-kubepods-besteffort.slice/x-kubepods-besteffort-poda_b.slice"
    )]
    fn pod_path_follows_driver_and_root(
        #[case] driver: CgroupDriver,
        #[case] root: &str,
        #[case] path: &str,
    ) {
        let pod = fixtures::pod(json!({"metadata": {"uid": "a-b"}, "spec": {"containers": []}}));
        let mut node = Node::new("n", "/r", "/l");
        (node.cgroup_driver, node.cgroup_root) = (driver, root.to_owned());
        assert_eq!(pod_path(&pod, &node), None, "a node without cgroups per class");
        assert_eq!(paths_of(pod.uid(), &node), [""; 0]);
        node.cgroups_per_qos = true;
        assert_eq!(pod_path(&pod, &node).as_deref(), Some(path));
        let paths = paths_of(pod.uid(), &node);
        assert_eq!((paths.len(), paths.iter().any(|one| one == path)), (3, true), "{paths:?}");
    }

    #[rstest]
    #[case(CgroupDriver::Cgroupfs, "/", "/kubepods")]
    #[case(CgroupDriver::Cgroupfs, "/crib-a", "/crib-a")]
    #[case(CgroupDriver::Systemd, "/", "/kubepods.slice")]
    #[case(CgroupDriver::Systemd, "/crib-a", "/crib_a.slice")]
    fn root_follows_driver(#[case] driver: CgroupDriver, #[case] root: &str, #[case] path: &str) {
        assert_eq!(root_path(driver, root), path);
    }
}
