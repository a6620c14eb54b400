//! The durations of the steps of the node's start, from the machine's boot until the node was ready. They are measured only if
//! this agent created the node's object.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/util/node_startup_latency_tracker.go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

/// The durations of the steps of the node's start in seconds; 0 while unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StartupDurations {
    /// From the machine's boot to the agent's start.
    pub before_agent: f64,
    /// From the agent's start to the first registration attempt.
    pub before_registration: f64,
    /// From the first attempt to the completed registration.
    pub registration: f64,
    /// From the registration to the first status that reports the node as ready.
    pub after_registration: f64,
    /// From the machine's boot to the first ready status.
    pub total: f64,
}

/// The times of the steps, each of the first occurrence.
#[derive(Clone, Copy, Debug)]
struct Times {
    boot: Option<Timestamp>,
    agent: Timestamp,
    attempt: Option<Timestamp>,
    registered: Option<Timestamp>,
    ready: Option<Timestamp>,
}

/// Records the node's start. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct NodeStartup(Arc<Mutex<Times>>);

impl NodeStartup {
    /// Records the start of the agent at `now`, and of the machine at `boot` if that is known.
    pub(crate) fn new(boot: Option<Timestamp>, now: Timestamp) -> Self {
        let times = Times { boot, agent: now, attempt: None, registered: None, ready: None };
        Self(Arc::new(Mutex::new(times)))
    }

    /// Records a registration attempt.
    pub(crate) fn attempted(&self, now: Timestamp) {
        self.lock().attempt.get_or_insert(now);
    }

    /// Records the creation of the node's object.
    pub(crate) fn registered_new(&self, now: Timestamp) {
        let mut times = self.lock();
        if times.attempt.is_some() {
            times.registered.get_or_insert(now);
        }
    }

    /// Records that a status with a ready node was sent.
    pub(crate) fn became_ready(&self, now: Timestamp) {
        let mut times = self.lock();
        if times.registered.is_some() {
            times.ready.get_or_insert(now);
        }
    }

    pub(crate) fn durations(&self) -> StartupDurations {
        let Times { boot, agent, attempt, registered, ready } = *self.lock();
        let between = |from: Option<Timestamp>, to: Option<Timestamp>| {
            let pair = from.zip(to).filter(|_| registered.is_some());
            pair.map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64())
        };
        StartupDurations {
            before_agent: between(boot, Some(agent)),
            before_registration: between(Some(agent), attempt),
            registration: between(attempt, registered),
            after_registration: between(registered, ready),
            total: between(boot, ready),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    /// The durations after these steps, each at a second after the machine's boot.
    fn durations(boot: bool, steps: &[(&str, i64)]) -> [f64; 5] {
        let at = |second| Timestamp::from_second(second).unwrap();
        let startup = NodeStartup::new(boot.then(|| at(0)), at(10));
        for (step, second) in steps {
            match *step {
                "attempted" => startup.attempted(at(*second)),
                "registered" => startup.registered_new(at(*second)),
                "ready" => startup.became_ready(at(*second)),
                other => panic!("{other}"),
            }
        }
        let found = startup.durations();
        [
            found.before_agent,
            found.before_registration,
            found.registration,
            found.after_registration,
            found.total,
        ]
    }

    #[rstest]
    #[case::new(&[("attempted", 11), ("registered", 14), ("ready", 20)], [10.0, 1.0, 3.0, 6.0, 20.0])]
    #[case::not_ready_yet(&[("attempted", 11), ("registered", 14)], [10.0, 1.0, 3.0, 0.0, 0.0])]
    #[case::not_registered_yet(&[("attempted", 11)], [0.0; 5])]
    #[case::there_before(&[("attempted", 11), ("ready", 20)], [0.0; 5])]
    #[case::first_times_count(
        &[("attempted", 11), ("attempted", 12), ("registered", 14), ("ready", 20), ("registered", 30), ("ready", 40)],
        [10.0, 1.0, 3.0, 6.0, 20.0]
    )]
    fn start_of_a_new_node_is_measured(#[case] steps: &[(&str, i64)], #[case] expected: [f64; 5]) {
        assert_eq!(durations(true, steps), expected);
    }

    #[test]
    fn start_of_an_unknown_machine_is_not_measured() {
        let steps = [("attempted", 11), ("registered", 14), ("ready", 20)];
        assert_eq!(durations(false, &steps), [0.0, 1.0, 3.0, 6.0, 0.0]);
    }
}
