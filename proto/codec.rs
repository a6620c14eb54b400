//! The codec of all calls. It does not know the types of messages, so tonic's code of a call is compiled once, in this package,
//! and not for each message in each package that makes or serves the call.
//!
//! Its buffers have the size of most messages. tonic's default is 8 KiB for what is sent and as much for what is received of each
//! call. Most messages have less than one, and an agent that starts a thousand pods has a thousand calls under way.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pub use prost::Message;
use prost::bytes::Buf;
pub use prost::bytes::Bytes;
use tonic::codec::{BufferSettings, Codec, Decoder, Encoder};
pub use tonic::codec::{DecodeBuf, EncodeBuf};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

/// The capacity of a buffer at first, in bytes; a longer message makes it grow.
const BUFFER: usize = 1024;
/// The bytes of a stream that are gathered before they are sent: tonic's default.
const YIELD_THRESHOLD: usize = 32 << 10;

/// A message that is sent.
pub trait Outgoing: Send + Sync {
    /// Appends the encoded message to what is sent.
    ///
    /// # Errors
    /// Internal: there is no room.
    fn encode_into(&self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status>;
}

/// A message that is sent, of any type.
pub type BoxMessage = Box<dyn Outgoing>;
/// The messages of a call.
pub type BoxMessages = Pin<Box<dyn Stream<Item = Result<BoxMessage, Status>> + Send>>;
/// A message that was received, of a type that the call knows.
pub struct AnyMessage(pub(crate) Box<dyn Any + Send + Sync>);
/// Decodes a message: an [`Incoming::decode_any`].
pub type DecodeAny = fn(&mut DecodeBuf<'_>) -> Result<AnyMessage, Status>;
/// What a call returns later.
pub type ResponseFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// A message that is received.
pub trait Incoming: Sized + Send + Sync + 'static {
    /// Decodes a message from its bytes, which are all of the buffer.
    ///
    /// # Errors
    /// Internal: the bytes are no such message, with the words of tonic's own codec.
    fn decode_from(buffer: &mut DecodeBuf<'_>) -> Result<Self, Status>;

    /// The same, for a call that does not know the type.
    ///
    /// # Errors
    /// As [`Self::decode_from`].
    fn decode_any(buffer: &mut DecodeBuf<'_>) -> Result<AnyMessage, Status>;

    /// A message that [`Self::decode_any`] of this type has decoded.
    ///
    /// # Errors
    /// Internal: that of another type has.
    fn from_any(message: AnyMessage) -> Result<Self, Status>;
}

/// A message that a server receives.
pub trait RequestMessage: Incoming {
    /// A request whose message [`Incoming::decode_any`] of this type has decoded.
    ///
    /// # Errors
    /// As [`Incoming::from_any`].
    fn received(request: Request<AnyMessage>) -> Result<Request<Self>, Status>;
}

/// A message that a server sends.
pub trait ResponseMessage: Outgoing + Sized {
    /// The response of a method, to be sent.
    fn sent(response: ResponseFuture<'_, Self>) -> ResponseFuture<'_, BoxMessages>;
}

/// Implements the traits above for messages. As methods of traits they have no type parameters, so they are compiled here and not
/// where they are called.
macro_rules! messages {
    (messages { $($message:ty,)* } requests { $($request:ty,)* } responses { $($response:ty,)* }) => {
        $(impl $crate::codec::Outgoing for $message {
            fn encode_into(
                &self,
                buffer: &mut tonic::codec::EncodeBuf<'_>,
            ) -> Result<(), tonic::Status> {
                $crate::codec::encode(self, buffer)
            }
        }
        impl $crate::codec::Incoming for $message {
            fn decode_from(
                buffer: &mut tonic::codec::DecodeBuf<'_>,
            ) -> Result<Self, tonic::Status> {
                $crate::codec::decode(buffer)
            }
            fn decode_any(
                buffer: &mut tonic::codec::DecodeBuf<'_>,
            ) -> Result<$crate::codec::AnyMessage, tonic::Status> {
                Ok($crate::codec::AnyMessage(Box::new(Self::decode_from(buffer)?)))
            }
            fn from_any(message: $crate::codec::AnyMessage) -> Result<Self, tonic::Status> {
                $crate::codec::downcast(message)
            }
        })*
        $(impl $crate::codec::RequestMessage for $request {
            fn received(
                request: tonic::Request<$crate::codec::AnyMessage>,
            ) -> Result<tonic::Request<Self>, tonic::Status> {
                let (metadata, extensions, message) = request.into_parts();
                let message = $crate::codec::Incoming::from_any(message)?;
                Ok(tonic::Request::from_parts(metadata, extensions, message))
            }
        })*
        $(impl $crate::codec::ResponseMessage for $response {
            fn sent(
                response: $crate::codec::ResponseFuture<'_, Self>,
            ) -> $crate::codec::ResponseFuture<'_, $crate::codec::BoxMessages> {
                $crate::codec::converted(response, |message| Ok($crate::codec::single(message)))
            }
        })*
    };
}
pub(crate) use messages;

/// See [`Outgoing::encode_into`].
pub(crate) fn encode(message: &impl Message, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
    message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
}

/// See [`Incoming::decode_from`]; also for the bytes that a call with [`Bytes`] as its response has returned.
///
/// # Errors
/// Internal: the bytes are no `M`, with the words of tonic's own codec.
pub fn decode<M: Message + Default>(bytes: impl Buf) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}

/// See [`Incoming::from_any`].
pub(crate) fn downcast<M: 'static>(message: AnyMessage) -> Result<M, Status> {
    match message.0.downcast() {
        Ok(message) => Ok(*message),
        Err(_) => Err(Status::internal("the message has the type of another call")),
    }
}

/// The messages of a call that sends one.
pub fn single(message: impl Outgoing + 'static) -> BoxMessages {
    Box::pin(tonic::codegen::tokio_stream::once(Ok(Box::new(message) as BoxMessage)))
}

/// The messages of a call that sends several.
pub(crate) fn several<M: Outgoing + 'static>(
    messages: impl Stream<Item = Result<M, Status>> + Send + 'static,
) -> BoxMessages {
    use tonic::codegen::tokio_stream::StreamExt as _;
    Box::pin(messages.map(|message| message.map(|message| Box::new(message) as BoxMessage)))
}

/// A response whose message is converted.
pub(crate) fn converted<'a, A: 'a, B: 'a>(
    response: ResponseFuture<'a, A>,
    convert: fn(A) -> Result<B, Status>,
) -> ResponseFuture<'a, B> {
    Box::pin(Converted { response, convert })
}

/// See [`converted`]. It takes less code than an async block.
struct Converted<'a, A, B> {
    response: ResponseFuture<'a, A>,
    convert: fn(A) -> Result<B, Status>,
}

impl<A, B> Future for Converted<'_, A, B> {
    type Output = Result<Response<B>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.response.as_mut().poll(context))?;
        let (metadata, message, extensions) = response.into_parts();
        let message = (self.convert)(message)?;
        Poll::Ready(Ok(Response::from_parts(metadata, message, extensions)))
    }
}

/// The bytes of a message, for a client that may have seen them before and then need not decode them: see [`decode`].
impl Incoming for Bytes {
    fn decode_from(buffer: &mut DecodeBuf<'_>) -> Result<Self, Status> {
        Ok(buffer.copy_to_bytes(buffer.remaining()))
    }

    fn decode_any(buffer: &mut DecodeBuf<'_>) -> Result<AnyMessage, Status> {
        Ok(AnyMessage(Box::new(Self::decode_from(buffer)?)))
    }

    fn from_any(message: AnyMessage) -> Result<Self, Status> {
        downcast(message)
    }
}

/// Encodes any message, and decodes with a function.
#[derive(Debug)]
pub(crate) struct AnyCodec<M>(pub(crate) fn(&mut DecodeBuf<'_>) -> Result<M, Status>);

impl<M: Send + 'static> Codec for AnyCodec<M> {
    type Encode = BoxMessage;
    type Decode = M;
    type Encoder = AnyEncoder;
    type Decoder = Self;

    fn encoder(&mut self) -> AnyEncoder {
        AnyEncoder
    }

    fn decoder(&mut self) -> Self {
        Self(self.0)
    }
}

impl<M> Decoder for AnyCodec<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        (self.0)(buffer).map(Some)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_THRESHOLD)
    }
}

/// The encoder of [`AnyCodec`].
#[derive(Debug)]
pub(crate) struct AnyEncoder;

impl Encoder for AnyEncoder {
    type Item = BoxMessage;
    type Error = Status;

    fn encode(&mut self, message: BoxMessage, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode_into(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_THRESHOLD)
    }
}
