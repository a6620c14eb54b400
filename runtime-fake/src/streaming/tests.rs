//! The server through its sockets, with simulated processes and pods.
#![allow(clippy::unwrap_used)]

mod client;
mod commands;
mod hostile;
mod pods;
mod target;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::{
    Request, Server, Streams,
    target::{AttachRequest, ExecRequest},
};
use crate::{
    config::Streams as Settings,
    id::{ContainerId, SandboxId},
};
use target::{Counts, Fake};

/// Timeout for any step, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, with the counts of its target. Dropping it stops the server.
struct Fixture {
    streams: Streams,
    counts: Arc<Counts>,
    tasks: TaskTracker,
    serving: JoinHandle<()>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn fixture() -> Fixture {
    fixture_with(Settings::default()).await
}

async fn fixture_with(settings: Settings) -> Fixture {
    let counts = Arc::<Counts>::default();
    let server = Server::listen(settings.address).await.unwrap();
    let (streams, tasks) = (server.streams(), TaskTracker::new());
    let target = Arc::new(Fake(counts.clone()));
    let serving = tokio::spawn(server.serve(settings, target, tasks.clone()));
    Fixture { streams, counts, tasks, serving }
}

impl Fixture {
    fn address(&self) -> SocketAddr {
        *self.streams.address.as_ref().unwrap()
    }

    /// The URL of an exec; `i`, `o`, `e` and `t` select its streams and a terminal.
    fn exec(&self, argv: &[&str], streams: &str) -> String {
        let request = ExecRequest {
            container: ContainerId::random(),
            argv: argv.iter().copied().map(str::to_owned).collect(),
            tty: streams.contains('t'),
            stdin: streams.contains('i'),
            stdout: streams.contains('o'),
            stderr: streams.contains('e'),
        };
        self.streams.url(Request::Exec(request)).unwrap()
    }

    fn attach(&self, streams: &str) -> String {
        let request = AttachRequest {
            container: ContainerId::random(),
            tty: streams.contains('t'),
            stdin: streams.contains('i'),
            stdout: streams.contains('o'),
            stderr: streams.contains('e'),
        };
        self.streams.url(Request::Attach(request)).unwrap()
    }

    fn ports(&self, ports: &[u16]) -> String {
        let sandbox = SandboxId::random();
        let ports = ports.to_vec();
        let request = Request::PortForward { sandbox, ports };
        self.streams.url(request).unwrap()
    }

    /// Waits until no session of a client is left.
    async fn nothing_left(&self) {
        until("no session is left", || self.counts.live.load(Ordering::SeqCst) == 0).await;
    }
}

/// Waits until `fact` holds.
async fn until(what: &str, fact: impl Fn() -> bool) {
    let looked = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(what, looked).await;
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}
