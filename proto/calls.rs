//! Tests calls between a generated client and a generated server.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use prost::bytes::{BufMut as _, Bytes};
use tokio::net::UnixListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, GrpcMethod, Request, Response, Status, Streaming};

use crate::client::{GrpcClient, Interceptor, single};
use crate::codec::{EncodeBuf, Outgoing};
use crate::files::files_client::FilesClient;
use crate::files::files_server::{Files, FilesServer};
use crate::files::{ReadRequest, ReadResponse, WriteRequest, WriteResponse};

/// The limits of the server on requests and responses.
const DECODED: usize = 100;
const ENCODED: usize = 10;
const READ: &str = "/crib.files.v1.Files/Read";
const WRITE: &str = "/crib.files.v1.Files/Write";

/// Reads a path as the bytes of the path, letter by letter, and writes the data as lines.
struct Echo;

#[tonic::async_trait]
impl Files for Echo {
    type ReadStream = tokio_stream::Iter<std::vec::IntoIter<Result<ReadResponse, Status>>>;

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        if let Some(code) = request.metadata().get("code") {
            let mut status = Status::not_found("no é");
            status.metadata_mut().insert("code", code.clone());
            return Err(status);
        }
        let letters = request.into_inner().path.into_bytes().into_iter();
        let responses: Vec<_> = letters
            .map(|letter| match letter {
                b'!' => Err(Status::data_loss("lost")),
                letter => Ok(ReadResponse { data: vec![letter].into(), ..Default::default() }),
            })
            .collect();
        Ok(Response::new(tokio_stream::iter(responses)))
    }

    async fn write(
        &self,
        request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        let mut skipped = Vec::new();
        let mut requests = request.into_inner();
        while let Some(request) = requests.message().await? {
            skipped.push(String::from_utf8_lossy(&request.data).into_owned());
        }
        let mut response = Response::new(WriteResponse { skipped });
        response.metadata_mut().insert("from", "echo".parse().unwrap());
        Ok(response)
    }
}

/// A connection to a server, and its directory.
async fn connect() -> (Channel, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
    let service = FilesServer::new(Echo)
        .max_decoding_message_size(DECODED)
        .max_encoding_message_size(ENCODED);
    tokio::spawn(Server::builder().serve_with_incoming(service, incoming));
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    (endpoint.connect().await.unwrap(), directory)
}

fn reading(path: &str) -> ReadRequest {
    ReadRequest { path: path.to_owned(), ..Default::default() }
}

fn writing(data: &'static str) -> WriteRequest {
    WriteRequest { data: Bytes::from_static(data.as_bytes()), ..Default::default() }
}

/// Bytes that are sent as a message.
struct Raw(&'static [u8]);

impl Outgoing for Raw {
    fn encode_into(&self, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(self.0);
        Ok(())
    }
}

#[tokio::test]
async fn streams_carry_messages_in_order_and_end_with_their_error() {
    let (channel, _directory) = connect().await;
    let mut client = FilesClient::new(channel);
    let requests = tokio_stream::iter([writing("a"), writing(""), writing("b")]);
    let written = client.write(requests).await.unwrap();
    assert_eq!(written.metadata().get("from").unwrap(), "echo");
    assert_eq!(written.into_inner().skipped, ["a", "", "b"]);
    let read = client.read(reading("xy!z")).await.unwrap().into_inner();
    let read: Vec<_> = read.map(|read| read.map(|read| read.data)).collect().await;
    let [Ok(x), Ok(y), Err(lost)] = &read[..] else {
        panic!("{read:?}");
    };
    assert_eq!((&x[..], &y[..]), (&b"x"[..], &b"y"[..]));
    assert_eq!((lost.code(), lost.message()), (Code::DataLoss, "lost"));
}

#[tokio::test]
async fn interceptor_sees_method_and_changes_or_rejects_requests() {
    let (channel, _directory) = connect().await;
    let interceptor: Interceptor = Arc::new(|mut request| {
        let method = request.extensions().get::<GrpcMethod<'_>>().unwrap();
        if (method.service(), method.method()) != ("crib.files.v1.Files", "Read") {
            return Err(Status::aborted("rejected"));
        }
        request.metadata_mut().insert("code", "5".parse().unwrap());
        Ok(request)
    });
    let mut client = FilesClient::with_interceptor(channel, interceptor);
    let failed = client.read(reading("a")).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::NotFound, "no é"));
    assert_eq!(failed.metadata().get("code").unwrap(), "5");
    let rejected = client.write(tokio_stream::empty()).await.unwrap_err();
    assert_eq!((rejected.code(), rejected.message()), (Code::Aborted, "rejected"));
}

#[tokio::test]
async fn limits_of_either_side_are_out_of_range() {
    let (channel, _directory) = connect().await;
    let failed = |failed: Status| (failed.code(), failed.message().to_owned());
    let too_large = |what, found: usize, limit: usize| {
        let text = format!(
            "Error, {what} message length too large: found {found} bytes, the limit is: {limit} bytes"
        );
        (Code::OutOfRange, text)
    };
    let mut client = FilesClient::new(channel);
    let longest = client.read(reading(&"x".repeat(DECODED - 2))).await.unwrap();
    let longest: Vec<_> = longest.into_inner().collect().await;
    assert_eq!(longest.len(), DECODED - 2);
    let request = client.read(reading(&"x".repeat(DECODED - 1))).await.unwrap_err();
    assert_eq!(failed(request), too_large("decoded", DECODED + 1, DECODED));
    let request = || tokio_stream::once(writing("123456789"));
    let sent = client.write(request()).await.unwrap_err();
    assert_eq!(failed(sent), too_large("encoded", 11, ENCODED));
    let mut client = client.max_decoding_message_size(2);
    let received = client.write(tokio_stream::once(writing("1"))).await.unwrap_err();
    assert_eq!(failed(received), too_large("decoded", 3, 2));
}

#[tokio::test]
async fn malformed_messages_are_internal_errors_and_other_methods_unimplemented() {
    let (channel, _directory) = connect().await;
    let mut client = GrpcClient::new(channel);
    let text = "failed to decode Protobuf message: ReadRequest.container_id: buffer underflow";
    let malformed = || single(Request::new(Raw(b"\x0a\x05a")));
    let failed = client.streaming::<ReadResponse>(malformed(), READ).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Internal, text));
    let text = "failed to decode Protobuf message: WriteRequest.container_id: buffer underflow";
    let failed = client.unary::<WriteResponse>(malformed(), WRITE).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Internal, text));
    // Data that is no text, which the server replaces by a character of three bytes.
    let invalid = single(Request::new(Raw(b"\x22\x01\xff")));
    let decoded = client.unary::<Bytes>(invalid, WRITE).await.unwrap().into_inner();
    assert_eq!(&decoded[..], "\n\x03\u{fffd}".as_bytes(), "bytes are not decoded");
    let other = single(Request::new(Raw(b"")));
    let failed = client.unary::<WriteResponse>(other, "/crib.files.v1.Files/Walk").await;
    let failed = failed.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Unimplemented, ""));
}
