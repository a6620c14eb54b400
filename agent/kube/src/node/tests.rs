//! Heartbeats at a server that falls silent: the client closes its connections, and its watches begin again.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::join;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

use super::heartbeat::{HeartbeatState, try_updates};
use super::lease::Lease;
use super::startup::NodeStartup;
use super::status::Facts;
use crate::client::{ApiClient, Reflector, plain_client};

/// How long a test waits.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a heartbeat waits for an answer.
const LIMIT: Duration = Duration::from_secs(1);
const WATCH_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A server that answers no heartbeat on connections that it accepted before two heartbeats were left unanswered.
struct Server {
    unanswered: AtomicUsize,
    /// How many watches began.
    watches: AtomicUsize,
    /// How many silent connections are open.
    silent: AtomicUsize,
    /// Answers requests of `/idle` together, so that each has its own connection.
    idle: Barrier,
}

impl Server {
    async fn serve(&self, mut stream: TcpStream) {
        if self.unanswered.load(Ordering::SeqCst) >= 2 {
            self.answer(&mut stream, true).await;
        } else {
            self.silent.fetch_add(1, Ordering::SeqCst);
            self.answer(&mut stream, false).await;
            self.silent.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Answers the requests of a connection until the client closes it; those of heartbeats if it `is_live`.
    async fn answer(&self, stream: &mut TcpStream, is_live: bool) {
        while let Some(head) = request(stream).await {
            let is_watch = head.contains("watch=true");
            let is_list = head.starts_with("GET /api/v1/pods");
            let is_idle = head.starts_with("GET /idle");
            let is_answered = is_list || is_idle || is_live;
            if is_watch {
                self.watches.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(WATCH_HEAD).await;
            } else if !is_answered {
                self.unanswered.fetch_add(1, Ordering::SeqCst);
            }
            if is_watch || !is_answered {
                // The client sends nothing: it closes the connection.
                let _ = stream.read_u8().await;
                return;
            }
            if is_idle {
                self.idle.wait().await;
            }
            let body = json!({"metadata": {"name": "n1", "resourceVersion": "8"}}).to_string();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

/// Reads a request. Returns its head.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let length: Option<usize> = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok()).flatten()
    });
    let mut body = vec![0_u8; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LONGEST, waiting).await.is_ok(), "{what}");
}

/// A server, and a client of it that has a watch and idle connections.
async fn start() -> (Arc<Server>, ApiClient) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Server {
        unanswered: AtomicUsize::new(0),
        watches: AtomicUsize::new(0),
        silent: AtomicUsize::new(0),
        idle: Barrier::new(3),
    });
    let accepting = Arc::clone(&server);
    tasks::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = Arc::clone(&accepting);
            tasks::spawn(async move { server.serve(stream).await });
        }
    });
    let client = plain_client(address);
    let mut pods = Reflector::new(client.clone(), "/api/v1/pods");
    tasks::spawn(async move {
        loop {
            pods.next().await;
        }
    });
    until("a watch", || server.watches.load(Ordering::SeqCst) == 1).await;
    let idle = || client.get("/idle", &[]);
    let (first, second, third) = join!(idle(), idle(), idle());
    for answer in [first, second, third] {
        answer.unwrap();
    }
    (server, client)
}

/// The third try succeeded, because it had a new connection; the watch has one too.
async fn assert_reconnected(server: &Server) {
    assert_eq!(server.unanswered.load(Ordering::SeqCst), 2);
    until("another watch", || server.watches.load(Ordering::SeqCst) == 2).await;
    until("no silent connection", || server.silent.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn lease_renewal_closes_connections_after_two_unanswered_tries() {
    let (server, client) = start().await;
    let lease = Lease::new(client.with_timeout(LIMIT), "n1".to_owned(), Duration::from_secs(40));
    let latest = json!({"metadata": {"name": "n1", "ownerReferences": [{"name": "n1"}]}});
    let renewed = lease.renew(latest).await;
    assert_eq!(renewed["metadata"]["resourceVersion"], "8");
    assert_reconnected(&server).await;
}

#[tokio::test]
async fn status_update_closes_connections_after_two_unanswered_tries() {
    let (server, client) = start().await;
    let facts = Facts { name: "n1".to_owned(), ..Facts::default() };
    let mut state = HeartbeatState::new(Duration::from_secs(300));
    let known = Some(json!({"metadata": {"name": "n1"}}));
    let startup = NodeStartup::new(None, Timestamp::now());
    let client = client.with_timeout(LIMIT);
    let events = try_updates(&client, &facts, &mut state, known, &startup).await;
    assert!(events.is_some());
    assert_reconnected(&server).await;
}
