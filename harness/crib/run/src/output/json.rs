//! ◆ `--output json`: one object per line, distinguished by `type`. Pure.
//!
//! - `transition`: `time`, `pod` (namespace/name), `uid`, `container` (absent for a pod), `from`, `to`, `cause`, and `exit_code` if a
//!   container ended.
//! - `readiness`: `time`, `pod`, `uid`, `container`, `ready`.
//! - `event`, as a kubelet records it: `time`, `pod`, `uid`, `container` (absent for a pod), `kind` (Normal, Warning), `reason`,
//!   `message`, `count`.
//! - `log`: `time`, `pod`, `container`, `stream`, `text`.
//! - `result`, the last object: `exit_code` of the command, `pods` and, with Jobs, `jobs`.
//!   - A pod has `pod`, `uid`, `phase`, `reason` and `message` (if set), `qosClass`, `conditions` (as in the pod's status) and
//!     `containers`. A container has `name`, `state`, `reason`, `message`, `termination_message` and `exit_code` of the latest run,
//!     `ready`, `restarts`, and `pull_seconds`, `create_seconds`, `start_seconds` if they were measured.
//!   - A Job has `job` (namespace/name), `state` (Running, Complete, Failed), `reason` and `message` of its end, and the numbers of
//!     pods that `succeeded` and `failed` (of an Indexed Job, the number of indexes that succeeded).

use agent::{ContainerReport, Event, PodReport, ReadinessChange, Transition};
use cluster::controllers::JobResult;
use crib_base::exit::Exit;
use crib_base::terminal_text::escape_json;
use harness::cri_log::Line;
use k8s_openapi::api::core::v1::{ContainerState, PodCondition, PodStatus};
use serde::Serialize;

use crate::output::label::Label;
use crate::reports::Reports;

/// One line of output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Object<'a> {
    Transition {
        time: String,
        pod: &'a str,
        uid: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        container: Option<&'a str>,
        from: &'a str,
        to: &'a str,
        cause: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
    },
    Readiness {
        time: String,
        pod: &'a str,
        uid: &'a str,
        container: &'a str,
        ready: bool,
    },
    Event {
        time: String,
        pod: String,
        uid: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        container: Option<&'a str>,
        kind: &'static str,
        reason: &'a str,
        message: &'a str,
        count: u32,
    },
    Log {
        time: &'a str,
        pod: &'a str,
        container: &'a str,
        stream: &'a str,
        text: &'a str,
    },
    Result {
        exit_code: u8,
        pods: Vec<PodResult<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        jobs: Vec<JobEntry<'a>>,
    },
}

#[derive(Debug, Serialize)]
struct JobEntry<'a> {
    job: &'a str,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    succeeded: usize,
    failed: usize,
}

#[derive(Debug, Serialize)]
struct PodResult<'a> {
    pod: String,
    uid: &'a str,
    phase: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(rename = "qosClass", skip_serializing_if = "Option::is_none")]
    qos_class: Option<&'a str>,
    conditions: &'a [PodCondition],
    containers: Vec<ContainerResult<'a>>,
}

#[derive(Debug, Serialize)]
struct ContainerResult<'a> {
    name: &'a str,
    state: &'static str,
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    /// The termination message of its latest run.
    #[serde(skip_serializing_if = "Option::is_none")]
    termination_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    ready: bool,
    restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pull_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_seconds: Option<f64>,
}

/// A change of the state of a pod or container.
pub(crate) fn transition(transition: &Transition) -> String {
    line(&Object::Transition {
        time: transition.at.to_string(),
        pod: &transition.pod,
        uid: transition.uid.as_str(),
        container: transition.container.as_deref(),
        from: &transition.from,
        to: &transition.to,
        cause: &transition.cause,
        exit_code: transition.exit_code,
    })
}

/// A container became ready or unready.
pub(crate) fn readiness(change: &ReadinessChange) -> String {
    line(&Object::Readiness {
        time: change.at.to_string(),
        pod: &change.pod,
        uid: change.uid.as_str(),
        container: &change.container,
        ready: change.ready,
    })
}

/// An event.
pub(crate) fn event(event: &Event) -> String {
    line(&Object::Event {
        time: event.last_at.to_string(),
        pod: format!("{}/{}", event.object.namespace, event.object.name),
        uid: event.object.uid.as_str(),
        container: event.object.container(),
        kind: event.kind.as_str(),
        reason: &event.reason,
        message: &event.message,
        count: event.count,
    })
}

/// A line of a container.
pub(crate) fn log(label: &Label, log: &Line) -> String {
    line(&Object::Log {
        time: &log.time,
        pod: &label.pod,
        container: &label.container,
        stream: log.stream.as_str(),
        text: &log.text,
    })
}

/// The result of the run.
pub(crate) fn result(exit: Exit, reports: &Reports, jobs: &[JobResult]) -> String {
    line(&Object::Result {
        exit_code: exit.code(),
        pods: reports.values().map(pod).collect(),
        jobs: jobs.iter().map(job).collect(),
    })
}

fn job(result: &JobResult) -> JobEntry<'_> {
    let reason = result.reason.as_ref();
    JobEntry {
        job: &result.job,
        state: result.state,
        reason: reason.map(|reason| reason.reason),
        message: reason.map(|reason| reason.message.as_str()),
        succeeded: result.counts.succeeded,
        failed: result.counts.failed,
    }
}

fn pod(report: &PodReport) -> PodResult<'_> {
    PodResult {
        pod: format!("{}/{}", report.namespace, report.name),
        uid: report.uid.as_str(),
        phase: report.status.phase.as_deref().unwrap_or("Unknown"),
        reason: report.status.reason.as_deref(),
        message: report.status.message.as_deref(),
        qos_class: report.status.qos_class.as_deref(),
        conditions: report.status.conditions.as_deref().unwrap_or_default(),
        containers: report.containers.iter().map(|seen| container(seen, &report.status)).collect(),
    }
}

fn container<'a>(report: &'a ContainerReport, status: &'a PodStatus) -> ContainerResult<'a> {
    ContainerResult {
        name: &report.name,
        state: report.state.as_str(),
        reason: &report.reason,
        message: &report.message,
        termination_message: termination_message(&report.name, status),
        exit_code: report.exit_code,
        ready: report.ready,
        restarts: report.restarts,
        pull_seconds: report.pull.map(|took| took.as_secs_f64()),
        create_seconds: report.create.map(|took| took.as_secs_f64()),
        start_seconds: report.start.map(|took| took.as_secs_f64()),
    }
}

/// The termination message of a container's latest run, from its current state or else from its last state.
fn termination_message<'a>(name: &str, status: &'a PodStatus) -> Option<&'a str> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let status = all.find(|status| status.name == name)?;
    let ended = |state: &'a Option<ContainerState>| state.as_ref()?.terminated.as_ref();
    let last = ended(&status.state).or_else(|| ended(&status.last_state))?;
    last.message.as_deref().filter(|message| !message.is_empty())
}

fn line(object: &Object<'_>) -> String {
    match serde_json::to_string(object) {
        Ok(text) => escape_json(&text).into_owned() + "\n",
        // Values of strings, numbers and lists can always be serialised.
        Err(error) => unreachable!("a line of JSON: {error}"),
    }
}

#[cfg(test)]
#[path = "json/tests.rs"]
mod tests;
