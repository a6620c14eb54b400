//! ◆ Mirror pods, which represent static pods at the API server: which ones to create and to delete. Pure.
//!
//! | static pod | its mirror pod | then |
//! |---|---|---|
//! | runs | missing | create it |
//! | runs | has the pod's hash | nothing |
//! | runs | has another hash, or is being deleted | delete it and create it again |
//! | waits until a pod of the same name has ended | represents that pod | nothing: it shows that pod's end |
//! | is still ending, or its end is not written yet | any | nothing: it shows the end |
//! | in no source | any | delete it, once each source has listed its pods |
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet.go tryReconcileMirrorPods, pkg/kubelet/kubelet_pods.go HandlePodCleanups,
//! pkg/kubelet/pod/mirror_client.go.

use api::manifest::to_json;
use api::pod::{Pod, PodUid};
use compact::Map;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

/// The annotation of mirror pods, with the hash of the static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The annotation with a static pod's hash, which is its uid too.
const HASH: &str = "kubernetes.io/config.hash";

/// The namespace and the name that a static pod and its mirror pod share.
pub(crate) type FullName = (String, String);

pub(crate) fn full_name(pod: &Pod) -> FullName {
    (pod.namespace().to_owned(), pod.name().to_owned())
}

fn annotation<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    pod.annotations().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Whether a pod at the server is a mirror pod, which must not be run.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// The uid under which the agent reports on a pod at the server: for a mirror pod, its static pod's.
pub(crate) fn reported_uid(pod: &Pod) -> PodUid {
    annotation(pod, MIRROR).map_or_else(|| pod.uid().clone(), PodUid::new)
}

/// The status to write to a pod at the server for the agent's report. A mirror pod keeps the start time that it already has,
/// because an earlier agent may have written it, and a static pod does not carry it.
///
/// Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go updateStatusInternal.
pub(crate) fn reported_status(at_server: &Pod, reported: &PodStatus) -> PodStatus {
    let status = at_server.api().status.as_ref().filter(|_| is_mirror(at_server));
    let began = status.and_then(|status| status.start_time.clone());
    let start_time = began.or_else(|| reported.start_time.clone());
    PodStatus { start_time, ..reported.clone() }
}

/// An action on a mirror pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MirrorAction {
    /// Create the mirror pod of a static pod, after deleting the outdated one, if there is one.
    Create {
        /// The static pod.
        pod: Pod,
        /// The existing mirror pod, which does not represent it.
        outdated: Option<Pod>,
    },
    /// Delete a mirror pod that no longer represents a pod.
    Delete(Pod),
}

impl MirrorAction {
    /// The name of the pod to act on.
    pub(crate) fn name(&self) -> FullName {
        full_name(match self {
            Self::Create { pod, .. } | Self::Delete(pod) => pod,
        })
    }
}

/// Plans the actions. `mirrors` are the mirror pods at the server. `is_complete`: each source has listed its pods. `is_ending`:
/// whether the pod that a mirror pod represents is still ending, or its end is not written yet.
pub(crate) fn actions<'p>(
    static_pods: &[Pod],
    mirrors: impl Iterator<Item = &'p Pod>,
    is_complete: bool,
    is_ending: impl Fn(&Pod) -> bool,
) -> Vec<MirrorAction> {
    let mut mirrors: Map<FullName, &Pod> =
        mirrors.map(|mirror| (full_name(mirror), mirror)).collect();
    let mut actions = Vec::new();
    for pod in static_pods {
        let mirror = mirrors.remove(&full_name(pod));
        let shows = |mirror: &Pod| annotation(mirror, MIRROR) == annotation(pod, HASH);
        if mirror.is_some_and(|mirror| !shows(mirror) && is_ending(mirror)) {
            continue;
        }
        if !mirror.is_some_and(|mirror| shows(mirror) && !mirror.is_deleted()) {
            actions.push(MirrorAction::Create { pod: pod.clone(), outdated: mirror.cloned() });
        }
    }
    if is_complete {
        let orphans = mirrors.into_values().filter(|mirror| !is_ending(mirror));
        actions.extend(orphans.map(|mirror| MirrorAction::Delete(mirror.clone())));
    }
    actions
}

/// The mirror pod of a static pod. The node owns it: otherwise the server rejects the node's request.
pub(crate) fn object(pod: &Pod, node: &str, node_uid: &str) -> Value {
    let mut object = to_json(pod.api());
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": true,
    });
    let metadata = &mut object["metadata"];
    metadata["ownerReferences"] = json!([owner]);
    metadata["annotations"][MIRROR] = json!(annotation(pod, HASH).unwrap_or_default());
    // The server assigns its uid, and statuses are written to a subresource.
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("uid");
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    object
}

/// Whether an object at the server equals the mirror pod to create.
pub(crate) fn is_same(at_server: &Value, expected: &Value) -> bool {
    let hash = |object: &Value| object["metadata"]["annotations"][MIRROR].clone();
    hash(at_server) == hash(expected)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    fn pod(name: &str, uid: &str, annotations: Value) -> Pod {
        let metadata =
            json!({"name": name, "namespace": "ns", "uid": uid, "annotations": annotations});
        let pod =
            json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        Pod::new(serde_json::from_value(pod).unwrap())
    }

    fn own(name: &str, hash: &str) -> Pod {
        pod(name, hash, json!({HASH: hash, "kubernetes.io/config.source": "file"}))
    }

    fn mirror(name: &str, hash: &str) -> Pod {
        pod(name, &format!("mirror-of-{hash}"), json!({HASH: hash, MIRROR: hash}))
    }

    fn deleted(pod: &Pod) -> Pod {
        let mut api = pod.api().clone();
        let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        api.metadata.deletion_timestamp = Some(at);
        Pod::new(api)
    }

    /// The planned actions as text. The pod `ending` is still ending.
    fn decided(static_pods: &[Pod], mirrors: &[Pod], is_complete: bool) -> Vec<String> {
        let is_ending = |mirror: &Pod| reported_uid(mirror).as_str() == "ending";
        let actions = actions(static_pods, mirrors.iter(), is_complete, is_ending);
        let words = actions.iter().map(|action| match action {
            MirrorAction::Create { pod, outdated: None } => format!("create {}", pod.name()),
            MirrorAction::Create { pod, outdated: Some(old) } => {
                format!("create {} for {}", pod.name(), old.uid())
            }
            MirrorAction::Delete(pod) => format!("delete {}", pod.uid()),
        });
        words.collect()
    }

    #[rstest]
    #[case::missing(&[own("a", "1")], &[], &["create a"])]
    #[case::current(&[own("a", "1")], &[mirror("a", "1")], &[])]
    #[case::outdated(&[own("a", "2")], &[mirror("a", "1")], &["create a for mirror-of-1"])]
    #[case::being_deleted(&[own("a", "1")], &[deleted(&mirror("a", "1"))], &["create a for mirror-of-1"])]
    #[case::orphan(&[], &[mirror("a", "1")], &["delete mirror-of-1"])]
    #[case::ending(&[], &[mirror("a", "ending")], &[])]
    #[case::updated_while_ending(&[own("a", "2")], &[mirror("a", "ending")], &[])]
    #[case::another(&[own("a", "1")], &[mirror("a", "1"), mirror("b", "2")], &["delete mirror-of-2"])]
    fn actions_create_and_delete_mirror_pods(
        #[case] static_pods: &[Pod],
        #[case] mirrors: &[Pod],
        #[case] expected: &[&str],
    ) {
        assert_eq!(decided(static_pods, mirrors, true), expected);
    }

    #[test]
    fn mirror_pods_are_kept_until_all_sources_are_read() {
        assert_eq!(decided(&[], &[mirror("a", "1")], false), [""; 0]);
        assert_eq!(decided(&[own("b", "1")], &[], false), ["create b"]);
    }

    #[test]
    fn statuses_of_mirror_pods_are_those_of_their_static_pods() {
        assert_eq!(reported_uid(&mirror("a", "1")).as_str(), "1");
        assert_eq!(reported_uid(&pod("a", "u", json!({}))).as_str(), "u");
        assert!(is_mirror(&mirror("a", "1")) && !is_mirror(&own("a", "1")));
    }

    #[test]
    fn mirror_pod_keeps_its_start_time() {
        let status = |at: Option<&str>| -> PodStatus {
            serde_json::from_value(json!({"phase": "Running", "startTime": at})).unwrap()
        };
        let (then, now) =
            (status(Some("2026-11-28T10:00:00Z")), status(Some("2026-11-28T11:00:00Z")));
        let with = |pod: Pod, status: &PodStatus| {
            let mut api = pod.api().clone();
            api.status = Some(status.clone());
            Pod::new(api)
        };
        assert_eq!(reported_status(&with(mirror("a", "1"), &then), &now), then);
        assert_eq!(reported_status(&with(mirror("a", "1"), &status(None)), &now), now);
        assert_eq!(reported_status(&mirror("a", "1"), &now), now);
        // The start time of an ordinary pod is already in the object that the agent started from.
        assert_eq!(reported_status(&with(pod("a", "u", json!({})), &then), &now), now);
    }

    #[test]
    fn mirror_pod_belongs_to_the_node_and_has_the_hash() {
        let object = object(&own("a-n", "1"), "n", "node-uid");
        assert_eq!(object["kind"], "Pod");
        let metadata = &object["metadata"];
        let annotations = json!({HASH: "1", MIRROR: "1", "kubernetes.io/config.source": "file"});
        assert_eq!(metadata["annotations"], annotations);
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid", "controller": true}]);
        assert_eq!(metadata["ownerReferences"], owner);
        assert_eq!((metadata.get("uid"), object.get("status")), (None, None));
        assert_eq!(object["spec"]["containers"][0]["image"], "i");
        assert!(is_same(&object, &object));
        assert!(!is_same(&json!({"metadata": {"name": "a-n"}}), &object));
    }
}
