//! A client of any service. The generated clients have a method for each call, which calls [`GrpcClient::unary`] or
//! [`GrpcClient::streaming`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _, once};
use tonic::transport::Channel;
use tonic::{GrpcMethod, IntoStreamingRequest, Request, Status};

use crate::codec::{
    AnyCodec, AnyMessage, BoxMessage, DecodeAny, Incoming, Outgoing, ResponseFuture, converted,
};

/// Changes requests before they are sent, or rejects them. It finds a [`GrpcMethod`] in their extensions.
pub type Interceptor = Arc<dyn Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync>;

/// The messages of a request.
pub type RequestMessages = Pin<Box<dyn Stream<Item = BoxMessage> + Send>>;

/// A client on a connection, for calls of any service. Clones share the connection.
#[derive(Clone)]
pub struct GrpcClient {
    grpc: Grpc<Channel>,
    interceptor: Option<Interceptor>,
}

impl fmt::Debug for GrpcClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcClient").field("grpc", &self.grpc).finish_non_exhaustive()
    }
}

impl GrpcClient {
    /// A client whose requests are sent as they are.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self { grpc: Grpc::new(channel), interceptor: None }
    }

    /// A client whose requests pass through `interceptor`.
    #[must_use]
    pub fn with_interceptor(channel: Channel, interceptor: Interceptor) -> Self {
        Self { grpc: Grpc::new(channel), interceptor: Some(interceptor) }
    }

    /// Limits the size of a received message; 4 MB without this.
    #[must_use]
    pub fn max_decoding_message_size(self, limit: usize) -> Self {
        Self { grpc: self.grpc.max_decoding_message_size(limit), ..self }
    }

    /// Limits the size of a sent message; there is no limit without this.
    #[must_use]
    pub fn max_encoding_message_size(self, limit: usize) -> Self {
        Self { grpc: self.grpc.max_encoding_message_size(limit), ..self }
    }

    /// Makes a call that has one response.
    pub fn unary<R: Incoming>(
        &mut self,
        request: Request<RequestMessages>,
        path: &'static str,
    ) -> ResponseFuture<'_, R> {
        converted(self.unary_any(request, path, R::decode_any), R::from_any)
    }

    /// The same with a response that `decode` returns. This has no type parameter, so that it is compiled here.
    pub fn unary_any(
        &mut self,
        request: Request<RequestMessages>,
        path: &'static str,
        decode: DecodeAny,
    ) -> ResponseFuture<'_, AnyMessage> {
        Box::pin(async move {
            let request = self.prepare(request, path).await?;
            let path = PathAndQuery::from_static(path);
            self.grpc.client_streaming(request, path, AnyCodec(decode)).await
        })
    }

    /// Makes a call whose responses are a stream.
    pub fn streaming<R: Incoming>(
        &mut self,
        request: Request<RequestMessages>,
        path: &'static str,
    ) -> ResponseFuture<'_, Streaming<R>> {
        Box::pin(async move {
            let request = self.prepare(request, path).await?;
            let path = PathAndQuery::from_static(path);
            self.grpc.streaming(request, path, AnyCodec(R::decode_from)).await
        })
    }

    /// Waits until a request can be sent, and lets the interceptor see it.
    async fn prepare(
        &mut self,
        mut request: Request<RequestMessages>,
        path: &'static str,
    ) -> Result<Request<RequestMessages>, Status> {
        let ready = self.grpc.ready().await;
        ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        request.extensions_mut().insert(GrpcMethod::new(service, method));
        let Some(interceptor) = &self.interceptor else {
            return Ok(request);
        };
        let (metadata, extensions, messages) = request.into_parts();
        let request = interceptor(Request::from_parts(metadata, extensions, ()))?;
        let (metadata, extensions, ()) = request.into_parts();
        Ok(Request::from_parts(metadata, extensions, messages))
    }
}

/// A request of one message.
pub fn single(request: Request<impl Outgoing + 'static>) -> Request<RequestMessages> {
    request.map(|message| Box::pin(once(Box::new(message) as BoxMessage)) as RequestMessages)
}

/// A request of several messages.
pub fn several(
    request: impl IntoStreamingRequest<Message: Outgoing + 'static>,
) -> Request<RequestMessages> {
    request.into_streaming_request().map(|messages| {
        Box::pin(messages.map(|message| Box::new(message) as BoxMessage)) as RequestMessages
    })
}
