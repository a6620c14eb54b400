//! A pool of slots that clients share by the rule of `shares`, for tasks: the holder of a slot is notified when another client
//! takes it.

use std::{
    io::{self, Write as _},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use shares::{Rejections, Shares};
use tokio_util::sync::CancellationToken;

/// Slots that the clients share. Clones are the same pool.
#[derive(Debug, Clone)]
pub struct Slots {
    name: &'static str,
    shares: Arc<Mutex<Shares<IpAddr, CancellationToken>>>,
    report: fn(&str, &Rejections<IpAddr>),
}

/// A slot. Dropping it frees it.
#[derive(Debug)]
pub struct Slot {
    pool: Slots,
    number: u64,
    closed: CancellationToken,
}

impl Slots {
    /// A pool of `limit` slots. Refused clients and ended slots are logged.
    #[must_use]
    pub fn new(name: &'static str, limit: usize) -> Self {
        let report = |pool: &str, refused: &Rejections<IpAddr>| {
            tracing::warn!(pool, %refused, "shared pool is full");
        };
        Self { name, shares: Arc::new(Mutex::new(Shares::new(limit))), report }
    }

    /// A pool for a process without a log: it reports to standard error.
    pub(crate) fn on_stderr(name: &'static str, limit: usize) -> Self {
        let report = |pool: &str, refused: &Rejections<IpAddr>| {
            let _ = writeln!(io::stderr(), "shared pool is full: {pool}: {refused}");
        };
        Self { report, ..Self::new(name, limit) }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<IpAddr, CancellationToken>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a client. It may be another one's, which is then closed; `None` if the client has its share already.
    #[must_use]
    pub fn take(&self, client: IpAddr) -> Option<Slot> {
        let closed = CancellationToken::new();
        let taken = self.shares().take(client, closed.clone(), Instant::now());
        self.report();
        let (number, ended) = taken?;
        if let Some(ended) = ended {
            ended.cancel();
        }
        Some(Slot { pool: self.clone(), number, closed })
    }

    /// Closes a slot to free a resource that the pool does not count, such as a descriptor. Returns whether there was one.
    pub fn evict(&self) -> bool {
        let ended = self.shares().evict();
        self.report();
        ended.inspect(CancellationToken::cancel).is_some()
    }

    fn report(&self) {
        let refused = self.shares().report(Instant::now());
        if let Some(refused) = refused {
            (self.report)(self.name, &refused);
        }
    }
}

impl Slot {
    /// Waits until the slot is closed for another client. Cancel-safe.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Records that the client has sent data.
    pub fn record_request(&self) {
        self.pool.shares().record_request(self.number, false, Instant::now());
    }

    /// Records that data was sent to the client.
    pub fn record_response(&self) {
        self.pool.shares().record_response(self.number, Instant::now());
    }

    /// Frees the slot while its holder continues.
    pub fn release(&self) {
        self.pool.shares().release(self.number);
    }

    /// Records that the connection is established.
    pub fn establish(&self) {
        self.pool.shares().record_request(self.number, true, Instant::now());
    }

    /// The time until the flow of datagrams expires if it stays silent; `None` if it has expired or lost its slot.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let expiry = self.pool.shares().expiry(self.number)?;
        let left = expiry.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.shares().release(self.number);
        self.pool.report();
    }
}
