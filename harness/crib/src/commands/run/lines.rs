//! ◆ Plain lines: a container's line with its prefix, a transition, the last words about a pod. Pure.

use std::collections::BTreeMap;

use agent::{ContainerPhase, PodReport, Transition};
use harness::cri_log::Line;

use super::colour::{Colour, paint};
use super::label::Label;
use super::reports::{Reports, is_failure_reason, is_refused};

/// `text` for a terminal: colours stay, and what would move its cursor, clear it or write its title and clipboard is shown
/// instead of done, as the pictures of control characters (Unicode, U+2400).
pub(crate) fn tame(text: &str) -> String {
    let mut rest = text.strip_suffix('\r').unwrap_or(text);
    let mut tamed = String::with_capacity(rest.len());
    while let Some(next) = rest.chars().next() {
        let length = colour_sequence(rest);
        let (taken, behind) = rest.split_at(length.unwrap_or(next.len_utf8()));
        rest = behind;
        match (length, u32::from(next)) {
            (None, code @ 0..=0x1f) if next != '\t' && next != '\n' => {
                tamed.extend(char::from_u32(0x2400 + code));
            }
            (None, 0x7f) => tamed.push('\u{2421}'),
            (None, 0x80..=0x9f) => tamed.push(char::REPLACEMENT_CHARACTER),
            _ => tamed.push_str(taken),
        }
    }
    tamed
}

/// The length of the sequence for a colour or style (ECMA-48 SGR) that `text` begins with, in bytes.
fn colour_sequence(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let length = parameters.find(|c: char| !matches!(c, '0'..='9' | ';' | ':'))?;
    parameters
        .get(length..)?
        .starts_with('m')
        .then_some("\x1b[".len() + length + "m".len())
}

/// What stands before the lines of each container.
#[derive(Debug)]
pub(crate) struct Prefixes {
    of: BTreeMap<Label, String>,
    coloured: bool,
    terminal: bool,
}

impl Prefixes {
    /// Prefixes of one width, with a colour for each container in the order given. Namespaces are shown when there are several.
    /// For a `terminal` the lines themselves are made harmless, see [`tame`].
    pub(crate) fn new(labels: &[Label], coloured: bool, terminal: bool) -> Self {
        let namespace = |label: &Label| label.pod.split('/').next().unwrap_or_default().to_owned();
        let first = labels.first().map(namespace).unwrap_or_default();
        let several = labels.iter().any(|label| namespace(label) != first);
        let shown = |label: &Label| {
            let pod = if several {
                &label.pod
            } else {
                label
                    .pod
                    .split_once('/')
                    .map_or(label.pod.as_str(), |(_, name)| name)
            };
            format!("{pod}/{}", label.container)
        };
        let width = labels
            .iter()
            .map(|label| shown(label).chars().count())
            .max()
            .unwrap_or_default();
        let prefix = |(label, colour): (&Label, &Colour)| {
            (
                label.clone(),
                paint(coloured, *colour, &format!("{:width$} |", shown(label))),
            )
        };
        Self {
            of: labels
                .iter()
                .zip(Colour::CONTAINERS.iter().cycle())
                .map(prefix)
                .collect(),
            coloured,
            terminal,
        }
    }

    /// The line as it is printed, its end included.
    pub(crate) fn line(&self, label: &Label, line: &Line) -> String {
        let prefix = match self.of.get(label) {
            Some(prefix) => prefix.clone(),
            None => format!("{}/{} |", label.pod, label.container),
        };
        // A container must not colour what follows its line.
        let reset = if self.coloured && line.text.contains('\x1b') {
            "\x1b[0m"
        } else {
            ""
        };
        if self.terminal && line.text.contains(char::is_control) {
            format!("{prefix} {}{reset}\n", tame(&line.text))
        } else {
            format!("{prefix} {}{reset}\n", line.text)
        }
    }
}

/// A transition in one line. Why something waits after a failure is left to the note about it, which says it once.
pub(crate) fn transition(transition: &Transition) -> String {
    let who = match &transition.container {
        Some(container) => format!("{} {container}", transition.pod),
        None => transition.pod.clone(),
    };
    let code = transition
        .exit_code
        .map(|code| format!(", exit {code}"))
        .unwrap_or_default();
    let reason = transition.to.strip_prefix("Waiting(");
    let reason = reason.and_then(|reason| reason.strip_suffix(')'));
    let noted = reason.is_some_and(is_failure_reason);
    let cause = match noted || transition.cause.is_empty() {
        true => String::new(),
        false => format!(" ({})", transition.cause),
    };
    let (from, to) = (&transition.from, &transition.to);
    format!("{who}: {from} → {to}{code}{cause}")
}

/// What is to be said in the end about pods that did not succeed, in the order of their names.
pub(crate) fn failures(reports: &Reports) -> Vec<String> {
    let mut pods: Vec<&PodReport> = reports
        .values()
        .filter(|pod| pod.status.phase.as_deref() == Some("Failed") || is_refused(pod))
        .collect();
    pods.sort_by_key(|pod| (&pod.namespace, &pod.name));
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
            let words: Vec<&str> = [container.reason.as_str(), container.message.trim()]
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
        .chain(
            pod.containers
                .iter()
                .filter(|container| container.refused)
                .map(|container| {
                    format!(
                        "container {} cannot run ({})",
                        container.name, container.reason
                    )
                }),
        )
        .chain(
            pod.status
                .message
                .clone()
                .filter(|message| !message.is_empty()),
        )
        .collect();
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(": {}", why.join(", "))
    };
    format!("pod {}/{} failed{why}", pod.namespace, pod.name)
}

#[cfg(test)]
#[path = "lines/tests.rs"]
mod tests;
