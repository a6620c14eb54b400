//! Exponential back-off between attempts.

use std::time::Duration;

/// A delay that doubles with each consecutive failure, up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Retry {
    pub(super) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// Records a failure and returns how long to wait.
    #[must_use]
    pub(super) fn failed(&mut self) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(self.max);
        wait
    }

    pub(super) fn succeeded(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_maximum_and_resets_after_success() {
        let mut retry = Retry::new(Duration::from_millis(100), Duration::from_secs(5));
        let waits: Vec<_> = (0..8).map(|_| retry.failed().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        retry.succeeded();
        assert_eq!(retry.failed().as_millis(), 100);
    }
}
