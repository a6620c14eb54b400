//! Forwards the requests of one connection.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use cri::gathered::Gathered;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::body::{self, Forwarded, Recorded, Side};
use super::faulty::{BeforeCall, CallFaults};
use super::record::{self, Recording, Slot};
use super::rules::Rules;

/// A window holds the largest message, so that flow control never slows a call down.
const WINDOW: u32 = 32 << 20;
/// The maximum size of headers or trailers, with a status message and error details.
const MAX_HEADERS: u32 = 1 << 20;
/// How long received responses may take to reach the client after the runtime has closed its connection.
const DRAIN: Duration = Duration::from_millis(200);

/// Ends a call that is dropped before its response begins, because the client has disconnected or cancelled it.
struct Unanswered(Option<Slot>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.end(Code::Cancelled, String::new());
        }
    }
}

/// Serves one client until it or the runtime closes its connection.
pub(super) async fn connection(
    client: UnixStream,
    number: u64,
    runtime: PathBuf,
    recording: Recording,
    rules: Rules,
) {
    let stream = match UnixStream::connect(&runtime).await {
        Ok(stream) => stream,
        Err(error) => {
            let why = format!("failed to connect to {}: {error}", runtime.display());
            return refuse(client, number, recording, &why).await;
        }
    };
    let shaken = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .handshake::<_, Forwarded>(TokioIo::new(Gathered::new(stream)))
        .await;
    let (sender, upstream) = match shaken {
        Ok(shaken) => shaken,
        Err(error) => {
            tracing::debug!(%error, "HTTP/2 handshake with the runtime failed");
            return;
        }
    };
    let cut = CancellationToken::new();
    let cut_by_rule = cut.clone();
    let service = service_fn(move |request| {
        let path = request.uri().path();
        let slot = recording.begin(path, number, deadline(&request));
        let faults = CallFaults::new(rules.for_call(path), cut_by_rule.clone());
        call(sender.clone(), request, slot, faults)
    });
    let downstream = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(None)
        .serve_connection(TokioIo::new(client), service);
    let (mut upstream, mut downstream) = (pin!(upstream), pin!(downstream));
    tokio::select! {
        // The client has disconnected: dropping the runtime's connection cancels its remaining calls.
        _ = &mut downstream => return,
        () = cut.cancelled() => return,
        _ = &mut upstream => {}
    }
    downstream.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(DRAIN, downstream).await;
}

/// Answers a client's first calls with Unavailable, as a gRPC client does when it cannot connect, and disconnects the client.
async fn refuse(client: UnixStream, number: u64, recording: Recording, why: &str) {
    let refused = CancellationToken::new();
    let service = service_fn(|request: Request<Incoming>| {
        let slot = recording.begin(request.uri().path(), number, deadline(&request));
        slot.end(Code::Unavailable, why.to_owned());
        refused.cancel();
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", i32::from(Code::Unavailable))
            .header("grpc-message", why)
            .body(Empty::<Bytes>::new());
        std::future::ready(response)
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(client), service);
    let mut serving = pin!(serving);
    tokio::select! {
        _ = &mut serving => return,
        () = refused.cancelled() => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(DRAIN, serving).await;
}

fn deadline(request: &Request<Incoming>) -> Option<Duration> {
    let timeout = request.headers().get("grpc-timeout")?;
    record::deadline(timeout.to_str().ok()?)
}

async fn call(
    mut runtime: SendRequest<Forwarded>,
    request: Request<Incoming>,
    slot: Slot,
    faults: Option<CallFaults>,
) -> Result<Response<Forwarded>, hyper::Error> {
    let mut unanswered = Unanswered(Some(slot.clone()));
    let mut request =
        request.map(|body| Recorded::new(body, Side::Request, slot.clone()).boxed_unsync());
    let faults = match faults {
        None => None,
        Some(mut faults) => match faults.before(request).await? {
            BeforeCall::Forward(altered) => {
                request = altered;
                Some(faults)
            }
            BeforeCall::Respond { status, message, response } => {
                message.into_iter().for_each(|message| slot.response(message));
                slot.end(status.code, status.message);
                return Ok(response);
            }
        },
    };
    let response = match runtime.send_request(request).await {
        Ok(response) => response,
        Err(error) if body::is_lost(&error) => {
            slot.end(Code::Unavailable, error.to_string());
            // Wait until the client's connection is closed.
            std::future::pending().await
        }
        Err(error) => {
            slot.end(Code::Internal, error.to_string());
            return Err(error);
        }
    };
    body::end(&slot, response.headers());
    // From here on, the body ends the call.
    unanswered.0 = None;
    let response = response.map(|body| Recorded::new(body, Side::Response, slot).boxed_unsync());
    match faults {
        None => Ok(response),
        Some(faults) => faults.after(response).await,
    }
}
