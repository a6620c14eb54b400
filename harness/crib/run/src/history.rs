//! ◆ The latest events of a run's pods, for queries of other commands. Pure.

use std::collections::VecDeque;

use agent::Event;
use api::pod::PodUid;
use crib_base::run_socket::RecordedEvent;

/// The maximum number of events to keep: a CronJob may run for years.
const MOST: usize = 1000;

/// The latest events of all pods, each with its latest count, sorted by their last occurrence.
#[derive(Debug, Default)]
pub(super) struct History {
    events: VecDeque<Event>,
}

impl History {
    /// Adds an event, or updates a repeated one.
    pub(super) fn add(&mut self, event: Event) {
        let same = |old: &Event| {
            (&old.object, old.kind, &old.reason, &old.message)
                == (&event.object, event.kind, &event.reason, &event.message)
        };
        self.events.retain(|old| !same(old));
        self.events.push_back(event);
        if self.events.len() > MOST {
            self.events.pop_front();
        }
    }

    /// The events of a pod.
    pub(super) fn of(&self, uid: &PodUid) -> Vec<RecordedEvent> {
        let of_pod = self.events.iter().filter(|event| event.object.uid == *uid);
        let record = |event: &Event| RecordedEvent {
            kind: event.kind.as_str().to_owned(),
            reason: event.reason.clone(),
            message: event.message.clone(),
            field_path: event.object.field_path.clone(),
            count: event.count,
            first_timestamp: event.first_at,
            last_timestamp: event.last_at,
        };
        of_pod.map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use agent::{EventObject, EventObjectKind, EventType};

    use super::*;

    fn event(uid: &str, message: &str, count: u32) -> Event {
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        Event {
            object: EventObject {
                kind: EventObjectKind::Pod,
                uid: PodUid::new(uid),
                namespace: "default".to_owned(),
                name: "p".to_owned(),
                field_path: "spec.containers{c}".to_owned(),
            },
            kind: EventType::Normal,
            reason: "Started".to_owned(),
            message: message.to_owned(),
            annotations: std::collections::BTreeMap::new(),
            count,
            first_at: at,
            last_at: at,
        }
    }

    #[test]
    fn events_of_pod_have_their_last_count() {
        let mut history = History::default();
        for (uid, message, count) in [("a", "x", 1), ("a", "y", 1), ("b", "x", 1), ("a", "x", 2)] {
            history.add(event(uid, message, count));
        }
        let of_a = history.of(&PodUid::new("a"));
        let shown: Vec<(&str, u32)> =
            of_a.iter().map(|event| (event.message.as_str(), event.count)).collect();
        assert_eq!(shown, [("y", 1), ("x", 2)]);
        assert_eq!(history.of(&PodUid::new("c")), []);
    }

    #[test]
    fn oldest_events_are_forgotten() {
        let mut history = History::default();
        for number in 0..=MOST {
            history.add(event("a", &number.to_string(), 1));
        }
        let of_a = history.of(&PodUid::new("a"));
        assert_eq!(of_a.len(), MOST);
        assert_eq!(of_a[0].message, "1");
    }
}
