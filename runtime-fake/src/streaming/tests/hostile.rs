//! Misbehaving clients: each has a token, and none harms the server.

use std::{
    io::ErrorKind,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use rstest::rstest;
use stream::{Headers, Role, connect};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    Fixture,
    client::{Client, V4, command, send, spdy, websocket},
    fixture, in_time,
};

/// Serves a well-behaved client.
async fn still_serves(fixture: &Fixture) {
    let url = fixture.exec(&["say", "fine"], "oe");
    let mut client = command(&url, "SPDY v4.channel.k8s.io", "oe").await;
    assert_eq!(Client::all(&mut client.stdout).await, "fine");
    drop(client);
    fixture.nothing_left().await;
}

/// Reads until the server closes the connection.
async fn until_closed(mut io: TcpStream) {
    let mut nowhere = vec![0; 64 << 10];
    let closed = async { while io.read(&mut nowhere).await.is_ok_and(|n| n > 0) {} };
    in_time("the connection to be closed", closed).await;
}

fn syn(id: u32) -> Vec<u8> {
    let [a, b, c, d] = id.to_be_bytes();
    vec![0x80, 3, 0, 1, 0, 0, 0, 10, a, b, c, d, 0, 0, 0, 0, 0, 0]
}

#[rstest]
#[case::noise(b"\xde\xad\xbe\xef\xde\xad\xbe\xef and so on and so on".to_vec())]
#[case::http_again(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec())]
#[case::another_version(vec![0x80, 2, 0, 1, 0, 0, 0, 0])]
#[case::a_control_frame_of_16_mib(vec![0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff])]
#[case::no_stream(vec![0, 0, 0, 0, 0, 0, 0, 1, b'x'])]
#[case::no_headers(syn(1))]
#[case::headers_that_cannot_be_inflated([&[0x80, 3, 0, 1, 0, 0, 0, 14][..], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]].concat())]
#[case::settings_without_end(vec![0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff])]
#[case::a_window_beyond_all_measure([0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff].repeat(3))]
#[tokio::test]
async fn invalid_spdy_frames_close_connection(#[case] bytes: Vec<u8>) {
    let fixture = fixture().await;
    let mut io = spdy(&fixture.exec(&["cat"], "io"), V4).await;
    io.write_all(&bytes).await.unwrap();
    until_closed(io).await;
    still_serves(&fixture).await;
}

#[tokio::test]
async fn data_frame_of_unknown_stream_is_discarded() {
    let fixture = fixture().await;
    let mut io = spdy(&fixture.exec(&["cat"], "io"), V4).await;
    // SETTINGS: this client uses windows of 64 KiB.
    let settings = [0x80, 3, 0, 4, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 7, 0, 1, 0, 0];
    io.write_all(&settings).await.unwrap();
    io.write_all(&[0, 0, 0, 9, 0, 0xff, 0xff, 0xff]).await.unwrap();
    let (mut read, mut write) = io.split();
    let sent = async {
        for _ in 0..255 {
            write.write_all(&[0; 64 << 10]).await.unwrap();
        }
    };
    // The server sends its own settings, and a window update.
    let told = async {
        let (mut own, mut update) = ([0; 20], [0; 16]);
        read.read_exact(&mut own).await.unwrap();
        assert_eq!(own, settings);
        read.read_exact(&mut update).await.unwrap();
        assert_eq!(update[..8], [0x80, 3, 0, 9, 0, 0, 0, 8]);
    };
    in_time("all of it", async { tokio::join!(sent, told) }).await;
    drop(io);
    still_serves(&fixture).await;
}

#[tokio::test]
async fn excess_streams_are_refused() {
    let fixture = fixture().await;
    for (url, protocol) in
        [(fixture.exec(&["cat"], "io"), V4), (fixture.ports(&[]), "portforward.k8s.io")]
    {
        let io = spdy(&url, protocol).await;
        let (connection, _, driver) = connect(io, Role::Client);
        let driving = tokio::spawn(driver.run());
        let port = [("streamType", "data"), ("port", "7")];
        let streams: Vec<_> = (0..10_000).map(|_| connection.open(Headers::of(&port))).collect();
        // The last ones are refused, because they are too many or invalid.
        in_time("a reset", streams[9_999].outlet.closed()).await;
        driving.abort();
        fixture.nothing_left().await;
    }
    still_serves(&fixture).await;
}

#[tokio::test]
async fn duplicate_stream_id_closes_connection() {
    let fixture = fixture().await;
    let (client, server) = tokio::io::duplex(1 << 20);
    // The first stream of a correct client, with a lower ID.
    let (connection, _, driver) = connect(client, Role::Client);
    let first = connection.open(Headers::of(&[("streamType", "error")]));
    let driving = tokio::spawn(driver.run());
    let (mut server, mut frame) = (server, vec![0; 8]);
    server.read_exact(&mut frame).await.unwrap();
    let length = usize::from(frame[7]);
    frame.resize(8 + length, 0);
    server.read_exact(&mut frame[8..]).await.unwrap();
    drop(first);
    driving.abort();
    let mut io = spdy(&fixture.exec(&["cat"], "io"), V4).await;
    io.write_all(&frame).await.unwrap();
    io.write_all(&frame).await.unwrap();
    until_closed(io).await;
    still_serves(&fixture).await;
}

#[tokio::test]
async fn unread_ping_replies_close_connection() {
    let fixture = fixture().await;
    let mut io = spdy(&fixture.exec(&["cat"], "io"), V4).await;
    let pings = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1].repeat(1 << 10);
    let asked = async { while io.write_all(&pings).await.is_ok() {} };
    in_time("to be cut off", asked).await;
    still_serves(&fixture).await;
}

#[tokio::test]
async fn oversized_websocket_message_closes_connection() {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::Message;
    let fixture = fixture().await;
    let mut socket = websocket(&fixture.exec(&["cat"], "io"), "v5.channel.k8s.io").await;
    let long = Message::Binary(vec![0; 3 << 19].into());
    let _ = socket.send(long).await;
    let closed = async { while let Some(Ok(_)) = socket.next().await {} };
    in_time("to be cut off", closed).await;
    still_serves(&fixture).await;
}

#[tokio::test]
async fn unexpected_websocket_messages_are_ignored() {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::Message;
    let fixture = fixture().await;
    let mut socket = websocket(&fixture.exec(&["cat"], "io"), "v5.channel.k8s.io").await;
    for message in [
        &b""[..],
        b"\x01to be read only",
        b"\x03x",
        b"\x04x",
        b"\x63x",
        b"\xff",
        b"\xff\x63",
        b"\xff\x00\x00",
        b"\x00hello",
        b"\xff\x00",
        b"\x00late",
    ] {
        let message = Message::Binary(message.to_vec().into());
        socket.send(message).await.unwrap();
    }
    socket.send(Message::Ping("p".into())).await.unwrap();
    let mut seen = Vec::new();
    let all = async {
        while let Some(Ok(message)) = socket.next().await {
            seen.push(message);
        }
    };
    in_time("the end", all).await;
    let is = |message: &Message, bytes: &[u8]| {
        message.is_binary() && message.clone().into_data() == bytes
    };
    assert!(seen.iter().any(|m| is(m, b"\x01hello")), "{seen:?}");
    assert!(seen.iter().any(Message::is_pong), "{seen:?}");
    // Go clients reject half-close signals from a server.
    let signal = |m: &Message| m.is_binary() && m.clone().into_data().starts_with(b"\xff");
    assert!(!seen.iter().any(signal), "{seen:?}");
    assert!(seen.last().is_some_and(Message::is_close), "{seen:?}");
    fixture.nothing_left().await;
}

#[tokio::test]
async fn silent_connections_do_not_block_other_clients() {
    let fixture = fixture().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(fixture.address()).await.unwrap());
    }
    for io in silent.iter_mut().take(100) {
        io.write_all(b"POST /exec/").await.unwrap();
    }
    still_serves(&fixture).await;
    assert_eq!(fixture.counts.live.load(Ordering::SeqCst), 0);
    // The server does not wait forever.
    let last = silent.pop().unwrap();
    let patience = Duration::from_secs(9);
    assert!(tokio::time::timeout(patience, until_closed(last)).await.is_err());
    until_closed(silent.remove(0)).await;
}

/// The number of connections without a token is limited: the oldest make room for new ones.
#[tokio::test]
async fn idle_connections_make_room_for_new_clients() {
    let fixture = fixture().await;
    let url = fixture.exec(&["cat"], "io");
    let mut early = command(&url, "SPDY v4.channel.k8s.io", "io").await;
    let began = Instant::now();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(fixture.address()).await.unwrap());
        let mut slow = TcpStream::connect(fixture.address()).await.unwrap();
        slow.write_all(b"POST /exec/0 HTTP/1.1\r\nHost").await.unwrap();
        idle.push(slow);
    }
    let late = fixture.exec(&["say", "late"], "oe");
    let mut late = command(&late, "SPDY v4.channel.k8s.io", "oe").await;
    assert_eq!(Client::all(&mut late.stdout).await, "late");
    drop(late);
    // Without a limit, each of them would have its 10 seconds.
    until_closed(idle.remove(0)).await;
    assert!(began.elapsed() < Duration::from_secs(8), "it closed after {:?}", began.elapsed());
    let newest = idle.last().unwrap().try_read(&mut [0]);
    assert_eq!(newest.unwrap_err().kind(), ErrorKind::WouldBlock);
    // A connection that has sent its token stays.
    let stdin = early.stdin.take();
    send(&stdin, "again").await;
    stdin.unwrap().end().await;
    assert_eq!(Client::all(&mut early.stdout).await, "again");
    drop(early);
    fixture.nothing_left().await;
}
