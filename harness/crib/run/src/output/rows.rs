//! ◆ A row for each pod and container, before the layout. Pure.

use std::borrow::Cow;
use std::time::Duration;

use agent::{ContainerPhase, ContainerReport, PodReport};
use api::pod::ContainerKind;
use crib_base::columns::age::age;
use jiff::Timestamp;

use crate::output::lines::without_call;
use crate::output::marks::Mark;
use crate::snapshot::{PodEnd, PodSnapshot};

/// A row. Its texts contain no newlines or control characters.
pub(crate) struct Row {
    pub(crate) mark: Mark,
    pub(crate) indent: &'static str,
    pub(crate) name: String,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) state: String,
    pub(crate) notes: Vec<String>,
}

/// The row of a pod: READY and STATUS of `kubectl get pods`, and RESTARTS and AGE if they are informative.
pub(crate) fn pod_row(pod: &PodSnapshot, report: Option<&PodReport>, now: Timestamp) -> Row {
    let mut notes = Vec::new();
    if !pod.reason.is_empty() && pod.reason != pod.status() {
        notes.push(one_line(&pod.reason));
    }
    let restarts = pod.summary.restarts.shown(now);
    if restarts != "0" {
        notes.push(format!("restarts {restarts}"));
    }
    match pod.end {
        PodEnd::Ending(until) => {
            let left = until.duration_since(now).as_secs().max(0);
            notes.push(format!("ends within {left}s"));
        }
        PodEnd::None if !report.is_some_and(|report| report.finished) => {
            notes.extend(pod.created.map(|created| age(created, now)));
        }
        PodEnd::None | PodEnd::Stopped => {}
    }
    Row {
        mark: Mark::of_pod(pod, report),
        indent: "",
        name: pod.full_name(),
        kind: pod.summary.ready().into(),
        state: one_line(pod.status()),
        notes,
    }
}

/// The row of a container of a pod with this mark.
pub(crate) fn container_row(container: &ContainerReport, pod: Mark) -> Row {
    let mark = Mark::of_container_in(pod, container);
    let kind = match container.kind {
        ContainerKind::Init => "init",
        ContainerKind::App => "app",
        ContainerKind::Ephemeral => "debug",
    };
    let state = match container.state {
        ContainerPhase::Running if mark == Mark::Waiting => "NotReady".to_owned(),
        ContainerPhase::Running => "Running".to_owned(),
        ContainerPhase::Waiting | ContainerPhase::Terminated if !container.reason.is_empty() => {
            one_line(&container.reason)
        }
        ContainerPhase::Waiting | ContainerPhase::Terminated => container.state.as_str().to_owned(),
    };
    let mut notes = Vec::new();
    if let (ContainerPhase::Terminated, Some(code @ 1..)) = (container.state, container.exit_code) {
        notes.push(format!("exit {code}"));
    }
    if container.restarts > 0 {
        notes.push(format!("restarts {}", container.restarts));
    }
    for (name, took) in
        [("pull", container.pull), ("create", container.create), ("start", container.start)]
    {
        notes.extend(took.map(|took| format!("{name} {}", duration(took))));
    }
    if container.state == ContainerPhase::Waiting
        && matches!(Mark::of_container(container), Mark::Retrying | Mark::Failed)
        && !container.message.is_empty()
    {
        notes.push(one_line(&cause_first(&container.message)));
    }
    Row { mark, indent: "  ", name: container.name.clone(), kind: kind.into(), state, notes }
}

/// For a failed pull, moves the cause to the front: the image's name may be wider than the terminal.
fn cause_first(message: &str) -> Cow<'_, str> {
    let back_off = message.starts_with("Back-off pulling image");
    let pulled = message.split_once(": ErrImagePull: ").filter(|_| back_off);
    let message = without_call(pulled.map_or(message, |(_, message)| message));
    let image = message.strip_prefix("image ");
    match image.and_then(|image| image.split_once(" could not be pulled: ")) {
        Some((name, cause)) => format!("{cause}: image {name}").into(),
        None => message.into(),
    }
}

/// `text` without control characters: messages contain text from containers and images.
fn one_line(text: &str) -> String {
    text.trim().replace(char::is_control, " ")
}

/// A duration with about three digits: `0.4ms`, `12ms`, `1.2s`, `3m04s`, `2h05m`.
pub(crate) fn duration(duration: Duration) -> String {
    let (seconds, micros) = (duration.as_secs(), duration.as_micros());
    if micros < 1_000 {
        format!("0.{}ms", micros / 100)
    } else if seconds == 0 {
        format!("{}ms", duration.as_millis())
    } else if seconds < 60 {
        format!("{seconds}.{}s", duration.subsec_millis() / 100)
    } else if seconds < 3600 {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    } else {
        format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60)
    }
}
