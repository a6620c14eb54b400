//! The connection to a keeper: one task writes calls and reads answers. When it fails, every call on it fails.

use std::{
    collections::HashMap,
    io,
    os::{fd::OwnedFd, unix::net as std_net},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use keeper::contract::frame::{MAX_FRAME, Outgoing, Receiver};
use keeper::contract::protocol::{Call, Event, Message, Outcome, Request};
use keeper::kernel::failure::{Failure, FailureKind};
use tokio::{
    io::Interest,
    net::UnixStream,
    sync::{mpsc, oneshot},
};

use crate::{
    id::ContainerId,
    keeper_client::{ExitNotifier, Notification, disconnected},
};

/// An answer, with its descriptors.
pub(super) type Answer = (Outcome, Vec<OwnedFd>);

/// A pending call.
struct Pending {
    answer: oneshot::Sender<Result<Answer, Failure>>,
    /// The container that the call creates or starts.
    container: Option<String>,
    /// Notifies of the end of the exec that the call starts.
    ended: Option<ExitNotifier>,
}

#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, Pending>,
    /// Running execs, by process id.
    execs: HashMap<i32, ExitNotifier>,
    /// Why the connection has ended, if it has.
    failed: Option<String>,
}

/// A numbered frame. It is not sent if its caller has already given up.
struct Numbered {
    number: u64,
    /// No caller waits for an answer.
    posted: bool,
    frame: Outgoing<OwnedFd>,
}

/// Outgoing messages and pending calls. The connection ends with the last clone.
#[derive(Clone)]
pub(super) struct Queue {
    outgoing: mpsc::UnboundedSender<Numbered>,
    waiting: Arc<Mutex<Waiting>>,
    next: Arc<AtomicU64>,
}

impl Queue {
    pub(super) fn start(
        stream: std_net::UnixStream,
        notify: mpsc::UnboundedSender<Notification>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let (outgoing, queue) = mpsc::unbounded_channel();
        let this = Self { outgoing, waiting: Arc::default(), next: Arc::new(AtomicU64::new(1)) };
        let reader = Reader {
            waiting: this.waiting.clone(),
            notify,
            outgoing: this.outgoing.downgrade(),
            next: this.next.clone(),
        };
        tasks::spawn(reader.run(stream, queue));
        Ok(this)
    }

    /// Queues a call. `ended` is notified when the exec that the call starts has ended.
    pub(super) fn send_request(
        &self,
        call: Call,
        descriptors: Vec<OwnedFd>,
        ended: Option<ExitNotifier>,
    ) -> Result<oneshot::Receiver<Result<Answer, Failure>>, Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let container =
            if let Call::Create { container, .. } | Call::Start { container, .. } = &call {
                Some(container.clone())
            } else {
                None
            };
        let frame = frame(number, call, descriptors)?;
        let (answer, receiver) = oneshot::channel();
        let pending = Pending { answer, container, ended };
        let mut waiting = lock(&self.waiting);
        if let Some(why) = &waiting.failed {
            return Err(disconnected(why));
        }
        waiting.calls.insert(number, pending);
        // A task that has ended sets `failed`, which was checked under the same lock.
        let _ = self.outgoing.send(Numbered { number, posted: false, frame });
        Ok(receiver)
    }
}

fn frame(number: u64, call: Call, descriptors: Vec<OwnedFd>) -> Result<Outgoing<OwnedFd>, Failure> {
    let system = |error: &dyn std::fmt::Display| {
        Failure::new(FailureKind::System, format!("failed to write a request: {error}"))
    };
    let request = Request { number, descriptors: descriptors.len(), call };
    let document = serde_json::to_vec(&request).map_err(|error| system(&error))?;
    // The keeper would reject it and close the connection, which would fail every other call.
    if document.len() > MAX_FRAME {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "the configuration is too long: {} bytes as JSON, of at most {MAX_FRAME}",
                document.len()
            ),
        ));
    }
    Outgoing::new(document, descriptors).map_err(|error| system(&error))
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task of a connection.
struct Reader {
    waiting: Arc<Mutex<Waiting>>,
    notify: mpsc::UnboundedSender<Notification>,
    outgoing: mpsc::WeakUnboundedSender<Numbered>,
    next: Arc<AtomicU64>,
}

impl Reader {
    async fn run(self, stream: UnixStream, queue: mpsc::UnboundedReceiver<Numbered>) {
        // If either direction ends, the connection ends: otherwise calls would wait forever.
        let why = tokio::select! {
            read = self.read(&stream) => match read {
                Ok(()) => "the keeper closed it".to_owned(),
                Err(error) => error.to_string(),
            },
            written = write(&stream, queue, &self.waiting) => match written {
                Ok(()) => "it is no longer needed".to_owned(),
                Err(error) => error.to_string(),
            },
        };
        let calls = {
            let mut waiting = lock(&self.waiting);
            waiting.failed = Some(why.clone());
            waiting.execs.clear();
            std::mem::take(&mut waiting.calls)
        };
        for pending in calls.into_values() {
            let _ = pending.answer.send(Err(disconnected(&why)));
        }
        let _ = self.notify.send(Notification::Disconnected(why));
    }

    async fn read(&self, stream: &UnixStream) -> io::Result<()> {
        let mut receiver = Receiver::default();
        while stream.async_io(Interest::READABLE, || receiver.fill(stream)).await? > 0 {
            while let Some(document) = receiver.next_document()? {
                match serde_json::from_slice(&document)? {
                    Message::Reply { number, descriptors, result } => {
                        let descriptors = receiver.take_descriptors(descriptors)?;
                        self.resolve(number, result.map(|outcome| (outcome, descriptors)));
                    }
                    Message::Event(Event::ExecExited { pid, code }) => {
                        // An exec that never ran is not registered: its process id may be reused for the next one.
                        if let Some(notifier) = lock(&self.waiting).execs.remove(&pid) {
                            let _ = notifier.0.code.set(code);
                        }
                    }
                    Message::Event(event) => drop(self.notify.send(Notification::Event(event))),
                }
            }
        }
        Ok(())
    }

    fn resolve(&self, number: u64, result: Result<Answer, Failure>) {
        let mut waiting = lock(&self.waiting);
        let Some(pending) = waiting.calls.remove(&number) else {
            return;
        };
        // Register the exec before its exit event, which may follow immediately, is read.
        if let (Some(ended), Ok((Outcome::Exec { pid }, _))) = (pending.ended, &result) {
            waiting.execs.insert(*pid, ended);
        }
        drop(waiting);
        if let Err(Ok((outcome, _))) = pending.answer.send(result) {
            self.undo(outcome, pending.container);
        }
    }

    /// Undoes a call whose caller has given up, and which was reported as failed.
    fn undo(&self, outcome: Outcome, container: Option<String>) {
        let call = if let (Outcome::Created { .. }, Some(container)) = (&outcome, &container) {
            let container = container.clone();
            Call::Forget { container }
        } else if let Outcome::Exec { pid } = outcome {
            Call::KillExec { pid }
        } else {
            // A started program cannot be undone: the store is notified that it runs.
            if let (Outcome::Started { at, pid }, Some(container)) = (outcome, container) {
                let container = ContainerId::from_record(&container);
                let _ = self.notify.send(Notification::Started { container, at, pid });
            }
            return;
        };
        tracing::info!(?call, "undoing call answered after its deadline");
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let (Some(outgoing), Ok(frame)) =
            (self.outgoing.upgrade(), frame(number, call, Vec::new()))
        {
            let _ = outgoing.send(Numbered { number, posted: true, frame });
        }
    }
}

async fn write(
    stream: &UnixStream,
    mut queue: mpsc::UnboundedReceiver<Numbered>,
    waiting: &Mutex<Waiting>,
) -> io::Result<()> {
    while let Some(Numbered { number, posted, mut frame }) = queue.recv().await {
        // Do not send a call whose caller has given up.
        if !posted && remove_if_abandoned(waiting, number) {
            continue;
        }
        while !stream.async_io(Interest::WRITABLE, || frame.send(stream)).await? {}
    }
    Ok(())
}

/// Removes a call whose caller has given up. Returns whether the caller had given up.
fn remove_if_abandoned(waiting: &Mutex<Waiting>, number: u64) -> bool {
    let mut waiting = lock(waiting);
    let pending = waiting.calls.get(&number);
    let given_up = pending.is_none_or(|pending| pending.answer.is_closed());
    if given_up {
        waiting.calls.remove(&number);
    }
    given_up
}
