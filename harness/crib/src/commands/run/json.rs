//! ◆ `--output json`: one object a line, told apart by `type`. Pure.
//!
//! `transition`: `time`, `pod` (namespace/name), `uid`, `container` (absent for the pod as a whole), `from`, `to`, `cause`,
//! `exit_code` (when a container ended). `log`: `time`, `pod`, `container`, `stream`, `text`. `result`, the last one:
//! `exit_code` of the command and `pods` with `pod`, `uid`, `phase` and `containers` (`name`, `state`, `reason`, `exit_code`,
//! `restarts`, and `pull_seconds`, `create_seconds`, `start_seconds` where measured).

use agent::{ContainerReport, PodReport, Transition};
use harness::cri_log::Line;
use serde::Serialize;

use super::label::Label;
use super::reports::Reports;
use crate::exit::Exit;

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
    },
}

#[derive(Debug, Serialize)]
struct PodResult<'a> {
    pod: String,
    uid: &'a str,
    phase: &'a str,
    containers: Vec<ContainerResult<'a>>,
}

#[derive(Debug, Serialize)]
struct ContainerResult<'a> {
    name: &'a str,
    state: &'static str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pull_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_seconds: Option<f64>,
}

/// A change of a pod or container.
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

/// How it ended.
pub(crate) fn result(exit: Exit, reports: &Reports) -> String {
    line(&Object::Result {
        exit_code: exit.code(),
        pods: reports.values().map(pod).collect(),
    })
}

fn pod(report: &PodReport) -> PodResult<'_> {
    PodResult {
        pod: format!("{}/{}", report.namespace, report.name),
        uid: report.uid.as_str(),
        phase: report.status.phase.as_deref().unwrap_or("Unknown"),
        containers: report.containers.iter().map(container).collect(),
    }
}

fn container(report: &ContainerReport) -> ContainerResult<'_> {
    ContainerResult {
        name: &report.name,
        state: report.state.as_str(),
        reason: &report.reason,
        exit_code: report.exit_code,
        restarts: report.restarts,
        pull_seconds: report.pull.map(|took| took.as_secs_f64()),
        create_seconds: report.create.map(|took| took.as_secs_f64()),
        start_seconds: report.start.map(|took| took.as_secs_f64()),
    }
}

fn line(object: &Object<'_>) -> String {
    match serde_json::to_string(object) {
        Ok(text) => text + "\n",
        // Strings, numbers and lists of them can always be written.
        Err(error) => unreachable!("a line of JSON: {error}"),
    }
}

#[cfg(test)]
#[path = "json/tests.rs"]
mod tests;
