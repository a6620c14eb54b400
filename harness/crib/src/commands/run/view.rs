//! ◆ The live view as text: a line for each pod and container. Pure; the printer draws it.

use std::time::Duration;

use agent::{ContainerKind, ContainerPhase, ContainerReport, PodReport};

use super::colour::{Colour, paint};
use super::reports::{Reports, is_failure_reason};

/// How many lines the view has at most; beyond that containers are left out, then pods.
const LINES: usize = 24;
/// One turn of the wheel that says that something is being waited for.
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// What a picture depends on besides the reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// How long the command has run.
    pub(crate) elapsed: Duration,
    /// Counts the pictures; turns the wheel.
    pub(crate) tick: usize,
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

/// The first character of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Waiting,
    Failing,
    Running,
    Good,
    Bad,
}

/// Draws all pods, in the order of their names.
pub(crate) fn render(reports: &Reports, frame: Frame) -> Vec<String> {
    if reports.is_empty() {
        let mark = paint(
            frame.colour,
            Mark::Waiting.colour(),
            Mark::Waiting.text(frame.tick),
        );
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
    let state = match (pod.removed, pod.finished, phase) {
        (true, _, "Succeeded" | "Failed") | (false, _, _) => phase.to_owned(),
        (true, _, _) => "Removed".to_owned(),
    };
    let mark = match (pod.finished, phase) {
        (_, "Succeeded") => Mark::Good,
        (_, "Failed") => Mark::Bad,
        (true, _) => Mark::Good,
        (false, "Running") => Mark::Running,
        (false, _) => Mark::Waiting,
    };
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
        mark,
        indent: "",
        name: format!("{}/{}", pod.namespace, pod.name),
        kind: "",
        state,
        notes,
    }
}

fn container_row(container: &ContainerReport) -> Row {
    let mark = match (container.state, container.exit_code) {
        (ContainerPhase::Waiting, _) if is_failure_reason(&container.reason) => Mark::Failing,
        (ContainerPhase::Waiting, _) => Mark::Waiting,
        (ContainerPhase::Running, _) => Mark::Running,
        (ContainerPhase::Terminated, Some(0)) => Mark::Good,
        (ContainerPhase::Terminated, _) => Mark::Bad,
    };
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
    if mark == Mark::Failing && !container.message.is_empty() {
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
        let mark = paint(frame.colour, row.mark.colour(), row.mark.text(frame.tick));
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

impl Mark {
    fn text(self, tick: usize) -> &'static str {
        match self {
            Self::Waiting => SPINNER.get(tick % SPINNER.len()).copied().unwrap_or("-"),
            Self::Failing => "!",
            Self::Running => "●",
            Self::Good => "✓",
            Self::Bad => "✗",
        }
    }

    fn colour(self) -> Colour {
        match self {
            Self::Waiting => Colour::CYAN,
            Self::Failing => Colour::YELLOW,
            Self::Running | Self::Good => Colour::GREEN,
            Self::Bad => Colour::RED,
        }
    }
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
