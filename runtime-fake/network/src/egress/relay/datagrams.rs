//! UDP datagrams and echo requests of pods: each flow has a socket of the host, connected to the destination.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket as StdUdpSocket},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::{io::Interest, net::UdpSocket, time::timeout};

use super::Failure;
use super::packet::{self, Content, Packet};
use super::sockets::PacketSender;
use crate::{Slot, Slots};

/// The largest datagram. Pods' datagrams have 65503 bytes at most, because the packet log truncates longer ones; answers have
/// 65492, because a raw socket sends no more than the MTU.
const DATAGRAM: usize = 65_535;
/// The code of "port unreachable".
const PORT: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    is_echo: bool,
    pod: SocketAddrV4,
    destination: SocketAddrV4,
}

struct Flow {
    socket: UdpSocket,
    slot: Slot,
    /// The start of the pod's last datagram, which an error quotes.
    last: Mutex<Vec<u8>>,
}

/// The flows of all pods.
pub(super) struct Datagrams {
    flows: Mutex<HashMap<Key, Arc<Flow>>>,
    pool: Slots,
    sender: Arc<PacketSender>,
    buffer: Mutex<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<usize> {
    let (length, _) = recv(socket, buffer, RecvFlags::DONTWAIT)?;
    Ok(length)
}

fn is_wait(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Datagrams {
    /// Creates the table without flows; `pool` limits their number.
    pub(super) fn new(pool: Slots, sender: Arc<PacketSender>) -> Arc<Self> {
        Arc::new(Self {
            flows: Mutex::default(),
            pool,
            sender,
            buffer: Mutex::new(vec![0; DATAGRAM]),
        })
    }

    /// Sends the payload of a pod's packet to `target`, the destination as the host reaches it. A datagram beyond the limit of
    /// flows is lost.
    pub(super) fn forward(
        self: &Arc<Self>,
        packet: &Packet<'_>,
        bytes: &[u8],
        target: SocketAddrV4,
    ) {
        let (is_echo, payload) = match packet.content {
            Content::Datagram(payload) => (false, payload.to_vec()),
            Content::Echo(rest) => (true, packet::echo_request(rest)),
            Content::Syn => return,
        };
        let key = Key { is_echo, pod: packet.source, destination: packet.destination };
        let known = lock(&self.flows).get(&key).cloned();
        let flow = match known {
            Some(flow) => flow,
            None => match self.begin(key, target) {
                Ok(Some(flow)) => flow,
                Ok(None) => return,
                Err(error) => return self.report_error(&key, &error, bytes),
            },
        };
        flow.slot.record_request();
        let quoted = bytes.len().min(packet::QUOTE);
        bytes[..quoted].clone_into(&mut lock(&flow.last));
        // The first attempt may report the error of an earlier datagram; the second one sends this datagram.
        for _ in 0..2 {
            match send(&flow.socket, &payload, SendFlags::DONTWAIT) {
                Ok(_) => return,
                Err(error) => self.report_error(&key, &error.into(), bytes),
            }
        }
    }

    /// Makes the flow; `None` if there are too many.
    fn begin(self: &Arc<Self>, key: Key, target: SocketAddrV4) -> io::Result<Option<Arc<Flow>>> {
        let Some(slot) = self.pool.take((*key.pod.ip()).into()) else {
            return Ok(None);
        };
        let socket = if key.is_echo {
            let flags = SockFlag::SOCK_CLOEXEC;
            let protocol = SockProtocol::Icmp;
            // The kernel refuses groups outside net.ipv4.ping_group_range; the pod then gets an error.
            let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, protocol)?;
            StdUdpSocket::from(socket)
        } else {
            StdUdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?
        };
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        let flow = Arc::new(Flow { socket, slot, last: Mutex::default() });
        lock(&self.flows).insert(key, flow.clone());
        let (flows, served) = (self.clone(), flow.clone());
        tasks::spawn(async move {
            flows.answer(&key, &served).await;
            lock(&flows.flows).remove(&key);
        });
        Ok(Some(flow))
    }

    /// Sends answers to the pod until the flow is idle, or another flow takes its slot.
    async fn answer(&self, key: &Key, flow: &Flow) {
        while let Some(left) = flow.slot.time_left() {
            // An error alone does not make a socket readable.
            let ready = flow.socket.ready(Interest::READABLE | Interest::ERROR);
            tokio::select! {
                ready = timeout(left, ready) => match ready {
                    Err(_) => continue,
                    Ok(Err(_)) => return,
                    Ok(Ok(_)) => {}
                },
                () = flow.slot.closed() => return,
            }
            let mut buffer = lock(&self.buffer);
            let mut received = Err(io::ErrorKind::WouldBlock.into());
            // tokio has no `try_io` for both interests together.
            for interest in [Interest::READABLE, Interest::ERROR] {
                if matches!(&received, Err(error) if is_wait(error)) {
                    let receive = || receive(&flow.socket, &mut buffer);
                    received = flow.socket.try_io(interest, receive);
                }
            }
            match received {
                Ok(length) => {
                    flow.slot.record_response();
                    let received = &buffer[..length];
                    let answer = match key.is_echo {
                        false => Some(packet::datagram(key.destination, key.pod, received)),
                        true => packet::echoed(received)
                            .map(|rest| packet::echo_reply(*key.destination.ip(), key.pod, rest)),
                    };
                    if let Some(answer) = answer {
                        self.sender.answer(&answer, *key.pod.ip());
                    }
                }
                Err(error) if is_wait(&error) => {}
                Err(error) => {
                    drop(buffer);
                    self.report_error(key, &error, &lock(&flow.last));
                }
            }
        }
    }

    /// Reports to the pod that one of its datagrams failed.
    fn report_error(&self, key: &Key, error: &io::Error, datagram: &[u8]) {
        let code = match Failure::of(error) {
            Failure::Refused => PORT,
            Failure::Unreachable(code) => code,
            Failure::Silence => return,
        };
        self.sender.unreachable(code, datagram, *key.pod.ip());
    }
}
