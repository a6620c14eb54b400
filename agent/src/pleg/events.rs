//! Listens to the runtime's event stream, and listens again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use super::retry::Retry;
use crate::cri::{Code, Cri, RuntimeEvent};

/// What the listener hears.
#[derive(Debug)]
pub(super) enum News {
    /// The stream is there: from now on nothing is missed.
    Connected,
    /// Something happened.
    Event(RuntimeEvent),
    /// The stream broke.
    Lost,
}

/// Listens until the receiver is gone or the runtime says that it gives no events.
pub(super) async fn listen(cri: Arc<dyn Cri>, news: mpsc::UnboundedSender<News>) {
    let mut retry = Retry::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        match cri.events().await {
            Ok(mut stream) => {
                if news.send(News::Connected).is_err() {
                    return;
                }
                while let Some(event) = stream.next().await {
                    match event {
                        Ok(event) => {
                            retry.succeeded();
                            if news.send(News::Event(event)).is_err() {
                                return;
                            }
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the runtime's event stream broke");
                            break;
                        }
                    }
                }
            }
            Err(error) if error.code == Code::Unimplemented => {
                tracing::info!("the runtime gives no events; pods are listed instead");
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot listen to the runtime's events"),
        }
        if news.send(News::Lost).is_err() {
            return;
        }
        tokio::time::sleep(retry.failed()).await;
    }
}
