//! `GetContainerEvents`: streams the store's events to each subscriber.

use cri::v1::ContainerEventResponse;
use tokio::sync::{
    broadcast::{Receiver, error::RecvError},
    mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::wire;
use crate::store::StoreEvent;

/// The number of events queued for a subscriber outside the store's own queue.
const AHEAD: usize = 16;

/// Forwards all events from now on, until the subscriber disconnects or the daemon stops. A subscriber that reads
/// too slowly gets an error with the number of missed events, and its stream ends; other subscribers are not
/// delayed.
pub(super) fn forward(
    mut stored: Receiver<StoreEvent>,
    stopping: CancellationToken,
) -> ReceiverStream<Result<ContainerEventResponse, Status>> {
    let (events, subscriber) = mpsc::channel(AHEAD);
    tasks::spawn(async move {
        let pass_on = async {
            loop {
                let event = match stored.recv().await {
                    Ok(event) => Ok(wire::event(&event)),
                    Err(RecvError::Lagged(missed)) => Err(Status::data_loss(format!(
                        "{missed} events were missed: they were not read in time; list everything and subscribe again"
                    ))),
                    Err(RecvError::Closed) => return,
                };
                let last = event.is_err();
                if events.send(event).await.is_err() || last {
                    return;
                }
            }
        };
        // Cancel-safe: cancelling either branch loses only events that no client would read.
        tokio::select! {
            () = pass_on => {}
            () = stopping.cancelled() => {}
            () = events.closed() => {}
        }
    });
    ReceiverStream::new(subscriber)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use tokio::sync::broadcast;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::{container::EventKind, id::SandboxId};

    fn event(about: &str) -> StoreEvent {
        StoreEvent {
            about: about.to_owned(),
            sandbox: SandboxId::random(),
            kind: EventKind::Created,
            at: Timestamp::UNIX_EPOCH,
            state: Arc::default(),
        }
    }

    #[tokio::test]
    async fn slow_subscriber_gets_data_loss_and_stream_ends() {
        let sender = broadcast::Sender::new(2);
        let receiver = sender.subscribe();
        for about in ["a", "b", "c", "d", "e"] {
            sender.send(event(about)).unwrap();
        }
        let mut events = forward(receiver, CancellationToken::new());
        let told = events.next().await.unwrap().unwrap_err();
        assert_eq!(told.code(), tonic::Code::DataLoss);
        assert!(told.message().starts_with("3 events were missed"), "{told}");
        // The subscriber has disconnected.
        sender.send(event("f")).unwrap_err();
        assert!(events.next().await.is_none());
    }

    #[tokio::test]
    async fn subscriber_gets_all_events_in_order_until_shutdown() {
        let sender = broadcast::Sender::new(2);
        let stopping = CancellationToken::new();
        let mut events = forward(sender.subscribe(), stopping.clone());
        for about in ["a", "b", "c", "d", "e"] {
            sender.send(event(about)).unwrap();
            let event = events.next().await.unwrap().unwrap();
            assert_eq!(event.container_id, about);
        }
        stopping.cancel();
        assert!(events.next().await.is_none());
    }
}
