//! ◆ Differences that neither the agent nor the kubelet causes, but another runtime, or a recording without an API server.

use crate::comparison::difference::{Difference, NONE};

/// A rule that explains differences.
#[derive(Debug)]
pub(crate) struct Explanation {
    pub(crate) reason: &'static str,
    pub(crate) applies: fn(&Difference) -> bool,
}

/// A kubelet itself mounts volumes in memory; crib's agent mounts nothing, and requests them from crib's runtime with an
/// annotation.
const MEMORY_VOLUMES: Explanation = Explanation {
    reason: "crib's agent asks crib's runtime for volumes in memory, which a kubelet mounts itself",
    applies: |difference| {
        difference.kind == "config"
            && difference.place.ends_with(".annotations.crib.local/memory-volumes")
            && difference.kubelet == NONE
    },
};

/// A kubelet limits a pod in the cgroup that it creates, or not at all without `cgroupsPerQOS`.
const POD_LIMITS: Explanation = Explanation {
    reason: "crib's agent tells crib's runtime what limits the pod as a whole, which a kubelet applies itself",
    applies: |difference| {
        difference.kind == "config"
            && difference.place.ends_with(".annotations.crib.local/pod-limits")
            && difference.kubelet == NONE
    },
};

/// A kubelet itself mounts sub-paths of volumes.
const SUB_PATHS: Explanation = Explanation {
    reason: "crib's agent asks crib's runtime to mount parts of volumes without following links, which a kubelet mounts itself",
    applies: |difference| {
        difference.kind == "config"
            && difference.place.ends_with(".annotations.crib.local/sub-paths")
            && difference.kubelet == NONE
    },
};

/// Differences from the recorded kubelet.
pub(crate) const RECORDED: [Explanation; 3] = [MEMORY_VOLUMES, POD_LIMITS, SUB_PATHS];

/// Differences due to Debian's containerd, 1.6; the recorded one was 2.4.
pub(crate) const CONTAINERD: [Explanation; 1] = [Explanation {
    reason: "this containerd does not report the user of a container, as 2.0 and later do",
    applies: |difference| {
        ["status", "history"].contains(&difference.kind)
            && difference.place.ends_with(".user")
            && difference.crib == NONE
    },
}];

/// A kubelet gets the handler of a pod's RuntimeClass from an API server.
const RECURSIVE_READ_ONLY: Explanation = Explanation {
    reason: "a kubelet without an API server makes no mount read-only recursively, for it knows no runtime class",
    applies: |difference| {
        let is_reported = difference.place.ends_with(".recursive_read_only")
            && difference.kubelet == NONE
            && difference.crib == "true";
        let is_shown = difference.place.ends_with(".recursiveReadOnly")
            && difference.kubelet == "\"Disabled\""
            && difference.crib == "\"Enabled\"";
        is_reported || is_shown
    },
};

/// Differences from a kubelet that runs its pods on crib's runtime, without an API server.
pub(crate) const KUBELET: [Explanation; 4] =
    [MEMORY_VOLUMES, POD_LIMITS, SUB_PATHS, RECURSIVE_READ_ONLY];
