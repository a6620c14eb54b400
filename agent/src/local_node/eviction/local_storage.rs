//! ◆ Whether a pod exceeds its local storage: sizes of emptyDirs, and limits of ephemeral-storage.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction/eviction_manager.go localStorageEviction.

use api::pod::Pod;
use api::totals::{self, Kind, amount};
use compact::Map;
use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

const STORAGE: &str = "ephemeral-storage";

/// A pod of at least this priority is critical: it is never evicted.
const CRITICAL: i32 = 2_000_000_000;

/// A pod's usage of local storage, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalUsage {
    /// Its volumes in the agent's directory, by name.
    pub(crate) volumes: Map<String, u64>,
    /// Logs of its containers, by name.
    pub(crate) logs: Map<String, u64>,
    /// Writable layers of its containers, by name.
    pub(crate) layers: Map<String, u64>,
    /// Whether images and writable layers are on another file system than the node's own files: then limits of containers are for
    /// logs alone.
    pub(crate) has_image_fs: bool,
    /// Its hosts file, and logs of the pod as a whole.
    pub(crate) own_files: u64,
}

/// Whether a volume counts as ephemeral storage of its pod (pkg/volume/util/util.go IsLocalEphemeralVolume).
pub(crate) fn is_ephemeral(volume: &Volume) -> bool {
    let is_on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    volume.git_repo.is_some()
        || volume.config_map.is_some()
        || volume.empty_dir.as_ref().is_some_and(|empty| is_on_disk(&empty.medium))
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
    let volumes = pod.spec().volumes.iter().flatten().filter(|volume| is_ephemeral(volume));
    let volumes = volumes.filter_map(|volume| usage.volumes.get(&volume.name));
    let containers = usage.logs.values().chain(usage.layers.values());
    let total: u64 = volumes.chain(containers).chain([&usage.own_files]).sum();
    is_over(total, limit).then(|| {
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
        let logs = usage.logs.get(&container.name);
        let layer = usage.layers.get(&container.name).filter(|_| !usage.has_image_fs);
        is_over(logs.into_iter().chain(layer).sum(), limit).then(|| {
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
        let (volumes, layers) = (named([("v", v), ("w", w)]), named([("a", a), ("b", b)]));
        LocalUsage { volumes, layers, ..LocalUsage::default() }
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

    #[rstest]
    #[case::config_map(json!({"configMap": {"name": "c"}}), 0, true)]
    #[case::downward_api(json!({"downwardAPI": {"items": []}}), 0, false)]
    #[case::secret(json!({"secret": {"secretName": "s"}}), 0, false)]
    #[case::hosts_file_and_logs(json!({"secret": {"secretName": "s"}}), 11 * MI, true)]
    fn storage_of_the_pod_has_what_a_kubelet_counts(
        #[case] source: serde_json::Value,
        #[case] own_files: u64,
        #[case] is_exceeded: bool,
    ) {
        let mut volume = source;
        volume["name"] = json!("v");
        let pod = fixtures::pod(json!({
            "metadata": {"name": "p", "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {
                "containers": [{"name": "a", "resources": {"limits": {STORAGE: "10Mi"}}}],
                "volumes": [volume],
            },
        }));
        let usage = LocalUsage { own_files, ..usage(11, 0, 0, 0) };
        assert_eq!(exceeded(&pod, &usage).is_some(), is_exceeded);
    }

    #[test]
    fn pod_without_limits_is_not_measured() {
        assert!(is_limited(&pod("api")));
        let plain = json!({"spec": {"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]}});
        assert!(!is_limited(&fixtures::pod(plain)));
    }
}
