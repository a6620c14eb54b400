//! ◆ Which requests still wait for their answer, over connections that come and go. Pure.
//!
//! A request's number means something on its connection only: a daemon that was started again counts from 1 again, and would take
//! a late answer to its predecessor for one of its own. So whatever waits holds a ticket, which is never given twice.

use std::collections::BTreeMap;

/// The tickets that are out.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    last: u64,
    /// The numbers of the present connection's requests, by their tickets.
    open: BTreeMap<u64, u64>,
}

impl Tickets {
    /// A ticket for the request of this number.
    #[must_use]
    pub(crate) fn take(&mut self, number: u64) -> u64 {
        self.last += 1;
        self.open.insert(self.last, number);
        self.last
    }

    /// The number of the request whose answer is there; `None` if nobody waits for it any more.
    #[must_use]
    pub(crate) fn redeem(&mut self, ticket: u64) -> Option<u64> {
        self.open.remove(&ticket)
    }

    /// Whether the request still waits for its answer.
    #[must_use]
    pub(crate) fn is_open(&self, ticket: u64) -> bool {
        self.open.contains_key(&ticket)
    }

    /// The connection has ended: nobody waits for the answers to its requests.
    pub(crate) fn void(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_goes_to_its_request_once() {
        let mut tickets = Tickets::default();
        let (first, second) = (tickets.take(1), tickets.take(2));
        assert!(tickets.is_open(first));
        assert_eq!(tickets.redeem(second), Some(2));
        assert_eq!(tickets.redeem(second), None);
        assert_eq!(tickets.redeem(first), Some(1));
        assert!(!tickets.is_open(first));
    }

    #[test]
    fn answer_to_ended_connection_goes_to_nobody() {
        let mut tickets = Tickets::default();
        let earlier = tickets.take(1);
        tickets.void();
        let later = tickets.take(1);
        assert_ne!(earlier, later);
        assert!(!tickets.is_open(earlier));
        assert_eq!(tickets.redeem(earlier), None);
        assert_eq!(tickets.redeem(later), Some(1));
    }
}
