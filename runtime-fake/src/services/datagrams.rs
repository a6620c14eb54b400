//! Forwards datagrams to backends, and replies to the clients.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use network::{Slot, Slots};
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use tokio::{net::UdpSocket, sync::watch, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{choice::BackendSelector, table::Backends};

/// The largest datagram.
const DATAGRAM: usize = 65_535;

/// A port's socket, and the buffer for all replies through it.
struct Port {
    socket: UdpSocket,
    buffer: Mutex<Vec<u8>>,
}

/// The datagrams of one client, and the task that forwards the replies.
struct Flow {
    to: Arc<Backend>,
    replies: AbortOnDropHandle<()>,
}

/// A flow's socket.
struct Backend {
    address: SocketAddrV4,
    socket: UdpSocket,
    slot: Slot,
}

/// Serves until the sender of the backends is dropped.
pub(super) async fn serve(socket: UdpSocket, mut backends: watch::Receiver<Backends>, pool: Slots) {
    let port = Arc::new(Port { socket, buffer: Mutex::new(vec![0; DATAGRAM]) });
    let (mut selector, mut flows) =
        (BackendSelector::default(), HashMap::<SocketAddr, Flow>::new());
    let mut buffer = vec![0; DATAGRAM];
    loop {
        // Both branches are cancel-safe: a datagram stays in its socket, and a change stays unseen.
        let received = tokio::select! {
            changed = backends.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = backends.borrow();
                flows.retain(|_, flow| now.list.contains(&flow.to.address));
                continue;
            }
            received = port.socket.recv_from(&mut buffer) => received,
        };
        // The error of an earlier reply to a client that has closed its port.
        let Ok((length, client)) = received else {
            continue;
        };
        if flows.get(&client).is_none_or(|flow| flow.replies.is_finished()) {
            flows.retain(|_, flow| !flow.replies.is_finished());
            let order = selector.order(&backends.borrow(), client.ip(), Instant::now());
            let Some(slot) = order.first().and(pool.take(client.ip())) else {
                continue;
            };
            match begin(&port, client, order[0], slot).await {
                Ok(flow) => drop(flows.insert(client, flow)),
                Err(error) => tracing::debug!(%client, %error, "failed to open socket to backend"),
            }
        }
        if let Some(flow) = flows.get(&client) {
            flow.to.slot.record_request();
            // A datagram that the socket does not accept is lost, as any datagram may be. The first send may report the error of
            // an earlier datagram.
            let send = || send(&flow.to.socket, &buffer[..length], SendFlags::DONTWAIT);
            if send() == Err(Errno::CONNREFUSED) {
                let _ = send();
            }
        }
    }
}

async fn begin(
    port: &Arc<Port>,
    client: SocketAddr,
    address: SocketAddrV4,
    slot: Slot,
) -> io::Result<Flow> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(address).await?;
    let to = Arc::new(Backend { address, socket, slot });
    let (port, from) = (port.clone(), to.clone());
    let replies = tasks::spawn(async move {
        if let Err(error) = port.reply(client, &from).await {
            tracing::debug!(%address, %error, "datagrams of a client failed");
        }
    });
    Ok(Flow { to, replies: AbortOnDropHandle::new(replies) })
}

impl Port {
    /// Forwards replies until the flow is idle, or another flow takes its slot.
    async fn reply(&self, client: SocketAddr, backend: &Backend) -> io::Result<()> {
        while let Some(left) = backend.slot.time_left() {
            tokio::select! {
                ready = timeout(left, backend.socket.readable()) => match ready {
                    Ok(ready) => ready?,
                    Err(_) => continue,
                },
                () = backend.slot.closed() => return Ok(()),
            }
            let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            match backend.socket.try_recv(&mut buffer) {
                Ok(length) => {
                    backend.slot.record_response();
                    let _ = self.socket.try_send_to(&buffer[..length], client);
                }
                // The backend's port is closed, perhaps temporarily: the next datagram retries.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
