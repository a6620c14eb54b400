//! pod-phase and pod-status: the status for the API server.

use agent::Features;
use agent::reporting::status::{self, Inputs, StartError};
use compact::Map;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use serde_json::{Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const PHASE: Set = Set::new("pod-phase", "the phase of a pod", pod_phase);

fn pod_phase(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let statuses: Vec<ContainerStatus> =
        serde_json::from_value(case.input["containerStatuses"].clone()).unwrap_or_default();
    let (terminated, initialized) =
        (case.input["terminated"] == true, case.input["hasInitialized"] == true);
    let ours = status::phase(&pod, &statuses, terminated, initialized);
    read::same("phase", &json!(ours), &case.expected["phase"])
}

pub(crate) const STATUS: Set = Set::new("pod-status", "the status of a pod", judge);

fn judge(case: &Case) -> Result<(), String> {
    let input = &case.input;
    let pod = pods::pod(&input["pod"]);
    let observed = pods::observed(&pod, input, pods::time(&input["now"]));
    let previous: Option<PodStatus> =
        input.get("cachedStatus").map(|cached| serde_json::from_value(cached.clone()).unwrap());
    let errors = input["startErrors"].as_object().into_iter().flatten();
    let start_errors: Map<String, StartError> = errors
        .map(|(name, error)| {
            let text = |key: &str| read::text(&error[key]).to_owned();
            (name.clone(), StartError { reason: text("reason"), message: text("message") })
        })
        .collect();
    let node_ips = pods::texts(&input["nodeIPs"]);
    let ours = status::pod_status(&Inputs {
        pod: &pod,
        observed: &observed,
        previous: previous.as_ref(),
        start_errors: &start_errors,
        terminated: input["terminated"] == true,
        probes_registered: input["probesRegistered"] == true,
        agent_started_at: Some(pods::time(&input["agentStartedAt"])),
        node_ips: &node_ips,
        prefers_ipv6: node_ips.first().is_some_and(|ip| ip.contains(':')),
        // The recorded kubelet was not told which handlers its runtime has.
        recursive_read_only: false,
        stop_signals: false,
        features: Features::default(),
        actuated: None,
        resize: None,
    });
    // Decode both with the same types, so that absent and empty members are equal.
    let expected: PodStatus = serde_json::from_value(case.expected.clone()).unwrap();
    let (ours, expected) =
        (tidy(serde_json::to_value(ours).unwrap()), tidy(serde_json::to_value(expected).unwrap()));
    for (what, theirs) in expected.as_object().unwrap() {
        read::same(what, &ours[what], theirs)?;
    }
    read::same("status", &ours, &expected)
}

/// Absent, null and empty are equal, except that an empty waiting state is a state.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, tidy(value)))
                .filter(|(key, value)| {
                    let empty = *value == json!({}) && key != "waiting";
                    !(value.is_null() || empty || *value == json!([]) || *value == json!(""))
                })
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(tidy).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}
