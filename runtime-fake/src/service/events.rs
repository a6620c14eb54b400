//! `GetContainerEvents`: the store's news, one subscriber each.

use cri::v1::ContainerEventResponse;
use tokio::sync::{
    broadcast::{Receiver, error::RecvError},
    mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::wire;
use crate::store::News;

/// How many events wait for a subscriber outside the store's own queue.
const AHEAD: usize = 16;

/// All news from now on, until the subscriber goes or the daemon stops. One that reads too slowly is told how many it has
/// missed, and its stream ends; nobody waits for it.
pub(super) fn forward(
    mut news: Receiver<News>,
    stopping: CancellationToken,
) -> ReceiverStream<Result<ContainerEventResponse, Status>> {
    let (events, subscriber) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let pass_on = async {
            loop {
                let event = match news.recv().await {
                    Ok(news) => Ok(wire::event(&news)),
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
        // Dropping either in the middle loses events that nobody would read.
        tokio::select! {
            () = pass_on => {}
            () = stopping.cancelled() => {}
            () = events.closed() => {}
        }
    });
    ReceiverStream::new(subscriber)
}
