//! What faults do with one call: before the runtime sees it, and with its answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame as BodyFrame};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Request, Response};
use prost_reflect::{MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use tokio::time::{Sleep, sleep};
use tonic::Code;

use super::alter::{altered, has};
use super::body::{Forwarded, whole};
use super::fault::{Action, Fault};
use super::frames::{Frame, Frames};
use super::json;

/// The faults of a proxy, with the number of calls that each has matched.
#[derive(Debug)]
pub(super) struct Faults(Vec<(Fault, AtomicUsize)>);

/// The faults that apply to one call.
#[derive(Debug)]
pub(super) struct CallFaults {
    method: MethodDescriptor,
    faults: Vec<Fault>,
    request: Value,
}

/// What becomes of a call before the runtime sees it.
pub(super) enum Passed {
    On(Request<Forwarded>),
    Answered(Code, Response<Forwarded>),
}

impl Faults {
    pub(super) fn new(faults: Vec<Fault>) -> Self {
        let faults = faults.into_iter();
        Self(faults.map(|fault| (fault, AtomicUsize::new(0))).collect())
    }

    /// The faults of a call, which is counted; `None` if it has none.
    pub(super) fn for_call(&self, path: &str) -> Option<CallFaults> {
        let method = json::method(path)?;
        let due = |(fault, calls): &&(Fault, AtomicUsize)| {
            fault.call == method.name() && calls.fetch_add(1, Ordering::Relaxed) >= fault.after
        };
        let faults: Vec<Fault> = self.0.iter().filter(due).map(|(f, _)| f.clone()).collect();
        (!faults.is_empty()).then(|| CallFaults {
            method,
            faults,
            request: Value::Null,
        })
    }
}

impl CallFaults {
    /// Carries out what comes before the runtime.
    pub(super) async fn before(
        &mut self,
        request: Request<Forwarded>,
    ) -> Result<Passed, hyper::Error> {
        let (mut head, body) = request.into_parts();
        // Every call of the CRI has one request.
        let bytes = body.collect().await?.to_bytes();
        let mut frames = Frames::default().push(&bytes);
        if let Some(frame) = frames.first() {
            self.request = json::decode(self.method.input(), &frame.message).unwrap_or_default();
        }
        let of_this_request = |fault: &Fault| {
            let of_request = fault.condition.as_ref().filter(|one| one.of_request);
            of_request.is_none_or(|one| has(&self.request, &one.path, &one.value))
        };
        self.faults.retain(of_this_request);
        for fault in &self.faults {
            match &fault.action {
                Action::Answer(code) => return Ok(Passed::Answered(*code, answer(*code))),
                Action::Swallow => return Ok(Passed::Answered(Code::Ok, empty())),
                Action::Hang => std::future::pending().await,
                Action::Delay(delay) => sleep(*delay).await,
                Action::Alter {
                    request: true,
                    path,
                    value,
                } => {
                    for frame in &mut frames {
                        let input = self.method.input();
                        let message = altered(input, &frame.message, path, value.as_ref());
                        frame.message = message.into();
                    }
                }
                Action::Alter { request: false, .. }
                | Action::Fail(_)
                | Action::Recode(..)
                | Action::Lose
                | Action::Repeat
                | Action::Late(_) => {}
            }
        }
        head.headers.remove(CONTENT_LENGTH);
        let body: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        Ok(Passed::On(Request::from_parts(head, whole(body.into()))))
    }

    /// Carries out what comes after the runtime.
    pub(super) async fn after(
        self,
        response: Response<Forwarded>,
    ) -> Result<Response<Forwarded>, hyper::Error> {
        for fault in &self.faults {
            if let Action::Fail(code) = fault.action {
                response.into_body().collect().await?;
                return Ok(answer(code));
            }
        }
        let (mut head, body) = response.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        if let Some(code) = self.recoded(&head.headers) {
            return Ok(if code == Code::Ok {
                empty()
            } else {
                answer(code)
            });
        }
        let body = Altered {
            inner: body,
            output: self.method.output(),
            faults: self,
            frames: Frames::default(),
            held: Vec::new(),
            ready: VecDeque::new(),
        };
        Ok(Response::from_parts(head, body.boxed_unsync()))
    }

    /// The code in place of the one in these headers, if another one is to be there.
    fn recoded(&self, headers: &HeaderMap) -> Option<Code> {
        let status = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
        self.faults.iter().find_map(|fault| {
            if let Action::Recode(from, to) = fault.action
                && from == status
            {
                return Some(to);
            }
            None
        })
    }

    /// Whether a fault applies to a message of the answer.
    fn applies(fault: &Fault, output: &MessageDescriptor, message: &[u8]) -> bool {
        let Some(condition) = fault.condition.as_ref().filter(|one| !one.of_request) else {
            return true;
        };
        json::decode(output.clone(), message)
            .is_ok_and(|value| has(&value, &condition.path, &condition.value))
    }
}

/// The answer of a runtime that refuses: headers and no body.
fn answer(code: Code) -> Response<Forwarded> {
    let mut response = Response::new(whole(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(i32::from(code)));
    headers.insert(
        "grpc-message",
        HeaderValue::from_static("a fault of the proxy"),
    );
    response
}

/// The answer of a runtime that says nothing and succeeds.
fn empty() -> Response<Forwarded> {
    let message = Frame {
        compressed: false,
        message: Bytes::new(),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = whole(message.encode()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.boxed_unsync());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// The body of an answer whose messages are altered.
struct Altered {
    inner: Forwarded,
    output: MessageDescriptor,
    faults: CallFaults,
    frames: Frames,
    /// Messages that are late.
    held: Vec<(Pin<Box<Sleep>>, Bytes)>,
    ready: VecDeque<BodyFrame<Bytes>>,
}

impl Altered {
    fn message(&mut self, mut frame: Frame) {
        let mut copies = 1;
        let mut late = None;
        for fault in &self.faults.faults {
            if !CallFaults::applies(fault, &self.output, &frame.message) {
                continue;
            }
            match &fault.action {
                Action::Alter {
                    request: false,
                    path,
                    value,
                } => {
                    let output = self.output.clone();
                    let message = altered(output, &frame.message, path, value.as_ref());
                    frame.message = message.into();
                }
                Action::Lose => copies = 0,
                Action::Repeat => copies = 2,
                Action::Late(delay) => late = Some(*delay),
                Action::Alter { request: true, .. }
                | Action::Answer(_)
                | Action::Swallow
                | Action::Fail(_)
                | Action::Recode(..)
                | Action::Hang
                | Action::Delay(_) => {}
            }
        }
        let bytes = frame.encode();
        if let Some(delay) = late {
            self.held.push((Box::pin(sleep(delay)), bytes));
            return;
        }
        for _ in 0..copies {
            self.ready.push_back(BodyFrame::data(bytes.clone()));
        }
    }

    /// Passes on what was held back for long enough, and has the task woken for the rest.
    fn release(&mut self, context: &mut Context<'_>) {
        for (mut due, bytes) in std::mem::take(&mut self.held) {
            match due.as_mut().poll(context) {
                Poll::Ready(()) => self.ready.push_back(BodyFrame::data(bytes)),
                Poll::Pending => self.held.push((due, bytes)),
            }
        }
    }

    fn trailers(&mut self, mut trailers: HeaderMap) {
        for (_, bytes) in std::mem::take(&mut self.held) {
            self.ready.push_back(BodyFrame::data(bytes));
        }
        if let Some(code) = self.faults.recoded(&trailers) {
            trailers.insert("grpc-status", HeaderValue::from(i32::from(code)));
        }
        self.ready.push_back(BodyFrame::trailers(trailers));
    }
}

impl Body for Altered {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, hyper::Error>>> {
        loop {
            self.release(context);
            if let Some(frame) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => {
                    for message in self.frames.push(&data) {
                        self.message(message);
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.trailers(trailers);
                    }
                }
            }
        }
    }
}
