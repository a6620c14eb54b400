//! TCP connections, and SCTP ones, whose bytes are moved in the same way.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::plan::{Forward, Transport};

/// How long a connection to the pod may take: a port that nobody listens on refuses at once.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long is waited when no descriptor is left for a connection.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Takes connections for ever and moves what comes in on each to the pod and back.
pub(crate) async fn forward(listener: TcpListener, forward: Forward, targets: Vec<IpAddr>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                tokio::spawn(serve(client, forward, targets.clone()));
            }
            // A client that went away before it was accepted is its own affair; descriptors come back by and by.
            Err(_) => tokio::time::sleep(EXHAUSTED).await,
        }
    }
}

async fn serve(mut client: TcpStream, forward: Forward, targets: Vec<IpAddr>) {
    let Some(mut pod) = connect(forward, &targets).await else {
        // The client sees what it would have seen of the pod: a refusal, not an end.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = pod.set_nodelay(true);
    if tokio::io::copy_bidirectional(&mut client, &mut pod)
        .await
        .is_err()
    {
        // One side broke off: so does the other.
        let _ = client.set_zero_linger();
        let _ = pod.set_zero_linger();
    }
}

/// The first of the pod's addresses that answers.
async fn connect(forward: Forward, targets: &[IpAddr]) -> Option<TcpStream> {
    for target in targets {
        let address = SocketAddr::new(*target, forward.port);
        let attempt = async { socket(forward.transport, *target)?.connect(address).await };
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECTING, attempt).await {
            return Some(stream);
        }
    }
    None
}

fn socket(transport: Transport, target: IpAddr) -> io::Result<TcpSocket> {
    let family = match target {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let protocol = (transport == Transport::Sctp).then_some(ipproto::SCTP);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, protocol)?;
    Ok(TcpSocket::from_std_stream(socket.into()))
}
