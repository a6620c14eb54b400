//! Whether the runtime is ready to run pods: it responds, it reports that it is ready, and its pods were listed recently.
//!
//! | condition | effect |
//! |---|---|
//! | the runtime reports that it is not ready, or has not responded for 30 s | no pod is synced |
//! | its pods were last listed more than 3 minutes ago | no pod is synced |
//! | the runtime reports that its network is not ready | pods without `hostNetwork` wait |
//!
//! Source: Kubernetes 1.36, pkg/kubelet/runtime.go and kubelet.go (updateRuntimeUp every 5 s), pkg/kubelet/pleg/generic.go.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::clock::{Clock, after};
use crate::cri::{Capabilities, Cri, CriError, RuntimeStatus};
use crate::observation::pleg::RuntimePods;

/// The period of status queries.
const PERIOD: Duration = Duration::from_secs(5);
/// The maximum time since the runtime last reported that it is ready.
const DOWN_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// The reason why pods wait before the runtime has first reported that it is ready.
const UNKNOWN: &str = "container runtime status check may not have completed yet";
/// The maximum time since the last listing of the runtime's pods.
const UNLISTED_AFTER: SignedDuration = SignedDuration::from_mins(3);

/// Why pods must wait; `None` for no reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// Why no pod can be synced.
    pub(crate) runtime: Option<String>,
    /// Why pods without `hostNetwork` cannot be started.
    pub(crate) network: Option<String>,
    /// The capabilities that the runtime last reported; `None` before its first status.
    pub(crate) capabilities: Option<Arc<Capabilities>>,
}

impl Readiness {
    /// The state before the runtime's first status.
    pub(crate) fn unknown() -> Self {
        Self { runtime: Some(UNKNOWN.to_owned()), ..Self::default() }
    }
}

/// ◆ The recorded state of the runtime.
#[derive(Debug, Default)]
struct Health {
    /// When it last reported that it is ready.
    ready_at: Option<Timestamp>,
    /// Why it last reported that it is not ready.
    runtime: Option<String>,
    network: Option<String>,
    /// When its pods were last listed.
    listed_at: Option<Timestamp>,
    capabilities: Option<Arc<Capabilities>>,
}

impl Health {
    /// Records a status. A missing status changes nothing: readiness expires.
    fn answered(&mut self, status: &Result<RuntimeStatus, CriError>, now: Timestamp) {
        let Ok(status) = status else {
            return;
        };
        self.capabilities = Some(Arc::new(status.capabilities.clone()));
        self.network = against(status, "NetworkReady", "container runtime network not ready");
        self.runtime = against(status, "RuntimeReady", "container runtime not ready");
        if self.runtime.is_none() {
            self.ready_at = Some(now);
        }
    }

    fn readiness(&self, now: Timestamp) -> Readiness {
        let down = match self.ready_at {
            None => Some(UNKNOWN.to_owned()),
            Some(at) => (now.duration_since(at) >= DOWN_AFTER)
                .then(|| "container runtime is down".to_owned()),
        };
        let unlisted = self
            .listed_at
            .map(|at| now.duration_since(at))
            .filter(|since| *since >= UNLISTED_AFTER);
        let unlisted = unlisted.map(|since| {
            format!(
                "PLEG is not healthy: pleg was last seen active {}s ago; threshold is 3m0s",
                since.as_secs()
            )
        });
        let reasons: Vec<String> =
            down.into_iter().chain(unlisted).chain(self.runtime.clone()).collect();
        Readiness {
            runtime: (!reasons.is_empty()).then(|| reasons.join(", ")),
            network: self.network.clone(),
            capabilities: self.capabilities.clone(),
        }
    }
}

/// Why a condition in the status is not met; `None` if it is.
fn against(status: &RuntimeStatus, kind: &str, what: &str) -> Option<String> {
    match status.conditions.iter().find(|condition| condition.kind == kind) {
        Some(condition) if condition.status => None,
        Some(condition) => Some(format!(
            "{what}: {kind}=false reason:{} message:{}",
            condition.reason, condition.message
        )),
        None => Some(format!("{what}: the runtime does not report {kind}")),
    }
}

/// Watches the runtime until all receivers of `readiness` are dropped. `listings` changes with each listing of the runtime's pods.
pub(crate) async fn run(
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    mut listings: RuntimePods,
    readiness: watch::Sender<Readiness>,
) {
    let mut health = Health { listed_at: Some(clock.now()), ..Health::default() };
    loop {
        let answer = cri.status();
        tokio::pin!(answer);
        let mut answered = false;
        let mut next = after(clock.now(), PERIOD);
        loop {
            tokio::select! {
                status = &mut answer, if !answered => {
                    if let Err(error) = &status {
                        tracing::warn!(%error, "failed to get the runtime status");
                    }
                    answered = true;
                    health.answered(&status, clock.now());
                    publish(&readiness, health.readiness(clock.now()));
                }
                () = clock.sleep_until(next) => {
                    publish(&readiness, health.readiness(clock.now()));
                    if answered {
                        break;
                    }
                    // Readiness may expire while a call hangs.
                    next = after(clock.now(), PERIOD);
                }
                () = readiness.closed() => return,
                Ok(()) = listings.changed() => health.listed_at = Some(clock.now()),
            }
        }
    }
}

fn publish(readiness: &watch::Sender<Readiness>, new: Readiness) {
    readiness.send_if_modified(|old| {
        let changed = *old != new;
        if old.runtime != new.runtime {
            match &new.runtime {
                Some(why) => tracing::warn!(why, "runtime is not ready; pods are not synced"),
                None => tracing::info!("the runtime is ready"),
            }
        }
        *old = new;
        changed
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cri::{Code, RuntimeCondition};

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn status(runtime: bool, network: bool) -> Result<RuntimeStatus, CriError> {
        let condition = |kind: &str, status| RuntimeCondition {
            kind: kind.to_owned(),
            status,
            reason: "Starting".to_owned(),
            message: "wait".to_owned(),
        };
        Ok(RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", runtime),
                condition("NetworkReady", network),
            ],
            ..RuntimeStatus::default()
        })
    }

    fn down() -> Result<RuntimeStatus, CriError> {
        Err(CriError {
            call: "Status",
            code: Code::Unavailable,
            message: "connection refused".to_owned(),
        })
    }

    /// The statuses with their seconds, the second of the check, and why pods wait then.
    #[rstest]
    #[case::never_asked(&[], 0, "container runtime status check may not have completed yet", "")]
    #[case::ready(&[(0, status(true, true))], 29, "", "")]
    #[case::not_ready(&[(0, status(true, true)), (5, status(false, true))], 5, "container runtime not ready: RuntimeReady=false reason:Starting message:wait", "")]
    #[case::silent_for_long(&[(0, status(true, true)), (5, down())], 30, "container runtime is down", "")]
    #[case::back(&[(0, status(true, true)), (40, status(true, true))], 41, "", "")]
    #[case::without_network(&[(0, status(true, false))], 1, "", "container runtime network not ready: NetworkReady=false reason:Starting message:wait")]
    #[case::says_nothing(&[(0, Ok(RuntimeStatus::default()))], 0, "container runtime status check may not have completed yet, container runtime not ready: the runtime does not report RuntimeReady", "container runtime network not ready: the runtime does not report NetworkReady")]
    fn pods_wait_for_runtime(
        #[case] answers: &[(i64, Result<RuntimeStatus, CriError>)],
        #[case] at: i64,
        #[case] runtime: &str,
        #[case] network: &str,
    ) {
        let mut health = Health::default();
        for (at, answer) in answers {
            health.answered(answer, second(*at));
        }
        let text = |why: Option<String>| why.unwrap_or_default();
        let readiness = health.readiness(second(at));
        assert_eq!(
            (text(readiness.runtime), text(readiness.network)),
            (runtime.to_owned(), network.to_owned())
        );
    }

    #[test]
    fn pods_wait_while_those_of_the_runtime_are_not_seen() {
        let mut health = Health { listed_at: Some(second(0)), ..Health::default() };
        health.answered(&status(true, true), second(179));
        assert_eq!(health.readiness(second(179)).runtime, None);
        let why = health.readiness(second(181)).runtime.unwrap_or_default();
        assert_eq!(
            why,
            "PLEG is not healthy: pleg was last seen active 181s ago; threshold is 3m0s"
        );
    }
}
