//! ◆ The state of all pods as lines: a picture that fits a terminal while they run, and a table in the end. Pure; the printer
//! draws them.

use std::collections::BTreeSet;
use std::time::Duration;

use agent::PodReport;

use crate::output::marks::Mark;
use crate::output::rows::{Row, container_row, duration, pod_row};
use crate::reports::Reports;

/// The least that is left of a name.
const NAME: usize = 8;

/// The columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

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

/// All pods and containers, in the order of the pods' names.
pub(crate) fn table(reports: &Reports, frame: Frame) -> Vec<String> {
    let mut rows = Vec::new();
    for pod in by_name(reports) {
        rows.push(pod_row(pod, frame.elapsed, false));
        rows.extend(pod.containers.iter().map(container_row));
    }
    lay_out(&rows, frame, None)
}

/// What fits a terminal and leaves one row for output: all pods with as many of their containers as there is room for, or
/// else as many pods as there is room for and how many more there are. What still runs comes before what has finished.
pub(crate) fn picture(reports: &Reports, frame: Frame, size: Size) -> Vec<String> {
    let height = size.rows.saturating_sub(1).max(1);
    if reports.is_empty() {
        let mark = Mark::Waiting.sign(frame.tick, frame.colour);
        return vec![format!("{mark} starting  {}", duration(frame.elapsed))];
    }
    let pods = by_name(reports);
    // The last line says how many are left out.
    let shown = if pods.len() <= height { pods.len() } else { height - 1 };
    let mut urgent: Vec<&PodReport> = pods.clone();
    urgent.sort_by_key(|pod| pod.finished);
    let (chosen, hidden) = urgent.split_at(shown);
    let chosen: BTreeSet<_> = chosen.iter().map(|pod| &pod.uid).collect();
    let mut room = height - pods.len().min(height);
    let unfolded: BTreeSet<_> = urgent
        .iter()
        .filter(|pod| {
            let fits = pod.containers.len() <= room;
            room -= if fits { pod.containers.len() } else { 0 };
            fits
        })
        .map(|pod| &pod.uid)
        .collect();
    let mut rows = Vec::new();
    for pod in pods.into_iter().filter(|pod| chosen.contains(&pod.uid)) {
        let folded = !unfolded.contains(&pod.uid);
        rows.push(pod_row(pod, frame.elapsed, folded));
        if !folded {
            rows.extend(pod.containers.iter().map(container_row));
        }
    }
    let mut lines = lay_out(&rows, frame, Some(size.columns));
    if !hidden.is_empty() {
        lines.push(shorten_end(&more(hidden), size.columns));
    }
    lines
}

fn by_name(reports: &Reports) -> Vec<&PodReport> {
    let mut pods: Vec<&PodReport> = reports.values().collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    pods
}

/// How many pods are left out, by their phase.
fn more(hidden: &[&PodReport]) -> String {
    let phase = |pod: &&PodReport| pod.status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
    let phases: BTreeSet<String> = hidden.iter().map(phase).collect();
    let counts = phases.into_iter().map(|name| {
        let count = hidden.iter().filter(|pod| phase(pod) == name).count();
        format!("{count} {name}")
    });
    let counts: Vec<String> = counts.collect();
    format!("… and {} more: {}", hidden.len(), counts.join(", "))
}

/// Puts names, kinds and states below each other. In a terminal of `columns`, names are shortened so that the states are
/// seen, and lines end where it does.
fn lay_out(rows: &[Row], frame: Frame, columns: Option<usize>) -> Vec<String> {
    let width = |text: fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or_default();
    let mut names = width(|row| row.indent.len() + row.name.chars().count());
    let mut kinds = width(|row| row.kind.len());
    let states = width(|row| row.state.chars().count());
    if let Some(columns) = columns {
        // The mark, and the spaces between columns.
        let taken = "● ".chars().count() + "  ".len() + "  ".len() + states;
        if taken + names + kinds > columns {
            kinds = 0;
        }
        names = names.min(columns.saturating_sub(taken + kinds).max(NAME));
    }
    let line = |row: &Row| {
        let mark = row.mark.sign(frame.tick, frame.colour);
        let names = names - row.indent.len();
        let name = shorten(&row.name, names);
        let kind = if kinds == 0 { "" } else { row.kind };
        let gap = if kinds == 0 && columns.is_some() { "" } else { "  " };
        let notes = row.notes.join("  ");
        let text = format!("{name:names$}  {kind:kinds$}{gap}{:states$}  {notes}", row.state);
        let room = columns.map_or(usize::MAX, |columns| {
            columns.saturating_sub(row.indent.len() + "● ".chars().count())
        });
        format!("{}{mark} {}", row.indent, shorten_end(text.trim_end(), room))
    };
    rows.iter().map(line).collect()
}

/// `text` in at most `width` characters; of a longer one the middle is left out, because names often differ in the end.
fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let tail = width / 2;
    let head = width.saturating_sub(tail + 1);
    let (head, tail) = (
        text.chars().take(head).collect::<String>(),
        text.chars().skip(count - tail).collect::<String>(),
    );
    format!("{head}…{tail}")
}

/// `text` in at most `width` characters; of a longer one the end is left out.
fn shorten_end(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
#[path = "view/tests.rs"]
pub(crate) mod tests;
