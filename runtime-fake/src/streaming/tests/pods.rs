//! Port-forward over every protocol.

use bytes::Bytes;
use rstest::rstest;
use stream::{Channels, Codec, Connection, Headers, Role, Stream, Tunnel, connect};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    client::{rest, spdy, websocket},
    fixture, in_time,
};

/// A port-forward connection: SPDY directly, or tunnelled.
async fn forward(url: &str, tunnelled: bool) -> Connection {
    fn over(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Connection {
        let (connection, _, driver) = connect(io, Role::Client);
        tokio::spawn(driver.run());
        connection
    }
    if tunnelled {
        over(Tunnel::new(websocket(url, "SPDY/3.1+portforward.k8s.io").await))
    } else {
        over(spdy(url, "portforward.k8s.io").await)
    }
}

/// One connection to a port, as kubectl opens it.
fn open(connection: &Connection, port: u16, request: &str) -> (Stream, Stream) {
    let port = port.to_string();
    let stream = |kind| {
        let headers = [("streamType", kind), ("port", port.as_str()), ("requestID", request)];
        connection.open(Headers::of(&headers))
    };
    (stream("error"), stream("data"))
}

#[rstest]
#[case(false)]
#[case(true)]
#[tokio::test]
async fn hundred_forwards_share_one_connection(#[case] tunnelled: bool) {
    let fixture = fixture().await;
    let connection = forward(&fixture.ports(&[]), tunnelled).await;
    let mut forwards = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (mut error, mut data) = open(&connection, 7, &n.to_string());
        forwards.spawn(async move {
            error.outlet.end().await;
            let text = format!("{n} ").repeat(10_000);
            let sent = async {
                data.outlet.send(text.clone().into()).await.unwrap();
                data.outlet.end().await;
            };
            let (back, ()) = tokio::join!(rest(&mut data.inlet), sent);
            assert_eq!(back.len(), text.len() + 3);
            assert!(back == text + "bye");
            assert_eq!(rest(&mut error.inlet).await, "");
        });
    }
    while let Some(forwarded) = forwards.join_next().await {
        forwarded.unwrap();
    }
    drop(connection);
    fixture.nothing_left().await;
}

#[tokio::test]
async fn forward_to_closed_port_reports_connection_refused() {
    let fixture = fixture().await;
    let connection = forward(&fixture.ports(&[]), false).await;
    let (mut error, mut data) = open(&connection, 80, "0");
    let text = rest(&mut error.inlet).await;
    assert!(text.starts_with("pod "), "{text}");
    assert!(text.ends_with("failed to connect: connection refused"), "{text}");
    assert_eq!(rest(&mut data.inlet).await, "");
    // The other connections are not affected.
    let (_error, mut data) = open(&connection, 7, "1");
    data.outlet.send("still".into()).await.unwrap();
    data.outlet.end().await;
    assert_eq!(rest(&mut data.inlet).await, "stillbye");
}

#[tokio::test]
async fn stuck_forward_ends_when_client_closes_it() {
    let fixture = fixture().await;
    let connection = forward(&fixture.ports(&[]), false).await;
    let (_error, stuck) = open(&connection, 9, "0");
    let (_error, mut data) = open(&connection, 7, "1");
    data.outlet.send("x".into()).await.unwrap();
    assert_eq!(in_time("an echo", data.inlet.next()).await.unwrap(), "x");
    stuck.outlet.abort().await;
    data.outlet.end().await;
    assert_eq!(rest(&mut data.inlet).await, "bye");
    drop((stuck, connection));
}

#[tokio::test]
async fn invalid_forward_streams_are_reset() {
    let fixture = fixture().await;
    let connection = forward(&fixture.ports(&[]), false).await;
    for headers in [
        vec![],
        vec![("streamType", "data")],
        vec![("streamType", "data"), ("port", "0")],
        vec![("streamType", "data"), ("port", "65536")],
        vec![("streamType", "stdin"), ("port", "7")],
    ] {
        let stream = connection.open(Headers::of(&headers));
        in_time("a reset", stream.outlet.closed()).await;
    }
    let twice = [("streamType", "data"), ("port", "7"), ("requestID", "a")];
    let first = connection.open(Headers::of(&twice));
    let second = connection.open(Headers::of(&twice));
    in_time("a reset", second.outlet.closed()).await;
    first.outlet.send(Bytes::from_static(b"still open")).await.unwrap();
}

#[rstest]
#[case("v4.channel.k8s.io", Codec::Binary)]
#[case("v4.base64.channel.k8s.io", Codec::Base64)]
#[tokio::test]
async fn websocket_channels_carry_each_port(#[case] protocol: &str, #[case] codec: Codec) {
    let fixture = fixture().await;
    let socket = websocket(&fixture.ports(&[7, 80]), protocol).await;
    let mut channels = Channels::new(socket, codec, false, Role::Client);
    let (mut data, mut error) = (channels.inlet(0), channels.inlet(1));
    let (mut data2, mut error2) = (channels.inlet(2), channels.inlet(3));
    let outlet = channels.outlet(0);
    let driving = tokio::spawn(channels.run());
    for inlet in [&mut data, &mut error] {
        assert_eq!(in_time("a port", inlet.next()).await.unwrap()[..], [7, 0]);
    }
    for inlet in [&mut data2, &mut error2] {
        assert_eq!(in_time("a port", inlet.next()).await.unwrap()[..], [80, 0]);
    }
    let text = in_time("an error", error2.next()).await.unwrap();
    assert!(text.ends_with(b"connection refused"), "{text:?}");
    outlet.send("hello".into()).await.unwrap();
    assert_eq!(in_time("an echo", data.next()).await.unwrap(), "hello");
    drop(outlet);
    in_time("the end", driving).await.unwrap().unwrap();
    fixture.nothing_left().await;
}

#[tokio::test]
async fn websocket_forward_without_ports_is_bad_request() {
    let fixture = fixture().await;
    let headers = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let answer = super::client::ask(&fixture.ports(&[]), headers).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
}
