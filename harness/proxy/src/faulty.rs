//! Applies rules to one call: before the runtime receives it, and to its response as a whole.

use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Request, Response};
use prost_reflect::DynamicMessage;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::body::{Forwarded, whole};
use super::fault::{Action, Side, Status};
use super::faulty_body::FaultyBody;
use super::frames::{Frame, Frames};
use super::json;
use super::responses::{empty, error_response, head, success, with_trailers};
use super::rule_in_call::RuleInCall;
use super::rules::{CachedResponse, CallRule};
use super::throttled::Throttled;

/// The rules that may apply to one call.
#[derive(Debug)]
pub(super) struct CallFaults {
    rules: Vec<RuleInCall>,
    request: Option<DynamicMessage>,
    /// The request in a canonical form, which equal requests share.
    key: String,
    /// Closes the client's connection when cancelled.
    cut: CancellationToken,
}

/// The result of the rules that apply before the runtime receives the call.
pub(super) enum BeforeCall {
    Forward(Request<Forwarded>),
    Respond { status: Status, message: Option<Frame>, response: Response<Forwarded> },
}

impl CallFaults {
    /// The rules of a call; `None` if it has none.
    pub(super) fn new(rules: Vec<CallRule>, cut: CancellationToken) -> Option<Self> {
        (!rules.is_empty()).then(|| Self {
            rules: rules.into_iter().map(RuleInCall::new).collect(),
            request: None,
            key: String::new(),
            cut,
        })
    }

    /// Applies the rules to the request.
    pub(super) async fn before(
        &mut self,
        request: Request<Forwarded>,
    ) -> Result<BeforeCall, hyper::Error> {
        let (mut head, body) = request.into_parts();
        // Every call of the CRI has one request message.
        let bytes = body.collect().await?.to_bytes();
        let mut messages = Frames::default();
        let frame = messages.push(&bytes).into_iter().next();
        self.read(frame.as_ref());
        let request = self.request.clone();
        let mut altered = None;
        for number in 0..self.rules.len() {
            let rule = &mut self.rules[number];
            let holds = match &rule.rule.fault().condition {
                None => Some(true),
                Some(condition) => condition.holds(request.as_ref(), None),
            };
            if holds == Some(false) {
                rule.decided = Some(false);
            }
            if holds != Some(true) || !rule.rule.is_on() {
                continue;
            }
            rule.decided = Some(rule.rule.count());
            let fault = rule.rule.fault();
            if rule.decided != Some(true) || !fault.is_of_request() {
                continue;
            }
            match &fault.action {
                Action::Answer(status) => return Ok(answered(status.clone())),
                Action::Swallow => return Ok(swallowed()),
                Action::Stale => {
                    if let Some(kept) = rule.rule.cached_response(&self.key) {
                        return Ok(replay_cached(kept));
                    }
                }
                Action::Hang => std::future::pending().await,
                Action::Delay(delay) => sleep(*delay).await,
                Action::Disconnect => {
                    self.cut.cancel();
                    std::future::pending().await
                }
                Action::Alter { side: Side::Request, path, value } => {
                    let message = altered.take().or_else(|| self.request.clone());
                    altered = message.map(|mut message| {
                        path.change(&mut message, value.as_ref());
                        message
                    });
                }
                Action::Alter { .. }
                | Action::Fail(_)
                | Action::Recode(..)
                | Action::Lose
                | Action::Repeat
                | Action::Late(_)
                | Action::Swap
                | Action::Truncate(_)
                | Action::Throttle(_) => {}
            }
        }
        let bytes = match altered.filter(|altered| Some(altered) != self.request.as_ref()) {
            None => bytes,
            Some(altered) => {
                head.headers.remove(CONTENT_LENGTH);
                Frame::of(&json::encode(&altered)).bytes
            }
        };
        Ok(BeforeCall::Forward(Request::from_parts(head, whole(bytes))))
    }

    fn read(&mut self, frame: Option<&Frame>) {
        let method = self.rules.first().map(|rule| &rule.rule.fault().method);
        let read = frame.zip(method);
        self.request = read.and_then(|(frame, method)| json::message(method.input(), frame));
        self.key = self.request.as_ref().map(json::canonical).unwrap_or_default();
    }

    fn response(&self, frame: Option<&Frame>) -> Option<DynamicMessage> {
        let method = &self.rules.first()?.rule.fault().method;
        json::message(method.output(), frame?)
    }

    /// Applies the rules to the response.
    pub(super) async fn after(
        mut self,
        response: Response<Forwarded>,
    ) -> Result<Response<Forwarded>, hyper::Error> {
        let rate = self.rules.iter().find_map(RuleInCall::throttle);
        let response = self.after_whole(response).await?;
        let response = match self.recoded(response.headers()) {
            Some(status) if status.code == Code::Ok => empty(),
            Some(status) => error_response(&status),
            None => self.after_messages(response),
        };
        Ok(match rate {
            None => response,
            Some(rate) => response.map(|body| Throttled::new(body, rate).boxed_unsync()),
        })
    }

    /// Applies the rules that need the whole response.
    async fn after_whole(
        &mut self,
        response: Response<Forwarded>,
    ) -> Result<Response<Forwarded>, hyper::Error> {
        let may_fail = |rule: &RuleInCall| {
            rule.decided != Some(false) && matches!(rule.rule.fault().action, Action::Fail(_))
        };
        let is_kept = |rule: &RuleInCall| matches!(rule.rule.fault().action, Action::Stale);
        if !self.rules.iter().any(|rule| may_fail(rule) || is_kept(rule)) {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let collected = body.collect().await?;
        let trailers = collected.trailers().cloned();
        let bytes = collected.to_bytes();
        let frames = Frames::default().push(&bytes);
        let response = self.response(frames.first());
        for rule in &mut self.rules {
            if may_fail(rule)
                && rule.meets(self.request.as_ref(), response.as_ref())
                && let Action::Fail(status) = &rule.rule.fault().action
            {
                return Ok(error_response(status));
            }
        }
        let is_success = |trailers: &&HeaderMap| {
            let status = trailers.get("grpc-status").map(HeaderValue::as_bytes);
            status == Some(b"0") && !frames.is_empty()
        };
        if let Some(trailers) = trailers.as_ref().filter(is_success) {
            for rule in self.rules.iter().filter(|rule| is_kept(rule)) {
                let cached = CachedResponse { body: bytes.clone(), trailers: trailers.clone() };
                rule.rule.cache_response(&self.key, cached);
            }
        }
        Ok(Response::from_parts(head, with_trailers(bytes, trailers)))
    }

    /// The replacement for the status in these headers, if a rule replaces it.
    fn recoded(&self, headers: &HeaderMap) -> Option<Status> {
        let status = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
        let mut rules = self.rules.iter();
        rules.find_map(|rule| rule.recoded(status))
    }

    fn after_messages(self, response: Response<Forwarded>) -> Response<Forwarded> {
        let is_of_response = |rule: &RuleInCall| {
            let fault = rule.rule.fault();
            rule.decided != Some(false)
                && !fault.is_of_request()
                && !matches!(fault.action, Action::Throttle(_) | Action::Fail(_))
        };
        let rules: Vec<_> = self.rules.into_iter().filter(is_of_response).collect();
        if rules.is_empty() || response.body().is_end_stream() {
            return response;
        }
        let mut response = response;
        response.headers_mut().remove(CONTENT_LENGTH);
        response.map(|body| FaultyBody::new(body, rules, self.request, self.cut).boxed_unsync())
    }
}

fn answered(status: Status) -> BeforeCall {
    BeforeCall::Respond { response: error_response(&status), status, message: None }
}

fn swallowed() -> BeforeCall {
    BeforeCall::Respond { status: success(), message: Some(Frame::of(b"")), response: empty() }
}

fn replay_cached(kept: CachedResponse) -> BeforeCall {
    let mut response = Response::new(with_trailers(kept.body.clone(), Some(kept.trailers)));
    head(&mut response);
    BeforeCall::Respond {
        status: success(),
        message: Frames::default().push(&kept.body).into_iter().next(),
        response,
    }
}
