//! ◆ Converts the CRI's limits to cgroup limits. Pure.

use cri::v1::{LinuxContainerResources, PodSandboxConfig};
use keeper::kernel::cgroup::{InvalidCgroup, Limits};

use super::{Invalid, invalid};

impl From<InvalidCgroup> for Invalid {
    fn from(wrong: InvalidCgroup) -> Self {
        Self(wrong.0)
    }
}

/// A container's limits, validated.
pub(crate) fn limits(resources: Option<&LinuxContainerResources>) -> Result<Limits, Invalid> {
    let Some(resources) = resources else {
        return Ok(Limits::default());
    };
    let pages = resources.hugepage_limits.iter();
    let limits = Limits {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory: resources.memory_limit_in_bytes,
        memory_and_swap: resources.memory_swap_limit_in_bytes,
        cpus: resources.cpuset_cpus.clone(),
        mems: resources.cpuset_mems.clone(),
        hugepages: pages.map(|p| (p.page_size.clone(), p.limit)).collect(),
        unified: resources.unified.clone().into_iter().collect(),
    };
    limits.check()?;
    Ok(limits)
}

/// Annotation of sandboxes: the sandbox's resources that limit the pod as a whole: `cpu`, `memory`, or both with a comma between
/// them (docs/cri.md).
const POD_LIMITS: &str = "crib.local/pod-limits";

/// The limits of a pod's own cgroup, if the runtime creates it: the CPU weight of its processes, and the limits that its
/// annotation names.
///
/// A kubelet sums the limits of the containers that have one (CRI v1, LinuxPodSandboxConfig.resources), so the sum is not a limit
/// of a pod with an unlimited container. The kubelet sets the pod's limits in the cgroup that it creates itself and names as
/// `cgroup_parent`.
pub(crate) fn pod_limits(config: &PodSandboxConfig) -> Result<Limits, Invalid> {
    let linux = config.linux.as_ref();
    let resources = limits(linux.and_then(|l| l.resources.as_ref()))?;
    let overhead = limits(linux.and_then(|l| l.overhead.as_ref()))?;
    let mut whole = Limits {
        cpu_shares: resources.cpu_shares.saturating_add(overhead.cpu_shares),
        ..Limits::default()
    };
    let named = config.annotations.get(POD_LIMITS);
    for name in named.into_iter().flat_map(|names| names.split(',')) {
        match name {
            "cpu" => {
                whole.cpu_quota = sum(resources.cpu_quota, overhead.cpu_quota);
                whole.cpu_period = resources.cpu_period;
            }
            "memory" => {
                whole.memory = sum(resources.memory, overhead.memory);
                // Swap is limited per container.
                whole.memory_and_swap = -i64::from(whole.memory > 0);
            }
            other => {
                return invalid(format!(
                    "annotation {POD_LIMITS}: expected cpu, memory or cpu,memory, not {other:?}"
                ));
            }
        }
    }
    Ok(whole)
}

/// A limit plus the pod's overhead. A negative limit means none, and zero means unchanged.
fn sum(limit: i64, overhead: i64) -> i64 {
    match limit {
        ..=0 => limit,
        1.. => limit.saturating_add(overhead.max(0)),
    }
}

/// Applies an update to the resources of a container or a pod: unset fields keep their values.
pub(crate) fn updated(
    old: Option<&LinuxContainerResources>,
    update: &LinuxContainerResources,
) -> LinuxContainerResources {
    let mut new = old.cloned().unwrap_or_default();
    let number = |old: &mut i64, new: i64| {
        if new != 0 {
            *old = new;
        }
    };
    number(&mut new.cpu_period, update.cpu_period);
    number(&mut new.cpu_quota, update.cpu_quota);
    number(&mut new.cpu_shares, update.cpu_shares);
    number(&mut new.memory_limit_in_bytes, update.memory_limit_in_bytes);
    number(&mut new.memory_swap_limit_in_bytes, update.memory_swap_limit_in_bytes);
    // A limit of memory and swap together requires a memory limit, so both are removed together, as in runc.
    if update.memory_limit_in_bytes == -1
        && update.memory_swap_limit_in_bytes == 0
        && new.memory_swap_limit_in_bytes > 0
    {
        new.memory_swap_limit_in_bytes = -1;
    }
    number(&mut new.oom_score_adj, update.oom_score_adj);
    let text = |old: &mut String, new: &str| {
        if !new.is_empty() {
            new.clone_into(old);
        }
    };
    text(&mut new.cpuset_cpus, &update.cpuset_cpus);
    text(&mut new.cpuset_mems, &update.cpuset_mems);
    for page in &update.hugepage_limits {
        new.hugepage_limits.retain(|old| old.page_size != page.page_size);
        new.hugepage_limits.push(page.clone());
    }
    new.unified.extend(update.unified.clone());
    new
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cri::v1::{HugepageLimit, LinuxPodSandboxConfig};
    use rstest::rstest;

    use super::*;

    #[test]
    fn update_keeps_unset_limits() {
        let page = |size: &str, limit| HugepageLimit { page_size: size.to_owned(), limit };
        let old = LinuxContainerResources {
            cpu_shares: 512,
            memory_limit_in_bytes: 64 << 20,
            cpuset_cpus: "0".into(),
            hugepage_limits: vec![page("2MB", 0), page("1GB", 1)],
            ..Default::default()
        };
        let update = LinuxContainerResources {
            memory_limit_in_bytes: 32 << 20,
            hugepage_limits: vec![page("2MB", 7)],
            ..Default::default()
        };
        let new = updated(Some(&old), &update);
        assert_eq!((new.cpu_shares, &*new.cpuset_cpus), (512, "0"));
        assert_eq!(new.memory_limit_in_bytes, 32 << 20);
        assert_eq!(new.hugepage_limits, [page("1GB", 1), page("2MB", 7)]);
        assert_eq!(updated(Some(&old), &Default::default()), old);
        assert_eq!(updated(None, &update), update);
    }

    #[rstest::rstest]
    #[case::with_swap_limit(128 << 20, -1)]
    #[case::without(0, 0)]
    fn update_to_unlimited_memory_removes_swap_limit(#[case] old: i64, #[case] new: i64) {
        let old = LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            memory_swap_limit_in_bytes: old,
            ..Default::default()
        };
        let update = LinuxContainerResources { memory_limit_in_bytes: -1, ..Default::default() };
        let updated = updated(Some(&old), &update);
        assert_eq!(updated.memory_limit_in_bytes, -1);
        assert_eq!(updated.memory_swap_limit_in_bytes, new);
        assert!(limits(Some(&updated)).is_ok());
    }

    #[test]
    fn pod_has_cpu_weight_and_no_limit() {
        let shares = |cpu_shares| {
            Some(LinuxContainerResources {
                cpu_shares,
                memory_limit_in_bytes: 64 << 20,
                cpu_quota: 1000,
                ..Default::default()
            })
        };
        let config = PodSandboxConfig {
            linux: Some(LinuxPodSandboxConfig {
                resources: shares(512),
                overhead: shares(10),
                ..Default::default()
            }),
            ..Default::default()
        };
        let expected = Limits { cpu_shares: 522, ..Limits::default() };
        assert_eq!(pod_limits(&config).unwrap(), expected);
        assert_eq!(pod_limits(&PodSandboxConfig::default()).unwrap(), Limits::default());
    }

    #[rstest]
    #[case("memory", 0, (192 << 20, -1))]
    #[case("cpu", 3000, (0, 0))]
    #[case("cpu,memory", 3000, (192 << 20, -1))]
    fn annotation_names_what_limits_the_pod(
        #[case] names: &str,
        #[case] quota: i64,
        #[case] memory: (i64, i64),
    ) {
        let resources = |memory: i64, cpu_quota| LinuxContainerResources {
            cpu_period: 100_000,
            memory_limit_in_bytes: memory << 20,
            cpu_quota,
            ..Default::default()
        };
        let linux = LinuxPodSandboxConfig {
            resources: Some(resources(128, 2000)),
            overhead: Some(resources(64, 1000)),
            ..Default::default()
        };
        let annotations = [(POD_LIMITS.to_owned(), names.to_owned())].into();
        let mut config = PodSandboxConfig { linux: Some(linux), annotations, ..Default::default() };
        let found = pod_limits(&config).unwrap();
        assert_eq!(found.cpu_quota, quota);
        assert_eq!((found.memory, found.memory_and_swap), memory);
        // Without resources, the annotation sets no limits.
        config.linux = None;
        assert_eq!(pod_limits(&config).unwrap(), Limits::default());
        config.annotations = [(POD_LIMITS.to_owned(), "cpu,disk".to_owned())].into();
        assert!(pod_limits(&config).is_err());
    }
}
