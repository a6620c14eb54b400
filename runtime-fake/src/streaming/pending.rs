//! Tracks connections without a token, and selects which one to drop when there are too many ◆

use std::collections::BTreeMap;

/// A connection's position in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival(u64);

/// Connections by arrival, each with its handle for dropping it. A connection that sends a valid token leaves, so
/// that it is never dropped for others. The oldest is dropped first.
#[derive(Debug)]
pub(super) struct PendingConnections<T> {
    room: usize,
    next: u64,
    waiting: BTreeMap<Arrival, T>,
}

impl<T> PendingConnections<T> {
    /// An empty set with room for `room` connections, at least one.
    pub(super) fn new(room: usize) -> Self {
        Self {
            room: room.max(1),
            next: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// Adds a connection. Also returns the connection to drop for it, if the set was full.
    #[must_use]
    pub(super) fn enter(&mut self, connection: T) -> (Arrival, Option<T>) {
        let full = self.waiting.len() >= self.room;
        let dropped = if full { self.drop_oldest() } else { None };
        let arrival = Arrival(self.next);
        self.next += 1;
        self.waiting.insert(arrival, connection);
        (arrival, dropped)
    }

    /// Removes the oldest connection, for the caller to drop.
    #[must_use]
    pub(super) fn drop_oldest(&mut self) -> Option<T> {
        self.waiting.pop_first().map(|(_, connection)| connection)
    }

    /// Removes a connection that has sent a token or has ended.
    pub(super) fn leave(&mut self, arrival: Arrival) {
        self.waiting.remove(&arrival);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// The connection of this number arrives, and that one is dropped.
        Enters(usize, Option<usize>),
        /// The connection sends a token, or ends.
        Leaves(usize),
    }
    use Step::{Enters, Leaves};

    #[rstest]
    #[case::room_for_all(&[Enters(0, None), Enters(1, None), Enters(2, None)])]
    #[case::oldest_first(&[Enters(0, None), Enters(1, None), Enters(2, None), Enters(3, Some(0)), Enters(4, Some(1))])]
    #[case::not_one_with_a_token(&[Enters(0, None), Enters(1, None), Leaves(0), Enters(2, None), Enters(3, None), Enters(4, Some(1))])]
    #[case::all_with_tokens(&[Enters(0, None), Leaves(0), Enters(1, None), Leaves(1), Enters(2, None), Leaves(2), Enters(3, None)])]
    #[case::leaves_after_it_was_dropped(&[Enters(0, None), Enters(1, None), Enters(2, None), Enters(3, Some(0)), Leaves(0), Enters(4, Some(1))])]
    fn oldest_unauthenticated_connection_is_dropped(#[case] steps: &[Step]) {
        let mut pending = PendingConnections::new(3);
        let mut arrivals = Vec::new();
        for step in steps {
            match *step {
                Enters(number, expected) => {
                    let (arrival, dropped) = pending.enter(number);
                    assert_eq!((arrivals.len(), dropped), (number, expected));
                    arrivals.push(arrival);
                }
                Leaves(number) => pending.leave(arrivals[number]),
            }
        }
    }

    #[test]
    fn zero_capacity_admits_one_connection() {
        let mut pending = PendingConnections::new(0);
        assert_eq!(pending.enter('a').1, None);
        assert_eq!(pending.enter('b').1, Some('a'));
        assert_eq!(pending.drop_oldest(), Some('b'));
        assert_eq!(pending.drop_oldest(), None);
    }
}
