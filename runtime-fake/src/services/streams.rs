//! Forwards connections to backends.

use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
    time::{Duration, Instant},
};

use network::{Slot, Slots};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};

use super::{choice::BackendSelector, table::Backends};

/// Limit on the wait for a backend that does not answer, before the next one is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// The delay after running out of file descriptors or memory, until another connection closes.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Serves until the sender of the backends is dropped. Existing connections continue.
pub(super) async fn serve(
    listener: TcpListener,
    mut backends: watch::Receiver<Backends>,
    connections: Slots,
) {
    let mut selector = BackendSelector::default();
    loop {
        // Both branches are cancel-safe: nothing is accepted until `accept` returns, and a change stays unseen.
        let (client, peer) = tokio::select! {
            changed = backends.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            accepted = accept(&listener) => accepted,
        };
        let Some(slot) = connections.take(peer.ip()) else {
            let _ = client.set_zero_linger();
            continue;
        };
        let order = selector.order(&backends.borrow(), peer.ip(), Instant::now());
        tasks::spawn(relay(client, order, slot));
    }
}

/// Accepts a connection; errors of other connections are skipped.
pub(super) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client disconnected before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(EXHAUSTED).await,
        }
    }
}

/// Connects the client with the first backend that accepts. If none accepts, the client sees a reset.
async fn relay(client: TcpStream, backends: Vec<SocketAddrV4>, slot: Slot) {
    let connected = tokio::select! {
        connected = connect(&backends) => connected,
        () = slot.closed() => None,
    };
    match connected {
        Some(backend) => network::join(&client, &backend, &slot).await,
        None => drop(client.set_zero_linger()),
    }
}

async fn connect(backends: &[SocketAddrV4]) -> Option<TcpStream> {
    for backend in backends {
        match timeout(CONNECT, TcpStream::connect(*backend)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(%backend, %error, "backend refused"),
            Err(_) => tracing::debug!(%backend, "backend did not answer"),
        }
    }
    None
}
