//! List calls as streams: the same items as the call without "Stream", several per message,
//! each far below the clients' limit.

use std::sync::Arc;

use cri::v1;
use prost::Message;
use tonic::Response;

use super::{Answer, CriService, Items, wire};
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

/// Approximate length of one message in bytes. Clients accept 16 MiB, some by default only 4.
const CHUNK_BYTES: usize = 1 << 20;

/// Splits `items` so that no part exceeds about a mebibyte, unless a single item does. `length` is an item's
/// length on the wire. An empty list is one empty part, so that a client learns that the list is empty.
pub(crate) fn chunks<T>(items: Vec<T>, length: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for item in items {
        // The encoding adds a tag and a length to each item.
        let more = length(&item) + 8;
        if bytes > 0 && bytes + more > CHUNK_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(part) = parts.last_mut() {
            part.push(item);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(&[], &[0])]
    #[case::small(&[10; 5], &[5])]
    #[case::full(&[CHUNK_BYTES / 2 - 8; 4], &[2, 2])]
    #[case::a_byte_more(&[CHUNK_BYTES / 2 - 7; 4], &[1, 1, 1, 1])]
    #[case::too_long_alone(&[1, CHUNK_BYTES * 3, 1], &[1, 1, 1])]
    fn chunks_stay_below_message_limit(#[case] lengths: &[usize], #[case] want: &[usize]) {
        let parts = chunks(lengths.to_vec(), |length| *length);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), want);
        assert_eq!(parts.concat(), lengths);
    }
}
