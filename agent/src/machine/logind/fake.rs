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
