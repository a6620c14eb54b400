//! ◆ How many pods of all objects there may be at once: as many as the node takes. Pure.

/// How many pods the node takes for objects that create pods, as a kubelet by default.
pub const MAX_PODS: usize = 110;

/// What is left of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room(usize);

impl Room {
    /// Beside pods that there are.
    pub(super) fn beside(pods: usize) -> Self {
        Self(MAX_PODS.saturating_sub(pods))
    }

    /// For an object with this many pods: one without any may always have one, so that the others cannot keep it waiting for ever.
    pub(super) fn for_object(self, pods: usize) -> usize {
        self.0.max(usize::from(pods == 0))
    }

    /// One more pod is created.
    pub(super) fn take(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }
}

/// Says that so many pods do not fit.
#[must_use]
pub fn sentence(unplaced: usize) -> String {
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
    fn room_is_what_the_node_takes_beside_its_pods(
        #[case] all: usize,
        #[case] own: usize,
        #[case] room: usize,
    ) {
        assert_eq!(Room::beside(all).for_object(own), room);
    }
}
