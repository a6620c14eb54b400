//! The pods' DNS server: forwards queries to the host's name servers, which pods cannot reach themselves if the servers listen on
//! the host's loopback interface only, as systemd-resolved does.

use std::{io, os::fd::BorrowedFd, sync::Arc, thread, time::Duration};

use nix::sys::resource::{Resource, getrlimit};
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    runtime::Builder,
    time::{sleep, timeout},
};

use super::{program::DNS, relay::OWN_DESCRIPTORS};
use crate::links::within;
use crate::{Slots, resolver};

const PORT: u16 = 53;
/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// The delay after a failed accept: no file descriptor is free until a query has ended.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// The maximum number of queries in progress, and of connections. A client repeats a dropped query.
const QUERIES: u64 = 512;
/// The largest message over UDP.
const MESSAGE: usize = 65_535;

/// Listens in the namespace, and serves on a thread of its own.
pub(super) fn serve(netns: BorrowedFd<'_>) -> io::Result<()> {
    let (udp, tcp) = within(Some(netns), || -> io::Result<_> {
        let udp = std::net::UdpSocket::bind((DNS, PORT))?;
        let tcp = std::net::TcpListener::bind((DNS, PORT))?;
        udp.set_nonblocking(true).and(tcp.set_nonblocking(true))?;
        Ok((udp, tcp))
    })??;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    // At most a sixteenth of the descriptors: a connection needs a second one for its query.
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let limit = (soft.saturating_sub(OWN_DESCRIPTORS) / 16).min(QUERIES) as usize;
    let pool = move |name| Slots::on_stderr(name, limit);
    let work = move || {
        runtime.block_on(async {
            let datagrams = datagrams(UdpSocket::from_std(udp)?, pool("DNS queries"));
            let streams = streams(TcpListener::from_std(tcp)?, pool("DNS connections"));
            tokio::join!(datagrams, streams);
            io::Result::Ok(())
        })
    };
    thread::Builder::new().name("dns".to_owned()).spawn(work).map(drop)
}

async fn datagrams(socket: UdpSocket, pool: Slots) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; MESSAGE];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let Some(slot) = pool.take(client.ip()) else {
            continue;
        };
        let (query, socket) = (buffer[..length].to_vec(), socket.clone());
        tasks::spawn(async move {
            let resolved = tokio::select! {
                resolved = resolver::resolve(query, false) => resolved,
                () = slot.closed() => None,
            };
            if let Some(answer) = resolved {
                let _ = socket.send_to(&answer, client).await;
            }
        });
    }
}

async fn streams(listener: TcpListener, pool: Slots) {
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            sleep(EXHAUSTED).await;
            continue;
        };
        if let Some(slot) = pool.take(client.ip()) {
            tasks::spawn(async move {
                tokio::select! {
                    _ = converse(stream, || slot.record_response()) => {}
                    () = slot.closed() => {}
                }
            });
        }
    }
}

/// Answers a client's queries until either side is silent for too long.
async fn converse(mut stream: TcpStream, answered: impl Fn()) -> io::Result<()> {
    loop {
        let query = timeout(SILENCE, resolver::read_message(&mut stream)).await??;
        let Some(answer) = resolver::resolve(query, true).await else {
            return Ok(());
        };
        timeout(SILENCE, resolver::write_message(&mut stream, &answer)).await??;
        answered();
    }
}
