//! probes and probe-http-request: the results of a probe over time, and the requests of httpGet actions.

use std::sync::Arc;

use agent::checks::http_action::{self, HttpRequest, Purpose};
use agent::checks::probe::machine::{ATTEMPTS, Next, ProbeKind, ProbeState, Target};
use agent::observed::ProbeResult;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerPort, PodStatus};
use serde_json::{Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const PROBES: Set = Set::new("probes", "the results of a probe over time", probes);

/// Seconds since the beginning of the year 2000.
fn moment(seconds: &Value) -> Timestamp {
    let millis = (seconds.as_f64().unwrap() * 1000.0).round();
    Timestamp::from_millisecond(946_684_800_000 + millis as i64).unwrap()
}

fn probes(case: &Case) -> Result<(), String> {
    let input = &case.input;
    let pod = pods::pod(&input["pod"]);
    let (_, container) = pod.container(read::text(&input["container"])).unwrap();
    let target = Target {
        container: Arc::new(container.clone()),
        pod: pod.clone(),
        kind: match read::text(&input["probeType"]) {
            "liveness" => ProbeKind::Liveness,
            "readiness" => ProbeKind::Readiness,
            "startup" => ProbeKind::Startup,
            other => panic!("probe {other}"),
        },
        agent_started_at: moment(&input["agentStartedAt"]),
    };
    let mut state = ProbeState::default();
    let steps = read::list(&input["steps"]).iter();
    for (index, (step, expected)) in steps.zip(read::list(&case.expected)).enumerate() {
        let ours = step_of(&mut state, &target, step);
        read::same(&format!("step {index}"), &ours, expected)?;
    }
    Ok(())
}

fn step_of(state: &mut ProbeState, target: &Target, step: &Value) -> Value {
    let status: Option<PodStatus> =
        step.get("status").map(|status| serde_json::from_value(status.clone()).unwrap());
    let next = state.tick(target, status.as_ref(), moment(&step["at"]));
    let mut attempts = 0;
    if next == Next::Run {
        for outcome in read::list(&step["attempts"]).iter().take(ATTEMPTS) {
            attempts += 1;
            let succeeded = match read::text(outcome) {
                "error" => continue,
                "success" | "warning" => true,
                "failure" | "unknown" => false,
                other => panic!("outcome {other}"),
            };
            state.finish(target, succeeded);
            break;
        }
    }
    let id = state.container_id();
    let update = |result: &ProbeResult| json!({"containerId": id.as_ref().unwrap().as_str(), "result": word(*result)});
    json!({
        "continue": next != Next::End,
        "attempts": attempts,
        "result": state.recorded().map_or("none", word),
        "onHold": state.is_on_hold(),
        "run": state.run(),
        "updates": state.take_changes().iter().map(update).collect::<Vec<_>>(),
    })
}

fn word(result: ProbeResult) -> &'static str {
    match result {
        ProbeResult::Success => "success",
        ProbeResult::Failure => "failure",
        ProbeResult::Unknown => "unknown",
    }
}

pub(crate) const REQUESTS: Set =
    Set::new("probe-http-request", "the HTTP requests of httpGet actions", request);

fn request(case: &Case) -> Result<(), String> {
    let input = &case.input;
    let ports: Vec<ContainerPort> =
        serde_json::from_value(input["containerPorts"].clone()).unwrap_or_default();
    let ours = if input.get("httpGet").is_some() {
        let purpose = match read::text(&input["purpose"]) {
            "lifecycle" => Purpose::Lifecycle,
            "probe" => Purpose::Probe,
            other => panic!("purpose {other}"),
        };
        let action = serde_json::from_value(input["httpGet"].clone()).unwrap();
        http_action::http_request(&action, &ports, read::text(&input["podIP"]), purpose)
            .map(words)
            .map_err(|error| error.to_string())
    } else {
        let port = serde_json::from_value(input["port"].clone()).unwrap();
        http_action::resolve_port(&port, &ports)
            .map(|port| json!({"port": port}))
            .map_err(|error| error.to_string())
    };
    let ours = ours.unwrap_or_else(|error| json!({"error": error}));
    read::same("request", &ours, &case.expected)
}

fn words(request: HttpRequest) -> Value {
    let version = |value: &String| value.replace(http_action::KUBERNETES_VERSION, "<version>");
    let headers = request.headers.iter().map(|(name, values)| {
        let values: Vec<String> = values.iter().map(version).collect();
        (name.clone(), json!(values))
    });
    let mut words = json!({
        "method": "GET",
        "url": request.url.to_string(),
        "request_uri": request.url.request_uri(),
        "headers": headers.collect::<serde_json::Map<_, _>>(),
    });
    if let Some(host) = request.host_header {
        words["host_header"] = json!(host);
    }
    words
}
