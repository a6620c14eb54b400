//! Minimal clients for each protocol.

use bytes::Bytes;
use serde_json::Value;
use stream::{
    Channels, Codec, Connection, Headers, Inlet, Outlet, Role, Tunnel, connect, websocket_config,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role as End};

use super::in_time;

pub(super) const V4: &str = "v4.channel.k8s.io";

/// A server's response: its status, its text, and the connection.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
    pub(super) io: TcpStream,
}

/// Requests `url` with these headers.
pub(super) async fn ask(url: &str, headers: &str) -> Answer {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut io = TcpStream::connect(host).await.unwrap();
    let request = format!("POST /{path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
    io.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(in_time("an answer", io.read_u8()).await.unwrap());
    }
    let text = String::from_utf8(head).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, text, io }
}

pub(super) async fn spdy(url: &str, protocol: &str) -> TcpStream {
    let headers = format!(
        "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {protocol}\r\n"
    );
    let answer = ask(url, &headers).await;
    assert_eq!(answer.status, 101, "{}", answer.text);
    let chosen = format!("x-stream-protocol-version: {protocol}\r\n");
    assert!(answer.text.contains(&chosen), "{}", answer.text);
    answer.io
}

pub(super) async fn websocket(url: &str, protocol: &str) -> WebSocketStream<TcpStream> {
    let headers = format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n"
    );
    let answer = ask(url, &headers).await;
    assert_eq!(answer.status, 101, "{}", answer.text);
    // RFC 6455, section 1.3: the response to the example's key.
    assert!(answer.text.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    WebSocketStream::from_raw_socket(answer.io, End::Client, Some(websocket_config())).await
}

/// A client's ends of a command's streams.
pub(super) struct Client {
    pub(super) stdin: Option<Outlet>,
    pub(super) stdout: Option<Inlet>,
    pub(super) stderr: Option<Inlet>,
    pub(super) resize: Option<Outlet>,
    pub(super) error: Inlet,
    pub(super) driving: JoinHandle<()>,
}

impl Client {
    /// Everything received on a stream.
    pub(super) async fn all(inlet: &mut Option<Inlet>) -> String {
        rest(inlet.as_mut().unwrap()).await
    }

    /// The task of a client that no longer uses its streams.
    pub(super) fn left(self) -> JoinHandle<()> {
        self.driving
    }

    pub(super) async fn status(&mut self) -> Value {
        serde_json::from_str(&rest(&mut self.error).await).unwrap()
    }
}

pub(super) async fn rest(inlet: &mut Inlet) -> String {
    let mut all = Vec::new();
    while let Some(chunk) = in_time("the end of a stream", inlet.next()).await {
        all.extend_from_slice(&chunk);
    }
    String::from_utf8(all).unwrap()
}

/// Opens a command's streams, selected as in [`super::Fixture::exec`], over any of the protocols.
pub(super) async fn command(url: &str, protocol: &str, streams: &str) -> Client {
    match protocol.strip_prefix("SPDY ") {
        Some("SPDY/3.1+v4.channel.k8s.io") => {
            let socket = websocket(url, "SPDY/3.1+v4.channel.k8s.io").await;
            over_spdy(Tunnel::new(socket), V4, streams)
        }
        Some(protocol) => over_spdy(spdy(url, protocol).await, protocol, streams),
        None => over_channels(websocket(url, protocol).await, protocol, streams),
    }
}

fn over_spdy<T>(io: T, protocol: &str, streams: &str) -> Client
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let (connection, _, driver) = connect(io, Role::Client);
    let open = |kind: &str| connection.open(Headers::of(&[("streamType", kind)]));
    let error = open("error").inlet;
    let wanted = |letter, kind| streams.contains(letter).then(|| open(kind));
    let resize =
        if ["v3.channel.k8s.io", V4].contains(&protocol) { wanted('t', "resize") } else { None };
    Client {
        stdin: wanted('i', "stdin").map(|stream| stream.outlet),
        stdout: wanted('o', "stdout").map(|stream| stream.inlet),
        stderr: wanted('e', "stderr").map(|stream| stream.inlet),
        resize: resize.map(|stream| stream.outlet),
        error,
        driving: tokio::spawn(async move {
            // Held until the end: a client closes the whole connection, not only its half.
            let _connection: Connection = connection;
            let _ = driver.run().await;
        }),
    }
}

fn over_channels(socket: WebSocketStream<TcpStream>, protocol: &str, streams: &str) -> Client {
    let codec = if protocol.contains("base64") { Codec::Base64 } else { Codec::Binary };
    let mut channels = Channels::new(socket, codec, protocol.starts_with("v5"), Role::Client);
    let stdin = streams.contains('i').then(|| channels.outlet(0));
    let stdout = streams.contains('o').then(|| channels.inlet(1));
    let stderr = streams.contains('e').then(|| channels.inlet(2));
    let error = channels.inlet(3);
    let resize = streams.contains('t').then(|| channels.outlet(4));
    let held = channels.outlet(99);
    Client {
        stdin,
        stdout,
        stderr,
        resize,
        error,
        driving: tokio::spawn(async move {
            let _held = held;
            let _ = channels.run().await;
        }),
    }
}

/// Sends text on a stream.
pub(super) async fn send(outlet: &Option<Outlet>, text: &str) {
    let sent = outlet.as_ref().unwrap().send(Bytes::copy_from_slice(text.as_bytes()));
    in_time("to send", sent).await.unwrap();
}
