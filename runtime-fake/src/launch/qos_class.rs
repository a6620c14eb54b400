//! ◆ The QoS class of a pod whose cgroup is inside its class's cgroup. Pure.

use cri::v1::PodSandboxConfig;

use super::{Invalid, invalid};

/// Annotation of sandboxes: the pod's QoS class, as Kubernetes names it (docs/cri.md).
const QOS_CLASS: &str = "crib.local/qos-class";

/// A QoS class of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// The class that the client named. Such a client leaves the weights of the classes' cgroups to the runtime; a kubelet sets them
/// itself, and passes on the annotations of the pod's author. So the pod's cgroup must be in the cgroup of the class: otherwise an
/// author could name the class BestEffort, and the cgroup of all pods, or that of another class, would get the least weight.
pub(crate) fn qos_class(config: &PodSandboxConfig) -> Result<Option<QosClass>, Invalid> {
    let Some(name) = config.annotations.get(QOS_CLASS) else {
        return Ok(None);
    };
    let parent = config.linux.as_ref().map_or("", |linux| &linux.cgroup_parent);
    let mut parts = parent.split('/').filter(|part| !part.is_empty()).rev();
    let (class, of_class) = match name.as_str() {
        "Guaranteed" => (QosClass::Guaranteed, None),
        "Burstable" => (QosClass::Burstable, Some("burstable")),
        "BestEffort" => (QosClass::BestEffort, Some("besteffort")),
        other => {
            return invalid(format!(
                "annotation {QOS_CLASS}: expected Guaranteed, Burstable or BestEffort, not {other:?}"
            ));
        }
    };
    let fits = |above: &str| of_class.is_none_or(|own| is_named(above, own));
    if parts.nth(1).is_some_and(fits) {
        return Ok(Some(class));
    }
    invalid(format!(
        "annotation {QOS_CLASS}: it needs a cgroup_parent in the cgroup of the class, as /kubepods/burstable/podUID"
    ))
}

/// Whether a cgroup has the name of a class, with either cgroup driver: `burstable` or `kubepods-burstable.slice`.
fn is_named(cgroup: &str, class: &str) -> bool {
    let slice = cgroup.strip_suffix(".slice").and_then(|slice| slice.rsplit_once('-'));
    cgroup == class || slice.is_some_and(|(_, last)| last == class)
}

/// The weight (v1 scale) of a class's cgroup, from the weights of the pods in it; `None` if the class has no cgroup of its own.
/// Kubernetes 1.36, pkg/kubelet/cm/qos_container_manager_linux.go; a kubelet sums requests instead, so rounding may differ by one
/// per pod.
pub(crate) fn class_shares(class: QosClass, pods: impl Iterator<Item = i64>) -> Option<i64> {
    const LEAST: i64 = 2;
    match class {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some(pods.fold(0, i64::saturating_add).max(LEAST)),
        QosClass::BestEffort => Some(LEAST),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cri::v1::LinuxPodSandboxConfig;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("Burstable"), "/kubepods/burstable/podx", "Some(Burstable)")]
    #[case(Some("BestEffort"), "kubepods/besteffort/podx", "Some(BestEffort)")]
    #[case(Some("Guaranteed"), "/kubepods/podx", "Some(Guaranteed)")]
    #[case(
        Some("Burstable"),
        "/crib_a.slice/crib_a-burstable.slice/crib_a-burstable-podx.slice",
        "Some(Burstable)"
    )]
    #[case(None, "", "None")]
    #[case(
        Some("burstable"),
        "/kubepods/burstable/podx",
        "expected Guaranteed, Burstable or BestEffort, not \"burstable\""
    )]
    #[case(Some("Burstable"), "", "it needs a cgroup_parent")]
    #[case(Some("Burstable"), "/podx/", "it needs a cgroup_parent")]
    #[case(Some("Guaranteed"), "/podx", "it needs a cgroup_parent")]
    #[case::of_all_pods(Some("BestEffort"), "/kubepods/podx", "it needs a cgroup_parent")]
    #[case::of_another(Some("BestEffort"), "/kubepods/burstable/podx", "it needs a cgroup_parent")]
    #[case::slice_of_all_pods(
        Some("BestEffort"),
        "/kubepods.slice/kubepods-podx.slice",
        "it needs a cgroup_parent"
    )]
    fn class_is_read_with_its_cgroup(
        #[case] class: Option<&str>,
        #[case] parent: &str,
        #[case] expected: &str,
    ) {
        let class = class.map(|class| (QOS_CLASS.to_owned(), class.to_owned()));
        let config = PodSandboxConfig {
            annotations: class.into_iter().collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: parent.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let found = match qos_class(&config) {
            Ok(class) => format!("{class:?}"),
            Err(Invalid(message)) => message,
        };
        assert!(found.contains(expected), "{found}");
    }

    #[rstest]
    #[case(QosClass::Burstable, &[], Some(2))]
    #[case(QosClass::Burstable, &[102, 512], Some(614))]
    #[case(QosClass::Burstable, &[i64::MAX, 512], Some(i64::MAX))]
    #[case(QosClass::BestEffort, &[2, 2, 2], Some(2))]
    #[case(QosClass::Guaranteed, &[1024], None)]
    fn class_weighs_what_its_pods_do(
        #[case] class: QosClass,
        #[case] pods: &[i64],
        #[case] expected: Option<i64>,
    ) {
        assert_eq!(class_shares(class, pods.iter().copied()), expected);
    }
}
