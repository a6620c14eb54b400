//! Defers starts that failed: records the failures and takes the deferred actions out of a plan.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::after;
use crate::execute::{Failure, Progress};
use crate::plan::{PodPlan, SandboxStep, When};
use crate::status::StartError;

/// The key of a failure of the whole pod.
const POD: &str = "";

/// The last failure of each container.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartBackoff {
    deferrals: BTreeMap<String, Deferral>,
    failures: u64,
}

/// A failure, and until when it defers the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deferral {
    pub(crate) error: StartError,
    /// Every other attempt fails too.
    pub(crate) refused: bool,
    until: Timestamp,
}

impl StartBackoff {
    /// Records progress. A failure defers the next attempt until its own deadline, or else by `retry` plus a jitter of up
    /// to half of it, so that pods that failed together do not retry together. Success ends the deferral.
    pub(crate) fn record(
        &mut self,
        progress: &Progress,
        seed: &str,
        retry: Duration,
        now: Timestamp,
    ) {
        match progress {
            Progress::Failed(failure) => {
                self.failures += 1;
                let wait = jittered(retry, seed, self.failures);
                let until = failure.until.unwrap_or_else(|| after(now, wait));
                self.add(failure, until);
            }
            // A container can start only in a sandbox.
            Progress::Starting(_) => {
                self.deferrals.remove(POD);
            }
            Progress::Started(name, _) => {
                self.deferrals.remove(name);
            }
            Progress::Pulled(..) | Progress::Created(..) => {}
        }
    }

    fn add(&mut self, failure: &Failure, until: Timestamp) {
        let key = failure.container.clone().unwrap_or_else(|| POD.to_owned());
        let error = StartError {
            reason: failure.reason.clone(),
            message: failure.message.clone(),
        };
        self.deferrals.insert(
            key,
            Deferral {
                error,
                refused: failure.refused,
                until,
            },
        );
    }

    /// Records the crash back-off of a plan's delayed starts as waiting reasons.
    pub(crate) fn record_crash_backoffs(&mut self, plan: &PodPlan) {
        for start in plan.starts() {
            if let When::Wait { until, message, .. } = &start.when {
                let error = StartError {
                    reason: "CrashLoopBackOff".to_owned(),
                    message: message.clone(),
                };
                self.deferrals.insert(
                    start.name.clone(),
                    Deferral {
                        error,
                        refused: false,
                        until: *until,
                    },
                );
            }
        }
    }

    /// The waiting reason of a container.
    pub(crate) fn of(&self, container: &str) -> Option<&Deferral> {
        self.deferrals
            .get(container)
            .or_else(|| self.deferrals.get(POD))
    }

    /// Takes deferred actions out of a plan. Returns when the first of them is due.
    pub(crate) fn defer(&self, plan: &mut PodPlan, now: Timestamp) -> Option<Timestamp> {
        let mut wake = None;
        let mut deferred_until = |name: &str| {
            let until = self
                .deferrals
                .get(name)
                .map(|deferral| deferral.until)
                .filter(|until| *until > now)?;
            wake = Some(wake.map_or(until, |wake: Timestamp| wake.min(until)));
            Some(until)
        };
        let acts = plan.kill_pod.is_some()
            || matches!(plan.sandbox, SandboxStep::Create { .. })
            || plan.starts().any(|start| start.when == When::Now);
        if acts && deferred_until(POD).is_some() {
            plan.kill_pod = None;
            plan.sandbox = SandboxStep::None {
                last: None,
                attempt: 0,
            };
            plan.start_ephemeral.clear();
            plan.start_init.clear();
            plan.start_apps.clear();
            return wake;
        }
        for start in plan
            .start_ephemeral
            .iter_mut()
            .chain(&mut plan.start_init)
            .chain(&mut plan.start_apps)
        {
            if start.when == When::Now
                && let Some(until) = deferred_until(&start.name)
            {
                start.when = When::Wait {
                    until,
                    delay: until.duration_since(now),
                    message: String::new(),
                };
            }
        }
        plan.kills
            .retain(|kill| deferred_until(&kill.name).is_none());
        wake
    }
}

/// `wait` plus up to half of it, derived from `seed` and `turn`.
pub(crate) fn jittered(wait: Duration, seed: &str, turn: u64) -> Duration {
    let mut hasher = DefaultHasher::new();
    (seed, turn).hash(&mut hasher);
    let share =
        f64::from(u32::try_from(hasher.finish() >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    wait.mul_f64(1.0 + share / 2.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plan::Start;
    use crate::pod::ContainerKind;

    fn start(name: &str) -> Start {
        Start {
            name: name.to_owned(),
            kind: ContainerKind::App,
            restart_count: None,
            when: When::Now,
            reason: String::new(),
            previous_end: None,
            backoff_key: String::new(),
        }
    }

    fn plan(names: &[&str]) -> PodPlan {
        PodPlan {
            kill_pod: None,
            sandbox: SandboxStep::None {
                last: None,
                attempt: 0,
            },
            kills: Vec::new(),
            resets: Vec::new(),
            removes: Vec::new(),
            start_ephemeral: Vec::new(),
            start_init: Vec::new(),
            start_apps: names.iter().map(|name| start(name)).collect(),
            idle: None,
            finished: false,
        }
    }

    fn failure(container: Option<&str>) -> Progress {
        Progress::Failed(Failure {
            container: container.map(str::to_owned),
            reason: "RunContainerError".to_owned(),
            message: "no such file".to_owned(),
            until: None,
            refused: false,
        })
    }

    const RETRY: Duration = Duration::from_secs(10);

    #[test]
    fn failed_container_is_deferred_and_others_start() {
        let (now, mut start_backoff) = (Timestamp::UNIX_EPOCH, StartBackoff::default());
        start_backoff.record(&failure(Some("a")), "u", RETRY, now);
        let mut deferred = plan(&["a", "b"]);
        let wake = start_backoff.defer(&mut deferred, now).unwrap();
        assert!(
            after(now, RETRY) <= wake && wake <= after(now, Duration::from_secs(15)),
            "{wake}"
        );
        let going: Vec<_> = deferred
            .starts()
            .filter(|start| start.when == When::Now)
            .map(|start| &start.name)
            .collect();
        assert_eq!(going, ["b"]);
        let mut later = plan(&["a", "b"]);
        assert_eq!(start_backoff.defer(&mut later, wake), None);
        assert_eq!(later, plan(&["a", "b"]));
        assert_eq!(
            start_backoff.of("a").unwrap().error.reason,
            "RunContainerError",
            "the reason stays until it is started"
        );
        start_backoff.record(
            &Progress::Started("a".to_owned(), Duration::ZERO),
            "u",
            RETRY,
            now,
        );
        assert_eq!(start_backoff.of("a"), None);
    }

    #[test]
    fn failed_sandbox_defers_whole_pod() {
        let (now, mut start_backoff) = (Timestamp::UNIX_EPOCH, StartBackoff::default());
        start_backoff.record(&failure(None), "u", RETRY, now);
        let mut deferred = plan(&["a"]);
        deferred.sandbox = SandboxStep::Create {
            attempt: 0,
            replaces: None,
            reason: String::new(),
        };
        assert!(start_backoff.defer(&mut deferred, now).is_some());
        assert!(!deferred.does_something());
        assert_eq!(start_backoff.of("a").unwrap().error.message, "no such file");
        start_backoff.record(&Progress::Starting(start("a")), "u", RETRY, now);
        assert_eq!(start_backoff.of("a"), None);
    }

    #[test]
    fn jitter_adds_up_to_half() {
        let waits: Vec<_> = (0..1000).map(|turn| jittered(RETRY, "u", turn)).collect();
        assert!(
            waits
                .iter()
                .all(|wait| (10.0..=15.0).contains(&wait.as_secs_f64()))
        );
        let mean = waits.iter().map(Duration::as_secs_f64).sum::<f64>() / 1000.0;
        assert!((12.0..13.0).contains(&mean), "{mean}");
    }
}
