//! ◆ Whether a pod exceeds its local storage: sizes of emptyDirs, and limits of ephemeral-storage.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction/eviction_manager.go localStorageEviction.

use api::pod::Pod;
use api::totals::{self, Kind, amount};
use compact::Map;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

const STORAGE: &str = "ephemeral-storage";

/// A pod of at least this priority is critical: it is never evicted.
const CRITICAL: i32 = 2_000_000_000;

/// A pod's usage of local storage, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalUsage {
    /// Its volumes in the agent's directory, by name.
    pub(crate) volumes: Map<String, u64>,
    /// Logs and writable layers of its containers, by name.
    pub(crate) containers: Map<String, u64>,
}

impl LocalUsage {
    fn total(&self) -> u64 {
        self.volumes.values().chain(self.containers.values()).sum()
    }
}

/// Whether the pod has a limit, so that its usage must be measured.
pub(crate) fn is_limited(pod: &Pod) -> bool {
    let mut volumes = pod.spec().volumes.iter().flatten();
    let sized = volumes.any(|volume| {
        let empty = volume.empty_dir.as_ref();
        empty.is_some_and(|empty| empty.size_limit.is_some())
    });
    sized || totals::of_pod(pod.spec(), Kind::Limits).contains_key(STORAGE)
}

/// Why the pod is evicted, if it exceeds a limit: a kubelet's name of the signal, and the message. Static and critical pods are
/// never evicted.
pub(crate) fn exceeded(pod: &Pod, usage: &LocalUsage) -> Option<(&'static str, String)> {
    let priority = pod.spec().priority.unwrap_or_default();
    if pod.is_static() || priority >= CRITICAL {
        return None;
    }
    let of = |signal: &'static str| move |message: String| (signal, message);
    let volume = of_volumes(pod, usage).map(of("emptydirfs.limit"));
    let pod_limit = || of_pod(pod, usage).map(of("ephemeralpodfs.limit"));
    let container = || of_containers(pod, usage).map(of("ephemeralcontainerfs.limit"));
    volume.or_else(pod_limit).or_else(container)
}

fn is_over(used: u64, limit: &ApiQuantity) -> bool {
    let limit = u64::try_from(amount(limit).value()).unwrap_or_default();
    used > limit
}

fn of_volumes(pod: &Pod, usage: &LocalUsage) -> Option<String> {
    pod.spec().volumes.iter().flatten().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let used = *usage.volumes.get(&volume.name)?;
        let over = !amount(limit).is_zero() && is_over(used, limit);
        over.then(|| {
            format!(
                "Usage of EmptyDir volume {:?} exceeds the limit \"{}\". ",
                volume.name,
                amount(limit)
            )
        })
    })
}

fn of_pod(pod: &Pod, usage: &LocalUsage) -> Option<String> {
    let limits = totals::of_pod(pod.spec(), Kind::Limits);
    let limit = limits.get(STORAGE)?;
    let volumes = pod.spec().volumes.iter().flatten();
    let in_memory = volumes.filter(|volume| {
        let empty = volume.empty_dir.as_ref();
        empty.is_some_and(|empty| empty.medium.as_deref() == Some("Memory"))
    });
    let in_memory: u64 =
        in_memory.filter_map(|volume| usage.volumes.get(&volume.name).copied()).sum();
    // Volumes in memory are not ephemeral storage.
    is_over(usage.total().saturating_sub(in_memory), limit).then(|| {
        format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            amount(limit)
        )
    })
}

fn of_containers(pod: &Pod, usage: &LocalUsage) -> Option<String> {
    pod.containers().iter().find_map(|container| {
        let limit = Kind::Limits
            .of(container.resources.as_ref())?
            .get(STORAGE)
            .filter(|limit| !amount(limit).is_zero())?;
        let used = *usage.containers.get(&container.name)?;
        is_over(used, limit).then(|| {
            format!(
                "Container {} exceeded its local ephemeral storage limit \"{}\". ",
                container.name,
                amount(limit)
            )
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    const MI: u64 = 1 << 20;

    fn pod(source: &str) -> Pod {
        let limited = |name: &str, limit: &str| json!({"name": name, "resources": {"limits": {STORAGE: limit}}});
        fixtures::pod(json!({
            "metadata": {"name": "p", "annotations": {"kubernetes.io/config.source": source}},
            "spec": {
                "containers": [limited("a", "10Mi"), limited("b", "20Mi")],
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "4096Ki"}}, {"name": "w", "emptyDir": {}}],
            },
        }))
    }

    fn usage(v: u64, w: u64, a: u64, b: u64) -> LocalUsage {
        let named =
            |pairs: [(&str, u64); 2]| pairs.map(|(name, used)| (name.to_owned(), used * MI)).into();
        LocalUsage { volumes: named([("v", v), ("w", w)]), containers: named([("a", a), ("b", b)]) }
    }

    #[rstest]
    #[case(usage(4, 4, 10, 12), None)]
    #[case(
        usage(5, 0, 0, 0),
        Some(("emptydirfs.limit", "Usage of EmptyDir volume \"v\" exceeds the limit \"4Mi\". "))
    )]
    #[case(
        usage(4, 20, 3, 4),
        Some((
            "ephemeralpodfs.limit",
            "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. "
        ))
    )]
    #[case(
        usage(0, 0, 11, 0),
        Some((
            "ephemeralcontainerfs.limit",
            "Container a exceeded its local ephemeral storage limit \"10Mi\". "
        ))
    )]
    fn signal_and_message_are_those_of_a_kubelet(
        #[case] usage: LocalUsage,
        #[case] expected: Option<(&'static str, &str)>,
    ) {
        let expected = expected.map(|(signal, message)| (signal, message.to_owned()));
        assert_eq!(exceeded(&pod("api"), &usage), expected);
        assert_eq!(exceeded(&pod("file"), &usage), None, "a static pod is critical");
    }

    #[test]
    fn volume_in_memory_counts_for_its_own_limit_alone() {
        let pod = fixtures::pod(json!({
            "metadata": {"name": "p", "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {
                "containers": [{"name": "a", "resources": {"limits": {STORAGE: "10Mi"}}}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "20Mi"}}],
            },
        }));
        assert_eq!(exceeded(&pod, &usage(20, 0, 0, 0)), None);
        let signal = exceeded(&pod, &usage(21, 0, 0, 0)).map(|(signal, _)| signal);
        assert_eq!(signal, Some("emptydirfs.limit"));
    }

    #[test]
    fn pod_without_limits_is_not_measured() {
        assert!(is_limited(&pod("api")));
        let plain = json!({"spec": {"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]}});
        assert!(!is_limited(&fixtures::pod(plain)));
    }
}
