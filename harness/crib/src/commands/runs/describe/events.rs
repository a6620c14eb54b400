//! ◆ Events of a pod in the format of `kubectl describe`, with the container instead of the component. Pure.

use crib_base::run_socket::RecordedEvent;
use jiff::Timestamp;

use super::lines::{Lines, NONE};
use crib_base::columns::age::age;

/// The events of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Events<'a> {
    /// No agent of a `crib run` knows the pod.
    Unknown,
    /// They were not requested.
    Hidden,
    /// The events that the agent recorded.
    Recorded(&'a [RecordedEvent]),
}

/// Adds the events.
pub(super) fn add(lines: &mut Lines, events: &[RecordedEvent], now: Timestamp) {
    if events.is_empty() {
        return lines.field(0, "Events", NONE);
    }
    lines.line(0, "Events:");
    let headings = ["Type", "Reason", "Age", "Container", "Message"];
    lines.row(2, headings.map(str::to_owned));
    lines.row(2, headings.map(|heading| "-".repeat(heading.len())));
    for event in events {
        let cells = [
            event.kind.clone(),
            event.reason.clone(),
            when(event, now),
            container(&event.field_path).to_owned(),
            event.message.trim().to_owned(),
        ];
        lines.row(2, cells);
    }
}

fn when(event: &RecordedEvent, now: Timestamp) -> String {
    let last = age(event.last_timestamp, now);
    match event.count {
        0 | 1 => last,
        count => format!("{last} (x{count} over {})", age(event.first_timestamp, now)),
    }
}

/// The container in `spec.containers{NAME}`; empty for an event of the pod.
fn container(field_path: &str) -> &str {
    let name = field_path.split_once('{').map(|(_, name)| name);
    name.and_then(|name| name.strip_suffix('}')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(reason: &str, field_path: &str, count: u32) -> RecordedEvent {
        RecordedEvent {
            kind: "Normal".to_owned(),
            reason: reason.to_owned(),
            message: format!("{reason}!\n"),
            field_path: field_path.to_owned(),
            count,
            first_timestamp: "2026-01-02T03:00:00Z".parse().unwrap(),
            last_timestamp: "2026-01-02T03:04:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn events_have_age_count_and_container() {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut lines = Lines::default();
        let events = [event("Pulled", "spec.containers{main}", 1), event("BackOff", "", 3)];
        add(&mut lines, &events, now);
        let expected = [
            "Events:",
            "  Type    Reason   Age                Container  Message",
            "  ----    ------   ---                ---------  -------",
            "  Normal  Pulled   5s                 main       Pulled!",
            "  Normal  BackOff  5s (x3 over 4m5s)             BackOff!",
        ];
        assert_eq!(lines.aligned(), expected);
        let mut lines = Lines::default();
        add(&mut lines, &[], now);
        assert_eq!(lines.aligned(), ["Events:  <none>"]);
    }
}
