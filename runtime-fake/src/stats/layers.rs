//! Measures writable layers one walk at a time for each, and without delay for others: a container may have millions of files, and
//! clients repeat their calls while a walk continues.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::usage::Disk;

/// How long a call waits for a walk. Later calls do not wait for a layer whose walks take longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The measurements of containers' layers, by container.
pub(crate) struct LayerUsages {
    patience: Duration,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    known: Mutex<HashMap<String, Measured>>,
    /// Signalled when a walk has ended.
    changed: Condvar,
}

#[derive(Default)]
struct Measured {
    /// The result of the last complete walk.
    last: Option<Disk>,
    running: bool,
    slow: bool,
    /// The calls that wait for the walk.
    waiting: usize,
}

impl Default for LayerUsages {
    fn default() -> Self {
        Self { patience: PATIENCE, shared: Arc::default() }
    }
}

impl LayerUsages {
    /// The usage that `walk` returns; if it is slow, that of the last complete walk, or `None` before the first one has ended.
    /// A walk that an earlier call began is not repeated. Blocks.
    pub(crate) fn measure(
        &self,
        container: &str,
        walk: impl FnOnce() -> Disk + Send + 'static,
    ) -> Option<Disk> {
        let mut known = self.shared.lock();
        let entry = known.entry(container.to_owned()).or_default();
        if !entry.running {
            entry.running = self.begin(container.to_owned(), walk);
        }
        if !entry.running || entry.slow {
            return entry.last;
        }
        entry.waiting += 1;
        let runs = |known: &mut HashMap<String, Measured>| {
            known.get(container).is_some_and(|entry| entry.running)
        };
        let waited = self.shared.changed.wait_timeout_while(known, self.patience, runs);
        let (mut known, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let entry = known.get_mut(container)?;
        entry.waiting -= 1;
        entry.slow |= waited.timed_out();
        entry.last
    }

    /// Begins a walk on a thread of its own; returns whether there is one.
    fn begin(&self, container: String, walk: impl FnOnce() -> Disk + Send + 'static) -> bool {
        let (shared, patience) = (self.shared.clone(), self.patience);
        let work = move || {
            let began = Instant::now();
            let disk = walk();
            if let Some(entry) = shared.lock().get_mut(&container) {
                entry.last = Some(disk);
                entry.running = false;
                entry.slow = began.elapsed() > patience;
            }
            shared.changed.notify_all();
        };
        let thread = thread::Builder::new().name("layer".to_owned()).spawn(work);
        thread.inspect_err(|error| tracing::debug!(%error, "failed to measure layer")).is_ok()
    }

    /// Removes all containers for which `there` is false, unless a call measures them now: its list of containers may be newer.
    pub(crate) fn retain(&self, there: impl Fn(&str) -> bool) {
        self.shared.lock().retain(|container, entry| {
            let is_used = entry.running || entry.waiting > 0;
            is_used || there(container)
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Measured>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn used(used: u64) -> Disk {
        Disk { used, ..Disk::default() }
    }

    #[test]
    fn quick_walk_is_waited_for() {
        let usages = LayerUsages { patience: Duration::from_secs(3600), ..LayerUsages::default() };
        assert_eq!(usages.measure("a", || used(1)), Some(used(1)));
        assert_eq!(usages.measure("a", || used(2)), Some(used(2)));
        usages.retain(|container| container != "a");
        assert!(usages.shared.lock().is_empty());
    }

    #[test]
    fn container_that_another_call_does_not_know_is_measured() {
        let usages = LayerUsages { patience: Duration::from_secs(3600), ..LayerUsages::default() };
        let (begin, began) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let walk = move || {
            begin.send(()).unwrap();
            ended.recv().unwrap();
            used(1)
        };
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| usages.measure("a", walk));
            began.recv().unwrap();
            usages.retain(|_| false);
            end.send(()).unwrap();
            assert_eq!(measuring.join().unwrap(), Some(used(1)));
        });
        usages.retain(|_| false);
        assert!(usages.shared.lock().is_empty());
    }

    #[test]
    fn slow_walk_runs_once_and_delays_no_caller() {
        let usages = LayerUsages { patience: Duration::ZERO, ..LayerUsages::default() };
        let (end, ended) = mpsc::channel::<()>();
        let slow = move || {
            ended.recv().unwrap();
            used(1)
        };
        assert_eq!(usages.measure("a", slow), None);
        let (ran, second) = mpsc::channel();
        let another = move || {
            ran.send(()).unwrap();
            used(2)
        };
        assert_eq!(usages.measure("a", another), None);
        assert!(second.recv().is_err(), "a second walk has begun");
        end.send(()).unwrap();
        let known = usages.shared.lock();
        let known = usages.shared.changed.wait_while(known, |known| known["a"].running);
        drop(known.unwrap());
        // The next walk begins, and its result is for later calls.
        assert_eq!(usages.measure("a", || used(3)), Some(used(1)));
    }
}
