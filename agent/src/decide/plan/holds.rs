//! ◆ Actions that failed or had no effect, each with the time until which it is deferred. An input of the plan.
//!
//! A kubelet repeats the sync of the whole pod 10 to 15 s after an action failed, or when a container or sandbox of the pod starts
//! or ends (a PLEG event). Here each action has its own hold, so that one container's failure does not delay the others.

use compact::{Map, Set};
use jiff::Timestamp;

use crate::observed::{ContainerId, SandboxId};

/// The key of a deferred action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldKey {
    /// Every action that needs the pod's sandbox or volumes.
    Pod,
    /// A start, by [`crate::decide::plan::Start::backoff_key`]: the start of another image has another key.
    Start(String),
    /// The stop or the removal of a container.
    Container(ContainerId),
    /// The removal of a sandbox.
    Sandbox(SandboxId),
    /// A resize of running containers.
    Resize,
}

/// The deferred actions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    until: Map<HoldKey, Timestamp>,
    /// The holds that an event of the pod ends.
    until_event: Set<HoldKey>,
}

impl Holds {
    /// Defers an action.
    pub fn defer(&mut self, key: HoldKey, until: Timestamp) {
        self.until_event.remove(&key);
        self.until.insert(key, until);
    }

    /// Defers an action until a time, or until a container or sandbox of the pod starts or ends.
    pub fn defer_until_event(&mut self, key: HoldKey, until: Timestamp) {
        self.until_event.insert(key.clone());
        self.until.insert(key, until);
    }

    /// Records that a container or sandbox of the pod has started or ended.
    pub fn event(&mut self) {
        for key in std::mem::take(&mut self.until_event) {
            self.until.remove(&key);
        }
    }

    /// Ends the hold of an action.
    pub fn release(&mut self, key: &HoldKey) {
        self.until_event.remove(key);
        self.until.remove(key);
    }

    /// Ends every hold, because the pod's spec changed.
    pub fn release_all(&mut self) {
        self.until.clear();
        self.until_event.clear();
    }

    /// Removes the holds that have ended.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.until.retain(|_, until| *until > now);
        self.until_event.retain(|key| self.until.contains_key(key));
    }

    /// The end of an action's hold, if it is deferred.
    pub fn until(&self, key: &HoldKey, now: Timestamp) -> Option<Timestamp> {
        self.until.get(key).copied().filter(|until| *until > now)
    }

    /// Whether a container's stop or removal is deferred.
    pub fn holds_container(&self, id: &ContainerId, now: Timestamp) -> bool {
        self.until(&HoldKey::Container(id.clone()), now).is_some()
    }

    /// Whether a sandbox's removal is deferred.
    pub fn holds_sandbox(&self, id: &SandboxId, now: Timestamp) -> bool {
        self.until(&HoldKey::Sandbox(id.clone()), now).is_some()
    }

    /// When the first hold ends.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        self.until.values().copied().filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
    }

    #[test]
    fn event_releases_only_deferred_failed_starts() {
        let mut holds = Holds::default();
        let (failed, in_backoff) = (HoldKey::Start("a".to_owned()), HoldKey::Start("b".to_owned()));
        holds.defer_until_event(failed.clone(), at(10));
        holds.defer_until_event(in_backoff.clone(), at(10));
        holds.defer(in_backoff.clone(), at(10));
        assert_eq!(holds.until(&failed, at(0)), Some(at(10)));
        holds.event();
        assert_eq!(holds.until(&failed, at(0)), None);
        assert_eq!(holds.until(&in_backoff, at(0)), Some(at(10)));
    }

    #[test]
    fn hold_expires_at_its_time_or_when_released() {
        let mut holds = Holds::default();
        let start = HoldKey::Start("a".to_owned());
        holds.defer(HoldKey::Pod, at(10));
        holds.defer(start.clone(), at(5));
        assert_eq!(holds.next_end(at(0)), Some(at(5)));
        assert_eq!(holds.until(&start, at(4)), Some(at(5)));
        assert_eq!(holds.until(&start, at(5)), None);
        assert_eq!(holds.next_end(at(5)), Some(at(10)));
        holds.release(&HoldKey::Pod);
        assert_eq!(holds.next_end(at(5)), None);
        holds.forget_old(at(5));
        assert_eq!(holds, Holds::default());
    }
}
