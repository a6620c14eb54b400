//! List calls as streams: the same items as the call without "Stream", several per message.

use std::sync::Arc;

use cri::v1;
use prost::Message;
use tonic::Response;

use super::{Answer, CriService, Items, chunks::chunks, wire};
use crate::sandbox::Sandbox;

/// Streams `items`, with as many per message as fit.
pub(super) fn streamed<T, R>(items: Vec<T>, message: fn(Vec<T>) -> R) -> Answer<Items<R>>
where
    T: Message,
    R: Send + 'static,
{
    let parts = chunks(items, Message::encoded_len);
    let messages = parts.into_iter().map(move |some| Ok(message(some)));
    let messages: Vec<_> = messages.collect();
    Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
}

impl CriService {
    /// The sandboxes that match `filter`.
    pub(super) fn sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let state = self.runtime.store.state();
        let all = state.sandboxes.values();
        all.filter(|s| wire::sandbox_fits(s, &filter)).map(|s| wire::sandbox(s)).collect()
    }

    /// The containers that match `filter`.
    pub(super) fn containers(&self, filter: Option<v1::ContainerFilter>) -> Vec<v1::Container> {
        let filter = filter.unwrap_or_default();
        let state = self.runtime.store.state();
        let all = state.containers.values();
        all.filter(|c| wire::container_fits(c, &filter)).map(|c| wire::container(c)).collect()
    }

    /// The records of the sandboxes that match `filter`.
    pub(super) fn records(&self, filter: &v1::PodSandboxFilter) -> Vec<Arc<Sandbox>> {
        let state = self.runtime.store.state();
        let all = state.sandboxes.values();
        all.filter(|s| wire::sandbox_fits(s, filter)).cloned().collect()
    }
}
