//! The machine's login manager, which shuts the machine down: the package `machine` connects to systemd-logind, and a fake replaces
//! it in tests.

use std::any::Any;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc;

/// Delays a shutdown until it is dropped, up to the manager's maximum delay.
pub struct InhibitLock(#[expect(dead_code, reason = "it is only held")] Box<dyn Any + Send>);

impl InhibitLock {
    /// A lock that lasts as long as this value.
    pub fn new(held: impl Any + Send) -> Self {
        Self(Box::new(held))
    }
}

impl fmt::Debug for InhibitLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InhibitLock").finish_non_exhaustive()
    }
}

/// Delays shutdowns. Each call may block.
pub trait Logind: Send + Sync {
    /// Sends `true` when a shutdown begins, and `false` when it is cancelled; the channel ends with the connection.
    ///
    /// # Errors
    /// If there is no such manager, or it cannot be reached.
    fn watch(&self) -> io::Result<mpsc::UnboundedReceiver<bool>>;
    /// The maximum delay of a shutdown.
    ///
    /// # Errors
    /// If the manager cannot be reached, or does not report it.
    fn max_inhibit_delay(&self) -> io::Result<Duration>;
    /// Requests a longer maximum delay, which the manager may apply some time later.
    ///
    /// # Errors
    /// If the manager's configuration cannot be written, or the manager cannot be made to reload it.
    fn set_max_inhibit_delay(&self, delay: Duration) -> io::Result<()>;
    /// Delays every shutdown from now on.
    ///
    /// # Errors
    /// If the manager cannot be reached, or refuses.
    fn inhibit(&self) -> io::Result<InhibitLock>;
}

#[cfg(test)]
pub(crate) mod fake {
    //! A login manager for tests.

    use std::io;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::{InhibitLock, Logind};

    /// Clones share the manager.
    #[derive(Clone, Default)]
    pub(crate) struct FakeLogind(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        is_unavailable: bool,
        max_delay: Duration,
        watchers: Vec<mpsc::UnboundedSender<bool>>,
        locks: Vec<std::sync::Weak<()>>,
        requested_delays: Vec<Duration>,
    }

    impl FakeLogind {
        /// A manager with this maximum delay.
        pub(crate) fn allowing(max_delay: Duration) -> Self {
            Self(Arc::new(Mutex::new(State { max_delay, ..State::default() })))
        }

        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn reached(&self) -> io::Result<MutexGuard<'_, State>> {
            let state = self.state();
            if state.is_unavailable {
                Err(io::ErrorKind::ConnectionRefused.into())
            } else {
                Ok(state)
            }
        }

        /// Announces a shutdown, or its cancellation.
        pub(crate) fn send(&self, begins: bool) {
            self.state().watchers.retain(|watcher| watcher.send(begins).is_ok());
        }

        /// Closes all connections and makes the manager unreachable, or reachable again.
        pub(crate) fn set_unavailable(&self, is_unavailable: bool) {
            let mut state = self.state();
            state.is_unavailable = is_unavailable;
            state.watchers.clear();
        }

        /// The number of locks that delay a shutdown.
        pub(crate) fn locks(&self) -> usize {
            self.state().locks.iter().filter(|lock| lock.strong_count() > 0).count()
        }

        /// The requested delays.
        pub(crate) fn requested_delays(&self) -> Vec<Duration> {
            self.state().requested_delays.clone()
        }
    }

    impl Logind for FakeLogind {
        fn watch(&self) -> io::Result<mpsc::UnboundedReceiver<bool>> {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.reached()?.watchers.push(sender);
            Ok(receiver)
        }

        fn max_inhibit_delay(&self) -> io::Result<Duration> {
            Ok(self.reached()?.max_delay)
        }

        fn set_max_inhibit_delay(&self, delay: Duration) -> io::Result<()> {
            let mut state = self.reached()?;
            state.requested_delays.push(delay);
            state.max_delay = delay;
            Ok(())
        }

        fn inhibit(&self) -> io::Result<InhibitLock> {
            let held = Arc::new(());
            self.reached()?.locks.push(Arc::downgrade(&held));
            Ok(InhibitLock::new(held))
        }
    }
}
