//! The client whose Services are served: one at a time, and none while the pod network changes.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, OwnedMutexGuard, watch},
    time::timeout,
};

/// Limit on the wait for the end of an earlier client, whose stream has just ended.
const EARLIER_CLIENT: Duration = Duration::from_secs(5);

/// Selects the client that is served.
#[derive(Debug, Default)]
pub(crate) struct ServicesClient {
    /// Held while a client is served.
    served: Arc<Mutex<()>>,
    /// Signals clients to end.
    ended: watch::Sender<()>,
}

/// The turn of one client.
#[derive(Debug)]
pub(crate) struct ActiveClient {
    _served: OwnedMutexGuard<()>,
    ended: watch::Receiver<()>,
}

impl ServicesClient {
    /// Waits for the end of an earlier client; `None` if it does not end.
    pub(crate) async fn begin(&self) -> Option<ActiveClient> {
        let ended = self.ended.subscribe();
        let served = timeout(EARLIER_CLIENT, self.served.clone().lock_owned()).await;
        Some(ActiveClient { _served: served.ok()?, ended })
    }

    /// Ends the served client and the waiting ones, and blocks others while the turn is held.
    pub(crate) async fn exclude_clients(&self) -> Option<ActiveClient> {
        self.ended.send_replace(());
        self.begin().await
    }
}

impl ActiveClient {
    /// Waits until the client has to end. Cancel-safe.
    pub(crate) async fn must_end(&mut self) {
        if self.ended.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clients_are_served_one_at_a_time_and_can_be_excluded() {
        let clients = ServicesClient::default();
        let mut first = clients.begin().await.unwrap();
        assert!(clients.begin().await.is_none());
        let away = async {
            first.must_end().await;
            drop(first);
        };
        let (kept, ()) = tokio::join!(clients.exclude_clients(), away);
        assert!(clients.begin().await.is_none());
        drop(kept);
        assert!(clients.begin().await.is_some());
    }
}
