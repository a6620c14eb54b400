//! Passes datagrams on to backends, and their replies back to the clients.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    net::UdpSocket,
    sync::{Semaphore, mpsc, watch},
    time::timeout,
};

use super::{choice::Chooser, table::Backends};

/// How long a client without datagrams keeps its backend: the kernel's time for a flow with replies
/// (nf_conntrack_udp_timeout_stream).
const IDLE: Duration = Duration::from_secs(120);
/// The clients of one port, at most: each has a socket.
const CLIENTS: usize = 1024;
/// Datagrams that wait for a backend's socket; more are dropped.
const WAITING: usize = 64;
/// The largest datagram.
const DATAGRAM: usize = 65_535;

/// The datagrams of one client.
struct Flow {
    backend: SocketAddrV4,
    datagrams: mpsc::Sender<Vec<u8>>,
}

/// Serves until the sender of the backends is gone.
pub(super) async fn serve(
    socket: UdpSocket,
    mut backends: watch::Receiver<Backends>,
    connections: Arc<Semaphore>,
) {
    let socket = Arc::new(socket);
    let (mut chooser, mut flows) = (Chooser::default(), HashMap::<SocketAddr, Flow>::new());
    let mut buffer = vec![0; DATAGRAM];
    loop {
        // Both can be cancelled: a datagram stays in its socket, and a change unseen.
        let received = tokio::select! {
            changed = backends.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = backends.borrow();
                flows.retain(|_, flow| now.list.contains(&flow.backend));
                continue;
            }
            received = socket.recv_from(&mut buffer) => received,
        };
        // The error of an earlier reply: its client has gone.
        let Ok((length, client)) = received else {
            continue;
        };
        let datagram = buffer[..length].to_vec();
        let Some(datagram) = passed_on(&flows, client, datagram) else {
            continue;
        };
        flows.retain(|_, flow| !flow.datagrams.is_closed());
        if flows.len() >= CLIENTS {
            continue;
        }
        let Ok(slot) = connections.clone().try_acquire_owned() else {
            continue;
        };
        let order = chooser.order(&backends.borrow(), client.ip(), Instant::now());
        let Some(backend) = order.first().copied() else {
            continue;
        };
        let (sender, datagrams) = mpsc::channel(WAITING);
        let _ = sender.try_send(datagram);
        let replies = socket.clone();
        tokio::spawn(async move {
            if let Err(error) = relay(&replies, client, backend, datagrams).await {
                tracing::debug!(%backend, %error, "datagrams of a client failed");
            }
            drop(slot);
        });
        flows.insert(
            client,
            Flow {
                backend,
                datagrams: sender,
            },
        );
    }
}

/// Hands a datagram to its client's flow; returns it if there is none.
fn passed_on(
    flows: &HashMap<SocketAddr, Flow>,
    client: SocketAddr,
    datagram: Vec<u8>,
) -> Option<Vec<u8>> {
    let Some(flow) = flows.get(&client) else {
        return Some(datagram);
    };
    match flow.datagrams.try_send(datagram) {
        Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => None,
        Err(mpsc::error::TrySendError::Closed(datagram)) => Some(datagram),
    }
}

/// Copies datagrams until the flow is idle, or its sender is gone.
async fn relay(
    replies: &UdpSocket,
    client: SocketAddr,
    backend: SocketAddrV4,
    mut datagrams: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(backend).await?;
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let next = async {
            tokio::select! {
                datagram = datagrams.recv() => datagram.map(Ok),
                received = socket.recv(&mut buffer) => Some(Err(received)),
            }
        };
        match timeout(IDLE, next).await {
            Err(_) | Ok(None) => return Ok(()),
            // The backend's port is closed, perhaps for a moment: the next datagram tries again.
            Ok(Some(Ok(datagram))) => drop(socket.send(&datagram).await),
            Ok(Some(Err(Ok(length)))) => drop(replies.send_to(&buffer[..length], client).await),
            Ok(Some(Err(Err(error)))) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(Some(Err(Err(error)))) => return Err(error),
        }
    }
}
