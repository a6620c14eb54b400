//! ◆ The last failure of each container, which its status shows as the reason of its waiting state.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use compact::Map;

use crate::decide::plan::{PodPlan, When};
use crate::execute::Progress;
use crate::reporting::status::StartError;

/// The key of a failure of the whole pod.
const POD: &str = "";

/// The reason of a pod whose ResourceClaims cannot be prepared.
pub(super) const CLAIMS_FAILED: &str = "FailedPrepareDynamicResources";

/// The last failure of each container.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartErrors {
    by_container: Map<String, FailedStart>,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedStart {
    pub(crate) error: StartError,
    /// Whether every retry fails too.
    pub(crate) refused: bool,
}

impl StartErrors {
    /// Records a failure, or removes it after a success.
    pub(crate) fn record(&mut self, progress: &Progress) {
        match progress {
            Progress::Failed(failure) => {
                let name = failure.container.as_deref().unwrap_or(POD);
                self.add(name, &failure.reason, &failure.message, failure.refused);
            }
            Progress::MountFailed(failure) => {
                self.add(POD, "FailedMount", &failure.message, failure.refused);
            }
            Progress::ClaimsFailed(message) => self.add(POD, CLAIMS_FAILED, message, false),
            // A container can start only in a sandbox.
            Progress::Starting(_) => {
                self.by_container.remove(POD);
            }
            Progress::Started(name, _) => {
                self.by_container.remove(name);
            }
            Progress::Pulled(..)
            | Progress::Created(..)
            | Progress::HookEnded(_)
            | Progress::HookFailed(..)
            | Progress::Mounted
            | Progress::ResizeFailed(_)
            | Progress::Done(_) => {}
        }
    }

    fn add(&mut self, name: &str, reason: &str, message: &str, refused: bool) {
        let error = StartError { reason: reason.to_owned(), message: message.to_owned() };
        self.by_container.insert(name.to_owned(), FailedStart { error, refused });
    }

    /// Records the crash back-off of a plan's delayed starts. Returns their names.
    pub(crate) fn record_crash_backoffs(&mut self, plan: &PodPlan) -> Vec<String> {
        let mut waiting = Vec::new();
        for start in plan.starts() {
            if let When::Wait { message, .. } = &start.when
                && !message.is_empty()
            {
                waiting.push(start.name.clone());
                let error =
                    StartError { reason: "CrashLoopBackOff".to_owned(), message: message.clone() };
                self.by_container.insert(start.name.clone(), FailedStart { error, refused: false });
            }
        }
        waiting
    }

    /// The failure of a container.
    pub(crate) fn of(&self, container: &str) -> Option<&FailedStart> {
        self.by_container.get(container)
    }

    /// The failure of the pod as a whole, for which its containers wait. A kubelet's status does not show it.
    pub(crate) fn of_pod(&self) -> Option<&FailedStart> {
        self.by_container.get(POD)
    }
}

/// `wait` plus up to half of it, derived from `seed` and `attempt`, so that pods that failed together do not retry together.
pub(crate) fn jittered(wait: Duration, seed: &str, attempt: u64) -> Duration {
    let mut hasher = DefaultHasher::new();
    (seed, attempt).hash(&mut hasher);
    let share =
        f64::from(u32::try_from(hasher.finish() >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    wait.mul_f64(1.0 + share / 2.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::decide::plan::HoldKey;
    use crate::execute::Failure;
    use crate::fixtures::start;

    fn failure(container: Option<&str>) -> Progress {
        Progress::Failed(Failure {
            key: HoldKey::Pod,
            container: container.map(str::to_owned),
            attempt: None,
            reason: "RunContainerError".to_owned(),
            message: "no such file".to_owned(),
            until: None,
            refused: false,
        })
    }

    #[test]
    fn reason_stays_until_container_is_started() {
        let mut errors = StartErrors::default();
        errors.record(&failure(Some("a")));
        assert_eq!(errors.of("a").unwrap().error.reason, "RunContainerError");
        assert_eq!(errors.of("b"), None);
        errors.record(&Progress::Started("a".to_owned(), Duration::ZERO));
        assert_eq!(errors.of("a"), None);
    }

    #[test]
    fn failure_of_pod_ends_with_next_start() {
        let mut errors = StartErrors::default();
        errors.record(&failure(None));
        assert_eq!(errors.of("a"), None);
        assert_eq!(errors.of_pod().unwrap().error.message, "no such file");
        errors.record(&Progress::Starting(start("a")));
        assert_eq!(errors.of_pod(), None);
    }

    #[test]
    fn jitter_adds_up_to_half() {
        let retry = Duration::from_secs(10);
        let waits: Vec<_> = (0..1000).map(|attempt| jittered(retry, "u", attempt)).collect();
        assert!(waits.iter().all(|wait| (10.0..=15.0).contains(&wait.as_secs_f64())));
        let mean = waits.iter().map(Duration::as_secs_f64).sum::<f64>() / 1000.0;
        assert!((12.0..13.0).contains(&mean), "{mean}");
    }
}
