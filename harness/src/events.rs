//! A subscription to a runtime's events, for tests.

use std::time::Duration;

use cri::v1;
use tonic::Streaming;

use crate::client::{CallResult, Client};
use crate::eventually::{WAIT_LIMIT, WaitError};

/// A subscription to a runtime's container events.
#[derive(Debug)]
pub struct Events {
    stream: Streaming<v1::ContainerEventResponse>,
    /// The types and containers of the events so far, for the error of a failed wait.
    seen: Vec<String>,
}

impl Events {
    /// Subscribes: the subscriber receives every event after this returns.
    pub async fn subscribe(client: &Client) -> CallResult<Self> {
        Ok(Self { stream: client.events().await?, seen: Vec::new() })
    }

    /// The next event.
    ///
    /// # Errors
    /// If none arrives within [`WAIT_LIMIT`], or the stream ends: with the earlier events.
    pub async fn next(&mut self) -> Result<v1::ContainerEventResponse, WaitError> {
        self.until("an event", |_| true).await
    }

    /// The next event that `wanted` accepts; earlier ones are dropped.
    ///
    /// # Errors
    /// See [`Self::next`].
    pub async fn until(
        &mut self,
        what: &str,
        wanted: impl Fn(&v1::ContainerEventResponse) -> bool,
    ) -> Result<v1::ContainerEventResponse, WaitError> {
        self.until_within(WAIT_LIMIT, what, wanted).await
    }

    async fn until_within(
        &mut self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&v1::ContainerEventResponse) -> bool,
    ) -> Result<v1::ContainerEventResponse, WaitError> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let ended = match tokio::time::timeout_at(deadline, self.stream.message()).await {
                Ok(Ok(Some(event))) => {
                    let kind = event.container_event_type().as_str_name();
                    self.seen.push(format!("{kind} of {}", event.container_id));
                    if wanted(&event) {
                        return Ok(event);
                    }
                    continue;
                }
                Ok(Ok(None)) => "the stream ended".to_owned(),
                Ok(Err(status)) => format!("the stream failed: {status}"),
                Err(_) => "no other event came".to_owned(),
            };
            return Err(WaitError {
                condition: what.to_owned(),
                limit,
                last: format!("{ended} after {:#?}", self.seen),
            });
        }
    }
}
