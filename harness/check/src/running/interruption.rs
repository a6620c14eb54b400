//! Early end of a check: rules cannot create pods any more, and the check waits for pods that are being created.

use std::time::Duration;

use harness::client::Client;
use harness::eventually::within;
use proxy::{Call, Fault};
use tonic::Code;

use crate::context::Unfinished;
use crate::running::CheckError;
use crate::running::prepare::CallLimit;

/// The name of the fault that refuses pods once the check is interrupted.
const INTERRUPTED: &str = "check-interrupted";
/// How long a runtime may be unavailable, for example during a restart.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for pods that are being created. Pods that take longer are left to the next check.
const PODS: Duration = Duration::from_secs(10);

/// The faults of a check, and the refusal of pods, which is initially off.
pub(crate) fn with_refusal(faults: &[Fault]) -> Vec<Fault> {
    let refusal = format!("off {INTERRUPTED}: RunPodSandbox answer CANCELLED \"interrupted\"");
    faults.iter().cloned().chain(refusal.parse()).collect()
}

/// Stops all rules from creating pods, and waits for pods that are being created.
pub(crate) async fn stop_creating_pods(rules: &[Unfinished]) {
    for rule in rules {
        // An error means that the proxy has no refusal, and the rule creates no pods.
        let _ = rule.faults.switch(INTERRUPTED, true);
    }
    let created = async {
        for rule in rules {
            rule.recording.until(|calls| creates_no_pods(calls).then_some(())).await;
        }
    };
    // On timeout, the pods are left to the next check.
    let _ = tokio::time::timeout(PODS, created).await;
}

/// Whether the calls of a rule indicate that the runtime is gone: its last call got no response.
pub(crate) fn may_be_unreachable(calls: &[Call]) -> bool {
    let last = calls.last().and_then(|call| call.code);
    matches!(last, None | Some(Code::Unavailable | Code::Cancelled))
}

/// Why the runtime does not respond; `None` if it responds within [`RECOVERY_LIMIT`].
pub(crate) async fn unreachable_reason(runtime: &Client, limit: &CallLimit) -> Option<String> {
    let version = || async {
        match limit.call("Version", runtime.version()).await {
            Ok(answer) => answer.map(drop).map_err(|status| status.message().to_owned()),
            // The check ends anyway.
            Err(CheckError::Interrupted) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    };
    match within(RECOVERY_LIMIT, "Version to be answered", version).await {
        Ok(()) => None,
        Err(error) => Some(error.last),
    }
}

fn creates_no_pods(calls: &[Call]) -> bool {
    let mut creations = calls.iter().filter(|call| call.method == "RunPodSandbox");
    creations.all(|call| call.end.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_pods_is_a_rule_that_is_off_at_first() {
        let faults = with_refusal(&[]);
        let [refusal] = faults.as_slice() else {
            panic!("{faults:?}");
        };
        assert_eq!(refusal.name(), Some(INTERRUPTED));
        assert!(refusal.text().starts_with("off "), "{refusal:?}");
        // `fail` would forward the request, so that the runtime creates the pod.
        assert!(refusal.text().contains(" answer "), "{refusal:?}");
    }
}
