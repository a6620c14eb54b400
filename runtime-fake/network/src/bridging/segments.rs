//! ◆ Decides which bridge each pod becomes a port of.
//!
//! A Linux bridge has at most 1024 ports (`BR_MAX_PORTS`, net/bridge/br_private.h). More pods become ports of further bridges,
//! each connected to the first one. Together they form one network: all pods are neighbours, and only the first bridge has
//! addresses.
//!
//! ```text
//!   crib1a2b3c4d  10.200.16.1/20 ──┬─ crv… a pod
//!                                  ├─ crv… another one
//!                                  └─ cru… ═══ crl… ─ crib1a2b3c4d-1 ──┬─ crv… one that found the first bridge full
//!                                                                      └─ …
//! ```

use std::collections::BTreeMap;

/// A bridge by its number: 0 is the first one, to which the others are connected.
pub(crate) type Segment = usize;

/// The default number of pods on one bridge. The first bridge's other ports are for further bridges.
pub(crate) const PORTS: usize = 1000;
/// Limit on the bridges: 23 of them are ports of the first one.
const MAX_SEGMENTS: usize = 24;

/// The pods of each bridge.
#[derive(Debug, Clone)]
pub(crate) struct Segments {
    room: usize,
    of: BTreeMap<String, Segment>,
    counts: BTreeMap<Segment, usize>,
}

impl Segments {
    /// No pods, with room for `room` pods on each bridge.
    pub(crate) fn new(room: usize) -> Self {
        Self { room: room.clamp(1, PORTS), of: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// The numbers of all possible bridges.
    pub(crate) fn numbers(&self) -> std::ops::Range<Segment> {
        0..MAX_SEGMENTS
    }

    /// Limit on the pods of all bridges.
    pub(crate) fn capacity(&self) -> usize {
        self.room * MAX_SEGMENTS
    }

    /// Assigns a sandbox to the first bridge that has room. Returns `None` if all are full.
    pub(crate) fn place(&mut self, sandbox: &str) -> Option<Segment> {
        if let Some(segment) = self.of.get(sandbox) {
            return Some(*segment);
        }
        let segment = self.numbers().find(|segment| self.count(*segment) < self.room)?;
        self.put(sandbox, segment);
        Some(segment)
    }

    /// Records that a sandbox is a port of a bridge, even if the bridge is full.
    pub(crate) fn put(&mut self, sandbox: &str, segment: Segment) {
        self.remove(sandbox);
        self.of.insert(sandbox.to_owned(), segment);
        *self.counts.entry(segment).or_default() += 1;
    }

    /// Removes a sandbox; an unknown one is ignored.
    pub(crate) fn remove(&mut self, sandbox: &str) {
        if let Some(segment) = self.of.remove(sandbox)
            && let Some(count) = self.counts.get_mut(&segment)
        {
            *count -= 1;
        }
    }

    /// The number of pods on a bridge.
    pub(crate) fn count(&self, segment: Segment) -> usize {
        self.counts.get(&segment).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn placement_takes_first_bridge_with_room() {
        let mut segments = Segments::new(2);
        let placed: Vec<_> = ["a", "b", "c", "d", "e"]
            .iter()
            .map(|sandbox| segments.place(sandbox).unwrap())
            .collect();
        assert_eq!(placed, [0, 0, 1, 1, 2]);
        assert_eq!(segments.place("c"), Some(1));
        segments.remove("b");
        segments.remove("b");
        assert_eq!(segments.place("f"), Some(0));
        assert_eq!(segments.place("g"), Some(2));
    }

    #[test]
    fn placement_fails_when_all_bridges_are_full() {
        let mut segments = Segments::new(PORTS + 50);
        assert_eq!(segments.capacity(), 24_000);
        for number in 0..segments.capacity() {
            let segment = segments.place(&number.to_string()).unwrap();
            assert_eq!(segment, number / PORTS);
        }
        assert_eq!(segments.place("more"), None);
        segments.remove("12345");
        assert_eq!(segments.place("more"), Some(12));
    }

    proptest! {
        #[test]
        fn placement_never_exceeds_bridge_capacity(steps in prop::collection::vec((0u8..40, any::<bool>()), 0..200)) {
            let mut segments = Segments::new(3);
            let mut known = std::collections::BTreeSet::new();
            for (sandbox, comes) in steps {
                let sandbox = sandbox.to_string();
                if comes {
                    prop_assert!(segments.place(&sandbox).is_some());
                    known.insert(sandbox);
                } else {
                    segments.remove(&sandbox);
                    known.remove(&sandbox);
                }
                let counts: Vec<usize> = (0..MAX_SEGMENTS).map(|s| segments.count(s)).collect();
                prop_assert!(counts.iter().all(|count| *count <= 3));
                prop_assert_eq!(counts.iter().sum::<usize>(), known.len());
            }
        }
    }
}
