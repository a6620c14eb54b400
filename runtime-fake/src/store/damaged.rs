//! Represents pods and containers with unreadable records: with the readable fields, and placeholder names for
//! the rest. Clients see them and can remove them.

use cri::v1::{ContainerConfig, ContainerMetadata, PodSandboxConfig, PodSandboxMetadata};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::container::{Container, ContainerState};
use crate::id::{ContainerId, SandboxId};
use crate::sandbox::{Sandbox, SandboxState, UnknownReason};

/// The name of an object with an unreadable record, and the namespace of such a pod.
const UNREADABLE: &str = "unreadable";
/// The stop signal of a container if its record has none.
const SIGTERM: i32 = 15;

fn part<T: DeserializeOwned>(record: &Value, name: &str) -> Option<T> {
    T::deserialize(record.get(name)?).ok()
}

/// A pod, as not ready.
pub(super) fn sandbox(id: SandboxId, record: &Value, found: Timestamp, why: String) -> Sandbox {
    let mut config: PodSandboxConfig = part(record, "config").unwrap_or_default();
    // A kubelet rejects a status without all three.
    config.metadata.get_or_insert_with(|| PodSandboxMetadata {
        name: UNREADABLE.to_owned(),
        uid: id.to_string(),
        namespace: UNREADABLE.to_owned(),
        attempt: 0,
    });
    Sandbox {
        config,
        runtime_handler: part(record, "runtime_handler").unwrap_or_default(),
        state: SandboxState::NotReady,
        created_at: part(record, "created_at").unwrap_or(found),
        addresses: part(record, "addresses").unwrap_or_default(),
        cgroup: part(record, "cgroup").flatten(),
        labels: part(record, "labels").flatten(),
        unknown_reason: Some(UnknownReason::Record(why)),
        id,
    }
}

/// A container, as running.
pub(super) fn container(
    id: ContainerId,
    sandbox: SandboxId,
    record: &Value,
    found: Timestamp,
    why: String,
) -> Container {
    let mut config: ContainerConfig = part(record, "config").unwrap_or_default();
    config.metadata.get_or_insert_with(|| ContainerMetadata {
        name: format!("{UNREADABLE}-{}", id.short()),
        attempt: 0,
    });
    Container {
        config,
        sandbox,
        image_id: part(record, "image_id").unwrap_or_default(),
        image_name: part(record, "image_name").unwrap_or_default(),
        image_reference: part(record, "image_reference").unwrap_or_default(),
        image: part(record, "image").unwrap_or_default(),
        stop_signal: part(record, "stop_signal").unwrap_or(SIGTERM),
        log_path: part(record, "log_path").unwrap_or_default(),
        state: ContainerState::Running,
        created_at: part(record, "created_at").unwrap_or(found),
        started_at: part(record, "started_at").flatten(),
        user: part(record, "user").flatten(),
        exit: None,
        cgroup: part(record, "cgroup").flatten(),
        not_applied: Vec::new(),
        confinement: part(record, "confinement").unwrap_or_default(),
        device_edits: part(record, "device_edits").unwrap_or_default(),
        unknown_reason: Some(UnknownReason::Record(why)),
        id,
    }
}
