//! ◆ The limit of pods of all objects: as many as the node admits. Pure.

/// The maximum number of pods for objects that create pods: a kubelet's default.
pub const MAX_PODS: usize = 110;

/// The number of pods that may still be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodCapacity(usize);

impl PodCapacity {
    /// What remains beside this many existing pods.
    pub(super) fn beside(pods: usize) -> Self {
        Self(MAX_PODS.saturating_sub(pods))
    }

    /// The capacity for an object with this many pods: an object without any may always create one, so that others cannot block it
    /// endlessly.
    pub(super) fn for_object(self, pods: usize) -> usize {
        self.0.max(usize::from(pods == 0))
    }

    /// Counts a created pod.
    pub(super) fn take(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }
}

/// The message that this many pods do not fit.
#[must_use]
pub fn unplaced_message(unplaced: usize) -> String {
    let pods = if unplaced == 1 { "pod does" } else { "pods do" };
    format!("{unplaced} {pods} not fit on the node, which takes {MAX_PODS} pods at once")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::empty(0, 0, 110)]
    #[case::some(100, 7, 10)]
    #[case::full(110, 7, 0)]
    #[case::full_for_its_first_pod(110, 0, 1)]
    #[case::more_than_full(200, 7, 0)]
    fn capacity_is_the_node_limit_minus_existing_pods(
        #[case] all: usize,
        #[case] own: usize,
        #[case] capacity: usize,
    ) {
        assert_eq!(PodCapacity::beside(all).for_object(own), capacity);
    }
}
