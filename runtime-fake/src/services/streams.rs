//! Passes connections on to backends.

use std::{
    io,
    net::{IpAddr, SocketAddrV4},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

use super::{choice::Chooser, table::Backends};

/// Limit on the wait for a backend that does not answer, before the next one is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// The buffer of each direction.
const BUFFER: usize = 64 * 1024;
/// The wait after an error that closing a connection elsewhere ends: no file descriptor or memory is left.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Serves until the sender of the backends is gone. Connections go on.
pub(super) async fn serve(
    listener: TcpListener,
    mut backends: watch::Receiver<Backends>,
    connections: Arc<Semaphore>,
) {
    let mut chooser = Chooser::default();
    loop {
        let next = async {
            let slot = connections.clone().acquire_owned().await;
            (slot, accept(&listener).await)
        };
        // Both can be cancelled: nothing is accepted until `accept` returns, and a change stays unseen.
        let (slot, client) = tokio::select! {
            changed = backends.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            next = next => next,
        };
        let address = client.peer_addr().map(|peer| peer.ip());
        let address = address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let order = chooser.order(&backends.borrow(), address, Instant::now());
        tokio::spawn(async move {
            relay(client, &order).await;
            drop(slot);
        });
    }
}

/// Accepts a connection, whatever happens to others.
pub(super) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The client has gone before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(EXHAUSTED).await,
        }
    }
}

/// Connects the client with the first backend that accepts. The client of none sees a reset.
async fn relay(mut client: TcpStream, backends: &[SocketAddrV4]) {
    let mut connected = None;
    for backend in backends {
        match timeout(CONNECT, TcpStream::connect(*backend)).await {
            Ok(Ok(stream)) => {
                connected = Some(stream);
                break;
            }
            Ok(Err(error)) => tracing::debug!(%backend, %error, "backend refused"),
            Err(_) => tracing::debug!(%backend, "backend did not answer"),
        }
    }
    let Some(mut backend) = connected else {
        let _ = client.set_zero_linger();
        return;
    };
    for stream in [&client, &backend] {
        let _ = stream.set_nodelay(true);
        // The end of a pod that was killed is told by nobody.
        let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    }
    let copied = copy_bidirectional_with_sizes(&mut client, &mut backend, BUFFER, BUFFER).await;
    // A reset of one is a reset for the other.
    if copied.is_err() {
        let _ = client.set_zero_linger();
        let _ = backend.set_zero_linger();
    }
}
