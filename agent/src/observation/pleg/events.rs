//! Receives the runtime's event stream and reconnects when it breaks, with exponential back-off.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use crate::clock::{Clock, until};
use crate::cri::{Code, Cri, RuntimeEvent};
use crate::reporting::measures::{Counted, Measures};

/// A message of the listener.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// The stream is open: no later event is missed.
    Connected,
    /// An event of the runtime.
    Event(RuntimeEvent),
    /// The stream broke.
    Disconnected,
}

/// Listens until the receiver is dropped or the runtime reports that it does not support events.
///
/// Metrics are those of Kubernetes 1.36, pkg/kubelet/pleg/evented.go: every stream that ends counts as failed.
pub(super) async fn subscribe(
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    measures: Measures,
    sender: mpsc::UnboundedSender<StreamEvent>,
) {
    let mut retry = Retry::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        match cri.events().await {
            Ok(mut stream) => {
                measures.count(Counted::EventStreamOpened);
                if sender.send(StreamEvent::Connected).is_err() {
                    return;
                }
                while let Some(event) = stream.next().await {
                    match event {
                        Ok(event) => {
                            retry.succeeded();
                            if let Some(created_at) = event.created_at {
                                measures.record_event_latency(until(created_at, clock.now()));
                            }
                            if sender.send(StreamEvent::Event(event)).is_err() {
                                return;
                            }
                        }
                        Err(error) => {
                            tracing::warn!(%error, "event stream disconnected");
                            break;
                        }
                    }
                }
            }
            Err(error) if error.code == Code::Unimplemented => {
                measures.count(Counted::EventStreamFailed);
                tracing::info!("runtime does not support events; falling back to relisting");
                return;
            }
            Err(error) => tracing::warn!(%error, "failed to subscribe to events"),
        }
        measures.count(Counted::EventStreamFailed);
        if sender.send(StreamEvent::Disconnected).is_err() {
            return;
        }
        tokio::time::sleep(retry.failed()).await;
    }
}

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
