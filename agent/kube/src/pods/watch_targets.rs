//! ◆ The objects to follow for the node's pods, and the effect of the server's answers. Pure.
//!
//! The node authorizer allows a node to follow an object only by its name, and only while a pod that is bound to the node refers
//! to it.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/util/manager/watch_based_manager.go; plugin/pkg/auth/authorizer/node.

use std::time::Duration;

use agent::objects::{BoundClaim, ObjectKind, ObjectMap};
use agent::pod_spec::references::{claims, named, named_by_volumes_and_pulls};
use api::pod::Pod;
use compact::Map;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How long a new pod waits for the first answers about its objects.
pub(super) const FIRST_ANSWERS: Duration = Duration::from_secs(1);
/// The delay before a first request is repeated that the server forbids. The node authorizer follows the pods with a delay, so it may
/// not yet know a pod that the node knows. A kubelet waits a second for each object, too, but repeats the request with the usual
/// back-off, which is rarely shorter.
pub(super) const FORBIDDEN_RETRY: Duration = Duration::from_millis(200);

/// An object that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectRef {
    pub(super) kind: ObjectKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// An object, or a set of objects, to follow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchTarget {
    /// One object.
    Object(ObjectRef),
    /// The claim of this namespace and name, and the volume bound to it.
    Claim(String, String),
    /// The node itself: its labels and taints decide which pods it admits.
    Node,
    /// All RuntimeClasses.
    RuntimeClasses,
    /// All Services with a ClusterIP, for the environment variables of pods.
    Services,
}

/// Followed regardless of the pods.
pub(super) const ALWAYS: [WatchTarget; 3] =
    [WatchTarget::Node, WatchTarget::RuntimeClasses, WatchTarget::Services];

/// The server's answer about a watch target.
#[derive(Clone, Debug)]
pub(super) enum WatchResult {
    /// The objects; empty if the object does not exist.
    Objects(Vec<Value>),
    /// The bound volume of a claim, or the reason that the claim cannot be used.
    Claim(Result<BoundClaim, String>),
    /// The request failed.
    Refused(String),
}

pub(super) type WatchResults = Map<WatchTarget, WatchResult>;

/// The objects and claims that a pod refers to.
pub(super) fn watch_targets(pod: &Pod) -> Vec<WatchTarget> {
    let claims = claims(pod).into_iter();
    let claims = claims.map(|name| WatchTarget::Claim(pod.namespace().to_owned(), name));
    objects(pod).into_iter().map(WatchTarget::Object).chain(claims).collect()
}

/// The ConfigMaps and Secrets that a pod names.
pub(super) fn objects(pod: &Pod) -> Vec<ObjectRef> {
    in_namespace(pod.namespace(), named(pod))
}

/// The objects that are read repeatedly while the pod runs. The others are read when a container starts.
pub(super) fn lasting(pod: &Pod) -> Vec<ObjectRef> {
    in_namespace(pod.namespace(), named_by_volumes_and_pulls(pod))
}

/// The objects of a namespace.
pub(super) fn in_namespace(
    namespace: &str,
    objects: impl IntoIterator<Item = (ObjectKind, String)>,
) -> Vec<ObjectRef> {
    let objects = objects.into_iter();
    objects.map(|(kind, name)| ObjectRef { kind, namespace: namespace.to_owned(), name }).collect()
}

/// Whether the object of an answer is immutable, so that it needs no watch. If it is deleted and created again, pods see the new
/// one once no pod uses the old one, as with the kubelet.
pub(super) fn is_immutable(answer: &WatchResult) -> bool {
    match answer {
        WatchResult::Objects(found) => found.iter().any(|object| object["immutable"] == true),
        WatchResult::Claim(_) | WatchResult::Refused(_) => false,
    }
}

/// The error for an object of this kind before the first answer.
pub(super) fn sync_timeout_error(kind: ObjectKind) -> String {
    format!("failed to sync {kind} cache: timed out waiting for the condition")
}

/// Adds the answer about a watch target to the objects.
pub(super) fn add(objects: &mut ObjectMap, watched: &WatchTarget, answer: Option<&WatchResult>) {
    let found = match answer {
        Some(WatchResult::Objects(found)) => found.as_slice(),
        Some(WatchResult::Claim(_) | WatchResult::Refused(_)) | None => &[],
    };
    match watched {
        WatchTarget::Claim(namespace, name) => {
            let bound = match answer {
                Some(WatchResult::Claim(bound)) => bound.clone(),
                Some(WatchResult::Objects(_) | WatchResult::Refused(_)) | None => {
                    Err("failed to fetch PVC from API server: no answer yet".to_owned())
                }
            };
            objects.set_bound_claim(namespace, name, bound);
        }
        WatchTarget::Node => {
            found.iter().filter_map(decoded).for_each(|node| objects.set_node(node))
        }
        WatchTarget::RuntimeClasses => {
            found.iter().filter_map(decoded).for_each(|class| objects.insert_runtime_class(class));
            if matches!(answer, Some(WatchResult::Objects(_))) {
                objects.set_all_runtime_classes_known();
            }
        }
        WatchTarget::Services => {
            found.iter().filter_map(decoded).for_each(|service| objects.insert_service(service));
            // Containers must wait: without KUBERNETES_SERVICE_HOST, their clients cannot find the API server.
            if !matches!(answer, Some(WatchResult::Objects(_))) {
                objects.set_services_unread();
            }
        }
        WatchTarget::Object(named) => {
            match named.kind {
                ObjectKind::ConfigMap => {
                    found.iter().filter_map(decoded).for_each(|map| objects.insert_config_map(map));
                }
                ObjectKind::Secret => {
                    found.iter().filter_map(decoded).for_each(|it| objects.insert_secret(it));
                }
            }
            let why = match answer {
                Some(WatchResult::Objects(_) | WatchResult::Claim(_)) => return,
                Some(WatchResult::Refused(why)) => why.clone(),
                None => sync_timeout_error(named.kind),
            };
            objects.set_unknown(named.kind, &named.namespace, &named.name, why);
        }
    }
}

fn decoded<T: DeserializeOwned>(object: &Value) -> Option<T> {
    let decoded = T::deserialize(object);
    if let Err(error) = &decoded {
        let name = &object["metadata"]["name"];
        tracing::error!(%name, %error, "failed to decode an object of the API server");
    }
    decoded.ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn named(kind: ObjectKind, name: &str) -> WatchTarget {
        WatchTarget::Object(ObjectRef { kind, namespace: "ns".to_owned(), name: name.to_owned() })
    }

    fn pod(spec: Value) -> Pod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        Pod::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn watch_targets_are_the_objects_that_a_pod_names() {
        let spec = json!({
            "containers": [{
                "name": "c",
                "envFrom": [{"configMapRef": {"name": "all"}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}],
            }],
            "volumes": [
                {"name": "v", "projected": {"sources": [{"configMap": {"name": "root"}}]}},
                {"name": "unused", "secret": {"secretName": "unused"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}},
                {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            ],
            "imagePullSecrets": [{"name": "login"}],
        });
        let pod = pod(spec);
        let mut found = watch_targets(&pod);
        found.sort();
        let expected = [
            named(ObjectKind::ConfigMap, "all"),
            named(ObjectKind::ConfigMap, "root"),
            named(ObjectKind::Secret, "login"),
            named(ObjectKind::Secret, "one"),
            named(ObjectKind::Secret, "unused"),
            WatchTarget::Claim("ns".to_owned(), "disk".to_owned()),
            WatchTarget::Claim("ns".to_owned(), "p-tmp".to_owned()),
        ];
        assert_eq!(found, expected);
        let lasting: Vec<WatchTarget> =
            lasting(&pod).into_iter().map(WatchTarget::Object).collect();
        let expected = [named(ObjectKind::ConfigMap, "root"), named(ObjectKind::Secret, "login")];
        assert_eq!(lasting, expected);
    }

    #[test]
    fn services_are_read_once_they_are_listed() {
        let table = [
            (None, true),
            (Some(WatchResult::Refused("forbidden".to_owned())), true),
            (Some(WatchResult::Objects(Vec::new())), false),
        ];
        for (answer, unread) in &table {
            let mut objects = ObjectMap::default();
            add(&mut objects, &WatchTarget::Services, answer.as_ref());
            assert_eq!(objects.services_are_unread(), *unread, "{answer:?}");
        }
    }

    #[test]
    fn answers_make_objects_present_absent_or_unknown() {
        let mut objects = ObjectMap::default();
        let map = json!({"metadata": {"name": "a", "namespace": "ns"}, "data": {"k": "v"}});
        let table = [
            (named(ObjectKind::ConfigMap, "a"), Some(WatchResult::Objects(vec![map]))),
            (named(ObjectKind::ConfigMap, "b"), Some(WatchResult::Objects(Vec::new()))),
            (named(ObjectKind::ConfigMap, "c"), Some(WatchResult::Refused("forbidden".to_owned()))),
            (named(ObjectKind::Secret, "d"), None),
        ];
        for (watched, answer) in &table {
            add(&mut objects, watched, answer.as_ref());
        }
        let map = |name| objects.config_map("ns", name);
        assert_eq!(map("a").unwrap().data.as_ref().unwrap()["k"], "v");
        assert_eq!((map("b"), map("c")), (None, None));
        let why = |kind, name| objects.unknown(kind, "ns", name).map(ToOwned::to_owned);
        assert_eq!(why(ObjectKind::ConfigMap, "a"), None);
        assert_eq!(why(ObjectKind::ConfigMap, "b"), None);
        assert_eq!(why(ObjectKind::ConfigMap, "c").as_deref(), Some("forbidden"));
        let sync_timeout_error = "failed to sync secret cache: timed out waiting for the condition";
        assert_eq!(why(ObjectKind::Secret, "d").as_deref(), Some(sync_timeout_error));
    }
}
