//! What the statuses of pods and containers tell besides, to who asks for all of it: the records, and the processes.
//!
//! The names beside a record's own are containerd's: `crictl inspect --template '{{.info.pid}}'` is how scripts find a
//! process.

use std::{collections::HashMap, fs, path::PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    container::{Container, ContainerState},
    runtime::Runtime,
    sandbox::{Sandbox, SandboxState},
};

/// Of a pod: its keeper is its first process, and in its namespaces.
pub(super) async fn sandbox(runtime: &Runtime, sandbox: &Sandbox) -> HashMap<String, String> {
    let (pid, own) = if sandbox.state == SandboxState::Ready {
        let pid = runtime.processes(sandbox).await.keeper;
        (pid, pid.map(|pid| namespaces(pid, &OF_PODS)))
    } else {
        (Some(0), None)
    };
    let reason = sandbox.unknown_reason.as_ref().map(ToString::to_string);
    info(
        sandbox,
        [
            ("pid", json!(pid)),
            ("reason", json!(reason)),
            ("runtimeSpec", spec(own)),
        ],
    )
}

/// Of a container. One that has ended has no process, 0; one whose keeper does not answer has an unknown one.
pub(super) async fn container(
    runtime: &Runtime,
    sandbox: Option<&Sandbox>,
    container: &Container,
) -> HashMap<String, String> {
    let (pid, own) = match (container.state, sandbox) {
        (ContainerState::Created | ContainerState::Running, Some(sandbox)) => {
            let processes = runtime.processes(sandbox).await;
            let first = processes.first.get(container.id.as_str()).copied();
            let pid = processes.keeper.map(|_| first.unwrap_or_default());
            let own = processes.keeper.map(|keeper| {
                let of_pod = namespaces(keeper, &OF_PODS);
                let of_container = first.map(|first| namespaces(first, &OF_CONTAINERS));
                [of_pod, of_container.unwrap_or_default()].concat()
            });
            (pid, own)
        }
        _ => (Some(0), None),
    };
    let id = json!(container.sandbox);
    info(
        container,
        [
            ("pid", json!(pid)),
            ("sandboxID", id),
            ("runtimeSpec", spec(own)),
        ],
    )
}

/// Namespaces that the containers of a pod share, and those of a container: the OCI runtime specification's words, and the
/// kernel's in `/proc`.
const OF_PODS: [(&str, &str); 3] = [("network", "net"), ("ipc", "ipc"), ("uts", "uts")];
const OF_CONTAINERS: [(&str, &str); 3] = [("pid", "pid"), ("mount", "mnt"), ("cgroup", "cgroup")];

/// The namespaces of a process that are not the daemon's, with files by which others can enter them.
fn namespaces(pid: i32, kinds: &[(&str, &str)]) -> Vec<Value> {
    let file = |process: &str, name: &str| PathBuf::from(format!("/proc/{process}/ns/{name}"));
    let own = |(kind, name): &(&str, &str)| {
        let path = file(&pid.to_string(), name);
        let its = fs::read_link(&path).ok()?;
        let ours = fs::read_link(file("self", name)).ok();
        (Some(its) != ours).then(|| json!({ "type": kind, "path": path }))
    };
    kinds.iter().filter_map(own).collect()
}

/// As much of an OCI runtime specification as scripts look for in containerd's answer.
fn spec(namespaces: Option<Vec<Value>>) -> Value {
    let spec = |namespaces| json!({ "linux": { "namespaces": namespaces } });
    namespaces.map_or(Value::Null, spec)
}

fn info<const N: usize>(
    record: &impl Serialize,
    more: [(&str, Value); N],
) -> HashMap<String, String> {
    let mut info = serde_json::to_value(record).unwrap_or_default();
    if let Value::Object(info) = &mut info {
        // The status beside it has the state. In crictl's output scripts take the only `state` there is (CRI-O's ctr.bats).
        info.remove("state");
        let known = more.into_iter().filter(|(_, value)| !value.is_null());
        info.extend(known.map(|(name, value)| (name.to_owned(), value)));
    }
    HashMap::from([("info".to_owned(), info.to_string())])
}
