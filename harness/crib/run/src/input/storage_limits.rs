//! ◆ A warning about ephemeral-storage limits that do not count everything that the containers write. Pure.

use api::manifest::Workload;
use api::manifest_set::named_pods;
use api::pod::Pod;
use k8s_openapi::api::core::v1::ResourceRequirements;

/// The image whose writable layer is a tmpfs in the container's mount namespace, where it cannot be measured.
const HOST_IMAGE: &str = "crib.local/host";
const STORAGE: &str = "ephemeral-storage";

/// One warning about all pods and workloads; `None` if no pod has such a limit.
pub(crate) fn warning(pods: &[Pod], workloads: &[Workload]) -> Option<String> {
    let concerned = named_pods(pods, workloads).filter(|(_, pod)| is_concerned(pod));
    let names: Vec<String> = concerned.map(|(name, _)| name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "ephemeral-storage limits of {} cover volumes and logs, but not files written in containers of the image {HOST_IMAGE}, which are kept in memory: set a memory limit, write to an emptyDir volume, or use another image",
            names.join(", ")
        )
    })
}

/// Whether a storage limit applies to a container of this image.
fn is_concerned(pod: &Pod) -> bool {
    let limits = |resources: Option<&ResourceRequirements>| {
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| limits.contains_key(STORAGE))
    };
    let of_pod = limits(pod.spec().resources.as_ref());
    let mut containers = pod.all_containers();
    containers.any(|(_, container)| {
        let image = container.image.as_deref().unwrap_or_default();
        let is_host = image
            .strip_prefix(HOST_IMAGE)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '@']));
        is_host && (of_pod || limits(container.resources.as_ref()))
    })
}
