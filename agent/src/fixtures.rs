//! Fixtures of unit tests of several modules: pods, observations and reports.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use api::manifest::{Object, Parsed, Strictness, parse};
use api::pod::{ContainerKind, Pod, PodUid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PodStatus};
use serde_json::{Value, json};

use crate::cri::PodRef;
use crate::decide::plan::{Blocks, Start, When};
use crate::objects::ObjectMap;
use crate::observed::{
    ContainerId, ContainerState, Exit, NetworkMode, ObservedContainer, ObservedSandbox, SandboxId,
};
use crate::reporting::report::{ContainerPhase, ContainerReport, PodReport};

/// A pod from JSON.
pub(crate) fn pod(api: Value) -> Pod {
    Pod::new(serde_json::from_value(api).unwrap())
}

/// A pod in the namespace `default` with this specification.
pub(crate) fn pod_of(uid: &str, name: &str, spec: Value) -> Pod {
    let metadata = json!({"name": name, "namespace": "default", "uid": uid});
    pod(json!({"metadata": metadata, "spec": spec}))
}

/// The manifest of a pod.
pub(crate) fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: app\n    image: crib.local/host\n"
    )
}

/// Parses a manifest without errors.
pub(crate) fn parsed(text: &str) -> Parsed {
    let parsed = parse("m.yaml", text, Strictness::Strict);
    assert_eq!(parsed.problems, []);
    parsed
}

pub(crate) fn objects(list: Vec<Object>) -> ObjectMap {
    let mut objects = ObjectMap::default();
    objects.extend(list);
    objects
}

/// Writes a file of a watched directory atomically.
pub(crate) fn put(dir: &Path, name: &str, text: &str) {
    let hidden = dir.join(format!(".{name}.new"));
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(hidden, dir.join(name)).unwrap();
}

/// The object `object` with the members `members`, which replace its own.
pub(crate) fn with(mut object: Value, members: &Value) -> Value {
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    object
}

/// A claim of 1 GiB in the namespace `default`, with these fields of its spec.
pub(crate) fn claim(name: &str, fields: &Value) -> PersistentVolumeClaim {
    let size = json!({"requests": {"storage": "1Gi"}});
    let spec = with(json!({"accessModes": ["ReadWriteOnce"], "resources": size}), fields);
    let metadata = json!({"name": name, "namespace": "default"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// A volume of 1 GiB with these fields of its spec. Its label `tier` is its name.
pub(crate) fn volume(name: &str, fields: &Value) -> Box<PersistentVolume> {
    let size = json!({"storage": "1Gi"});
    let spec = with(json!({"accessModes": ["ReadWriteOnce"], "capacity": size}), fields);
    let metadata = json!({"name": name, "labels": {"tier": name}});
    Box::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

/// The identity of a pod in the namespace `default`.
pub(crate) fn pod_ref(uid: &str, name: &str) -> PodRef {
    let namespace = "default".to_owned();
    PodRef { uid: PodUid::new(uid), namespace, name: name.to_owned(), agent: None }
}

/// An exit with this code at the epoch.
pub(crate) fn exit(code: i32) -> Exit {
    Exit {
        code,
        reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
        message: String::new(),
        started_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
    }
}

pub(crate) fn running() -> ContainerState {
    ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }
}

/// A container of the sandbox `s`.
pub(crate) fn container(id: &str, name: &str, state: ContainerState) -> ObservedContainer {
    ObservedContainer {
        id: ContainerId::new(id),
        name: name.to_owned(),
        sandbox_id: SandboxId::new("s"),
        state,
        created_at: Timestamp::UNIX_EPOCH,
        restart_count: 0,
        image: String::new(),
        image_ref: String::new(),
        hash: String::new(),
        log_path: None,
        user: None,
        mounts: Vec::new(),
        resources: None,
        stop_signal: None,
    }
}

pub(crate) fn sandbox(id: &str, ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: SandboxId::new(id),
        ready,
        attempt: 0,
        created_at: Timestamp::UNIX_EPOCH,
        network: NetworkMode::Pod,
        ips: None,
    }
}

/// The start of an app container, now.
pub(crate) fn start(name: &str) -> Start {
    Start {
        name: name.to_owned(),
        kind: ContainerKind::App,
        restart_count: None,
        when: When::Now,
        reason: "for the first time".to_owned(),
        previous_end: None,
        backoff_key: String::new(),
        image: String::new(),
        pull_policy: None,
        target: None,
        blocks: Blocks::Nothing,
    }
}

/// The report of an app container.
pub(crate) fn container_report(name: &str, state: ContainerPhase) -> ContainerReport {
    ContainerReport {
        name: name.to_owned(),
        kind: ContainerKind::App,
        state,
        reason: String::new(),
        message: String::new(),
        exit_code: None,
        refused: false,
        ready: false,
        restarts: 0,
        image: String::new(),
        container_id: name.to_owned(),
        log_path: None,
        in_hook: None,
        pull: None,
        create: None,
        start: None,
    }
}

/// The report of a pod in the namespace `default`.
pub(crate) fn pod_report(uid: &str, status: PodStatus) -> PodReport {
    let status = Arc::new(status);
    PodReport {
        uid: PodUid::new(uid),
        namespace: "default".to_owned(),
        name: uid.to_owned(),
        published: Arc::clone(&status),
        status,
        finished: false,
        removed: false,
        containers: Vec::new(),
    }
}
