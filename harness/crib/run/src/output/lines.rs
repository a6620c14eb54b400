//! ◆ Plain lines: a container's line with its prefix, a transition, a message about a failed pod. Pure.

use agent::{ContainerPhase, Event, PodReport, Transition};
use compact::Map;
use crib_base::terminal_text::escape_keeping_colours;
use harness::cri_log::Line;

use crate::output::colour::{Colour, paint};
use crate::output::label::Label;
use crate::reports::{is_failure_reason, is_refused};

/// The prefixes of the containers' lines.
#[derive(Debug)]
pub(crate) struct Prefixes {
    of: Map<Label, String>,
    /// The namespace that is omitted, because all containers are in it.
    hidden: Option<String>,
    /// The width of a container's name.
    width: usize,
    coloured: bool,
    terminal: bool,
}

impl Prefixes {
    /// Prefixes of equal width, with a colour for each container in the given order. Namespaces are shown if there are several.
    /// With `terminal`, the lines are escaped, see [`escape_keeping_colours`].
    pub(crate) fn new(labels: &[Label], coloured: bool, terminal: bool) -> Self {
        let namespace = |label: &Label| label.pod.split('/').next().unwrap_or_default().to_owned();
        let first = labels.first().map(namespace).unwrap_or_default();
        let several = labels.iter().any(|label| namespace(label) != first);
        let shown = |label: &Label| {
            let pod = if several {
                &label.pod
            } else {
                label.pod.split_once('/').map_or(label.pod.as_str(), |(_, name)| name)
            };
            format!("{pod}/{}", label.container)
        };
        let width =
            labels.iter().map(|label| shown(label).chars().count()).max().unwrap_or_default();
        let prefix = |(label, colour): (&Label, &Colour)| {
            (label.clone(), paint(coloured, *colour, &format!("{:width$} |", shown(label))))
        };
        Self {
            hidden: (!labels.is_empty() && !several).then(|| first.clone()),
            width,
            of: labels.iter().zip(Colour::CONTAINERS.iter().cycle()).map(prefix).collect(),
            coloured,
            terminal,
        }
    }

    /// The prefix of a container whose pod was created later.
    fn later(&self, label: &Label) -> String {
        let pod = match label.pod.split_once('/') {
            Some((namespace, name)) if self.hidden.as_deref() == Some(namespace) => name,
            Some(_) | None => &label.pod,
        };
        let name = format!("{pod}/{}", label.container);
        format!("{name:width$} |", width = self.width)
    }

    /// The printed line, including the newline.
    pub(crate) fn line(&self, label: &Label, line: &Line) -> String {
        let prefix = match self.of.get(label) {
            Some(prefix) => prefix.clone(),
            None => self.later(label),
        };
        // The line's colours must not affect the following output.
        let shown =
            if self.terminal { escape_keeping_colours(&line.text) } else { line.text.clone() };
        let is_coloured = (self.coloured || self.terminal) && shown.contains('\x1b');
        let reset = if is_coloured { "\x1b[0m" } else { "" };
        format!("{prefix} {shown}{reset}\n")
    }
}

/// Whether a transition is not worth a line: the first state of a pod, unless it is Failed, and a container that was created but
/// not yet started.
pub(crate) fn is_unremarkable(transition: &Transition) -> bool {
    let begins = transition.from.is_empty();
    let ends_at_once = transition.container.is_none() && transition.to == "Failed";
    begins && !ends_at_once || transition.to == "Waiting"
}

/// The message of a failed CRI call without the prefix of gRPC errors in Go.
pub(crate) fn without_call(message: &str) -> &str {
    let call = message.strip_prefix("rpc error: code = ");
    call.and_then(|call| call.split_once(" desc = ")).map_or(message, |(_, message)| message)
}

/// A transition as a line. Omits the reason for waiting after a failure, which a note contains.
pub(crate) fn transition(transition: &Transition) -> String {
    let subject = match &transition.container {
        Some(container) => format!("{} {container}", transition.pod),
        None => transition.pod.clone(),
    };
    let code = transition.exit_code.map(|code| format!(", exit {code}")).unwrap_or_default();
    let reason = transition.to.strip_prefix("Waiting(");
    let reason = reason.and_then(|reason| reason.strip_suffix(')'));
    let noted = reason.is_some_and(is_failure_reason);
    let cause = match noted || transition.cause.is_empty() {
        true => String::new(),
        false => format!(" ({})", transition.cause),
    };
    let (from, to) = (&transition.from, &transition.to);
    let arrow = if from.is_empty() { "" } else { " → " };
    format!("{subject}: {from}{arrow}{to}{code}{cause}")
}

/// Whether an event contains information that no transition or note contains, and occurs for the first time.
pub(crate) fn is_only_event(event: &Event) -> bool {
    let alone = matches!(
        event.reason.as_str(),
        "Unhealthy"
            | "ProbeWarning"
            | "FailedPostStartHook"
            | "FailedPreStopHook"
            | "LifecycleHTTPFallback"
            | "NetworkNotReady"
            | "DNSConfigForming"
            | "DeadlineExceeded"
            | "ResizeCompleted"
            | "ResizeDeferred"
            | "ResizeError"
            | "ResizeInfeasible"
    );
    alone && event.count == 1
}

/// An event as a line.
pub(crate) fn event(event: &Event) -> String {
    let object = &event.object;
    let container = object.container().map(|name| format!(" {name}"));
    let times = match event.count {
        0 | 1 => String::new(),
        count => format!(" ({count} times)"),
    };
    format!(
        "{}/{}{}: {}: {}{times}",
        object.namespace,
        object.name,
        container.unwrap_or_default(),
        event.reason,
        event.message.trim().replace('\n', " "),
    )
}

/// The messages at the end about pods that did not succeed, sorted by name.
pub(crate) fn failures<'a>(reports: impl Iterator<Item = &'a PodReport>) -> Vec<String> {
    let mut pods: Vec<&PodReport> = reports
        .filter(|pod| pod.status.phase.as_deref() == Some("Failed") || is_refused(pod))
        .collect();
    compact::sort_by_key(&mut pods, |pod| (&pod.namespace, &pod.name));
    pods.into_iter().map(failure).collect()
}

fn failure(pod: &PodReport) -> String {
    let why: Vec<String> = pod
        .containers
        .iter()
        .filter(|container| {
            container.state == ContainerPhase::Terminated && container.exit_code != Some(0)
        })
        .map(|container| {
            let code = container.exit_code.map_or_else(
                || "without an exit code".to_owned(),
                |code| format!("with exit code {code}"),
            );
            let message = without_call(container.message.trim());
            let words: Vec<&str> = [container.reason.as_str(), message]
                .into_iter()
                .filter(|word| !word.is_empty())
                .collect();
            let words = if words.is_empty() {
                String::new()
            } else {
                format!(" ({})", words.join(": ").replace('\n', " "))
            };
            format!("container {} ended {code}{words}", container.name)
        })
        .chain(pod.containers.iter().filter(|container| container.refused).map(|container| {
            format!("container {} cannot run ({})", container.name, container.reason)
        }))
        .collect();
    // The kubelet's eviction messages end with a full stop and a space.
    let trimmed = |text: &Option<String>| {
        let text = text.as_deref().unwrap_or_default();
        let text = text.trim().trim_end_matches('.').to_owned();
        Some(text).filter(|text| !text.is_empty())
    };
    let (reason, message) = (trimmed(&pod.status.reason), trimmed(&pod.status.message));
    let own: Vec<String> = reason.into_iter().chain(message).collect();
    let own = (!own.is_empty()).then(|| own.join(": "));
    let why: Vec<String> = own.into_iter().chain(why).collect();
    let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
    format!("pod {}/{} failed{why}", pod.namespace, pod.name)
}

#[cfg(test)]
#[path = "lines/tests.rs"]
mod tests;
