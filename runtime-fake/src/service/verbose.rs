//! The verbose information in the statuses of pods and containers: the records, and the processes.
//!
//! The additional names are containerd's: scripts use `crictl inspect --template '{{.info.pid}}'` to find a
//! process.

use std::{collections::HashMap, fs, path::PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    container::{Container, ContainerState},
    runtime::Runtime,
    sandbox::{Sandbox, SandboxState},
};

/// The information on a pod: its keeper is its first process, and is in its namespaces.
pub(super) async fn sandbox(runtime: &Runtime, sandbox: &Sandbox) -> HashMap<String, String> {
    let (pid, own) = if sandbox.state == SandboxState::Ready {
        let pid = runtime.processes(sandbox).await.keeper;
        (pid, pid.map(|pid| namespaces(pid, &OF_PODS)))
    } else {
        (Some(0), None)
    };
    let reason = sandbox.unknown_reason.as_ref().map(ToString::to_string);
    info(sandbox, [("pid", json!(pid)), ("reason", json!(reason)), ("runtimeSpec", spec(own))])
}

/// The information on a container. The pid is 0 if it has ended, and missing if its keeper does not answer.
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
    info(container, [("pid", json!(pid)), ("sandboxID", id), ("runtimeSpec", spec(own))])
}

/// The namespaces shared by a pod's containers, and the namespaces of a container: by the name in the OCI runtime specification,
/// and in `/proc`.
const OF_PODS: [(&str, &str); 3] = [("network", "net"), ("ipc", "ipc"), ("uts", "uts")];
const OF_CONTAINERS: [(&str, &str); 3] = [("pid", "pid"), ("mount", "mnt"), ("cgroup", "cgroup")];

/// The namespaces of a process that differ from the daemon's, with files by which other processes can enter them.
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

/// The part of an OCI runtime specification that scripts read from containerd's response.
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
        // The status contains the state already. Scripts expect only one `state` in crictl's output (CRI-O's ctr.bats).
        info.remove("state");
        let known = more.into_iter().filter(|(_, value)| !value.is_null());
        info.extend(known.map(|(name, value)| (name.to_owned(), value)));
    }
    HashMap::from([("info".to_owned(), info.to_string())])
}
