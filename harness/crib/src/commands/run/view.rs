//! ◆ The live view as text: a line for each pod and container. Pure; the printer draws it.

use std::time::Duration;

use agent::{ContainerKind, ContainerPhase, ContainerReport, PodReport};

use super::marks::Mark;
use super::reports::Reports;

/// How many lines the view has at most; beyond that containers are left out, then pods.
const LINES: usize = 24;
/// What a picture depends on besides the reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// How long the command has run.
    pub(crate) elapsed: Duration,
    /// Counts the pictures of the live view; `None` for the table in the end.
    pub(crate) tick: Option<usize>,
    /// Whether marks have colours.
    pub(crate) colour: bool,
}

/// One row before it is laid out.
struct Row {
    mark: Mark,
    indent: &'static str,
    name: String,
    kind: &'static str,
    state: String,
    notes: Vec<String>,
}

/// Draws all pods, in the order of their names.
pub(crate) fn render(reports: &Reports, frame: Frame) -> Vec<String> {
    if reports.is_empty() {
        let mark = Mark::Waiting.sign(frame.tick, frame.colour);
        return vec![format!("{mark} starting  {}", duration(frame.elapsed))];
    }
    let mut pods: Vec<&PodReport> = reports.values().collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let everything = pods.len() + pods.iter().map(|pod| pod.containers.len()).sum::<usize>();
    let with_containers = everything <= LINES;
    let mut hidden = 0;
    if !with_containers && pods.len() > LINES {
        // What still goes on is what one wants to see.
        pods.sort_by_key(|pod| pod.finished);
        hidden = pods.len() - LINES;
        pods.truncate(LINES);
    }
    let mut rows = Vec::new();
    for pod in pods {
        rows.push(pod_row(pod, frame));
        if with_containers {
            rows.extend(pod.containers.iter().map(container_row));
        }
    }
    let mut lines = lay_out(&rows, frame);
    if hidden > 0 {
        lines.push(format!("  … and {hidden} more pods"));
    }
    lines
}

fn pod_row(pod: &PodReport, frame: Frame) -> Row {
    let phase = pod.status.phase.as_deref().unwrap_or("Pending");
    let mut notes = Vec::new();
    if let Some(reason) = pod
        .status
        .reason
        .as_deref()
        .filter(|reason| !reason.is_empty())
    {
        notes.push(reason.to_owned());
    }
    if !pod.finished {
        notes.push(duration(frame.elapsed));
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

fn container_row(container: &ContainerReport) -> Row {
    let mark = Mark::of_container(container);
    let kind = match container.kind {
        ContainerKind::Init => "init",
        ContainerKind::App => "app",
        ContainerKind::Ephemeral => "debug",
    };
    let state = match container.state {
        ContainerPhase::Running => "Running".to_owned(),
        ContainerPhase::Waiting | ContainerPhase::Terminated if !container.reason.is_empty() => {
            container.reason.clone()
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
    for (name, took) in [
        ("pull", container.pull),
        ("create", container.create),
        ("start", container.start),
    ] {
        notes.extend(took.map(|took| format!("{name} {}", duration(took))));
    }
    if mark == Mark::Retrying && !container.message.is_empty() {
        notes.push(container.message.replace('\n', " "));
    }
    Row {
        mark,
        indent: "  ",
        name: container.name.clone(),
        kind,
        state,
        notes,
    }
}

/// Puts names, kinds and states below each other.
fn lay_out(rows: &[Row], frame: Frame) -> Vec<String> {
    let width = |text: fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or_default();
    let names = width(|row| row.indent.len() + row.name.chars().count());
    let kinds = width(|row| row.kind.len());
    let states = width(|row| row.state.chars().count());
    let line = |row: &Row| {
        let mark = row.mark.sign(frame.tick, frame.colour);
        let names = names - row.indent.len();
        let text = format!(
            "{:names$}  {:kinds$}  {:states$}  {}",
            row.name,
            row.kind,
            row.state,
            row.notes.join("  ")
        );
        format!("{}{mark} {}", row.indent, text.trim_end())
    };
    rows.iter().map(line).collect()
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

#[cfg(test)]
#[path = "view/tests.rs"]
pub(crate) mod tests;
