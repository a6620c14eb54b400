//! A server of any service. The generated servers have a table of their methods; `dispatch` finds and calls them.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use tonic::body::Body;
use tonic::codec::{DecodeBuf, Streaming};
use tonic::codegen::http;
use tonic::codegen::tokio_stream::Stream;
use tonic::server::{Grpc, ServerStreamingService, StreamingService};
use tonic::{Request, Status};

use crate::codec::{
    AnyCodec, AnyMessage, BoxMessage, BoxMessages, DecodeAny, Incoming, Outgoing, ResponseFuture,
    converted, several,
};

/// The HTTP response to a call.
pub type HttpFuture =
    Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// Limits on the size of messages, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageLimits {
    /// That of requests; 4 MB if there is none.
    pub decoding: Option<usize>,
    /// That of responses.
    pub encoding: Option<usize>,
}

/// A method of the service `T`.
#[derive(Debug)]
pub struct Method<T: 'static> {
    path: &'static str,
    call: Call<T>,
}

#[derive(Debug)]
enum Call<T: 'static> {
    Unary(DecodeAny, Unary<T>),
    Streaming(fn(Arc<T>, MessageLimits, http::Request<Body>) -> HttpFuture),
}

/// Calls a method with one request.
type Unary<T> =
    for<'a> fn(&'a T, Request<AnyMessage>) -> Result<ResponseFuture<'a, BoxMessages>, Status>;

impl<T: Send + Sync + 'static> Method<T> {
    /// A method with one request, which `decode` decodes for `call`.
    pub const fn unary(path: &'static str, decode: DecodeAny, call: Unary<T>) -> Self {
        Self { path, call: Call::Unary(decode, call) }
    }

    /// A method whose requests are a stream: `call` calls [`streaming`].
    pub(crate) const fn streaming(
        path: &'static str,
        call: fn(Arc<T>, MessageLimits, http::Request<Body>) -> HttpFuture,
    ) -> Self {
        Self { path, call: Call::Streaming(call) }
    }

    /// The method of this path.
    #[must_use]
    pub fn find<'a>(methods: &'a [Self], path: &str) -> Option<&'a Self> {
        methods.iter().find(|method| method.path == path)
    }

    /// Serves a call.
    pub fn serve(
        &self,
        service: Arc<T>,
        limits: MessageLimits,
        request: http::Request<Body>,
    ) -> HttpFuture {
        match self.call {
            Call::Unary(decode, call) => {
                let handler = move |request| -> ResponseFuture<'static, BoxMessages> {
                    let service = Arc::clone(&service);
                    Box::pin(async move { call(&service, request)?.await })
                };
                unary(Handler(Box::new(handler)), decode, limits, request)
            }
            Call::Streaming(call) => call(service, limits, request),
        }
    }
}

/// Serves a call of any method.
pub(crate) fn dispatch<T: Send + Sync + 'static>(
    methods: &[Method<T>],
    service: &Arc<T>,
    limits: MessageLimits,
    request: http::Request<Body>,
) -> HttpFuture {
    match Method::find(methods, request.uri().path()) {
        Some(method) => method.serve(Arc::clone(service), limits, request),
        None => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
    }
}

/// The response of a method whose responses are a stream, to be sent.
pub(crate) fn streamed<'a, S, M>(response: ResponseFuture<'a, S>) -> ResponseFuture<'a, BoxMessages>
where
    S: Stream<Item = Result<M, Status>> + Send + 'static,
    M: Outgoing + 'static,
{
    converted(response, |messages| Ok(several(messages)))
}

/// Serves a call whose requests are a stream.
pub(crate) fn streaming<T: Send + Sync + 'static, M: Incoming>(
    service: Arc<T>,
    limits: MessageLimits,
    request: http::Request<Body>,
    call: for<'a> fn(&'a T, Request<Streaming<M>>) -> ResponseFuture<'a, BoxMessages>,
) -> HttpFuture {
    let handler = move |request| -> ResponseFuture<'static, BoxMessages> {
        let service = Arc::clone(&service);
        Box::pin(async move { call(&service, request).await })
    };
    let handler = Handler(Box::new(handler));
    let mut grpc = grpc(M::decode_from, limits);
    Box::pin(async move { Ok(grpc.streaming(handler, request).await) })
}

/// Serves a call with one request. This has no type parameter, so that it is compiled here.
fn unary(
    handler: Handler<AnyMessage>,
    decode: DecodeAny,
    limits: MessageLimits,
    request: http::Request<Body>,
) -> HttpFuture {
    let mut grpc = grpc(decode, limits);
    Box::pin(async move { Ok(grpc.server_streaming(handler, request).await) })
}

fn grpc<M: Send + 'static>(
    decode: fn(&mut DecodeBuf<'_>) -> Result<M, Status>,
    limits: MessageLimits,
) -> Grpc<AnyCodec<M>> {
    Grpc::new(AnyCodec(decode)).apply_max_message_size_config(limits.decoding, limits.encoding)
}

/// A method of a service of any type, whose request is `Q`.
struct Handler<Q>(Box<dyn FnMut(Request<Q>) -> ResponseFuture<'static, BoxMessages> + Send>);

impl<Q> ServerStreamingService<Q> for Handler<Q> {
    type Response = BoxMessage;
    type ResponseStream = BoxMessages;
    type Future = ResponseFuture<'static, BoxMessages>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        (self.0)(request)
    }
}

impl<M> StreamingService<M> for Handler<Streaming<M>> {
    type Response = BoxMessage;
    type ResponseStream = BoxMessages;
    type Future = ResponseFuture<'static, BoxMessages>;

    fn call(&mut self, request: Request<Streaming<M>>) -> Self::Future {
        (self.0)(request)
    }
}
