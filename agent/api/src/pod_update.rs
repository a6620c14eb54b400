//! ◆ Which fields of an existing pod may change. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go ValidatePodUpdate and ValidatePodResize.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, ResourceRequirements};

use crate::manifest::admit;
use crate::pod::{Pod, as_container, is_sidecar};
use crate::qos::{computed_class, qos_class};
use crate::totals::Kind;

/// The annotation of pods that stand for static ones.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a pod may be changed to the other one: except for images, the deadline, tolerations, and CPU and memory they must be
/// equal.
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

/// The pod with a further ephemeral container. Checks it (ValidatePodEphemeralContainersUpdate): its name and image must be valid
/// as a container's, and its target must be a container of the pod.
///
/// # Errors
/// If the container is not valid for this pod.
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
    // The check below would report the init container's field.
    if spec.init_containers.iter().flatten().any(|init| init.name == container.name) {
        return Err(format!("{field}.name: duplicate value {:?}", container.name));
    }
    // It is defaulted and validated like an app container; its name must be unique among all containers.
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

/// Why a pod cannot be resized to the other one, which differs from it in resources and resize policies at most: the first error of an
/// API server with the default feature gates. `None`: it can be resized.
#[must_use]
pub fn resize_error(old: &Pod, new: &Pod) -> Option<String> {
    let ((old, _), (new, errors)) = (admit(old.api().clone()), admit(new.api().clone()));
    let is_resized = |field: &str| field.contains(".resources") || field.contains(".resizePolicy");
    if let Some(error) = errors.iter().find(|error| is_resized(&error.field)) {
        return Some(format!("{}: {error}", error.field));
    }
    let (old, new) = (Pod::new(old), Pod::new(new));
    if old.annotations().any(|(name, _)| name == MIRROR) {
        return Some("Forbidden: static pods cannot be resized".to_owned());
    }
    if old.spec().os.as_ref().is_some_and(|os| os.name == "windows") {
        return Some("Forbidden: windows pods cannot be resized".to_owned());
    }
    let class = qos_class(&old);
    // The class in a status is that of the old pod.
    if class != computed_class(&new) {
        let class = class.as_str();
        return Some(format!(
            "spec: Invalid value: {class:?}: Pod QOS Class may not change as a result of resizing"
        ));
    }
    if !is_on_resizing_node(&old) {
        return Some("spec: Forbidden: Pod running on node without support for resize".to_owned());
    }
    let whole = pod_level_error(old.spec().resources.as_ref(), new.spec().resources.as_ref());
    whole.or_else(|| {
        let lists = [
            ("initContainers", old.init_containers(), new.init_containers()),
            ("containers", old.containers(), new.containers()),
        ];
        lists.into_iter().find_map(|(list, before, after)| {
            let mut pairs = before.iter().zip(after).enumerate();
            pairs.find_map(|(index, (before, after))| {
                let field = format!("spec.{list}[{index}]");
                container_error(&field, before, after, list == "initContainers")
            })
        })
    })
}

/// Whether the node reports the resources of a container that runs: others cannot resize.
fn is_on_resizing_node(pod: &Pod) -> bool {
    let status = pod.api().status.iter();
    let mut running = status
        .flat_map(|status| status.container_statuses.iter().flatten())
        .filter(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.next().is_none_or(|container| container.resources.is_some())
}

/// Why resources of a pod as a whole cannot become the other ones.
fn pod_level_error(
    old: Option<&ResourceRequirements>,
    new: Option<&ResourceRequirements>,
) -> Option<String> {
    if old.is_some() && new.is_none() {
        return Some("spec.resources: Forbidden: pod-level resources cannot be removed".to_owned());
    }
    if let Some(list) = removed(old, new) {
        return Some(format!(
            "spec.resources.{list}: Forbidden: pod-level resource {list} cannot be removed"
        ));
    }
    (fixed(old.cloned()) != fixed(new.cloned())).then(|| {
        "spec: Forbidden: only cpu and memory resources are mutable at pod-level".to_owned()
    })
}

/// Why a container at this field cannot be resized to the other one.
fn container_error(field: &str, old: &Container, new: &Container, is_init: bool) -> Option<String> {
    if let Some(list) = removed(old.resources.as_ref(), new.resources.as_ref()) {
        return Some(format!(
            "{field}.resources.{list}: Forbidden: resource {list} cannot be removed"
        ));
    }
    let (mut before, mut after) = (old.clone(), new.clone());
    // As for an API server, claims are a change: containers that have some cannot be resized.
    if let Some(resources) = &mut after.resources {
        resources.claims = None;
    }
    forget_resizable(&mut before);
    forget_resizable(&mut after);
    if before != after {
        return Some(if is_init {
            format!(
                "{field}: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"
            )
        } else {
            "spec: Forbidden: only cpu and memory resources are mutable".to_owned()
        });
    }
    let mut policies = new.resize_policy.iter().flatten();
    let restarts = is_init
        && !is_sidecar(new)
        && old != new
        && policies.any(|policy| policy.restart_policy == "RestartContainer");
    restarts.then(|| {
        format!(
            "{field}: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
        )
    })
}

/// Leaves of a container's resources what cannot be changed while it runs.
fn forget_resizable(container: &mut Container) {
    container.resources = fixed(container.resources.take());
}

/// What a resize cannot change of resources.
fn fixed(resources: Option<ResourceRequirements>) -> Option<ResourceRequirements> {
    let mut resources = resources?;
    for list in [&mut resources.limits, &mut resources.requests] {
        if let Some(list) = list {
            list.retain(|name, _| name != "cpu" && name != "memory");
        }
        *list = list.take().filter(|list| !list.is_empty());
    }
    (resources != ResourceRequirements::default()).then_some(resources)
}

/// Whether a request or limit of a container is gone.
fn loses_resources(old: &Pod, new: &Pod) -> bool {
    let mut pairs = old.init_and_apps().zip(new.init_and_apps());
    pairs.any(|(old, new)| removed(old.resources.as_ref(), new.resources.as_ref()).is_some())
}

/// The list that has lost a resource: a resize cannot remove one.
fn removed(
    old: Option<&ResourceRequirements>,
    new: Option<&ResourceRequirements>,
) -> Option<&'static str> {
    let lists = [("requests", Kind::Requests), ("limits", Kind::Limits)];
    lists.into_iter().find_map(|(list, kind)| {
        let kept = kind.of(new);
        let mut names = kind.of(old).into_iter().flatten().map(|(name, _)| name);
        let is_lost = names.any(|name| kept.is_none_or(|kept| !kept.contains_key(name)));
        is_lost.then_some(list)
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

    /// A pod with these fields of its spec, and 1 CPU and 1 GiB of its own.
    fn pod_of(fields: &Value) -> Pod {
        let whole = json!({"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}});
        let app = json!({"name": "app", "image": "i", "resources": {"requests": {"cpu": "500m"}}});
        let init = json!({"name": "init", "image": "i"});
        let mut spec = json!({"containers": [app], "initContainers": [init], "resources": whole});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let metadata = json!({"name": "p", "namespace": "default", "uid": "u"});
        Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    #[rstest]
    #[case::same(json!({}), None)]
    #[case::more(json!({"resources": {"limits": {"cpu": "4", "memory": "4Gi"}, "requests": {"cpu": "3", "memory": "1Gi"}}}), None)]
    #[case::resources_removed(
        json!({"resources": null}),
        Some("spec.resources: Forbidden: pod-level resources cannot be removed")
    )]
    #[case::limit_removed(
        json!({"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1", "memory": "1Gi"}}}),
        Some("spec.resources.limits: Forbidden: pod-level resource limits cannot be removed")
    )]
    #[case::request_removed(
        json!({"containers": [{"name": "app", "image": "i"}]}),
        Some("spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed")
    )]
    #[case::huge_pages(
        json!({"resources": {"limits": {"cpu": "2", "memory": "2Gi", "hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1", "memory": "1Gi"}}}),
        Some("spec: Forbidden: only cpu and memory resources are mutable at pod-level")
    )]
    #[case::storage(
        json!({"containers": [{"name": "app", "image": "i", "resources": {"requests": {"cpu": "500m", "ephemeral-storage": "1Gi"}}}]}),
        Some("spec: Forbidden: only cpu and memory resources are mutable")
    )]
    #[case::too_little(
        json!({"resources": {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}}),
        Some("spec.resources.requests[cpu]: invalid value")
    )]
    #[case::class(
        json!({"resources": {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "2", "memory": "2Gi"}}}),
        Some("spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing")
    )]
    #[case::init(json!({"initContainers": [{"name": "init", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}), None)]
    fn resize_changes_cpu_and_memory_alone(#[case] to: Value, #[case] expected: Option<&str>) {
        let found = resize_error(&pod_of(&json!({})), &pod_of(&to));
        match expected {
            Some(expected) => {
                let found = found.unwrap();
                assert!(found.starts_with(expected), "{found}");
            }
            None => assert_eq!(found, None),
        }
    }

    #[rstest]
    #[case::first_of_pod(json!({"resources": null}), None)]
    #[case::mirror(json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "h"}}}), Some("static pods"))]
    #[case::old_node(
        json!({"status": {"containerStatuses": [{"name": "app", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}),
        Some("Pod running on node without support for resize")
    )]
    fn resize_depends_on_the_pod(#[case] change: Value, #[case] expected: Option<&str>) {
        let mut api = pod_of(&json!({})).api().clone();
        if change.get("resources").is_some() {
            api.spec.as_mut().unwrap().resources = None;
        }
        if let Some(metadata) = change.get("metadata") {
            api.metadata = serde_json::from_value(metadata.clone()).unwrap();
        }
        api.status = change.get("status").map(|it| serde_json::from_value(it.clone()).unwrap());
        let old = Pod::new(api);
        let mut api = old.api().clone();
        api.spec.as_mut().unwrap().resources = pod_of(&json!({})).spec().resources.clone();
        let found = resize_error(&old, &Pod::new(api));
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        let contains =
            |expected: &str| found.as_ref().is_some_and(|found| found.contains(expected));
        assert!(expected.is_none_or(contains), "{found:?}");
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
