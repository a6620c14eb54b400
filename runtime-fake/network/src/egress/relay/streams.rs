//! TCP connections of pods. The host connects first: only then is the pod's connection accepted, so that a pod sees
//! the same result as without a relay.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, SocketAddrV4},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::Failure;
use super::packet::Packet;
use super::sockets::PacketSender;
use crate::{Slot, Slots, join};

/// How long a connected socket waits for the pod's connection.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(60);
/// The delay after running out of file descriptors or memory, until another connection closes.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// A pod's address and the destination.
type Flow = (SocketAddrV4, SocketAddrV4);

/// A connection that the pod's kernel has not completed yet.
enum Attempt {
    /// The host is connecting.
    Connecting,
    /// The host has connected.
    Connected(Connected),
}

/// The host's side of an attempt, which is forgotten after [`ACCEPTED_WITHIN`].
struct Connected {
    number: u64,
    stream: TcpStream,
    slot: Arc<Slot>,
    forgetting: AbortHandle,
}

/// The connections of all pods.
pub(super) struct Streams {
    attempts: Mutex<HashMap<Flow, Attempt>>,
    next: AtomicU64,
    pool: Slots,
    sender: Arc<PacketSender>,
}

impl Streams {
    /// Creates the table without connections; `pool` limits their number.
    pub(super) fn new(pool: Slots, sender: Arc<PacketSender>) -> Arc<Self> {
        Arc::new(Self { attempts: Mutex::default(), next: AtomicU64::new(0), pool, sender })
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<Flow, Attempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the connection that a pod's packet, `syn`, requests. `target` is the destination as the host reaches it. A pod
    /// beyond the limit retransmits its packet later.
    pub(super) fn begin(self: &Arc<Self>, packet: &Packet<'_>, syn: &[u8], target: SocketAddrV4) {
        let flow = (packet.source, packet.destination);
        match self.attempts().get(&flow) {
            // A retransmission.
            Some(Attempt::Connecting) => return,
            Some(Attempt::Connected(_)) => return self.sender.connect(syn, *flow.1.ip()),
            None => {}
        }
        let Some(slot) = self.pool.take((*flow.0.ip()).into()) else {
            return;
        };
        self.attempts().insert(flow, Attempt::Connecting);
        let (streams, syn) = (self.clone(), syn.to_vec());
        tasks::spawn(async move { streams.connect(flow, &syn, target, slot).await });
    }

    async fn connect(self: &Arc<Self>, flow: Flow, syn: &[u8], target: SocketAddrV4, slot: Slot) {
        let (pod, destination) = (*flow.0.ip(), *flow.1.ip());
        let connected = tokio::select! {
            connected = TcpStream::connect(target) => connected,
            // The pod retransmits its packet.
            () = slot.closed() => Err(io::ErrorKind::TimedOut.into()),
        };
        match connected {
            Ok(stream) => {
                let (number, slot) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(slot));
                let forgetting = tasks::spawn(self.clone().forget(flow, number, slot.clone()));
                let forgetting = forgetting.abort_handle();
                let connected = Connected { number, stream, slot, forgetting };
                self.attempts().insert(flow, Attempt::Connected(connected));
                self.sender.connect(syn, destination);
            }
            Err(error) => {
                self.attempts().remove(&flow);
                match Failure::of(&error) {
                    Failure::Refused => self.sender.reset(syn, destination),
                    Failure::Unreachable(code) => self.sender.unreachable(code, syn, pod),
                    Failure::Silence => {}
                }
            }
        }
    }

    /// Forgets an attempt that the pod's kernel does not complete, or whose slot another pod has taken; the host's connection is
    /// reset.
    async fn forget(self: Arc<Self>, flow: Flow, number: u64, slot: Arc<Slot>) {
        let _ = timeout(ACCEPTED_WITHIN, slot.closed()).await;
        let mut attempts = self.attempts();
        if matches!(attempts.get(&flow), Some(Attempt::Connected(found)) if found.number == number)
        {
            attempts.remove(&flow);
        }
    }

    /// Accepts the connections of pods and joins each with the host's.
    pub(super) async fn accept(&self, listener: TcpListener) -> io::Result<()> {
        loop {
            let (client, pod) = match listener.accept().await {
                Ok(accepted) => accepted,
                // The client disconnected before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    self.pool.evict();
                    sleep(EXHAUSTED).await;
                    continue;
                }
            };
            let waiting = flow_of(pod, &client).and_then(|flow| self.attempts().remove(&flow));
            match waiting {
                Some(Attempt::Connected(connected)) => {
                    connected.forgetting.abort();
                    let Connected { stream, slot, .. } = connected;
                    tasks::spawn(async move { join(&client, &stream, &slot).await });
                }
                // The attempt has expired.
                Some(Attempt::Connecting) | None => drop(client.set_zero_linger()),
            }
        }
    }
}

/// The flow of an accepted connection: the local address of its socket is the destination. The peer's address comes from
/// accept(2), because a socket that was reset no longer has one.
fn flow_of(pod: SocketAddr, client: &TcpStream) -> Option<Flow> {
    match (pod, client.local_addr().ok()?) {
        (SocketAddr::V4(pod), SocketAddr::V4(destination)) => Some((pod, destination)),
        _ => None,
    }
}
