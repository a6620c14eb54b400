//! ◆ The requests that still wait for their answer, across reconnections. Pure.
//!
//! A request's number is unique on its connection only: a restarted daemon counts from 1 again, and would mistake a late answer
//! to its predecessor for its own. So every waiting request holds a ticket, and no ticket is issued twice.

use std::collections::BTreeMap;

/// The issued tickets.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    last: u64,
    /// The numbers of the current connection's requests, by their tickets.
    open: BTreeMap<u64, u64>,
}

impl Tickets {
    /// A ticket for the request of this number.
    #[must_use]
    pub(crate) fn issue(&mut self, number: u64) -> u64 {
        self.last += 1;
        self.open.insert(self.last, number);
        self.last
    }

    /// Takes the ticket back when the answer is ready, and returns the request's number; `None` if its connection has ended.
    #[must_use]
    pub(crate) fn redeem(&mut self, ticket: u64) -> Option<u64> {
        self.open.remove(&ticket)
    }

    /// Whether the request still waits for its answer.
    #[must_use]
    pub(crate) fn is_open(&self, ticket: u64) -> bool {
        self.open.contains_key(&ticket)
    }

    /// Forgets all requests, because their connection has ended.
    pub(crate) fn invalidate(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_redeems_once() {
        let mut tickets = Tickets::default();
        let (first, second) = (tickets.issue(1), tickets.issue(2));
        assert!(tickets.is_open(first));
        assert_eq!(tickets.redeem(second), Some(2));
        assert_eq!(tickets.redeem(second), None);
        assert_eq!(tickets.redeem(first), Some(1));
        assert!(!tickets.is_open(first));
    }

    #[test]
    fn ticket_of_closed_connection_is_invalid() {
        let mut tickets = Tickets::default();
        let earlier = tickets.issue(1);
        tickets.invalidate();
        let later = tickets.issue(1);
        assert_ne!(earlier, later);
        assert!(!tickets.is_open(earlier));
        assert_eq!(tickets.redeem(earlier), None);
        assert_eq!(tickets.redeem(later), Some(1));
    }
}
