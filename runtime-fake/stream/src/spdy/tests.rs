//! Windows: obeyed and widened for peers that use them.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::{
    frame::{Frame, HEAD, Head, INITIAL_WINDOW_SIZE, control, data_head, head},
    headers::Deflater,
    pipe::PIECE,
};

/// A peer that reads and writes frames.
struct Peer(DuplexStream);

enum Heard {
    Data(Vec<u8>),
    Frame(Frame),
}

impl Peer {
    async fn say(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.0.write_all(&bytes).await.unwrap();
    }

    async fn open(&mut self, id: u32) {
        let block = Deflater::new().block(&Headers::default());
        let (fin, unidirectional) = (false, false);
        self.say(&Frame::SynStream { id, fin, unidirectional, block }).await;
    }

    async fn hear(&mut self) -> Heard {
        let mut first = [0; HEAD];
        self.0.read_exact(&mut first).await.unwrap();
        let read = head(first).unwrap();
        let (Head::Data { length, .. } | Head::Control { length, .. }) = read;
        let mut rest = vec![0; length];
        self.0.read_exact(&mut rest).await.unwrap();
        match read {
            Head::Data { .. } => Heard::Data(rest),
            Head::Control { kind, flags, .. } => Heard::Frame(control(kind, flags, &rest).unwrap()),
        }
    }

    /// The number of data bytes received until the connection is idle.
    async fn data(&mut self) -> usize {
        let mut all = 0;
        let patience = Duration::from_millis(300);
        while let Ok(heard) = tokio::time::timeout(patience, self.hear()).await {
            if let Heard::Data(bytes) = heard {
                all += bytes.len();
            }
        }
        all
    }
}

/// A server with one stream, and its peer, which has sent `first`.
async fn served(first: &[Frame]) -> (Stream, Peer) {
    let (ours, theirs) = duplex(1 << 20);
    let (connection, mut streams, driver) = connect(ours, Role::Server);
    tokio::spawn(driver.run());
    let mut peer = Peer(theirs);
    for frame in first {
        peer.say(frame).await;
    }
    peer.open(1).await;
    let stream = streams.recv().await.unwrap();
    drop(connection);
    (stream, peer)
}

/// The frame of a peer that uses windows.
fn windows() -> Frame {
    Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 64 << 10)])
}

fn send(stream: Stream, length: usize) {
    tokio::spawn(async move {
        stream.outlet.send(Bytes::from(vec![0; length])).await.unwrap();
        // Hold the stream: a connection ends with its last stream.
        std::future::pending::<()>().await;
        drop(stream);
    });
}

#[tokio::test]
async fn windows_are_ignored_until_peer_uses_them() {
    let (stream, mut peer) = served(&[]).await;
    send(stream, 300_000);
    assert_eq!(peer.data().await, 300_000);
}

#[tokio::test]
async fn sender_waits_for_stream_window() {
    let small = Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 1000)]);
    let (stream, mut peer) = served(&[small]).await;
    send(stream, 10_000);
    assert_eq!(peer.data().await, 1000);
    let (id, delta) = (1, 1500);
    peer.say(&Frame::WindowUpdate { id, delta }).await;
    assert_eq!(peer.data().await, 1500);
    // A window update for another stream has no effect on this one.
    let id = 3;
    peer.say(&Frame::WindowUpdate { id, delta }).await;
    assert_eq!(peer.data().await, 0);
    // A smaller initial window also counts bytes already sent: there is room again after the updates exceed the reduction.
    peer.say(&Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 0)])).await;
    let (id, delta) = (1, 1100);
    peer.say(&Frame::WindowUpdate { id, delta }).await;
    assert_eq!(peer.data().await, 100);
}

#[tokio::test]
async fn sender_waits_for_connection_window() {
    let (id, delta) = (0, 1);
    let large = Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 1 << 20)]);
    let (stream, mut peer) = served(&[large, Frame::WindowUpdate { id, delta }]).await;
    send(stream, 200_000);
    assert_eq!(peer.data().await, (64 << 10) + 1);
    let (id, delta) = (0, 100);
    peer.say(&Frame::WindowUpdate { id, delta }).await;
    assert_eq!(peer.data().await, 100);
}

#[tokio::test]
async fn window_overflow_resets_stream() {
    let (stream, mut peer) = served(&[]).await;
    let (id, delta) = (1, 0x7fff_ffff);
    peer.say(&Frame::WindowUpdate { id, delta }).await;
    stream.outlet.closed().await;
    loop {
        if let Heard::Frame(Frame::Reset { id: 1, status }) = peer.hear().await {
            assert_eq!(status, 7);
            return;
        }
    }
}

#[tokio::test]
async fn reading_widens_windows() {
    let (mut stream, mut peer) = served(&[windows()]).await;
    let chunk = [0; 8 << 10];
    for _ in 0..4 {
        peer.0.write_all(&data_head(1, false, chunk.len())).await.unwrap();
        peer.0.write_all(&chunk).await.unwrap();
    }
    // All data has arrived, and none was read.
    loop {
        if let Heard::Frame(Frame::WindowUpdate { id, delta }) = peer.hear().await {
            assert_eq!((id, delta), (0, 32 << 10));
            break;
        }
    }
    let mut taken = 0;
    while taken < 32 << 10 {
        taken += stream.inlet.next().await.unwrap().len();
    }
    loop {
        if let Heard::Frame(Frame::WindowUpdate { id, delta }) = peer.hear().await {
            assert_eq!((id, delta), (1, 32 << 10));
            break;
        }
    }
}

/// Otherwise a peer that closes immediately would have unread frames, and its kernel would drop its last data.
#[tokio::test]
async fn windows_are_not_widened_until_peer_uses_them() {
    let (mut stream, mut peer) = served(&[]).await;
    let chunk = [0; 40 << 10];
    peer.0.write_all(&data_head(1, false, chunk.len())).await.unwrap();
    peer.0.write_all(&chunk).await.unwrap();
    let mut taken = 0;
    while taken < chunk.len() {
        taken += stream.inlet.next().await.unwrap().len();
    }
    // The answer arrives after all earlier frames.
    peer.say(&Frame::Ping(1)).await;
    loop {
        match peer.hear().await {
            Heard::Frame(Frame::Ping(1)) => break,
            Heard::Frame(Frame::WindowUpdate { id, .. }) => panic!("window {id} was widened"),
            Heard::Frame(_) | Heard::Data(_) => {}
        }
    }
    // Now the peer uses windows, and gets an update for all bytes that were read before.
    peer.say(&windows()).await;
    let mut told = Vec::new();
    while told.len() < 2 {
        if let Heard::Frame(Frame::WindowUpdate { id, delta }) = peer.hear().await {
            told.push((id, delta as usize));
        }
    }
    told.sort_unstable();
    assert_eq!(told, [(0, chunk.len()), (1, chunk.len())]);
}

#[tokio::test]
async fn server_announces_windows_and_client_answers() {
    let (ours, theirs) = duplex(1 << 20);
    let (_connection, _streams, driver) = connect(ours, Role::Client);
    tokio::spawn(driver.run());
    let mut server = Peer(theirs);
    server.say(&windows()).await;
    assert!(matches!(server.hear().await, Heard::Frame(Frame::Settings(_))));
    let (_stream, mut client) = served(&[]).await;
    assert!(matches!(client.hear().await, Heard::Frame(Frame::Settings(_))));
}

#[tokio::test]
async fn sender_does_not_wait_for_windows_while_nothing_is_read() {
    let (id, delta) = (1, 1);
    let (mut stream, mut peer) = served(&[]).await;
    peer.say(&Frame::WindowUpdate { id, delta }).await;
    // More than the queue holds: later frames of the peer are not read before these bytes.
    let chunk = [0; PIECE];
    for _ in 0..PIECES * 4 {
        let head = data_head(id, false, chunk.len());
        peer.0.write_all(&head).await.unwrap();
        peer.0.write_all(&chunk).await.unwrap();
    }
    let length = 300_000;
    let sent = stream.outlet.send(Bytes::from(vec![0; length]));
    let both = async { tokio::join!(sent, peer.data()) };
    let (sent, got) = tokio::time::timeout(Duration::from_secs(30), both)
        .await
        .expect("the sender waits for a window");
    assert_eq!((sent, got), (Ok(()), length));
    // After reading continues, the overdrawn window is obeyed again.
    let mut taken = 0;
    while taken < chunk.len() * PIECES * 4 {
        taken += stream.inlet.next().await.unwrap().len();
    }
    send(stream, 10_000);
    assert_eq!(peer.data().await, 0);
}
