//! Probes of containers: startup, readiness, liveness.
//!
//! [`machine`] decides the result that a probe records, from the [`Outcome`] of each check. One task, `prober`, owns the state of all
//! probes; each check runs in its own task. [`counts`] counts the results.

pub(crate) mod check;
pub mod counts;
pub mod machine;
pub(crate) mod prober;
mod ticker;

use machine::ProbeKind;

// The outcome of a check, and the event that reports it.
//
// Source: Kubernetes 1.36, pkg/kubelet/prober/prober.go.

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// The check succeeded with a warning.
    Warning(String),
    /// It failed.
    Failure(String),
    /// The check could not be made; the probe's state does not change.
    Error {
        /// The kubelet's name for the result: `failure`, `unknown`.
        state: &'static str,
        /// The reason.
        message: String,
    },
}

impl Outcome {
    /// Whether it succeeded; `None` if it could not be made.
    #[must_use]
    pub fn succeeded(&self) -> Option<bool> {
        match self {
            Self::Success | Self::Warning(_) => Some(true),
            Self::Failure(_) => Some(false),
            Self::Error { .. } => None,
        }
    }

    /// The event that reports the outcome, if a kubelet records one.
    #[must_use]
    pub fn event(&self, kind: ProbeKind, container: &str) -> Option<ProbeEvent> {
        let (reason, message) = match self {
            Self::Success => return None,
            Self::Warning(output) => ("ProbeWarning", format!("{kind} probe warning: {output}")),
            Self::Failure(output) => ("Unhealthy", format!("{kind} probe failed: {output}")),
            Self::Error { state, message } => (
                "Unhealthy",
                format!("{kind} probe errored and resulted in {state} state: {message}"),
            ),
        };
        Some(ProbeEvent { reason, message, container: container.to_owned() })
    }
}

/// A warning about a container's probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeEvent {
    /// The reason: `Unhealthy`, `ProbeWarning`.
    pub reason: &'static str,
    /// The message.
    pub message: String,
    /// The container in the pod's spec.
    pub container: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn probe_events_match_the_kubelet() {
        let event = |outcome: Outcome| {
            outcome
                .event(ProbeKind::Liveness, "app")
                .map(|event| format!("Warning {} {}", event.reason, event.message))
        };
        assert_eq!(event(Outcome::Success), None);
        assert_eq!(
            event(Outcome::Failure("no\n".to_owned())).unwrap(),
            "Warning Unhealthy Liveness probe failed: no\n"
        );
        assert_eq!(
            event(Outcome::Warning("Probe terminated redirects".to_owned())).unwrap(),
            "Warning ProbeWarning Liveness probe warning: Probe terminated redirects"
        );
        let error =
            Outcome::Error { state: "unknown", message: "invalid port number: 0".to_owned() };
        assert_eq!(
            event(error).unwrap(),
            "Warning Unhealthy Liveness probe errored and resulted in unknown state: invalid port number: 0"
        );
    }
}
