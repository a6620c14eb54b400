//! ListPodSandbox and ListContainers, of items that were encoded when they had last changed. A kubelet asks for both each
//! second, and hardly an item differs from the time before.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes};
use cri::v1;
use http::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, StdError};
use tonic::server::Grpc;
use tonic::{Request as Call, Response as Answered, Status};
use tonic_prost::ProstDecoder;
use tower::{Service, service_fn};

use super::wire;
use crate::container::Container;
use crate::sandbox::Sandbox;
use crate::store::Store;

const LIST_PODS: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
/// The only field of both answers, field 1, and its wire type: length-delimited.
const ITEMS: u8 = (1 << 3) | 2;

/// All services, of which it answers the two calls itself.
#[derive(Clone)]
pub(crate) struct EncodedLists<S> {
    inner: S,
    store: Store,
    max_message: usize,
    pods: Arc<Cache<Sandbox>>,
    containers: Arc<Cache<Container>>,
}

impl<S> EncodedLists<S> {
    /// Messages have `max_message` bytes at most, in either direction.
    pub(crate) fn new(inner: S, store: Store, max_message: usize) -> Self {
        Self { inner, store, max_message, pods: Arc::default(), containers: Arc::default() }
    }

    fn answer<Q, B>(
        &self,
        request: Request<B>,
        list: impl Fn(Q) -> Items + Send + 'static,
    ) -> Answer
    where
        Q: Message + Default + 'static,
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let service = service_fn(move |call: Call<Q>| {
            ready(Ok::<_, Status>(Answered::new(list(call.into_inner()))))
        });
        let mut grpc = Grpc::new(ItemsCodec(PhantomData))
            .max_decoding_message_size(self.max_message)
            .max_encoding_message_size(self.max_message);
        Box::pin(async move { Ok(grpc.unary(service, request).await) })
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S, B> Service<Request<B>> for EncodedLists<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        match request.uri().path() {
            LIST_PODS => {
                let (store, cache) = (self.store.clone(), self.pods.clone());
                self.answer(request, move |asked: v1::ListPodSandboxRequest| {
                    let filter = asked.filter.unwrap_or_default();
                    let state = store.state();
                    let all = state.sandboxes.values();
                    let some = all.filter(|sandbox| wire::sandbox_fits(sandbox, &filter));
                    cache.items(some, state.sandboxes.size(), wire::sandbox)
                })
            }
            LIST_CONTAINERS => {
                let (store, cache) = (self.store.clone(), self.containers.clone());
                self.answer(request, move |asked: v1::ListContainersRequest| {
                    let filter = asked.filter.unwrap_or_default();
                    let state = store.state();
                    let all = state.containers.values();
                    let some = all.filter(|container| wire::container_fits(container, &filter));
                    cache.items(some, state.containers.by_id().size(), wire::container)
                })
            }
            _ => Box::pin(self.inner.call(request)),
        }
    }
}

/// Items of lists as they were encoded, by the address of their record. A record that is kept here is not changed in its
/// place, and its address is no other one's.
struct Cache<T>(Mutex<HashMap<usize, (Arc<T>, Bytes)>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Cache<T> {
    /// The items of some records, of which `all` are there.
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
            // Those that nobody else has were changed or removed.
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

/// The encoded items of an answer.
#[derive(Debug)]
struct Items(Vec<Bytes>);

/// Decodes a request, and sends items as they are.
struct ItemsCodec<Q>(PhantomData<Q>);

impl<Q: Message + Default + 'static> Codec for ItemsCodec<Q> {
    type Encode = Items;
    type Decode = Q;
    type Encoder = ItemsEncoder;
    type Decoder = ProstDecoder<Q>;

    fn encoder(&mut self) -> ItemsEncoder {
        ItemsEncoder
    }

    fn decoder(&mut self) -> ProstDecoder<Q> {
        ProstDecoder::default()
    }
}

struct ItemsEncoder;

impl Encoder for ItemsEncoder {
    type Item = Items;
    type Error = Status;

    fn encode(&mut self, Items(items): Items, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(items.iter().map(Bytes::len).sum());
        items.into_iter().for_each(|item| buffer.put(item));
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

    /// What a client reads of the items.
    fn listed(cache: &Cache<v1::Container>, records: &[Arc<v1::Container>]) -> Vec<v1::Container> {
        let Items(items) = cache.items(records.iter(), records.len(), Clone::clone);
        let answer = items.concat();
        let answer = v1::ListContainersResponse::decode(answer.as_slice());
        answer.unwrap().containers
    }

    #[test]
    fn list_is_read_as_the_message_of_the_contract() {
        let cache = Cache::default();
        let records = [record("a"), record("b"), record("")];
        let expected: Vec<v1::Container> = records.iter().map(|one| (**one).clone()).collect();
        for _ in 0..2 {
            assert_eq!(listed(&cache, &records), expected);
        }
        assert!(listed(&cache, &[]).is_empty());
    }

    #[test]
    fn changed_record_is_listed_as_it_is_and_the_old_one_is_forgotten() {
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
