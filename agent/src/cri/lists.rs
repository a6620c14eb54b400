//! Listings of a runtime's sandboxes and containers, with detection of unchanged ones.

use std::hash::{DefaultHasher, Hasher as _};

use jiff::Timestamp;

use super::{ListedState, PodRef};
use crate::observed::{ContainerId, SandboxId};

/// A sandbox of a pod, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its pod.
    pub pod: PodRef,
    /// SANDBOX_READY.
    pub ready: bool,
    /// Creation time.
    pub created_at: Timestamp,
}

/// A container of a pod, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// Its pod.
    pub pod: PodRef,
    /// Its name in the pod's spec.
    pub name: String,
    /// Its state.
    pub state: ListedState,
    /// Creation time.
    pub created_at: Timestamp,
}

/// All sandboxes and all containers.
pub type Lists = (Vec<ListedSandbox>, Vec<ListedContainer>);

/// A runtime's previous responses: the hash of each list.
#[derive(Debug, Default)]
pub struct LastLists(Option<[u64; 2]>);

impl LastLists {
    /// Whether the responses differ from the previous ones, which they replace.
    pub(super) fn differ(&mut self, answers: [&[u8]; 2]) -> bool {
        let hashes = answers.map(|answer| {
            let mut hasher = DefaultHasher::new();
            hasher.write(answer);
            hasher.finish()
        });
        self.0.replace(hashes) != Some(hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_differ_when_either_has_changed() {
        let mut last = LastLists::default();
        for (sandboxes, containers, differ) in [
            ("", "", true),
            ("", "", false),
            ("a", "b", true),
            ("a", "b", false),
            ("b", "a", true),
            ("b", "c", true),
            ("b", "c", false),
        ] {
            let answers = [sandboxes.as_bytes(), containers.as_bytes()];
            assert_eq!(last.differ(answers), differ, "{sandboxes} {containers}");
        }
    }
}
