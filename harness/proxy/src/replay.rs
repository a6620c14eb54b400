//! Serves a recording to a client, without a runtime.
//!
//! A request gets the recorded response to an equal one: the n-th equal request gets the n-th response, later ones get the last. A
//! stream has its messages in order, and stays open if its client left it or if it had not ended. Any other request gets
//! `FAILED_PRECONDITION`, with the nearest recorded call in its message. A client must not mistake it for an answer of the runtime:
//! a kubelet, for example, takes `NOT_FOUND` for a removal.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame as BodyFrame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost_reflect::DynamicMessage;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;

mod matching;

use super::body::Forwarded;
use super::fault::Status;
use super::frames::{Frame, Frames};
use super::json;
use super::record::code_of;
use super::recorded::RecordedCall;
use super::responses::{error_response, head, set_status};
use super::{accept, bind};
use matching::Recording;

/// A recording served on a unix socket. Dropping it closes all connections and removes the socket.
#[derive(Debug)]
pub struct Replay {
    socket: PathBuf,
    mismatches: mpsc::UnboundedReceiver<String>,
    _shutdown: DropGuard,
}

/// Why a recording cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The socket could not be created.
    #[error("failed to listen on {}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line contains no response that can be sent.
    #[error("line {line}: {why}")]
    BadCall {
        /// The line.
        line: usize,
        /// The error.
        why: String,
    },
}

/// The response to a recorded call.
#[derive(Debug, Clone)]
struct RecordedResponse {
    /// The messages, with their times since the start of the call.
    messages: Vec<(Duration, Frame)>,
    /// The status with its time; `None` if the call did not end.
    status: Option<(Duration, Status)>,
}

#[derive(Debug)]
struct ReplayState {
    recording: Mutex<Recording>,
    responses: Vec<RecordedResponse>,
    is_timed: bool,
    mismatches: mpsc::UnboundedSender<String>,
}

impl Replay {
    /// Serves recorded calls on the socket `listen`: immediately or, if `is_timed`, after the recorded delays.
    ///
    /// # Errors
    /// See [`ReplayError`].
    pub fn start(
        listen: &Path,
        mut calls: Vec<RecordedCall>,
        is_timed: bool,
    ) -> Result<Self, ReplayError> {
        let mut responses = Vec::with_capacity(calls.len());
        for call in &mut calls {
            responses.push(parse_response(call)?);
            // From here on only the request is compared, and a response may be large.
            call.response = None;
            call.responses = Vec::new();
        }
        let (sender, mismatches) = mpsc::unbounded_channel();
        let served = Arc::new(ReplayState {
            responses,
            recording: Mutex::new(Recording::new(calls)),
            is_timed,
            mismatches: sender,
        });
        let listener = bind(listen)
            .map_err(|source| ReplayError::Listen { path: listen.to_owned(), source })?;
        let shutdown = CancellationToken::new();
        let serving = accept(listener, shutdown.clone(), move |stream, _| {
            connection(stream, Arc::clone(&served))
        });
        tasks::spawn(serving);
        Ok(Self { socket: listen.to_owned(), mismatches, _shutdown: shutdown.drop_guard() })
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits for the next request that matches no recorded call, and returns the error message.
    pub async fn next_mismatch(&mut self) -> String {
        match self.mismatches.recv().await {
            Some(mismatch) => mismatch,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // The socket may already be gone.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn parse_response(call: &RecordedCall) -> Result<RecordedResponse, ReplayError> {
    let bad = |why: String| ReplayError::BadCall { line: call.line, why };
    let method = json::methods()
        .into_iter()
        .find(|method| method.name() == call.method)
        .ok_or_else(|| bad(format!("the CRI has no call {:?}", call.method)))?;
    let after = |at: f64| Duration::try_from_secs_f64(at - call.t_start).unwrap_or_default();
    let mut messages = Vec::new();
    for (at, value) in call.messages() {
        let message = DynamicMessage::deserialize(method.output(), value.clone())
            .map_err(|error| bad(format!("the response of {} is invalid: {error}", call.method)))?;
        messages.push((after(at), Frame::of(&json::encode(&message))));
    }
    let status = match &call.code {
        None => None,
        Some(name) => {
            let code = code_of(name).ok_or_else(|| bad(format!("{name:?} is not a gRPC code")))?;
            // The client has cancelled this call or disconnected: the runtime's status is unknown.
            (code != Code::Cancelled).then(|| {
                let message = call.message.clone();
                let at = call.t_end.unwrap_or(call.t_start);
                (after(at), Status { code, message })
            })
        }
    };
    Ok(RecordedResponse { messages, status })
}

async fn connection(stream: UnixStream, served: Arc<ReplayState>) {
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move { serve(request, &served).await }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(None)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "client connection failed");
    }
}

async fn serve(
    request: Request<Incoming>,
    served: &ReplayState,
) -> Result<Response<Forwarded>, hyper::Error> {
    let began = Instant::now();
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let refusal = match find(&path, &body, served) {
        Ok(place) => {
            let found = served.responses[place].clone();
            return Ok(recorded(found, served.is_timed.then_some(began)));
        }
        Err(refusal) => refusal,
    };
    // This fails if the receiver has been dropped.
    let _ = served.mismatches.send(refusal.clone());
    Ok(error_response(&Status { code: Code::FailedPrecondition, message: refusal }))
}

fn find(path: &str, body: &[u8], served: &ReplayState) -> Result<usize, String> {
    let method = json::method(path).ok_or_else(|| format!("the CRI has no call {path}"))?;
    let frames = Frames::default().push(body);
    let frame = frames.first();
    let frame = frame.ok_or_else(|| format!("{} has no request", method.name()))?;
    let request: Value = json::decode(method.input(), &frame.message)
        .map_err(|error| format!("the request of {} is invalid: {error}", method.name()))?;
    let mut recording = served.recording.lock().unwrap_or_else(PoisonError::into_inner);
    let found = recording.find(method.name(), &request);
    found.map_err(|mismatch| mismatch.to_string())
}

/// The recorded response; if `began` is set, with the recorded delays since then.
fn recorded(found: RecordedResponse, began: Option<Instant>) -> Response<Forwarded> {
    let messages = found.messages.into_iter();
    let mut frames: Vec<_> =
        messages.map(|(at, frame)| (at, BodyFrame::data(frame.bytes))).collect();
    let is_open = found.status.is_none();
    if let Some((at, status)) = found.status {
        let mut trailers = HeaderMap::new();
        set_status(&mut trailers, &status);
        frames.push((at, BodyFrame::trailers(trailers)));
    }
    let frames = tokio_stream::iter(frames).then(move |(at, frame)| async move {
        if let Some(began) = began {
            sleep_until(began + at).await;
        }
        Ok::<_, hyper::Error>(frame)
    });
    let body = if is_open {
        StreamBody::new(frames.chain(tokio_stream::pending())).boxed_unsync()
    } else {
        StreamBody::new(frames).boxed_unsync()
    };
    let mut response = Response::new(body);
    head(&mut response);
    response
}

#[cfg(test)]
mod tests {
    use cri::v1;
    use cri::v1::runtime_service_client::RuntimeServiceClient;
    use rstest::rstest;
    use tonic::Status;
    use tonic::transport::Endpoint;

    use super::*;

    const RECORDING: &str = r#"{"t_start": 0, "t_end": 1, "method": "Version", "request": {}, "response": {"version": "1"}, "code": "OK"}
{"t_start": 2, "t_end": 3, "method": "Version", "request": {}, "response": {"version": "2"}, "code": "OK"}
{"t_start": 2, "t_end": 2.2, "method": "ContainerStatus", "request": {"container_id": "c"}, "code": "NotFound", "message": "no é"}
{"t_start": 4, "t_end": 9, "method": "GetContainerEvents", "request": {}, "responses": [{"t": 5, "message": {"container_id": "a"}}, {"t": 6, "message": {"container_id": "b"}}], "code": "Canceled"}
"#;

    fn start(directory: &Path, is_timed: bool) -> Replay {
        let calls = RecordedCall::parse_all(RECORDING).unwrap();
        Replay::start(&directory.join("s"), calls, is_timed).unwrap()
    }

    async fn connect(replay: &Replay) -> RuntimeServiceClient {
        let uri = format!("unix://{}", replay.socket().display());
        let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
        RuntimeServiceClient::new(channel)
    }

    async fn version(client: &mut RuntimeServiceClient) -> String {
        client.version(v1::VersionRequest::default()).await.unwrap().into_inner().version
    }

    async fn status_error(client: &mut RuntimeServiceClient, id: &str) -> Status {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        client.container_status(request).await.unwrap_err()
    }

    #[tokio::test]
    async fn recording_answers_equal_requests_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let mut replay = start(directory.path(), false);
        let mut client = connect(&replay).await;
        for expected in ["1", "2", "2"] {
            assert_eq!(version(&mut client).await, expected);
        }
        let missing = status_error(&mut client, "c").await;
        assert_eq!((missing.code(), missing.message()), (Code::NotFound, "no é"));
        let other = status_error(&mut client, "d").await;
        assert_eq!(other.code(), Code::FailedPrecondition);
        let why = "no recorded ContainerStatus has this request: the nearest, in line 3, differs in container_id: recorded \"c\", received \"d\"";
        assert_eq!(other.message(), why);
        assert_eq!(replay.next_mismatch().await, why);
    }

    #[tokio::test]
    async fn stream_that_client_left_has_its_messages_and_stays_open() {
        let directory = tempfile::tempdir().unwrap();
        let replay = start(directory.path(), false);
        let mut client = connect(&replay).await;
        let events = client.get_container_events(v1::GetEventsRequest::default()).await;
        let mut events = events.unwrap().into_inner();
        for id in ["a", "b"] {
            assert_eq!(events.message().await.unwrap().unwrap().container_id, id);
        }
        tokio::select! {
            biased;
            event = events.message() => panic!("{event:?}"),
            version = version(&mut client) => assert_eq!(version, "1"),
        }
    }

    #[tokio::test]
    async fn timed_answer_is_as_late_as_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let replay = start(directory.path(), true);
        let began = std::time::Instant::now();
        status_error(&mut connect(&replay).await, "c").await;
        assert!(began.elapsed() >= Duration::from_millis(190));
    }

    #[rstest]
    #[case(r#"{"t_start": 0, "method": "Dance"}"#, "line 1: the CRI has no call \"Dance\"")]
    #[case(
        "\n{\"t_start\": 0, \"method\": \"Version\", \"response\": \"7 bytes: compressed\"}",
        "line 2: the response of Version is invalid: invalid type: string \"7 bytes: compressed\", expected a map"
    )]
    fn recording_that_cannot_be_served_is_refused(#[case] text: &str, #[case] expected: &str) {
        let calls = RecordedCall::parse_all(text).unwrap();
        let error = Replay::start(Path::new("/nowhere/s"), calls, false).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
