//! ◆ What may change of a pod that exists. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go ValidatePodUpdate and ValidatePodResize.

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

use crate::pod::{Pod, is_sidecar};
use crate::qos::qos_class;

/// Whether a pod may become the other one: but for images, the deadline, tolerations, and CPU and memory they are the same.
#[must_use]
pub fn may_change(old: &Pod, new: &Pod) -> bool {
    let fixed = |pod: &Pod| {
        let mut spec = pod.spec().clone();
        for container in spec.init_containers.iter_mut().flatten() {
            container.image = None;
            if is_sidecar(container) {
                forget_resizable(container);
            }
        }
        for container in &mut spec.containers {
            container.image = None;
            forget_resizable(container);
        }
        spec.active_deadline_seconds = None;
        spec.tolerations = None;
        spec
    };
    fixed(old) == fixed(new) && !loses_resources(old, new) && qos_class(old) == qos_class(new)
}

/// Leaves of a container's resources what cannot be changed while it runs.
fn forget_resizable(container: &mut Container) {
    let Some(resources) = &mut container.resources else {
        return;
    };
    for list in [&mut resources.limits, &mut resources.requests] {
        if let Some(list) = list {
            list.retain(|name, _| name != "cpu" && name != "memory");
        }
        *list = list.take().filter(|list| !list.is_empty());
    }
    if *resources == ResourceRequirements::default() {
        container.resources = None;
    }
}

/// Whether a request or limit of a container is gone: a resize cannot remove one.
fn loses_resources(old: &Pod, new: &Pod) -> bool {
    let lists = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        [resources.limits, resources.requests].map(Option::unwrap_or_default)
    };
    let all = |pod: &Pod| -> Vec<Container> {
        let inits = pod.init_containers().iter();
        inits.chain(pod.containers()).cloned().collect()
    };
    all(old).iter().zip(&all(new)).any(|(old, new)| {
        let each = lists(old).into_iter().zip(lists(new));
        each.into_iter().any(|(old, new)| old.keys().any(|name| !new.contains_key(name)))
    })
}
