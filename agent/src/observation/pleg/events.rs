//! Receives the runtime's event stream and reconnects when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use super::retry::Retry;
use crate::cri::{Code, Cri, RuntimeEvent};

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

/// Listens until the receiver is dropped or the runtime answers that it does not support events.
pub(super) async fn subscribe(cri: Arc<dyn Cri>, sender: mpsc::UnboundedSender<StreamEvent>) {
    let mut retry = Retry::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        match cri.events().await {
            Ok(mut stream) => {
                if sender.send(StreamEvent::Connected).is_err() {
                    return;
                }
                while let Some(event) = stream.next().await {
                    match event {
                        Ok(event) => {
                            retry.succeeded();
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
                tracing::info!("runtime does not support events; relisting instead");
                return;
            }
            Err(error) => tracing::warn!(%error, "failed to subscribe to events"),
        }
        if sender.send(StreamEvent::Disconnected).is_err() {
            return;
        }
        tokio::time::sleep(retry.failed()).await;
    }
}
