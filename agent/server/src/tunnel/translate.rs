//! Translates a client's WebSocket for a runtime whose stream server supports only SPDY, such as containerd's.
//!
//! | the client's protocol | the runtime's protocol |
//! |---|---|
//! | `v5.channel.k8s.io`: messages that begin with a channel number | `v4.channel.k8s.io`: a stream for each channel |
//! | `SPDY/3.1+portforward.k8s.io`: SPDY in messages | `portforward.k8s.io`: SPDY |
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/util/proxy: streamtranslator.go, streamtunnel.go and websocket.go.

use std::future::pending;
use std::time::Duration;

use agent::cri::StreamOptions;
use bytes::Bytes;
use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use stream::{Channels, Codec, Headers, Inlet, Outlet, Role, connect, websocket_config};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role as End;

/// The header with the protocol within SPDY.
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const SPDY: &str = "SPDY/3.1";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// Channel numbers.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// The time that a client has to close after a command has ended.
const LINGER: Duration = Duration::from_secs(5);
/// The maximum length of a command's status, in bytes.
const LONGEST_STATUS: usize = 64 << 10;
/// The status of a command if the runtime reported none. The kubelet reports success then, which may be wrong.
const LOST: &str = concat!(
    r#"{"metadata":{},"status":"Failure","#,
    r#""message":"Internal error occurred: the runtime closed the stream without a status","#,
    r#""reason":"InternalError","#,
    r#""details":{"causes":[{"message":"the runtime closed the stream without a status"}]},"#,
    r#""code":500}"#
);

/// The translation of a client's WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// WebSocket channels to the SPDY streams of a command.
    Command(StreamOptions),
    /// WebSocket messages to the bytes of SPDY.
    PortForward,
}

/// Whether a request asks for a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    is(headers, UPGRADE.as_str(), "websocket")
}

/// Whether a WebSocket carries SPDY for a port-forward.
pub(crate) fn is_tunnel(headers: &HeaderMap) -> bool {
    offers(headers, TUNNEL)
}

fn is(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers.get(name).is_some_and(|found| found.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
}

fn offers(headers: &HeaderMap, protocol: &str) -> bool {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let mut offered =
        offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    offered.any(|one| one.trim() == protocol)
}

impl Translation {
    /// The translation of a client's request, if one is possible. A port-forward has no options.
    pub(crate) fn of(headers: &HeaderMap, options: Option<StreamOptions>) -> Option<Self> {
        let translation = options.map_or(Self::PortForward, Self::Command);
        let has_handshake = is(headers, SEC_WEBSOCKET_VERSION.as_str(), "13")
            && headers.contains_key(SEC_WEBSOCKET_KEY);
        let is_offered = offers(headers, translation.client_protocol());
        (is_websocket(headers) && has_handshake && is_offered).then_some(translation)
    }

    const fn client_protocol(self) -> &'static str {
        match self {
            Self::Command(_) => "v5.channel.k8s.io",
            Self::PortForward => TUNNEL,
        }
    }

    const fn runtime_protocol(self) -> &'static str {
        match self {
            Self::Command(_) => "v4.channel.k8s.io",
            Self::PortForward => "portforward.k8s.io",
        }
    }

    /// Replaces the WebSocket headers of a request with those for SPDY.
    pub(crate) fn request_spdy(self, headers: &mut HeaderMap) {
        for name in [
            SEC_WEBSOCKET_EXTENSIONS,
            SEC_WEBSOCKET_KEY,
            SEC_WEBSOCKET_PROTOCOL,
            SEC_WEBSOCKET_VERSION,
        ] {
            headers.remove(name);
        }
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
        headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(self.runtime_protocol()));
    }

    /// Whether the runtime has accepted SPDY and the offered protocol.
    pub(crate) fn is_accepted(self, answer: &HeaderMap) -> bool {
        is(answer, UPGRADE.as_str(), SPDY) && is(answer, STREAM_PROTOCOL, self.runtime_protocol())
    }

    /// The headers of the response to the client, whose request has a key.
    pub(crate) fn answer(self, request: &HeaderMap) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        let protocol = HeaderValue::from_static(self.client_protocol());
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        if let Some(key) = request.get(SEC_WEBSOCKET_KEY)
            && let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        {
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        }
        headers
    }
}

async fn websocket<C: AsyncRead + AsyncWrite + Unpin>(client: C) -> WebSocketStream<C> {
    WebSocketStream::from_raw_socket(client, End::Server, Some(websocket_config())).await
}

/// The SPDY connection within a client's WebSocket.
pub(crate) async fn tunnelled<C: AsyncRead + AsyncWrite + Unpin>(client: C) -> stream::Tunnel<C> {
    stream::Tunnel::new(websocket(client).await)
}

/// Carries a command's streams until the command has ended or either side has disconnected.
pub(crate) async fn command<C, R>(client: C, runtime: R, options: StreamOptions)
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite,
{
    let mut channels = Channels::new(websocket(client).await, Codec::Binary, true, Role::Server);
    let (connection, _, driver) = connect(runtime, Role::Client);
    let open = |kind: &str| connection.open(Headers::of(&[("streamType", kind)]));
    let error = open("error").inlet;
    let stdin = options.stdin.then(|| (channels.inlet(STDIN), open("stdin").outlet));
    let stdout = options.stdout.then(|| (open("stdout").inlet, channels.outlet(STDOUT)));
    let stderr = options.stderr.then(|| (open("stderr").inlet, channels.outlet(STDERR)));
    let resize = options.tty.then(|| (channels.inlet(RESIZE), open("resize").outlet));
    let first = match options {
        StreamOptions { stdout: true, .. } => STDOUT,
        StreamOptions { stderr: true, .. } => STDERR,
        StreamOptions { .. } => ERROR,
    };
    let (first, report) = (channels.outlet(first), channels.outlet(ERROR));
    let talk = async move {
        // An empty message on the first output channel tells the client that it is connected.
        let _ = first.send(Bytes::new()).await;
        let input = async {
            tokio::join!(pass(stdin), pass(resize));
            pending::<()>().await;
        };
        // The status comes last, as in the kubelet: some clients stop reading after it.
        let output = async { tokio::join!(pass(stdout), pass(stderr), status(error)).2 };
        tokio::select! {
            status = output => {
                let _ = report.send(status).await;
            }
            () = input => {}
        }
    };
    let runtime = async move {
        if let Err(error) = driver.run().await {
            tracing::debug!(%error, "the runtime's stream connection failed");
        }
        // Ends the streams after the data that they have received.
        drop(connection);
        pending::<()>().await;
    };
    let driven = channels.run();
    tokio::pin!(driven);
    // It must not be polled again after completion.
    tokio::select! {
        ended = &mut driven => {
            if let Err(error) = ended {
                tracing::debug!(%error, "stream client disconnected early");
            }
            return;
        }
        () = talk => {}
        () = runtime => {}
    }
    let _ = tokio::time::timeout(LINGER, driven).await;
}

/// Copies a stream until it ends. When the receiver stops reading, the rest is dropped, so that the connection's other streams
/// continue.
async fn pass(ends: Option<(Inlet, Outlet)>) {
    let Some((mut inlet, outlet)) = ends else {
        return;
    };
    let mut is_read = true;
    while let Some(bytes) = inlet.next().await {
        is_read = is_read && outlet.send(bytes).await.is_ok();
    }
    outlet.end().await;
}

/// The status that the runtime reports.
async fn status(mut error: Inlet) -> Bytes {
    let mut status = Vec::new();
    while let Some(bytes) = error.next().await {
        let room = LONGEST_STATUS.saturating_sub(status.len());
        status.extend(bytes.into_iter().take(room));
    }
    if status.is_empty() { Bytes::from_static(LOST.as_bytes()) } else { status.into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use rstest::rstest;
    use stream::Stream;
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    const ALL: StreamOptions =
        StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
    const TERMINAL: StreamOptions =
        StreamOptions { stdin: true, stdout: true, stderr: false, tty: true };

    /// A client and a runtime with a command between them.
    struct Carried {
        channels: Channels<DuplexStream>,
        streams: HashMap<String, Stream>,
        serving: JoinHandle<()>,
        carrying: JoinHandle<()>,
    }

    impl Carried {
        async fn new(options: StreamOptions, opened: usize) -> Self {
            let ((client, near), (far, runtime)) = (duplex(1024), duplex(1024));
            let carrying = tasks::spawn(command(near, far, options));
            let (connection, mut opening, driver) = connect(runtime, Role::Server);
            let serving = tasks::spawn(async move {
                let _connection = connection;
                let _ = driver.run().await;
            });
            let mut streams = HashMap::new();
            while streams.len() < opened {
                let stream = opening.recv().await.unwrap();
                streams.insert(stream.headers.get("streamType").unwrap().to_owned(), stream);
            }
            let config = Some(websocket_config());
            let socket = WebSocketStream::from_raw_socket(client, End::Client, config).await;
            let channels = Channels::new(socket, Codec::Binary, true, Role::Client);
            Self { channels, streams, serving, carrying }
        }
    }

    async fn text(inlet: &mut Inlet) -> String {
        let mut all = Vec::new();
        while let Some(bytes) = inlet.next().await {
            all.extend_from_slice(&bytes);
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn channels_of_a_websocket_are_streams_of_spdy() {
        const STATUS: &str = r#"{"metadata":{},"status":"Success"}"#;
        let Carried { mut channels, mut streams, carrying, .. } = Carried::new(ALL, 4).await;
        let stdin = channels.outlet(STDIN);
        let mut outputs = [STDOUT, STDERR, ERROR].map(|channel| channels.inlet(channel));
        let talking = tasks::spawn(channels.run());
        // More than any buffer holds.
        let long = "0123456789".repeat(100_000);
        let sent = Bytes::from(long.clone());
        let feeding = tasks::spawn(async move {
            stdin.send(sent).await.unwrap();
            stdin.end().await;
            stdin
        });
        assert!(text(&mut streams.get_mut("stdin").unwrap().inlet).await == long);
        for (name, said) in [("error", STATUS), ("stderr", "err"), ("stdout", "out")] {
            let outlet = &streams.get(name).unwrap().outlet;
            outlet.send(said.into()).await.unwrap();
            outlet.end().await;
        }
        for (output, said) in outputs.iter_mut().zip(["out", "err", STATUS]) {
            assert_eq!(text(output).await, said);
        }
        talking.await.unwrap().unwrap();
        carrying.await.unwrap();
        drop(feeding.await.unwrap());
    }

    #[tokio::test]
    async fn sizes_of_a_terminal_reach_the_runtime() {
        let Carried { mut channels, mut streams, carrying, .. } = Carried::new(TERMINAL, 4).await;
        let sizes = channels.outlet(RESIZE);
        let talking = tasks::spawn(channels.run());
        let size = "{\"Width\":80,\"Height\":24}\n";
        sizes.send(size.into()).await.unwrap();
        sizes.end().await;
        assert_eq!(text(&mut streams.get_mut("resize").unwrap().inlet).await, size);
        // A client that disconnects ends the runtime's connection.
        talking.abort();
        carrying.await.unwrap();
    }

    #[tokio::test]
    async fn lost_runtime_connection_is_reported_as_failure() {
        let Carried { mut channels, streams, serving, carrying } = Carried::new(ALL, 4).await;
        let stdin = channels.outlet(STDIN);
        let mut report = channels.inlet(ERROR);
        let talking = tasks::spawn(channels.run());
        serving.abort();
        drop(streams);
        assert_eq!(text(&mut report).await, LOST);
        let status: serde_json::Value = serde_json::from_str(LOST).unwrap();
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["code"], 500);
        talking.await.unwrap().unwrap();
        carrying.await.unwrap();
        drop(stdin);
    }

    #[rstest]
    #[case("websocket", "v5.channel.k8s.io", "13", Some(ALL), Some(Translation::Command(ALL)))]
    #[case("WebSocket", "x, v5.channel.k8s.io", "13", Some(ALL), Some(Translation::Command(ALL)))]
    #[case("websocket", TUNNEL, "13", None, Some(Translation::PortForward))]
    #[case("websocket", "v4.channel.k8s.io", "13", Some(ALL), None)]
    #[case("websocket", "v5.channel.k8s.io", "13", None, None)]
    #[case("websocket", TUNNEL, "13", Some(ALL), None)]
    #[case("websocket", "v5.channel.k8s.io", "8", Some(ALL), None)]
    #[case("SPDY/3.1", "v5.channel.k8s.io", "13", Some(ALL), None)]
    fn translated_requests_offer_the_protocol_of_their_kind(
        #[case] upgrade: &'static str,
        #[case] protocol: &'static str,
        #[case] version: &'static str,
        #[case] options: Option<StreamOptions>,
        #[case] expected: Option<Translation>,
    ) {
        let pairs = [
            (UPGRADE, upgrade),
            (SEC_WEBSOCKET_PROTOCOL, protocol),
            (SEC_WEBSOCKET_VERSION, version),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let headers = pairs.map(|(name, value)| (name, HeaderValue::from_static(value)));
        assert_eq!(Translation::of(&headers.into_iter().collect(), options), expected);
    }
}
