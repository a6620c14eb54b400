//! Reads the common parts of the sets: pods, and a runtime's reports.

use agent::labels;
use agent::observed::{
    ContainerId, ContainerState, ContainerUser, Exit, NetworkMode, Observed, ObservedContainer,
    ObservedSandbox, ProbeResult, ProbeResults, SandboxId,
};
use api::pod::Pod;
use jiff::Timestamp;
use serde_json::Value;

use crate::read::{list, text};

pub(crate) fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

pub(crate) fn pod(value: &Value) -> Pod {
    Pod::new(serde_json::from_value(value.clone()).unwrap())
}

/// The `runtime` and `probes` members of an input.
pub(crate) fn observed(pod: &Pod, input: &Value, at: Timestamp) -> Observed {
    let runtime = &input["runtime"];
    Observed {
        at,
        runtime_name: "containerd".to_owned(),
        sandboxes: list(&runtime["sandboxes"]).iter().map(sandbox).collect(),
        containers: list(&runtime["containers"])
            .iter()
            .map(|seen| container(pod, seen, time))
            .collect(),
        probes: input["probes"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(id, seen)| (ContainerId::new(id.as_str()), probes(seen)))
            .collect(),
    }
}

fn sandbox(seen: &Value) -> ObservedSandbox {
    ObservedSandbox {
        id: SandboxId::new(text(&seen["id"])),
        ready: seen["state"] == "ready",
        attempt: u32::try_from(seen["attempt"].as_u64().unwrap()).unwrap(),
        created_at: time(&seen["createdAt"]),
        network: if seen["network"] == "node" { NetworkMode::Node } else { NetworkMode::Pod },
        ips: seen.get("ip").map(|ip| {
            let further = list(&seen["additionalIps"]).iter();
            std::iter::once(ip).chain(further).map(|ip| text(ip).to_owned()).collect()
        }),
    }
}

/// Reads one container; `time` parses the file's time format.
pub(crate) fn container(
    pod: &Pod,
    seen: &Value,
    time: impl Fn(&Value) -> Timestamp,
) -> ObservedContainer {
    let name = text(&seen["name"]).to_owned();
    let started_at = seen.get("startedAt").map(&time);
    let state = match text(&seen["state"]) {
        "created" => ContainerState::Created,
        "running" => ContainerState::Running { started_at: started_at.unwrap() },
        "exited" => ContainerState::Exited(Exit {
            code: i32::try_from(seen["exitCode"].as_i64().unwrap()).unwrap(),
            reason: text(&seen["reason"]).to_owned(),
            message: text(&seen["message"]).to_owned(),
            started_at,
            finished_at: time(&seen["finishedAt"]),
        }),
        "unknown" => ContainerState::Unknown,
        other => panic!("container state {other}"),
    };
    let hash = match pod.container(&name) {
        Some((_, spec)) if seen["hashMatches"] != false => labels::container_hash(spec),
        Some(_) | None => "0".to_owned(),
    };
    ObservedContainer {
        id: ContainerId::new(text(&seen["id"])),
        name,
        sandbox_id: SandboxId::new(text(&seen["sandboxId"])),
        state,
        created_at: time(&seen["createdAt"]),
        restart_count: u32::try_from(seen["restartCount"].as_u64().unwrap_or_default()).unwrap(),
        image: text(&seen["image"]).to_owned(),
        image_ref: text(&seen["imageRef"]).to_owned(),
        hash,
        log_path: None,
        user: seen.get("user").map(|user| ContainerUser {
            uid: user["uid"].as_i64().unwrap_or_default(),
            gid: user["gid"].as_i64().unwrap_or_default(),
            supplemental_groups: list(&user["supplementalGroups"])
                .iter()
                .filter_map(Value::as_i64)
                .collect(),
        }),
        mounts: Vec::new(),
        resources: None,
        stop_signal: None,
    }
}

fn probes(seen: &Value) -> ProbeResults {
    let one = |value: &Value| match value.as_str() {
        None => None,
        Some("success") => Some(ProbeResult::Success),
        Some("failure") => Some(ProbeResult::Failure),
        Some("unknown") => Some(ProbeResult::Unknown),
        Some(other) => panic!("probe result {other}"),
    };
    ProbeResults {
        startup: one(&seen["startup"]),
        liveness: one(&seen["liveness"]),
        readiness: one(&seen["readiness"]),
    }
}

/// Formats seconds as in the files: whole numbers without a fraction.
pub(crate) fn seconds(seconds: f64) -> Value {
    if seconds.fract() == 0.0 {
        serde_json::json!(seconds as i64)
    } else {
        serde_json::json!(seconds)
    }
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    list(value).iter().map(|item| text(item).to_owned()).collect()
}
