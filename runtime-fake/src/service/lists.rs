//! Lists that come as streams: the same items as the call without "Stream" gives, some at a time.

use cri::v1;
use prost::Message;
use tonic::Response;

use super::{Answer, CriService, Items, wire};

/// The bytes of items in one message: well below the 16 MiB that a client takes, and few enough to be quick.
const BYTES: usize = 1 << 20;

/// `items`, as many to a message as fit. A single larger one has a message of its own.
pub(super) fn streamed<T, R>(items: Vec<T>, message: fn(Vec<T>) -> R) -> Answer<Items<R>>
where
    T: Message,
    R: Send + 'static,
{
    let messages = chunks(items).into_iter().map(move |some| Ok(message(some)));
    let messages: Vec<_> = messages.collect();
    Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
}

fn chunks<T: Message>(items: Vec<T>) -> Vec<Vec<T>> {
    let mut chunks: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for item in items {
        let length = item.encoded_len();
        match chunks.last_mut() {
            Some(chunk) if length <= room => {
                room -= length;
                chunk.push(item);
            }
            _ => {
                room = BYTES.saturating_sub(length);
                chunks.push(vec![item]);
            }
        }
    }
    chunks
}

impl CriService {
    /// The sandboxes that fit `filter`.
    pub(super) fn sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let state = self.runtime.store.state();
        let all = state.sandboxes.values();
        all.filter(|s| wire::sandbox_fits(s, &filter))
            .map(|s| wire::sandbox(s))
            .collect()
    }

    /// The containers that fit `filter`.
    pub(super) fn containers(&self, filter: Option<v1::ContainerFilter>) -> Vec<v1::Container> {
        let filter = filter.unwrap_or_default();
        let state = self.runtime.store.state();
        let all = state.containers.values();
        all.filter(|c| wire::container_fits(c, &filter))
            .map(|c| wire::container(c))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(&[], &[])]
    #[case::few(&[1, 2, 3], &[3])]
    #[case::full(&[BYTES / 2, BYTES / 2 - 100, BYTES / 2], &[2, 1])]
    #[case::one_too_large(&[1, 3 * BYTES, 1], &[1, 1, 1])]
    #[case::many(&[BYTES / 4; 9], &[3, 3, 3])]
    fn as_many_as_fit(#[case] sizes: &[usize], #[case] expected: &[usize]) {
        let items = sizes.iter().map(|size| v1::PodSandbox {
            id: "x".repeat(*size),
            ..v1::PodSandbox::default()
        });
        let lengths: Vec<_> = chunks(items.collect()).iter().map(Vec::len).collect();
        assert_eq!(lengths, expected);
    }
}
