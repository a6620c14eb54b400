//! Runs one task at a time for each key: two pulls of the same image or layer share the work.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The keys that are locked.
#[derive(Debug)]
pub(crate) struct SingleFlight<K> {
    busy: Mutex<HashSet<K>>,
    changed: Condvar,
}

/// Holds a key until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct KeyGuard<'a, K: Eq + Hash + Copy> {
    flights: &'a SingleFlight<K>,
    key: K,
}

impl<K> Default for SingleFlight<K> {
    fn default() -> Self {
        Self { busy: Mutex::default(), changed: Condvar::new() }
    }
}

impl<K: Eq + Hash + Copy> SingleFlight<K> {
    /// Waits until `key` is free and locks it. A caller that waited must check whether the work is still needed.
    pub(crate) fn acquire(&self, key: K) -> KeyGuard<'_, K> {
        let mut busy = self.lock();
        while !busy.insert(key) {
            busy = self.changed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        KeyGuard { flights: self, key }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<K>> {
        // The set is consistent at every instant, so a poisoned lock is harmless.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Copy> Drop for KeyGuard<'_, K> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
        self.flights.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn single_flight_serialises_callers_per_key() {
        let flights = SingleFlight::default();
        let inside = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let worst = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for i in 0..8usize {
                let (flights, inside, worst) = (&flights, &inside, &worst);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _guard = flights.acquire(i % 2);
                        let now = inside[i % 2].fetch_add(1, Ordering::SeqCst) + 1;
                        worst.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside[i % 2].fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(worst.into_inner(), 1);
    }
}
