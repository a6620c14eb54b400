//! ◆ The default container of a pod, and containers without a log. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/cmd/util/podcmd/podcmd.go, validateContainerLogStatus of pkg/kubelet/kubelet_pods.go.

use serde_json::Value;

use super::metadata;

/// The annotation that names the default container.
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The default container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefaultContainer {
    pub(crate) name: String,
    /// A note for the user if it was selected among several.
    pub(crate) note: Option<String>,
}

/// The container that the annotation names, or else the first one.
pub(crate) fn default_container(pod: &Value) -> Result<DefaultContainer, String> {
    let all = names(pod);
    let annotation =
        pod.pointer("/metadata/annotations").and_then(|all| all.get(DEFAULT_CONTAINER));
    if let Some(name) = annotation.and_then(Value::as_str).filter(|name| !name.is_empty()) {
        if !all.iter().any(|(_, known)| known == name) {
            let (pod, known) = (metadata(pod, "name"), shown(&all));
            return Err(format!("container {name} is not valid for pod {pod} out of: {known}"));
        }
        return Ok(DefaultContainer { name: name.to_owned(), note: None });
    }
    let Some((_, name)) = all.iter().find(|(kind, _)| *kind == Kind::Regular) else {
        return Err(format!("pod {} does not have any containers", metadata(pod, "name")));
    };
    let note = format!("Defaulted container {name:?} out of: {}", shown(&all));
    Ok(DefaultContainer { name: name.clone(), note: (all.len() > 1).then_some(note) })
}

/// The containers of a pod in the order of `--all-containers`: init containers first.
pub(crate) fn all_containers(pod: &Value) -> Vec<String> {
    let all = names(pod);
    let of = |kind: Kind| {
        all.iter().filter(move |(other, _)| *other == kind).map(|(_, name)| name.clone())
    };
    of(Kind::Init).chain(of(Kind::Regular)).chain(of(Kind::Ephemeral)).collect()
}

/// The id of a container's previous attempt; if the container waits for a restart, of its latest attempt.
pub(crate) fn previous_attempt<'v>(pod: &'v Value, container: &str) -> Option<&'v str> {
    let status = status_of(pod, container)?;
    let id = status.pointer("/lastState/terminated/containerID")?.as_str()?;
    // RUNTIME://ID
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then_some(id)
}

fn status_of<'v>(pod: &'v Value, container: &str) -> Option<&'v Value> {
    let fields = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let statuses = fields.into_iter().filter_map(|field| pod.get("status")?.get(field)?.as_array());
    let mut statuses = statuses.flatten();
    statuses.find(|status| status.get("name").and_then(Value::as_str) == Some(container))
}

/// Why a container of the pod has no log yet; `None` if it has one, or the pod has no such container.
pub(crate) fn reason_for_no_log(pod: &Value, container: &str) -> Option<String> {
    if !names(pod).iter().any(|(_, name)| name == container) {
        return None;
    }
    let container_in_pod = format!("container {container:?} in pod {:?}", metadata(pod, "name"));
    let Some(status) = status_of(pod, container) else {
        return Some(format!("{container_in_pod} is not available"));
    };
    let is_set = |pointer: &str| status.pointer(pointer).is_some_and(|value| !value.is_null());
    if ["/state/running", "/state/terminated", "/lastState/terminated"].into_iter().any(is_set) {
        return None;
    }
    let reason = status.pointer("/state/waiting/reason").and_then(Value::as_str);
    Some(match reason {
        None => format!("{container_in_pod} is waiting to start - no logs yet"),
        Some("ErrImagePull") => {
            format!("{container_in_pod} is waiting to start: image can't be pulled")
        }
        Some("ImagePullBackOff") => {
            format!("{container_in_pod} is waiting to start: trying and failing to pull image")
        }
        Some(reason) => format!("{container_in_pod} is waiting to start: {reason}"),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Ephemeral,
    Init,
}

/// The containers of a pod in the order of kubectl's messages.
fn names(pod: &Value) -> Vec<(Kind, String)> {
    let fields = [
        ("containers", Kind::Regular),
        ("ephemeralContainers", Kind::Ephemeral),
        ("initContainers", Kind::Init),
    ];
    let mut all = Vec::new();
    for (field, kind) in fields {
        let containers = pod.get("spec").and_then(|spec| spec.get(field)).and_then(Value::as_array);
        let names = containers.into_iter().flatten().filter_map(|it| it.get("name")?.as_str());
        all.extend(names.map(|name| (kind, name.to_owned())));
    }
    all
}

fn shown(all: &[(Kind, String)]) -> String {
    let one = |(kind, name): &(Kind, String)| match kind {
        Kind::Regular => name.clone(),
        Kind::Ephemeral => format!("{name} (ephem)"),
        Kind::Init => format!("{name} (init)"),
    };
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn pod(containers: &[&str], inits: &[&str], annotation: Option<&str>) -> Value {
        let named =
            |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Value>();
        let mut pod = json!({
            "metadata": {"name": "web", "annotations": {}},
            "spec": {"containers": named(containers), "initContainers": named(inits)},
        });
        if let Some(annotation) = annotation {
            pod["metadata"]["annotations"][DEFAULT_CONTAINER] = json!(annotation);
        }
        pod
    }

    #[rstest]
    #[case::one(&["a"], &[], None, Ok(("a", None)))]
    #[case::several(&["a", "b"], &[], None, Ok(("a", Some("Defaulted container \"a\" out of: a, b"))))]
    #[case::init(&["a"], &["i"], None, Ok(("a", Some("Defaulted container \"a\" out of: a, i (init)"))))]
    #[case::annotated(&["a", "b"], &["i"], Some("b"), Ok(("b", None)))]
    #[case::annotated_init(&["a"], &["i"], Some("i"), Ok(("i", None)))]
    #[case::empty(&["a"], &[], Some(""), Ok(("a", None)))]
    #[case::unknown(&["a", "b"], &["i"], Some("c"), Err("container c is not valid for pod web out of: a, b, i (init)"))]
    #[case::none(&[], &[], None, Err("pod web does not have any containers"))]
    fn default_container_is_that_of_kubectl(
        #[case] containers: &[&str],
        #[case] inits: &[&str],
        #[case] annotation: Option<&str>,
        #[case] expected: Result<(&str, Option<&str>), &str>,
    ) {
        let found = default_container(&pod(containers, inits, annotation));
        let found = found.as_ref().map(|it| (it.name.as_str(), it.note.as_deref()));
        assert_eq!(found.map_err(String::as_str), expected);
    }

    #[rstest]
    #[case(json!({"lastState": {"terminated": {"containerID": "crib://7f"}}}), Some("7f"))]
    #[case(json!({"lastState": {"terminated": {"containerID": "7f"}}}), Some("7f"))]
    #[case(json!({"lastState": {"terminated": {"containerID": ""}}}), None)]
    #[case(json!({"lastState": {}}), None)]
    fn previous_attempt_is_that_of_the_status(#[case] mut status: Value, #[case] id: Option<&str>) {
        status["name"] = json!("a");
        let pod = json!({"status": {"containerStatuses": [{"name": "b"}, status]}});
        assert_eq!(previous_attempt(&pod, "a"), id);
        assert_eq!(previous_attempt(&pod, "c"), None);
    }

    #[test]
    fn all_containers_are_in_the_order_of_their_start() {
        assert_eq!(all_containers(&pod(&["a", "b"], &["i"], None)), ["i", "a", "b"]);
    }

    #[rstest]
    #[case::pulls(
        json!({"waiting": {"reason": "ImagePullBackOff"}}),
        Some("container \"a\" in pod \"web\" is waiting to start: trying and failing to pull image")
    )]
    #[case::cannot_pull(
        json!({"waiting": {"reason": "ErrImagePull"}}),
        Some("container \"a\" in pod \"web\" is waiting to start: image can't be pulled")
    )]
    #[case::initializes(
        json!({"waiting": {"reason": "PodInitializing"}}),
        Some("container \"a\" in pod \"web\" is waiting to start: PodInitializing")
    )]
    #[case::no_state(json!({}), Some("container \"a\" in pod \"web\" is waiting to start - no logs yet"))]
    #[case::runs(json!({"running": {}}), None)]
    #[case::ended(json!({"terminated": {}}), None)]
    fn waiting_containers_have_no_log(#[case] state: Value, #[case] expected: Option<&str>) {
        let mut pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a"}]}});
        let missing = "container \"a\" in pod \"web\" is not available";
        assert_eq!(reason_for_no_log(&pod, "a").as_deref(), Some(missing));
        pod["status"]["containerStatuses"] = json!([{"name": "a", "state": state}]);
        assert_eq!(reason_for_no_log(&pod, "a").as_deref(), expected);
        assert_eq!(reason_for_no_log(&pod, "b"), None);
        pod["status"]["containerStatuses"][0]["lastState"] = json!({"terminated": {"exitCode": 1}});
        assert_eq!(reason_for_no_log(&pod, "a"), None);
    }
}
