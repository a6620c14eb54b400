//! Exec, attach and port-forward: the runtime provides a URL, and the bytes between client and runtime pass through unchanged, or
//! are translated to SPDY.
//!
//! Source: Kubernetes 1.36, k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go.

pub(crate) mod translate;

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderValue,
    PROXY_AUTHORIZATION, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, sink, split};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::authenticate::websocket_token;
use super::metrics::http::InFlight;
use super::response::{Body, ErrorResponse, full_body};
use translate::Translation;

/// The timeout of the runtime's stream server.
const STREAM_SERVER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that one side has to close after the other side has closed.
const LINGER: Duration = Duration::from_secs(30);
/// The maximum length of the runtime's error response that is passed on, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Headers that are not forwarded to the runtime: the client's credentials, and headers of this connection. A token among the
/// WebSocket protocols is not forwarded either ([`websocket_token::remove`]).
const NOT_FORWARDED: [http::HeaderName; 6] =
    [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, HOST, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Two connections that are upgraded after the response to the client.
#[derive(Debug)]
pub(crate) struct Tunnel {
    client: OnUpgrade,
    runtime: OnUpgrade,
    /// Drives the connection to the runtime until it is upgraded.
    _driving: JoinSet<()>,
    /// The translation, for a runtime that supports only SPDY.
    translation: Option<Translation>,
    /// Counts the request as in flight while the tunnel exists.
    in_flight: Option<InFlight>,
}

/// Whether a request has an upgrade header.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(','));
    headers.contains_key(UPGRADE) && words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// Forwards the client's request to the runtime's URL, or requests SPDY if there is a translation. Returns the runtime's response
/// and, after an upgrade, a tunnel.
pub(crate) async fn open(
    request: &mut Request<Incoming>,
    url: &str,
    translation: Option<Translation>,
) -> Result<(Response<Body>, Option<Tunnel>), ErrorResponse> {
    let opening =
        tokio::time::timeout(STREAM_SERVER_TIMEOUT, forward(request, url, translation)).await;
    opening.unwrap_or_else(|_| {
        let seconds = STREAM_SERVER_TIMEOUT.as_secs();
        Err(ErrorResponse::internal(format!(
            "the runtime's stream server did not answer within {seconds} s"
        )))
    })
}

async fn forward(
    request: &mut Request<Incoming>,
    url: &str,
    translation: Option<Translation>,
) -> Result<(Response<Body>, Option<Tunnel>), ErrorResponse> {
    // The path contains a secret, so it must not be in an error message.
    let (authority, path) = parts(url).ok_or_else(|| {
        ErrorResponse::internal(
            "unsupported stream URL of the runtime: expected http://HOST:PORT/PATH",
        )
    })?;
    let failed = |problem: String| {
        ErrorResponse::internal(format!(
            "failed to connect to the runtime's stream server at {authority}: {problem}"
        ))
    };
    let stream = TcpStream::connect(&authority).await.map_err(|error| failed(error.to_string()))?;
    // Send without delay: exec streams carry single keystrokes.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
    let mut driving = JoinSet::new();
    driving.spawn(tasks::boxed(async move {
        // The request, or the upgraded connection, reports the error.
        let _ = connection.with_upgrades().await;
    }));
    let mut forwarded = Request::new(Empty::<Bytes>::new());
    *forwarded.method_mut() = request.method().clone();
    *forwarded.uri_mut() = path;
    let passed = request.headers().iter().filter(|(name, _)| !NOT_FORWARDED.contains(name));
    forwarded.headers_mut().extend(passed.map(|(name, value)| (name.clone(), value.clone())));
    websocket_token::remove(forwarded.headers_mut());
    let host = HeaderValue::from_str(&authority).map_err(|error| failed(error.to_string()))?;
    forwarded.headers_mut().insert(HOST, host);
    if let Some(translation) = translation {
        *forwarded.method_mut() = Method::POST;
        translation.request_spdy(forwarded.headers_mut());
    }
    let mut answer =
        sender.send_request(forwarded).await.map_err(|error| failed(error.to_string()))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (mut head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ERROR_BYTES).collect().await;
        let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
        for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
        return Ok((Response::from_parts(head, full_body(body)), None));
    }
    if translation.is_some_and(|translation| !translation.is_accepted(answer.headers())) {
        return Err(failed("it upgraded to another protocol than the requested one".to_owned()));
    }
    let tunnel = Tunnel {
        client: hyper::upgrade::on(&mut *request),
        runtime: hyper::upgrade::on(&mut answer),
        _driving: driving,
        translation,
        in_flight: None,
    };
    let (mut head, _) = answer.into_parts();
    if let Some(translation) = translation {
        head.headers = translation.answer(request.headers());
    }
    Ok((Response::from_parts(head, full_body(Bytes::new())), Some(tunnel)))
}

/// ◆ Host and port, and the path with the query.
fn parts(url: &str) -> Option<(String, Uri)> {
    let url: Uri = url.parse().ok()?;
    let authority = url.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let is_http = url.scheme_str() == Some("http");
    let authority = match authority.port() {
        Some(_) => authority.as_str().to_owned(),
        None => format!("{authority}:80"),
    };
    let path = url.path_and_query()?.as_str().parse().ok()?;
    is_http.then_some((authority, path))
}

impl Tunnel {
    /// Counts a request as in flight until the tunnel has ended.
    pub(crate) fn count_in_flight(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }

    /// Carries bytes until both sides have closed.
    pub(crate) async fn run(self) -> hyper::Result<()> {
        let (client, runtime) = tokio::try_join!(self.client, self.runtime)?;
        let (client, runtime) = (TokioIo::new(client), TokioIo::new(runtime));
        match self.translation {
            None => copy_both_ways(client, runtime).await,
            Some(Translation::Command(options)) => {
                translate::command(client, runtime, options).await;
            }
            Some(Translation::PortForward) => {
                copy_both_ways(translate::tunnelled(client).await, runtime).await;
            }
        }
        Ok(())
    }
}

/// Copies bytes in both directions. After one side closes, it still receives the other side's data until that side closes or a
/// timeout passes. The client's data is drained even if the runtime reads no more: closing a connection with unread data makes
/// the kernel reset it, and the client could lose output.
async fn copy_both_ways(client: impl AsyncRead + AsyncWrite, runtime: impl AsyncRead + AsyncWrite) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_runtime, mut to_runtime) = split(runtime);
    // Errors mean that a side has closed: the other direction ends by itself.
    let up = async {
        let _ = copy(&mut from_client, &mut to_runtime).await;
        let _ = to_runtime.shutdown().await;
        // Drain the bytes that the runtime no longer accepts.
        let _ = copy(&mut from_client, &mut sink()).await;
    };
    let down = async {
        let _ = copy(&mut from_runtime, &mut to_client).await;
        let _ = to_client.shutdown().await;
    };
    let (mut up, mut down) = (pin!(up), pin!(down));
    // A side that does not close in time is disconnected.
    let _ = tokio::select! {
        () = &mut up => tokio::time::timeout(LINGER, down).await,
        () = &mut down => tokio::time::timeout(LINGER, up).await,
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Mutex;

    use hyper::server;
    use hyper::service::service_fn;
    use rstest::rstest;
    use stream::websocket_config;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn client_reads_all_output_while_sending_after_runtime_closes() {
        const LENGTH: usize = 300_000;
        let ((mut client, to_client), (to_runtime, mut runtime)) = (pair().await, pair().await);
        let carrying = tasks::spawn(copy_both_ways(to_client, to_runtime));
        let ending = tasks::spawn(async move {
            runtime.write_all(&vec![b'x'; LENGTH]).await.unwrap();
            runtime.shutdown().await.unwrap();
        });
        let mut bytes = vec![0; 1000];
        let mut length = 0;
        // Like the window updates of SPDY, every read gets a response.
        loop {
            match client.read(&mut bytes).await.unwrap() {
                0 => break,
                some => length += some,
            }
            client.write_all(b"more, please").await.unwrap();
        }
        assert_eq!(length, LENGTH);
        ending.await.unwrap();
        drop(client);
        tokio::time::timeout(LINGER / 2, carrying).await.unwrap().unwrap();
    }

    /// Reads up to the end of the headers; the bytes after them are not HTTP.
    async fn head(io: &mut TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(io.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    #[tokio::test]
    async fn websocket_of_a_port_forward_is_translated_to_spdy() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/portforward/token", listener.local_addr().unwrap());
        let runtime = async {
            let (mut io, _) = listener.accept().await.unwrap();
            let asked = head(&mut io).await;
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n";
            io.write_all(answer.as_bytes()).await.unwrap();
            let mut bytes = [0; 5];
            io.read_exact(&mut bytes).await.unwrap();
            io.write_all(&bytes).await.unwrap();
            asked
        };
        let (mut client, to_client) = pair().await;
        let opened = Mutex::new(None);
        let service = service_fn(|mut request: Request<Incoming>| {
            let (url, opened) = (&url, &opened);
            async move {
                let translation = Some(Translation::PortForward);
                let (answer, tunnel) = open(&mut request, url, translation).await.unwrap();
                *opened.lock().unwrap() = tunnel;
                Ok::<_, Infallible>(answer)
            }
        });
        let serving = async {
            let connection = server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(to_client), service)
                .with_upgrades();
            connection.await.unwrap();
            let tunnel = opened.lock().unwrap().take();
            tunnel.unwrap().run().await.unwrap();
        };
        let asking = async {
            let request = "GET /portForward/default/p HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer secret\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n\r\n";
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = head(&mut client).await;
            let config = Some(websocket_config());
            let socket = WebSocketStream::from_raw_socket(client, Role::Client, config).await;
            let mut tunnel = stream::Tunnel::new(socket);
            tunnel.write_all(b"hello").await.unwrap();
            tunnel.flush().await.unwrap();
            let mut echo = [0; 5];
            tunnel.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, b"hello");
            answer
        };
        let (asked, (), answer) = tokio::join!(runtime, serving, asking);
        assert!(asked.starts_with("POST /portforward/token HTTP/1.1\r\n"), "{asked}");
        let asked = asked.to_ascii_lowercase();
        assert!(asked.contains("\r\nupgrade: spdy/3.1\r\n"), "{asked}");
        assert!(asked.contains("\r\nx-stream-protocol-version: portforward.k8s.io\r\n"), "{asked}");
        assert!(!asked.contains("websocket") && !asked.contains("secret"), "{asked}");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        for header in [
            "\r\nupgrade: websocket\r\n",
            "\r\nsec-websocket-protocol: SPDY/3.1+portforward.k8s.io\r\n",
            "\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n",
        ] {
            assert!(answer.contains(header), "{header}: {answer}");
        }
    }

    #[tokio::test]
    async fn credentials_are_not_forwarded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
        let runtime = async {
            let (mut io, _) = listener.accept().await.unwrap();
            let asked = head(&mut io).await;
            let answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
            io.write_all(answer).await.unwrap();
            asked
        };
        let (mut client, to_client) = pair().await;
        let service = service_fn(|mut request: Request<Incoming>| {
            let url = &url;
            async move {
                let (answer, _) = open(&mut request, url, None).await.unwrap();
                Ok::<_, Infallible>(answer)
            }
        });
        let serving = async {
            let connection = server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(to_client), service);
            connection.await.unwrap();
        };
        let asking = async {
            // The token is `secret`.
            let request = "GET /exec/default/p/app HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n\
                Upgrade: websocket\r\nAuthorization: Bearer secret\r\nCookie: secret\r\n\
                Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0\r\n\
                Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = head(&mut client).await;
            drop(client);
            answer
        };
        let (asked, (), answer) = tokio::join!(runtime, serving, asking);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(!asked.contains("secret") && !asked.contains("c2VjcmV0"), "{asked}");
        let offered = "\r\nsec-websocket-protocol: v5.channel.k8s.io, v4.channel.k8s.io\r\n";
        assert!(asked.to_ascii_lowercase().contains(offered), "{asked}");
    }

    #[rstest]
    #[case("http://127.0.0.1:80/exec/a?b=c", Some(("127.0.0.1:80", "/exec/a?b=c")))]
    #[case("http://[::1]:1234/x", Some(("[::1]:1234", "/x")))]
    #[case("http://host/x", Some(("host:80", "/x")))]
    #[case("https://127.0.0.1:80/exec/a", None)]
    #[case("http://user@host:1/x", None)]
    #[case("/exec/a", None)]
    #[case("", None)]
    fn stream_url_has_parts(#[case] url: &str, #[case] expected: Option<(&str, &str)>) {
        let found = parts(url).map(|(authority, path)| (authority, path.to_string()));
        let expected = expected.map(|(authority, path)| (authority.to_owned(), path.to_owned()));
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], true)]
    #[case(&[("connection", "keep-alive, upgrade"), ("upgrade", "websocket")], true)]
    #[case(&[("upgrade", "SPDY/3.1")], false)]
    #[case(&[("connection", "Upgrade")], false)]
    fn upgrade_needs_both_headers(
        #[case] headers: &[(&'static str, &'static str)],
        #[case] is: bool,
    ) {
        let pairs = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), HeaderValue::from_static(value))
        });
        assert_eq!(is_upgrade(&pairs.collect()), is);
    }
}
