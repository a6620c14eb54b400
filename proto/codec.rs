//! The codecs of the calls: tonic's own, with buffers of the size of most messages.
//!
//! tonic's default is 8 KiB for what is sent and as much for what is received of each call. Most messages have less than one,
//! and an agent that starts a thousand pods has a thousand calls under way.

use std::marker::PhantomData;

pub use prost::Message;
pub use prost::bytes::Bytes;
use prost::bytes::{Buf as _, BufMut as _};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The capacity of a buffer at first, in bytes; a longer message makes it grow.
const BUFFER: usize = 1024;
/// The bytes of a stream that are gathered before they are sent: tonic's default.
const YIELD_THRESHOLD: usize = 32 << 10;

/// Encodes `T` and decodes `U`.
#[derive(Debug)]
pub struct ShortMessages<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for ShortMessages<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for ShortMessages<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD_THRESHOLD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD_THRESHOLD))
    }
}

/// Sends a message that is encoded already, and leaves the answer as it came. What waits for it holds neither message, and is
/// the same code for every call; and a client may have seen the answer before.
#[derive(Debug, Clone, Copy)]
pub struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = PutAll;
    type Decoder = TakeAll;

    fn encoder(&mut self) -> Self::Encoder {
        PutAll
    }

    fn decoder(&mut self) -> Self::Decoder {
        TakeAll
    }
}

/// What [`Encoded`] has left.
///
/// # Errors
/// Internal: the bytes are no `M`, with the words of tonic's own codec.
pub fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// Encodes bytes as the message that they are.
#[derive(Debug)]
pub struct PutAll;

impl Encoder for PutAll {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_THRESHOLD)
    }
}

/// Decodes a message as its bytes.
#[derive(Debug)]
pub struct TakeAll;

impl Decoder for TakeAll {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_THRESHOLD)
    }
}
