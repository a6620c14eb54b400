//! Fuzz targets: requests to the stream server, and terminal sizes.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::{convert::Infallible, time::Duration};

use fuzz_target::{Target, bytes};
use hyper::{Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    runtime::Builder,
};

use super::{
    http::{handshake_headers, switching_protocols},
    negotiate::negotiate,
    resize::Sizes,
    token::Kind,
};

pub(crate) const TARGETS: &[Target] = &[
    Target::new("upgrade_request", upgrade_request, requests).slow(400),
    Target::new("terminal_sizes", sizes, size_seeds),
];

/// The negotiated protocol was offered by the client, and every request is answered within a timeout.
fn upgrade_request(data: &[u8]) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let data = &data[..data.len().min(64 << 10)];
    runtime.block_on(async {
        let (ours, mut theirs) = duplex(256 << 10);
        theirs.write_all(data).await.unwrap();
        theirs.shutdown().await.unwrap();
        let service = service_fn(async |request: hyper::Request<Incoming>| {
            let wanted = handshake_headers(request.headers());
            for kind in [Kind::Exec, Kind::Attach, Kind::PortForward] {
                if let Ok(agreed) = negotiate(kind, &wanted) {
                    let offered = wanted.stream_protocols.iter().chain(&wanted.websocket_protocols);
                    let mut words = offered.flat_map(|list| list.split(',').map(str::trim));
                    let named = agreed.protocol.as_deref();
                    assert!(named.is_none_or(|name| words.any(|word| word == name)), "{agreed:?}");
                    assert!(wanted.upgrade.is_some());
                    let _ = switching_protocols(&agreed, request.headers());
                }
            }
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let served = http1::Builder::new()
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(ours), service)
            .with_upgrades();
        let ended = tokio::time::timeout(Duration::from_secs(60), served).await;
        assert!(ended.is_ok(), "the connection does not end");
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).await.unwrap();
        assert!(heard.len() <= 1024 + 64 * data.len(), "{} bytes of answers", heard.len());
    });
}

fn requests() -> Vec<Vec<u8>> {
    bytes(&[
        "POST /exec/abc HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nX-Stream-Protocol-Version: channel.k8s.io\r\n\r\n",
        "GET /portforward/abc HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io, v4.channel.k8s.io\r\n\r\n",
        "GET /attach/abc HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    ])
}

/// However the input is split, the last size is the same, if none exceeds the limit.
fn sizes(data: &[u8]) {
    let mut whole = Sizes::default();
    let at_once = whole.feed(data);
    let mut cut = Sizes::default();
    let mut latest = None;
    for piece in data.chunks(7) {
        latest = cut.feed(piece).or(latest);
    }
    if data.len() <= 1024 {
        assert_eq!(at_once, latest);
    }
}

fn size_seeds() -> Vec<Vec<u8>> {
    bytes(&["{\"Width\":80,\"Height\":24}\n{\"Width\":1,\"Height\":65535}\n", "{\"Width\":80,"])
}
