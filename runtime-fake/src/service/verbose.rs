//! What the statuses of pods and containers tell besides, to who asks for all of it: the records, and the processes.
//!
//! The names beside a record's own are containerd's: `crictl inspect --template '{{.info.pid}}'` is how scripts find a
//! process.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    container::{Container, ContainerState},
    runtime::Runtime,
    sandbox::{Sandbox, SandboxState},
};

/// Of a pod: its keeper is its first process, and in its namespaces.
pub(super) async fn sandbox(runtime: &Runtime, sandbox: &Sandbox) -> HashMap<String, String> {
    let pid = if sandbox.state == SandboxState::Ready {
        runtime.processes(sandbox).await.keeper
    } else {
        Some(0)
    };
    info(sandbox, [("pid", json!(pid))])
}

/// Of a container. One that has ended has no process, 0; one whose keeper does not answer has an unknown one.
pub(super) async fn container(
    runtime: &Runtime,
    sandbox: Option<&Sandbox>,
    container: &Container,
) -> HashMap<String, String> {
    let pid = match (container.state, sandbox) {
        (ContainerState::Created | ContainerState::Running, Some(sandbox)) => {
            let processes = runtime.processes(sandbox).await;
            processes.keeper.map(|_| {
                let first = processes.first.get(container.id.as_str());
                first.copied().unwrap_or_default()
            })
        }
        _ => Some(0),
    };
    let id = json!(container.sandbox);
    info(container, [("pid", json!(pid)), ("sandboxID", id)])
}

fn info<const N: usize>(
    record: &impl Serialize,
    more: [(&str, Value); N],
) -> HashMap<String, String> {
    let mut info = serde_json::to_value(record).unwrap_or_default();
    if let Value::Object(info) = &mut info {
        let known = more.into_iter().filter(|(_, value)| !value.is_null());
        info.extend(known.map(|(name, value)| (name.to_owned(), value)));
    }
    HashMap::from([("info".to_owned(), info.to_string())])
}
