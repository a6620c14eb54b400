//! What the agent asks of the machine's manager of logins, which shuts the machine down: the package `machine` talks to systemd-logind,
//! and a fake replaces it in tests.

use std::any::Any;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc;

/// Delays a shutdown until it is dropped, for at most as long as the manager allows.
pub struct InhibitLock(#[expect(dead_code, reason = "it is only held")] Box<dyn Any + Send>);

impl InhibitLock {
    /// One that lasts as long as this value.
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
    /// Sends `true` when the machine begins to shut down, and `false` when it goes on; the channel ends with the connection.
    ///
    /// # Errors
    /// There is no such manager, or it cannot be reached.
    fn watch(&self) -> io::Result<mpsc::UnboundedReceiver<bool>>;
    /// How long a shutdown may be delayed.
    ///
    /// # Errors
    /// The manager cannot be reached, or does not say.
    fn longest_delay(&self) -> io::Result<Duration>;
    /// Asks for a longer delay, which the manager may allow some time later.
    ///
    /// # Errors
    /// The manager's configuration cannot be written, or it cannot be told to read it.
    fn ask_for_delay(&self, delay: Duration) -> io::Result<()>;
    /// Delays every shutdown from now on.
    ///
    /// # Errors
    /// The manager cannot be reached, or refuses.
    fn inhibit(&self) -> io::Result<InhibitLock>;
}

#[cfg(test)]
pub(crate) mod fake {
    //! A manager of logins that a test drives.

    use std::io;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::{InhibitLock, Logind};

    /// Clones are the same manager.
    #[derive(Clone, Default)]
    pub(crate) struct FakeLogind(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        is_away: bool,
        longest: Duration,
        watchers: Vec<mpsc::UnboundedSender<bool>>,
        locks: Vec<std::sync::Weak<()>>,
        asked: Vec<Duration>,
    }

    impl FakeLogind {
        /// One that allows this delay.
        pub(crate) fn allowing(longest: Duration) -> Self {
            Self(Arc::new(Mutex::new(State { longest, ..State::default() })))
        }

        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn reached(&self) -> io::Result<MutexGuard<'_, State>> {
            let state = self.state();
            if state.is_away { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(state) }
        }

        /// Begins a shutdown, or goes on.
        pub(crate) fn send(&self, begins: bool) {
            self.state().watchers.retain(|watcher| watcher.send(begins).is_ok());
        }

        /// Goes away with its connections, or comes back.
        pub(crate) fn set_away(&self, is_away: bool) {
            let mut state = self.state();
            state.is_away = is_away;
            state.watchers.clear();
        }

        /// How many locks delay a shutdown.
        pub(crate) fn locks(&self) -> usize {
            self.state().locks.iter().filter(|lock| lock.strong_count() > 0).count()
        }

        /// The delays that were asked for.
        pub(crate) fn asked(&self) -> Vec<Duration> {
            self.state().asked.clone()
        }
    }

    impl Logind for FakeLogind {
        fn watch(&self) -> io::Result<mpsc::UnboundedReceiver<bool>> {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.reached()?.watchers.push(sender);
            Ok(receiver)
        }

        fn longest_delay(&self) -> io::Result<Duration> {
            Ok(self.reached()?.longest)
        }

        fn ask_for_delay(&self, delay: Duration) -> io::Result<()> {
            let mut state = self.reached()?;
            state.asked.push(delay);
            state.longest = delay;
            Ok(())
        }

        fn inhibit(&self) -> io::Result<InhibitLock> {
            let held = Arc::new(());
            self.reached()?.locks.push(Arc::downgrade(&held));
            Ok(InhibitLock::new(held))
        }
    }
}
