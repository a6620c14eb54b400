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
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::{failure::Failure, packet::Packet, sockets::PacketSender};

/// The buffer of each direction.
const BUFFER: usize = 128 * 1024;
/// How long a connected socket waits for the pod's connection.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(60);
/// The wait after an error that closing a connection elsewhere ends: no file descriptor or memory is left.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// A pod's address and the destination.
type Flow = (SocketAddrV4, SocketAddrV4);

/// A connection that the pod's kernel has not completed yet.
enum Attempt {
    /// The host connects.
    Connecting,
    /// The host has connected: the number of the attempt, and its socket.
    Connected(u64, TcpStream, OwnedSemaphorePermit),
}

/// The connections of all pods.
pub(super) struct Streams {
    attempts: Mutex<HashMap<Flow, Attempt>>,
    next: AtomicU64,
    slots: Arc<Semaphore>,
    sender: Arc<PacketSender>,
}

impl Streams {
    /// No connections, and at most `limit` of them.
    pub(super) fn new(limit: usize, sender: Arc<PacketSender>) -> Arc<Self> {
        Arc::new(Self {
            attempts: Mutex::default(),
            next: AtomicU64::new(0),
            slots: Arc::new(Semaphore::new(limit)),
            sender,
        })
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<Flow, Attempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the connection that a pod's packet, `syn`, asks for. `target` is the destination as the host reaches it.
    /// A pod whose connection is one too many repeats its packet later.
    pub(super) fn begin(self: &Arc<Self>, packet: &Packet<'_>, syn: &[u8], target: SocketAddrV4) {
        let flow = (packet.source, packet.destination);
        match self.attempts().get(&flow) {
            // The pod repeats itself.
            Some(Attempt::Connecting) => return,
            Some(Attempt::Connected(..)) => return self.sender.connect(syn, *flow.1.ip()),
            None => {}
        }
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            return;
        };
        self.attempts().insert(flow, Attempt::Connecting);
        let (streams, syn) = (self.clone(), syn.to_vec());
        tokio::spawn(async move { streams.connect(flow, &syn, target, slot).await });
    }

    async fn connect(
        &self,
        flow: Flow,
        syn: &[u8],
        target: SocketAddrV4,
        slot: OwnedSemaphorePermit,
    ) {
        let (pod, destination) = (*flow.0.ip(), *flow.1.ip());
        match TcpStream::connect(target).await {
            Ok(stream) => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let connected = Attempt::Connected(number, stream, slot);
                self.attempts().insert(flow, connected);
                self.sender.connect(syn, destination);
                sleep(ACCEPTED_WITHIN).await;
                let mut attempts = self.attempts();
                if matches!(attempts.get(&flow), Some(Attempt::Connected(n, ..)) if *n == number) {
                    attempts.remove(&flow);
                }
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

    /// Accepts the connections of pods and joins each with the host's.
    pub(super) async fn accept(&self, listener: TcpListener) -> io::Result<()> {
        loop {
            let (client, pod) = match listener.accept().await {
                Ok(accepted) => accepted,
                // The client has gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    sleep(EXHAUSTED).await;
                    continue;
                }
            };
            let waiting = flow_of(pod, &client).and_then(|flow| self.attempts().remove(&flow));
            match waiting {
                Some(Attempt::Connected(_, server, slot)) => {
                    tokio::spawn(async move {
                        join(client, server).await;
                        drop(slot);
                    });
                }
                // Its time was over.
                Some(Attempt::Connecting) | None => drop(client.set_zero_linger()),
            }
        }
    }
}

/// Whose connection was accepted: the listener's sockets have the destination as their own address. The peer's is what
/// the call returned, as a socket that was reset has none any more.
fn flow_of(pod: SocketAddr, client: &TcpStream) -> Option<Flow> {
    match (pod, client.local_addr().ok()?) {
        (SocketAddr::V4(pod), SocketAddr::V4(destination)) => Some((pod, destination)),
        _ => None,
    }
}

/// Copies in both directions until both have ended.
async fn join(mut client: TcpStream, mut server: TcpStream) {
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        // The end of a pod that was killed is told by nobody.
        let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    }
    let copied = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await;
    // A reset of one is a reset for the other.
    if copied.is_err() {
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}
