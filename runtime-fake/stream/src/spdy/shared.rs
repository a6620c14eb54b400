//! State shared by the reading and the writing half of a connection: its streams, and the queued control frames.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use super::{ConnectionError, INITIAL_WINDOW, MAX_STREAMS, Role, Stream};
use crate::{
    frame::reset,
    headers::Headers,
    pipe::{CHUNKS, Flow, Inlet, Outlet, Piece},
};

/// Limit on queued control frames. Real peers read each reply immediately and stay far below it.
const MAX_CONTROL: usize = 4 * MAX_STREAMS;

/// A control frame to be sent.
#[derive(Debug)]
pub(super) enum Control {
    Open {
        id: u32,
        headers: Headers,
    },
    Reply {
        id: u32,
    },
    Reset {
        id: u32,
        status: u32,
    },
    Ping(u32),
    WindowUpdate {
        id: u32,
        delta: u32,
    },
    /// This side uses windows.
    Settings,
    GoAway {
        protocol_error: bool,
    },
}

#[derive(Debug)]
struct Entry {
    /// `None` once the peer has half-closed the stream.
    chunks: Option<mpsc::Sender<Bytes>>,
    /// Whether this side has half-closed it.
    ended: bool,
    flow: Arc<Flow>,
    /// Bytes that its reader has taken since the last window update.
    unacknowledged: Arc<AtomicU32>,
}

#[derive(Debug)]
struct State {
    streams: HashMap<u32, Entry>,
    control: VecDeque<Control>,
    /// The greatest stream ID that the peer has used.
    last: u32,
    next: u32,
    initial_window: i64,
}

#[derive(Debug)]
pub(super) struct Shared {
    role: Role,
    state: Mutex<State>,
    /// Signalled when `control` is not empty, or exceeds its limit.
    pub(super) news: Notify,
    /// The connection's send window.
    whole: Arc<Flow>,
    windows_heeded: AtomicBool,
    /// Reading is paused, because a stream's queue is full.
    stalled: Arc<AtomicBool>,
    /// Bytes received since the last window update for the connection.
    unacknowledged: AtomicU32,
}

impl Shared {
    pub(super) fn new(role: Role) -> Self {
        let stalled = Arc::<AtomicBool>::default();
        let mut control = VecDeque::new();
        if role == Role::Server {
            control.push_back(Control::Settings);
        }
        Self {
            role,
            state: Mutex::new(State {
                streams: HashMap::new(),
                control,
                last: 0,
                next: if role == Role::Client { 1 } else { 2 },
                initial_window: i64::from(INITIAL_WINDOW),
            }),
            news: Notify::new(),
            whole: Arc::new(Flow::new(i64::from(INITIAL_WINDOW), false, stalled.clone())),
            windows_heeded: AtomicBool::new(false),
            stalled,
            unacknowledged: AtomicU32::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn control(&self, control: Control) {
        self.state().control.push_back(control);
        self.news.notify_one();
    }

    pub(super) fn take_control(&self) -> VecDeque<Control> {
        std::mem::take(&mut self.state().control)
    }

    /// Fails when the peer requests replies and does not read them.
    pub(super) fn check(&self) -> Result<(), ConnectionError> {
        if self.state().control.len() <= MAX_CONTROL {
            return Ok(());
        }
        let text = format!("it has not read the last {MAX_CONTROL} control frames");
        Err(ConnectionError::Protocol(text))
    }

    /// Opens a stream from this side.
    pub(super) fn open(
        self: &Arc<Self>,
        headers: Headers,
        pieces: &mpsc::Sender<Piece>,
    ) -> (u32, Inlet, Outlet) {
        let mut state = self.state();
        let id = state.next;
        state.next += 2;
        let (inlet, outlet) = self.entry(&mut state, id, pieces.clone());
        // Queue with the lock held: IDs must go out in ascending order.
        state.control.push_back(Control::Open { id, headers });
        drop(state);
        self.news.notify_one();
        (id, inlet, outlet)
    }

    /// Handles a stream that the peer opens. Returns `None` if it is refused.
    pub(super) fn opened(
        self: &Arc<Self>,
        id: u32,
        fin: bool,
        headers: Headers,
        pieces: &mpsc::WeakSender<Piece>,
    ) -> Result<Option<Stream>, ConnectionError> {
        let mut state = self.state();
        let theirs = if self.role == Role::Server { 1 } else { 0 };
        if id % 2 != theirs || id <= state.last {
            let last = state.last;
            let text = format!("it opens stream {id} after {last}");
            return Err(ConnectionError::Protocol(text));
        }
        state.last = id;
        // The upgrade fails once this side has dropped every sender.
        let pieces = pieces.upgrade().filter(|_| state.streams.len() < MAX_STREAMS);
        let Some(pieces) = pieces else {
            let status = reset::REFUSED_STREAM;
            state.control.push_back(Control::Reset { id, status });
            drop(state);
            self.news.notify_one();
            return Ok(None);
        };
        let (inlet, outlet) = self.entry(&mut state, id, pieces);
        if fin && let Some(entry) = state.streams.get_mut(&id) {
            entry.chunks = None;
        }
        state.control.push_back(Control::Reply { id });
        drop(state);
        self.news.notify_one();
        Ok(Some(Stream { id, headers, inlet, outlet }))
    }

    fn entry(
        self: &Arc<Self>,
        state: &mut State,
        id: u32,
        to: mpsc::Sender<Piece>,
    ) -> (Inlet, Outlet) {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let heeded = self.windows_heeded.load(Ordering::SeqCst);
        let flow = Arc::new(Flow::new(state.initial_window, heeded, self.stalled.clone()));
        let unacknowledged = Arc::<AtomicU32>::default();
        let entry = Entry {
            chunks: Some(sender),
            ended: false,
            flow: flow.clone(),
            unacknowledged: unacknowledged.clone(),
        };
        state.streams.insert(id, entry);
        let shared = Arc::downgrade(self);
        let taken = move |bytes: usize| {
            if let Some(shared) = shared.upgrade() {
                shared.count(id, &unacknowledged, u32::try_from(bytes).unwrap_or(0));
            }
        };
        let outlet =
            Outlet { id, to, reset: flow.reset.clone(), flows: vec![flow, self.whole.clone()] };
        (Inlet::new(chunks, Some(Box::new(taken))), outlet)
    }

    /// The queue for a stream's data, or `None` if the stream is closed or half-closed.
    pub(super) fn chunks(&self, id: u32) -> Option<mpsc::Sender<Bytes>> {
        self.state().streams.get(&id)?.chunks.clone()
    }

    /// Counts bytes received on the connection. Its window never blocks the peer: it is widened on arrival.
    pub(super) fn arrived(&self, bytes: u32) {
        self.count(0, &self.unacknowledged, bytes);
    }

    /// Counts bytes of a stream, or of the connection, and widens the peer's window when there are many, if the peer uses windows.
    fn count(&self, id: u32, unacknowledged: &AtomicU32, bytes: u32) {
        let add = |unacknowledged: u32| Some(unacknowledged.saturating_add(bytes));
        let before = unacknowledged.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        let now = before.unwrap_or_default().saturating_add(bytes);
        if now >= INITIAL_WINDOW / 2 && self.windows_heeded.load(Ordering::SeqCst) {
            let delta = unacknowledged.swap(0, Ordering::SeqCst);
            if delta > 0 {
                self.control(Control::WindowUpdate { id, delta });
            }
        }
    }

    /// Whether reading waits for a stream whose queue is full. Then the peer's window updates wait behind its data, so senders do
    /// not wait for them: the stalled stream's reader may be waiting for data that they send.
    pub(super) fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::SeqCst);
        if stalled {
            self.whole.stalled();
            for entry in self.state().streams.values() {
                entry.flow.stalled();
            }
        }
    }

    /// Handles the peer's half-close of a stream.
    pub(super) fn finished(&self, id: u32) {
        let mut state = self.state();
        if let Some(entry) = state.streams.get_mut(&id) {
            entry.chunks = None;
            if entry.ended {
                state.streams.remove(&id);
            }
        }
    }

    /// Records this side's half-close of a stream. Returns false if the stream is closed already.
    pub(super) fn ended(&self, id: u32) -> bool {
        let mut state = self.state();
        let Some(entry) = state.streams.get_mut(&id) else {
            return false;
        };
        let first = !std::mem::replace(&mut entry.ended, true);
        if entry.chunks.is_none() {
            state.streams.remove(&id);
        }
        first
    }

    /// Removes a stream that either side has reset. Returns false if it is closed already.
    pub(super) fn reset(&self, id: u32) -> bool {
        let entry = self.state().streams.remove(&id);
        entry.is_some_and(|entry| {
            entry.flow.reset.cancel();
            true
        })
    }

    /// Whether this side may still send on a stream.
    pub(super) fn is_open(&self, id: u32) -> bool {
        self.state().streams.get(&id).is_some_and(|entry| !entry.ended)
    }

    /// Called when the peer has sent a frame about windows: this side obeys them from now on, and widens the peer's.
    fn enable_windows(&self, state: &mut State) {
        if self.windows_heeded.swap(true, Ordering::SeqCst) {
            return;
        }
        let State { streams, control, .. } = state;
        if self.role == Role::Client {
            control.push_back(Control::Settings);
        }
        let all = streams.iter().map(|(id, entry)| (*id, &*entry.unacknowledged));
        for (id, unacknowledged) in all.chain([(0, &self.unacknowledged)]) {
            let delta = unacknowledged.swap(0, Ordering::SeqCst);
            if delta > 0 {
                control.push_back(Control::WindowUpdate { id, delta });
            }
        }
        for entry in streams.values() {
            entry.flow.start_limiting();
        }
        self.news.notify_one();
    }

    /// Applies the peer's initial window, to open streams too.
    pub(super) fn initial_window(&self, size: u32) {
        let mut state = self.state();
        self.enable_windows(&mut state);
        let delta = i64::from(size.min(i32::MAX.unsigned_abs())) - state.initial_window;
        state.initial_window += delta;
        for entry in state.streams.values() {
            entry.flow.widen(delta);
        }
    }

    /// Handles a WINDOW_UPDATE for a stream, or for the connection if `id` is 0.
    pub(super) fn widen(&self, id: u32, delta: u32) -> Result<(), ConnectionError> {
        let mut state = self.state();
        self.enable_windows(&mut state);
        if id == 0 {
            self.whole.start_limiting();
            if !self.whole.widen(i64::from(delta)) {
                let text = "it overflows the connection window".to_owned();
                return Err(ConnectionError::Protocol(text));
            }
            return Ok(());
        }
        let legal = state.streams.get(&id).is_none_or(|entry| entry.flow.widen(i64::from(delta)));
        drop(state);
        if !legal {
            self.reset(id);
            let status = reset::FLOW_CONTROL_ERROR;
            self.control(Control::Reset { id, status });
        }
        Ok(())
    }

    /// Replies to the peer's PING. A PING with one of this side's IDs is itself a reply, and is ignored.
    pub(super) fn pinged(&self, id: u32) {
        let theirs = if self.role == Role::Server { 1 } else { 0 };
        if id % 2 == theirs {
            self.control(Control::Ping(id));
        }
    }

    /// Queues a PING as a heartbeat, unless another control frame is queued.
    pub(super) fn heartbeat(&self) {
        let mut state = self.state();
        if state.control.is_empty() {
            let ours = if self.role == Role::Server { 2 } else { 1 };
            state.control.push_back(Control::Ping(ours));
            drop(state);
            self.news.notify_one();
        }
    }

    /// Returns room in the connection's window for bytes that were not sent because their stream closed.
    pub(super) fn unsent(&self, bytes: usize) {
        self.whole.widen(i64::try_from(bytes).unwrap_or(0));
    }

    /// The peer's greatest stream ID, for GOAWAY.
    pub(super) fn last(&self) -> u32 {
        self.state().last
    }

    /// Closes every stream when the connection has ended, and wakes all waiters.
    pub(super) fn close(&self) {
        for (_, entry) in self.state().streams.drain() {
            entry.flow.reset.cancel();
        }
    }
}
