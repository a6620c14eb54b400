//! ◆ The state of all pods as lines: a picture that fits a terminal while they run, and a table at the end. Pure; the printer draws
//! them.

use std::time::Duration;

use agent::PodReport;
use compact::Set;
use crib_base::columns::age::age;
use jiff::Timestamp;

use crate::output::marks::Mark;
use crate::output::rows::{Row, container_row, duration, pod_row};
use crate::reports::Reports;
use crate::snapshot::{PodSnapshot, RunSnapshot};

/// The minimum width of a name.
const NAME: usize = 8;

/// The width to which names are shortened before the kind column is omitted.
const FEW: usize = 20;

/// The columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The inputs of a picture in addition to the reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The time since the start of the command.
    pub(crate) elapsed: Duration,
    /// The current time.
    pub(crate) now: Timestamp,
    /// The number of the picture in the live view; `None` for the final table.
    pub(crate) tick: Option<usize>,
    /// Whether marks have colours.
    pub(crate) colour: bool,
}

/// A pod, and the agent's report of it.
type Pod<'s> = (&'s PodSnapshot, Option<&'s PodReport>);

/// All pods and containers, sorted by pod name.
pub(crate) fn table(snapshot: &RunSnapshot, reports: &Reports, frame: Frame) -> Vec<String> {
    let mut rows = Vec::new();
    for pod in by_name(snapshot, reports) {
        rows.extend(rows_of(pod, frame.now));
    }
    let mut lines = lay_out(&rows, frame, None);
    lines.extend(removed(snapshot));
    lines
}

/// The rows that fit a terminal with one row left for output: all pods, with the containers for which there is space; or else the
/// pods for which there is space, and the number of others. Pods that run come before pods that have finished.
pub(crate) fn picture(
    snapshot: &RunSnapshot,
    reports: &Reports,
    frame: Frame,
    size: Size,
) -> Vec<String> {
    let height = size.rows.saturating_sub(1).max(1);
    if snapshot.pods.is_empty() {
        let mark = Mark::Waiting.sign(frame.tick, frame.colour);
        let waits = next_job(snapshot, frame.now)
            .unwrap_or_else(|| format!("starting  {}", duration(frame.elapsed)));
        let waits = shorten_end(&waits, size.columns.saturating_sub("● ".chars().count()));
        let mut lines = vec![format!("{mark} {waits}")];
        lines.extend(removed(snapshot).map(|line| shorten_end(&line, size.columns)));
        lines.truncate(height);
        return lines;
    }
    let mut last: Vec<String> = removed(snapshot).into_iter().collect();
    last.extend(next_job(snapshot, frame.now).map(|waits| format!("… {waits}")));
    // Lines about removed pods and the next Job are omitted if the pods need the space.
    last.truncate(height.saturating_sub(snapshot.pods.len()));
    let height = height - last.len();
    let pods = by_name(snapshot, reports);
    // The last line shows the number of omitted pods.
    let count = if pods.len() <= height { pods.len() } else { height - 1 };
    let mut urgent: Vec<Pod<'_>> = pods.clone();
    compact::sort_by_key(&mut urgent, |(_, report)| report.is_some_and(|report| report.finished));
    let (chosen, hidden) = urgent.split_at(count);
    let chosen: Set<_> = chosen.iter().map(|(pod, _)| &pod.uid).collect();
    let mut room = height - pods.len().min(height);
    let unfolded: Set<_> = urgent
        .iter()
        .filter(|(_, report)| {
            let containers = report.map_or(0, |report| report.containers.len());
            let fits = containers <= room;
            room -= if fits { containers } else { 0 };
            fits
        })
        .map(|(pod, _)| &pod.uid)
        .collect();
    let mut rows = Vec::new();
    for pod in pods.into_iter().filter(|(pod, _)| chosen.contains(&pod.uid)) {
        let all = rows_of(pod, frame.now);
        let count = if unfolded.contains(&pod.0.uid) { all.len() } else { 1 };
        rows.extend(all.into_iter().take(count));
    }
    let mut lines = lay_out(&rows, frame, Some(size.columns));
    if !hidden.is_empty() {
        last.insert(0, more(hidden));
    }
    lines.extend(last.iter().map(|line| shorten_end(line, size.columns)));
    lines
}

fn rows_of((pod, report): Pod<'_>, now: Timestamp) -> Vec<Row> {
    let row = pod_row(pod, report, now);
    let mark = row.mark;
    let containers = report.into_iter().flat_map(|report| &report.containers);
    let containers = containers.map(|container| container_row(container, mark));
    std::iter::once(row).chain(containers).collect()
}

/// Pods of the same name are sorted by creation.
fn by_name<'s>(snapshot: &'s RunSnapshot, reports: &'s Reports) -> Vec<Pod<'s>> {
    let with_report = |pod: &'s std::sync::Arc<PodSnapshot>| (&**pod, reports.get(&pod.uid));
    let mut pods: Vec<Pod<'s>> = snapshot.pods.iter().map(with_report).collect();
    compact::sort_by_key(&mut pods, |(pod, _)| (&pod.namespace, &pod.name, pod.created));
    pods
}

/// The number of omitted pods, by STATUS.
fn more(hidden: &[Pod<'_>]) -> String {
    let statuses: Set<&str> = hidden.iter().map(|(pod, _)| pod.status()).collect();
    let counts = statuses.into_iter().map(|status| {
        let count = hidden.iter().filter(|(pod, _)| pod.status() == status).count();
        format!("{count} {status}")
    });
    let counts: Vec<String> = counts.collect();
    format!("… and {} more: {}", hidden.len(), counts.join(", "))
}

/// The number of pods that were removed during the run.
fn removed(snapshot: &RunSnapshot) -> Option<String> {
    match snapshot.removed {
        0 => None,
        1 => Some("… 1 pod ended and was removed".to_owned()),
        count => Some(format!("… {count} pods ended and were removed")),
    }
}

/// The time until a CronJob starts its next Job.
fn next_job(snapshot: &RunSnapshot, now: Timestamp) -> Option<String> {
    let (name, at) = snapshot.next_job.as_ref().filter(|(_, at)| *at > now)?;
    Some(format!("{name} starts its next Job in {}", age(now, *at)))
}

/// Aligns names, kinds and states in columns. If `columns` is given, shortens names so that the states stay visible, and cuts lines
/// at this width.
fn lay_out(rows: &[Row], frame: Frame, columns: Option<usize>) -> Vec<String> {
    let width = |text: fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or_default();
    let mut names = width(|row| row.indent.len() + row.name.chars().count());
    let mut kinds = width(|row| row.kind.chars().count());
    let states = width(|row| row.state.chars().count());
    if let Some(columns) = columns {
        // The mark, and the spaces between columns.
        let taken = "● ".chars().count() + "  ".len() + "  ".len() + states;
        // The columns after the states may be cut, but these may not.
        let taken = taken + if kinds > 0 { "  ".len() } else { 0 };
        if taken + names.min(FEW) + kinds > columns {
            kinds = 0;
        }
        names = names.min(columns.saturating_sub(taken + kinds).max(NAME));
    }
    let line = |row: &Row| {
        let mark = row.mark.sign(frame.tick, frame.colour);
        let names = names - row.indent.len();
        let name = shorten(&row.name, names);
        let kind = if kinds == 0 { "" } else { &row.kind };
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

/// `text` in at most `width` characters. Shortens a longer text in the middle, because names often differ at the end.
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

/// `text` in at most `width` characters. Cuts a longer text at the end.
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
