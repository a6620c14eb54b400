//! Applies rules to the messages of a response. Messages to which no rule applies pass byte for byte.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame as BodyFrame};
use prost_reflect::DynamicMessage;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::body::{Forwarded, whole};
use super::fault::{Action, Side, Status};
use super::frames::{Frame, Frames};
use super::json;
use super::responses::set_status;
use super::rule_in_call::RuleInCall;

/// The body of a response that rules may change.
pub(super) struct FaultyBody {
    inner: Forwarded,
    rules: Vec<RuleInCall>,
    request: Option<DynamicMessage>,
    /// Closes the client's connection when cancelled.
    cut: CancellationToken,
    frames: Frames,
    /// Delayed messages.
    late: Vec<(Pin<Box<Sleep>>, Bytes)>,
    /// A message that is sent after the next one.
    swapped: Option<Bytes>,
    steps: VecDeque<Step>,
    has_ended: bool,
}

/// The next step.
enum Step {
    Send(BodyFrame<Bytes>),
    Wait(Pin<Box<Sleep>>),
    Hang,
    Disconnect,
}

impl FaultyBody {
    pub(super) fn new(
        inner: Forwarded,
        rules: Vec<RuleInCall>,
        request: Option<DynamicMessage>,
        cut: CancellationToken,
    ) -> Self {
        Self {
            inner,
            rules,
            request,
            cut,
            frames: Frames::default(),
            late: Vec::new(),
            swapped: None,
            steps: VecDeque::new(),
            has_ended: false,
        }
    }

    fn message(&mut self, frame: Frame) {
        let Some(method) = self.rules.first().map(|rule| &rule.rule.fault().method) else {
            return;
        };
        let decoded = json::message(method.output(), &frame);
        let (mut altered, mut copies, mut late, mut swaps) = (decoded.clone(), 1, None, false);
        let mut steps = Vec::new();
        let mut truncated = None;
        for rule in &mut self.rules {
            if !rule.meets(self.request.as_ref(), decoded.as_ref()) {
                continue;
            }
            match &rule.rule.fault().action {
                Action::Alter { side: Side::Response, path, value } => {
                    if let Some(message) = &mut altered {
                        path.change(message, value.as_ref());
                    }
                }
                Action::Lose => copies = 0,
                Action::Repeat => copies *= 2,
                Action::Late(delay) => late = Some(*delay),
                Action::Swap => swaps = true,
                Action::Truncate(status) => truncated = Some(status.clone()),
                Action::Hang => steps.push(Step::Hang),
                Action::Delay(delay) => steps.push(Step::Wait(Box::pin(sleep(*delay)))),
                Action::Disconnect => steps.push(Step::Disconnect),
                Action::Alter { .. }
                | Action::Answer(_)
                | Action::Swallow
                | Action::Fail(_)
                | Action::Recode(..)
                | Action::Stale
                | Action::Throttle(_) => {}
            }
        }
        self.steps.extend(steps);
        if let Some(status) = truncated {
            return self.truncate(&status);
        }
        let bytes = match altered.filter(|altered| Some(altered) != decoded.as_ref()) {
            None => frame.bytes,
            Some(altered) => Frame::of(&json::encode(&altered)).bytes,
        };
        if let Some(delay) = late {
            self.late.push((Box::pin(sleep(delay)), bytes));
        } else if swaps && self.swapped.is_none() {
            self.swapped = Some(bytes);
        } else {
            for _ in 0..copies {
                self.send(bytes.clone());
            }
            let swapped = self.swapped.take();
            swapped.into_iter().for_each(|swapped| self.send(swapped));
        }
    }

    fn send(&mut self, bytes: Bytes) {
        self.steps.push_back(Step::Send(BodyFrame::data(bytes)));
    }

    /// Ends the stream for the client, and drops the runtime's response, which cancels the runtime's stream.
    fn truncate(&mut self, status: &Status) {
        let mut trailers = HeaderMap::new();
        set_status(&mut trailers, status);
        let trailers = BodyFrame::trailers(trailers);
        self.steps.push_back(Step::Send(trailers));
        self.has_ended = true;
        self.late.clear();
        self.inner = whole(Bytes::new());
    }

    /// Sends delayed messages whose time has come, and registers the task's waker for the others.
    fn release(&mut self, context: &mut Context<'_>) {
        for (mut due, bytes) in std::mem::take(&mut self.late) {
            match due.as_mut().poll(context) {
                Poll::Ready(()) => self.send(bytes),
                Poll::Pending => self.late.push((due, bytes)),
            }
        }
    }

    /// Sends all messages that are held back, because no more follow.
    fn flush(&mut self) {
        let held = std::mem::take(&mut self.late);
        let late = held.into_iter().map(|(_, bytes)| bytes);
        let rest = Some(self.frames.rest()).filter(|rest| !rest.is_empty());
        let held: Vec<_> = self.swapped.take().into_iter().chain(late).chain(rest).collect();
        held.into_iter().for_each(|bytes| self.send(bytes));
    }

    fn trailers(&mut self, mut trailers: HeaderMap) {
        self.flush();
        let status = trailers.get("grpc-status").map(|status| status.as_bytes());
        if let Some(code) = status.map(Code::from_bytes)
            && let Some(status) = self.rules.iter().find_map(|rule| rule.recoded(code))
        {
            set_status(&mut trailers, &status);
        }
        let trailers = BodyFrame::trailers(trailers);
        self.steps.push_back(Step::Send(trailers));
    }

    fn receive(&mut self, frame: BodyFrame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                for message in self.frames.push(&data) {
                    if !self.has_ended {
                        self.message(message);
                    }
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

impl Body for FaultyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, hyper::Error>>> {
        loop {
            self.release(context);
            match self.steps.pop_front() {
                Some(Step::Send(frame)) => return Poll::Ready(Some(Ok(frame))),
                Some(Step::Wait(mut until)) => {
                    if until.as_mut().poll(context).is_pending() {
                        self.steps.push_front(Step::Wait(until));
                        return Poll::Pending;
                    }
                    continue;
                }
                Some(Step::Hang) => {
                    self.steps.push_front(Step::Hang);
                    return Poll::Pending;
                }
                Some(Step::Disconnect) => {
                    self.cut.cancel();
                    self.steps.push_front(Step::Hang);
                    return Poll::Pending;
                }
                None if self.has_ended => return Poll::Ready(None),
                None => {}
            }
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                None => {
                    self.has_ended = true;
                    self.flush();
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => self.receive(frame),
            }
        }
    }
}
