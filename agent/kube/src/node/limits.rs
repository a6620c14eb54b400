//! Limitations of the node's pod network, compared with a kubelet's node: published as a condition of the node.

use std::collections::BTreeMap;

use agent::cri::RuntimeStatus;
use tokio::sync::watch;

/// The runtime's condition that other machines can reach its pods. Only crib's runtime has it.
const REACHABLE: &str = "PodAddressesReachable";

/// The limitations: a message for each reason.
pub(crate) type Limits = BTreeMap<String, String>;

/// The sink for limitations of pods. Parts of the agent report to it.
#[derive(Clone, Debug, Default)]
pub struct NodeLimits(watch::Sender<Limits>);

impl NodeLimits {
    /// Sets or removes the message of a reason, which is one word in CamelCase.
    pub fn set(&self, reason: &str, message: Option<String>) {
        self.0.send_if_modified(|limits| match message {
            Some(message) => {
                let before = limits.insert(reason.to_owned(), message);
                before.as_ref() != limits.get(reason)
            }
            None => limits.remove(reason).is_some(),
        });
    }

    /// The current limitations, with change notification.
    pub(crate) fn watch(&self) -> watch::Receiver<Limits> {
        self.0.subscribe()
    }
}

/// ◆ Adds the limitations that the runtime reports.
pub(crate) fn with_runtime(mut limits: Limits, status: &RuntimeStatus) -> Limits {
    let mut conditions = status.conditions.iter();
    if let Some(condition) = conditions.find(|condition| condition.kind == REACHABLE)
        && !condition.status
    {
        limits.insert(condition.reason.clone(), condition.message.clone());
    }
    limits
}

#[cfg(test)]
mod tests {
    use agent::cri::RuntimeCondition;

    use super::*;

    #[test]
    fn set_notifies_only_of_changes() {
        let limits = NodeLimits::default();
        let mut seen = limits.watch();
        for (message, changes) in
            [(Some("a"), true), (Some("a"), false), (Some("b"), true), (None, true), (None, false)]
        {
            limits.set("Reason", message.map(str::to_owned));
            assert_eq!(seen.has_changed().ok(), Some(changes), "{message:?}");
            seen.mark_unchanged();
        }
    }

    #[test]
    fn unreachable_pod_addresses_are_a_limitation() {
        let condition = |kind: &str, status| RuntimeCondition {
            kind: kind.to_owned(),
            status,
            reason: "Rootless".to_owned(),
            message: "m".to_owned(),
        };
        for (kind, status, lacks) in
            [(REACHABLE, false, true), (REACHABLE, true, false), ("NetworkReady", false, false)]
        {
            let conditions = vec![condition(kind, status)];
            let status = RuntimeStatus { conditions, ..RuntimeStatus::default() };
            let limits = with_runtime(Limits::new(), &status);
            assert_eq!(limits.contains_key("Rootless"), lacks, "{kind}");
        }
    }
}
