//! ◆ What may change of a pod that exists. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go ValidatePodUpdate and ValidatePodResize.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, ResourceRequirements};

use crate::manifest::admit;
use crate::pod::{Pod, as_container, is_sidecar};
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

/// The pod with another ephemeral container, or what is wrong with that (ValidatePodEphemeralContainersUpdate): it is named and
/// has an image like a container, and its target is one of the pod.
///
/// # Errors
/// The container is not one for this pod.
pub fn with_ephemeral_container(
    pod: &Pod,
    mut container: EphemeralContainer,
) -> Result<Pod, String> {
    let mut api = pod.api().clone();
    let spec = api.spec.get_or_insert_default();
    let before = spec.ephemeral_containers.take().unwrap_or_default();
    let field = format!("spec.ephemeralContainers[{}]", before.len());
    let target = container.target_container_name.clone().unwrap_or_default();
    let mut possible = spec.init_containers.iter().flatten().chain(&spec.containers);
    if !target.is_empty() && possible.all(|possible| possible.name != target) {
        return Err(format!("{field}.targetContainerName: {target:?} not found"));
    }
    // The check below would name the init container's field.
    if spec.init_containers.iter().flatten().any(|init| init.name == container.name) {
        return Err(format!("{field}.name: duplicate value {:?}", container.name));
    }
    // As a container it gets the defaults of one, and must be valid as one; names are those of all containers.
    let first = spec.containers.len();
    let all = before.iter().map(as_container).chain([as_container(&container)]);
    spec.containers.extend(all);
    let last = format!("spec.containers[{}]", spec.containers.len() - 1);
    let (mut api, errors) = admit(api);
    let of_it = errors.iter().find_map(|error| Some((error, error.field.strip_prefix(&last)?)));
    if let Some((error, rest)) = of_it {
        return Err(format!("{field}{rest}: {error}"));
    }
    let spec = api.spec.get_or_insert_default();
    if let Some(defaulted) = spec.containers.split_off(first).pop() {
        container.image_pull_policy = defaulted.image_pull_policy;
        container.termination_message_path = defaulted.termination_message_path;
        container.termination_message_policy = defaulted.termination_message_policy;
    }
    let mut api = pod.api().clone();
    let containers = before.into_iter().chain([container]).collect();
    api.spec.get_or_insert_default().ephemeral_containers = Some(containers);
    Ok(Pod::new(api).with_origin(pod.origin()))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Pod {
        let spec = json!({
            "containers": [{"name": "app", "image": "i"}],
            "initContainers": [{"name": "init", "image": "i"}],
        });
        let metadata = json!({"name": "p", "namespace": "default", "uid": "u"});
        Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    fn ephemeral(container: Value) -> EphemeralContainer {
        serde_json::from_value(container).unwrap()
    }

    #[test]
    fn ephemeral_containers_are_added_in_order_with_defaults() {
        let one = ephemeral(json!({"name": "one", "image": "i", "targetContainerName": "app"}));
        let two = ephemeral(json!({"name": "two", "image": "i:1", "command": ["sh"]}));
        let changed = with_ephemeral_container(&pod(), one).unwrap();
        let changed = with_ephemeral_container(&changed, two).unwrap();
        let found = changed.spec().ephemeral_containers.clone().unwrap();
        let policies: Vec<_> = found
            .iter()
            .map(|container| (container.name.as_str(), container.image_pull_policy.as_deref()))
            .collect();
        assert_eq!(policies, [("one", Some("Always")), ("two", Some("IfNotPresent"))]);
        assert_eq!(found[0].termination_message_policy.as_deref(), Some("File"));
        assert_eq!(changed.containers(), pod().containers());
        assert!(changed.is_updated_from(&pod()));
        assert!(!pod().with_ephemeral_containers_of(&changed).is_updated_from(&changed));
    }

    #[rstest]
    #[case::no_image(json!({"name": "e"}), "spec.ephemeralContainers[0].image: a value is required")]
    #[case::bad_name(json!({"name": "E", "image": "i"}), "spec.ephemeralContainers[0].name: invalid value \"E\"")]
    #[case::name_of_container(json!({"name": "app", "image": "i"}), "duplicate value \"app\"")]
    #[case::name_of_init(json!({"name": "init", "image": "i"}), "duplicate value \"init\"")]
    #[case::no_target(
        json!({"name": "e", "image": "i", "targetContainerName": "db"}),
        "spec.ephemeralContainers[0].targetContainerName: \"db\" not found"
    )]
    fn ephemeral_container_that_fits_no_pod_is_refused(
        #[case] container: Value,
        #[case] expected: &str,
    ) {
        let error = with_ephemeral_container(&pod(), ephemeral(container)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
