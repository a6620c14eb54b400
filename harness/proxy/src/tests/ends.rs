//! Both sides of a proxy under test: a scripted runtime, and a client that reads raw responses.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame as BodyFrame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use crate::frames::Frames;
use crate::{Proxy, RuleSet};

/// A request as the runtime received it: its path and its body.
type ReceivedRequest = (String, Bytes);
/// The runtime's response to a request: the body's bytes, split into HTTP/2 frames.
type Script = dyn Fn(&str, &[u8]) -> Vec<Vec<u8>> + Send + Sync;

/// A runtime behind a proxy.
pub(super) struct ProxiedRuntime {
    pub(super) proxy: Proxy,
    got: Arc<Mutex<Vec<ReceivedRequest>>>,
    _runtime: AbortOnDropHandle<()>,
    _directory: tempfile::TempDir,
}

/// A response as the client received it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReceivedResponse {
    pub(super) body: Bytes,
    pub(super) code: Code,
    pub(super) message: String,
}

impl ProxiedRuntime {
    /// Starts a proxy with rules in front of a scripted runtime.
    pub(super) fn start(
        rules: &str,
        script: impl Fn(&str, &[u8]) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (listen, runtime) = (directory.path().join("p"), directory.path().join("r"));
        let got = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let serving = serve(&runtime, Arc::new(script), Arc::clone(&got));
        let rules: RuleSet = rules.parse().unwrap();
        Self {
            proxy: Proxy::with_rules(&listen, &runtime, rules).unwrap(),
            got,
            _runtime: AbortOnDropHandle::new(tokio::spawn(serving)),
            _directory: directory,
        }
    }

    /// The requests that the runtime has received.
    pub(super) fn got(&self) -> Vec<ReceivedRequest> {
        self.got.lock().unwrap().clone()
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.proxy.socket().to_owned()
    }

    /// Makes a call on a new connection. `None` if the connection breaks.
    pub(super) async fn call(&self, path: &str, body: Vec<u8>) -> Option<ReceivedResponse> {
        let mut client = connect(&self.socket()).await;
        call(&mut client, path, body).await
    }
}

fn serve(
    socket: &Path,
    script: Arc<Script>,
    got: Arc<Mutex<Vec<ReceivedRequest>>>,
) -> impl Future<Output = ()> + use<> {
    let listener = UnixListener::bind(socket).unwrap();
    async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, got) = (Arc::clone(&script), Arc::clone(&got));
            let service = service_fn(move |request: Request<Incoming>| {
                let (script, got) = (Arc::clone(&script), Arc::clone(&got));
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await?.to_bytes();
                    let parts = script(&path, &body);
                    got.lock().unwrap().push((path, body));
                    Ok::<_, hyper::Error>(answer(parts))
                }
            });
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    }
}

type Parts = StreamBody<
    tokio_stream::Iter<std::vec::IntoIter<Result<BodyFrame<Bytes>, std::convert::Infallible>>>,
>;

fn answer(parts: Vec<Vec<u8>>) -> Response<Parts> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let mut frames: Vec<_> =
        parts.into_iter().map(|part| Ok(BodyFrame::data(part.into()))).collect();
    frames.push(Ok(BodyFrame::trailers(trailers)));
    let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)));
    let grpc = "application/grpc".parse().unwrap();
    response.headers_mut().insert("content-type", grpc);
    response
}

/// Connects to a proxy.
pub(super) async fn connect(socket: &Path) -> SendRequest<Full<Bytes>> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (client, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// Makes a call. `None` if the connection breaks.
pub(super) async fn call(
    client: &mut SendRequest<Full<Bytes>>,
    path: &str,
    body: Vec<u8>,
) -> Option<ReceivedResponse> {
    let request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = client.send_request(request).await.ok()?;
    let (head, body) = response.into_parts();
    let collected = body.collect().await.ok()?;
    let trailers = collected.trailers().unwrap_or(&head.headers);
    let status = trailers.get("grpc-status").expect("a status");
    let message = trailers.get("grpc-message");
    let message = message.map(|text| crate::record::status_message(text.as_bytes()));
    Some(ReceivedResponse {
        code: Code::from_bytes(status.as_bytes()),
        message: message.unwrap_or_default(),
        body: collected.to_bytes(),
    })
}

impl ReceivedResponse {
    /// The messages of the response.
    pub(super) fn messages(&self) -> Vec<Bytes> {
        let frames = Frames::default().push(&self.body);
        frames.into_iter().map(|frame| frame.message).collect()
    }
}
