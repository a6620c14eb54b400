//! ◆ Calls that change state, as operations on objects.

use serde_json::{Value, json};

use crate::comparison::normal::{Symbols, attempt, text};
use crate::scenarios::scenario::method;

/// The JSON pointer to the hash of a container's definition.
const HASH: &str = "/config/annotations/io.kubernetes.container.hash";

/// A call that changes state.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// `name#generation`
    pub(crate) pod: String,
    /// `sandbox/ATTEMPT`, `NAME/ATTEMPT` or `image NAME`.
    pub(crate) object: String,
    pub(crate) method: String,
    /// The arguments of the call other than its object and a configuration.
    pub(crate) argument: String,
    /// The configuration of a sandbox or container.
    pub(crate) config: Value,
    pub(crate) succeeded: bool,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

impl Operation {
    /// The operation on one line.
    pub(crate) fn summary(&self) -> String {
        let failed = if self.succeeded { "" } else { " (failed)" };
        format!("{}{}{failed}", self.method, self.argument)
    }

    /// Whether a container's probe ran this command: a hook's has no timeout.
    pub(crate) fn is_probe(&self) -> bool {
        self.method == "ExecSync" && self.argument.contains("timeout=")
    }

    pub(crate) fn attempt(&self) -> u64 {
        let (_, attempt) = self.object.rsplit_once('/').unwrap_or_default();
        attempt.parse().unwrap_or_default()
    }
}

/// The operations of a run, by pod and in order, without removals after the end of a pod, and without repeated stops of a sandbox.
pub(crate) fn operations(calls: &[Value], symbols: &mut Symbols) -> Vec<Operation> {
    let mut all: Vec<Operation> =
        calls.iter().filter_map(|call| operation(call, symbols)).collect();
    all.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut stopped: Vec<(String, String)> = Vec::new();
    let mut removed = Vec::new();
    all.retain(|operation| {
        let object = (operation.pod.clone(), operation.object.clone());
        match operation.method.as_str() {
            // Garbage collection, once a minute.
            "RemovePodSandbox" => false,
            "StopPodSandbox" => {
                let first = !stopped.contains(&object);
                stopped.push(object);
                first
            }
            "RemoveContainer" => {
                let first = !removed.contains(&object);
                removed.push(object);
                first
            }
            _ => true,
        }
    });
    let over = ends(&all);
    all.retain(|operation| {
        let end = over.iter().find(|(pod, _)| *pod == operation.pod);
        operation.method != "RemoveContainer" || end.is_none_or(|(_, end)| operation.start < *end)
    });
    all
}

/// The times at which the last sandbox of each pod was stopped.
fn ends(all: &[Operation]) -> Vec<(String, f64)> {
    let mut ends: Vec<(String, f64)> = Vec::new();
    for operation in all {
        match operation.method.as_str() {
            "RunPodSandbox" => ends.retain(|(pod, _)| *pod != operation.pod),
            "StopPodSandbox" => ends.push((operation.pod.clone(), operation.start)),
            _ => {}
        }
    }
    ends
}

fn operation(call: &Value, symbols: &mut Symbols) -> Option<Operation> {
    let request = &call["request"];
    let name = method(call);
    let config = &request["config"];
    let (pod, object) = match name {
        "RunPodSandbox" => {
            let metadata = &config["metadata"];
            let pod = symbols.pod_of(text(&metadata["uid"]))?;
            (pod.to_owned(), format!("sandbox/{}", attempt(metadata)))
        }
        "CreateContainer" => {
            let pod = symbols.pod_of(text(&request["sandbox_config"]["metadata"]["uid"]))?;
            let metadata = &config["metadata"];
            (pod.to_owned(), format!("{}/{}", text(&metadata["name"]), attempt(metadata)))
        }
        "PullImage" => {
            let pod = symbols.pod_of(text(&request["sandbox_config"]["metadata"]["uid"]))?;
            (pod.to_owned(), format!("image {}", text(&request["image"]["image"])))
        }
        "StartContainer"
        | "StopContainer"
        | "RemoveContainer"
        | "ExecSync"
        | "ReopenContainerLog"
        | "UpdateContainerResources" => of_symbol(symbols.of(text(&request["container_id"]))?)?,
        "StopPodSandbox" | "RemovePodSandbox" | "UpdatePodSandboxResources" => {
            of_symbol(symbols.of(text(&request["pod_sandbox_id"]))?)?
        }
        _ => return None,
    };
    // Such a call does not reach the runtime, so its recording depends on whether the client makes it without a connection.
    if name == "ExecSync" && call["code"] == "Unavailable" {
        return None;
    }
    let timeout = match text(&request["timeout"]) {
        "" | "0" => String::new(),
        seconds => format!(" timeout={seconds}"),
    };
    let argument = match name {
        "ExecSync" => format!(" {}{timeout}", request["cmd"]),
        "UpdateContainerResources" | "UpdatePodSandboxResources" => {
            let mut rest = request.clone();
            if let Some(fields) = rest.as_object_mut() {
                fields.retain(|key, _| key != "container_id" && key != "pod_sandbox_id");
            }
            format!(" {}", symbols.value(&rest))
        }
        _ => timeout,
    };
    let mut config = match name {
        "RunPodSandbox" => {
            json!({"config": config, "runtime_handler": request["runtime_handler"]})
        }
        "CreateContainer" => {
            json!({"config": config, "sandbox_config": request["sandbox_config"]})
        }
        "PullImage" => {
            json!({"image": request["image"], "sandbox_config": request["sandbox_config"]})
        }
        _ => Value::Null,
    };
    if let Some(hash) = config.pointer_mut(HASH) {
        // The order of pods that start together is undefined.
        let name = pod.split('#').next().unwrap_or_default();
        let container = format!("{name}/{}", text(&request["config"]["metadata"]["name"]));
        *hash = json!(symbols.hash(&container, text(hash)));
    }
    Some(Operation {
        pod,
        object,
        method: name.to_owned(),
        argument,
        config: symbols.value(&config),
        // A call that has not ended has not failed.
        succeeded: call.get("code").is_none_or(|code| code == "OK"),
        start: call["t_start"].as_f64()?,
        end: call["t_end"].as_f64().unwrap_or(f64::MAX),
    })
}

/// The pod and the object of `SANDBOX(pod/attempt)` or `CONTAINER(pod/name/attempt)`.
fn of_symbol(symbol: &str) -> Option<(String, String)> {
    let (kind, rest) = symbol.strip_suffix(')')?.split_once('(')?;
    let (pod, object) = rest.split_once('/')?;
    match kind {
        "SANDBOX" => Some((pod.to_owned(), format!("sandbox/{object}"))),
        "CONTAINER" => Some((pod.to_owned(), object.to_owned())),
        _ => None,
    }
}
