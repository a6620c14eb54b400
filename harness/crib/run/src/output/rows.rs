//! ◆ A row for each pod and container, before it is laid out. Pure.

use std::time::Duration;

use agent::{ContainerPhase, ContainerReport, PodReport};
use api::pod::ContainerKind;

use crate::output::lines::without_call;
use crate::output::marks::Mark;

/// One row. Nothing in it is longer than one line or moves a cursor.
pub(crate) struct Row {
    pub(crate) mark: Mark,
    pub(crate) indent: &'static str,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) state: String,
    pub(crate) notes: Vec<String>,
}

/// The row of a pod. `folded` when the rows of its containers are left out: then it says how many are ready, and why one
/// of them waits.
pub(crate) fn pod_row(pod: &PodReport, elapsed: Duration, folded: bool) -> Row {
    let phase = pod.status.phase.as_deref().unwrap_or("Pending");
    let mut notes = Vec::new();
    if let Some(reason) = pod.status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        notes.push(one_line(reason));
    }
    if folded && !pod.containers.is_empty() {
        let retries =
            |container: &&ContainerReport| Mark::of_container(container) == Mark::Retrying;
        notes.extend(
            pod.containers.iter().find(retries).map(|container| one_line(&container.reason)),
        );
        notes.push(progress(&pod.containers));
    }
    if !pod.finished {
        notes.push(duration(elapsed));
    }
    Row {
        mark: Mark::of_pod(pod),
        indent: "",
        name: format!("{}/{}", pod.namespace, pod.name),
        kind: "",
        state: phase.to_owned(),
        notes,
    }
}

/// How many containers run or are done, of how many.
fn progress(containers: &[ContainerReport]) -> String {
    let good = |container: &&ContainerReport| {
        matches!(Mark::of_container(container), Mark::Running | Mark::Done)
    };
    let count = containers.iter().filter(good).count();
    format!("{count}/{} containers", containers.len())
}

/// The row of a container.
pub(crate) fn container_row(container: &ContainerReport) -> Row {
    let mark = Mark::of_container(container);
    let kind = match container.kind {
        ContainerKind::Init => "init",
        ContainerKind::App => "app",
        ContainerKind::Ephemeral => "debug",
    };
    let state = match container.state {
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
        && matches!(mark, Mark::Retrying | Mark::Failed)
        && !container.message.is_empty()
    {
        notes.push(one_line(without_call(&container.message)));
    }
    Row { mark, indent: "  ", name: container.name.clone(), kind, state, notes }
}

/// `text` without control characters: messages have words of containers and images in them.
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
