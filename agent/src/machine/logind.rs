//! What the agent asks of the machine's manager of logins, which shuts the machine down: the package `machine` talks to systemd-logind,
//! and a fake replaces it in tests.

use std::any::Any;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc;

#[cfg(test)]
pub(crate) mod fake;

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
