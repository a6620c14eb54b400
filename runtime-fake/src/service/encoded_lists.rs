//! ListPodSandbox and ListContainers with cached encodings: an item is encoded only after it has changed. A kubelet sends both
//! calls every second, and few items change in between.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes};
use cri::codec::{
    BoxMessages, EncodeBuf, Incoming as _, Outgoing, RequestMessage as _, ResponseFuture, single,
};
use cri::server::{HttpFuture, MessageLimits, Method};
use cri::v1;
use http::{Request, Response};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, StdError};
use tower::Service;

use super::wire;
use crate::container::Container;
use crate::sandbox::Sandbox;
use crate::store::Store;

/// The tag of the only field of both responses: field 1, length-delimited.
const ITEMS: u8 = (1 << 3) | 2;

/// Wraps all services, and answers the two calls itself.
#[derive(Clone)]
pub(crate) struct EncodedLists<S> {
    inner: S,
    lists: Arc<Lists>,
    limits: MessageLimits,
}

impl<S> EncodedLists<S> {
    /// `max_message` limits the bytes of a message in either direction.
    pub(crate) fn new(inner: S, store: Store, max_message: usize) -> Self {
        let lists = Lists { store, pods: Cache::default(), containers: Cache::default() };
        let limits = MessageLimits { decoding: Some(max_message), encoding: Some(max_message) };
        Self { inner, lists: Arc::new(lists), limits }
    }
}

impl<S, B> Service<Request<B>> for EncodedLists<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = HttpFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> HttpFuture {
        match Method::find(METHODS, request.uri().path()) {
            Some(method) => method.serve(self.lists.clone(), self.limits, request.map(Body::new)),
            None => Box::pin(self.inner.call(request)),
        }
    }
}

const METHODS: &[Method<Lists>] = &[
    Method::unary(
        "/runtime.v1.RuntimeService/ListPodSandbox",
        v1::ListPodSandboxRequest::decode_any,
        |lists, request| {
            let request = v1::ListPodSandboxRequest::received(request)?;
            Ok(answer(lists.pods(&request.into_inner().filter.unwrap_or_default())))
        },
    ),
    Method::unary(
        "/runtime.v1.RuntimeService/ListContainers",
        v1::ListContainersRequest::decode_any,
        |lists, request| {
            let request = v1::ListContainersRequest::received(request)?;
            Ok(answer(lists.containers(&request.into_inner().filter.unwrap_or_default())))
        },
    ),
];

fn answer(items: Items) -> ResponseFuture<'static, BoxMessages> {
    Box::pin(ready(Ok(tonic::Response::new(single(items)))))
}

struct Lists {
    store: Store,
    pods: Cache<Sandbox>,
    containers: Cache<Container>,
}

impl Lists {
    fn pods(&self, filter: &v1::PodSandboxFilter) -> Items {
        let state = self.store.state();
        let all = state.sandboxes.values();
        let some = all.filter(|sandbox| wire::sandbox_fits(sandbox, filter));
        self.pods.items(some, state.sandboxes.size(), wire::sandbox)
    }

    fn containers(&self, filter: &v1::ContainerFilter) -> Items {
        let state = self.store.state();
        let all = state.containers.values();
        let some = all.filter(|container| wire::container_fits(container, filter));
        self.containers.items(some, state.containers.by_id().size(), wire::container)
    }
}

/// Encoded list items, by the address of their record. The cache holds each record, so that the record is not changed in place
/// and its address is not reused.
struct Cache<T>(Mutex<HashMap<usize, (Arc<T>, Bytes)>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Cache<T> {
    /// The items of `records`; `all` is the number of existing records.
    fn items<'a, M: Message>(
        &self,
        records: impl Iterator<Item = &'a Arc<T>>,
        all: usize,
        item: fn(&T) -> M,
    ) -> Items
    where
        T: 'a,
    {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let items = records.map(|record| {
            let (_, bytes) = cache
                .entry(Arc::as_ptr(record).addr())
                .or_insert_with(|| (record.clone(), encoded(&item(record))));
            bytes.clone()
        });
        let items = Items(items.collect());
        if cache.len() > all {
            // A record that only the cache holds was changed or removed.
            cache.retain(|_, (record, _)| Arc::strong_count(record) > 1);
        }
        items
    }
}

/// An item with its tag and its length.
fn encoded(item: &impl Message) -> Bytes {
    let mut bytes = vec![ITEMS];
    bytes.extend(item.encode_length_delimited_to_vec());
    bytes.into()
}

/// The encoded items of a response, which are sent unchanged.
#[derive(Debug)]
struct Items(Vec<Bytes>);

impl Outgoing for Items {
    fn encode_into(&self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(self.0.iter().map(Bytes::len).sum());
        self.0.iter().for_each(|item| buffer.put_slice(item));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record(name: &str) -> Arc<v1::Container> {
        Arc::new(v1::Container {
            id: name.to_owned(),
            labels: [("name".to_owned(), name.repeat(100))].into(),
            ..Default::default()
        })
    }

    /// The items that a client decodes.
    fn listed(cache: &Cache<v1::Container>, records: &[Arc<v1::Container>]) -> Vec<v1::Container> {
        let Items(items) = cache.items(records.iter(), records.len(), Clone::clone);
        let answer = items.concat();
        let answer = v1::ListContainersResponse::decode(answer.as_slice());
        answer.unwrap().containers
    }

    #[test]
    fn encoded_list_decodes_as_cri_response() {
        let cache = Cache::default();
        let records = [record("a"), record("b"), record("")];
        let expected: Vec<v1::Container> = records.iter().map(|one| (**one).clone()).collect();
        for _ in 0..2 {
            assert_eq!(listed(&cache, &records), expected);
        }
        assert!(listed(&cache, &[]).is_empty());
    }

    #[test]
    fn encoded_list_replaces_changed_records() {
        let cache = Cache::default();
        let mut records = [record("a"), record("b")];
        listed(&cache, &records);
        for state in [1, 2, 1] {
            Arc::make_mut(&mut records[0]).state = state;
            let states: Vec<i32> = listed(&cache, &records).iter().map(|c| c.state).collect();
            assert_eq!(states, [state, 0]);
            assert_eq!(cache.0.lock().unwrap().len(), 2);
        }
        let [left, gone] = records;
        drop(gone);
        listed(&cache, &[left]);
        assert_eq!(cache.0.lock().unwrap().len(), 1);
    }
}
