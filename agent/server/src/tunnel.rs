//! Exec, attach and port-forward: the runtime gives a URL, and what the client and the runtime's server say to each other there
//! passes through unread.
//!
//! Source: Kubernetes 1.36, k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderValue,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, sink, split};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::answer::{Body, Refusal, whole};
use super::metrics::http::InFlight;

/// How long the runtime's server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a side has to close after the other one has.
const LINGER: Duration = Duration::from_secs(30);
/// How much of a refusal of the runtime is passed on, in bytes.
const LONGEST_REFUSAL: usize = 64 << 10;
/// What says who the client is, or how this connection carries a body: nothing of it is the runtime's business.
const OWN: [http::HeaderName; 6] =
    [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, HOST, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Two upgraded connections, when the client has been answered.
#[derive(Debug)]
pub(crate) struct Tunnel {
    client: OnUpgrade,
    runtime: OnUpgrade,
    /// The connection to the runtime, until it is upgraded.
    _driving: JoinSet<()>,
    /// The request, which lasts as long.
    in_flight: Option<InFlight>,
}

/// Whether a request asks for an upgrade.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut words = asked.flat_map(|value| value.split(','));
    headers.contains_key(UPGRADE) && words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// Whether a request asks for a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Whether a WebSocket is to carry SPDY for a port-forward.
pub(crate) fn is_tunnel(headers: &HeaderMap) -> bool {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let mut offered =
        offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    offered.any(|protocol| protocol.trim() == "SPDY/3.1+portforward.k8s.io")
}

/// Asks the runtime's server at a URL what the client asked. Its answer is the client's; with an upgrade, there is a tunnel.
pub(crate) async fn open(
    request: &mut Request<Incoming>,
    url: &str,
) -> Result<(Response<Body>, Option<Tunnel>), Refusal> {
    let opening = tokio::time::timeout(PATIENCE, asked(request, url)).await;
    opening.unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Err(Refusal::internal(format!(
            "the runtime's stream server did not answer within {seconds} s"
        )))
    })
}

async fn asked(
    request: &mut Request<Incoming>,
    url: &str,
) -> Result<(Response<Body>, Option<Tunnel>), Refusal> {
    // The path has a secret, which no message may show.
    let (authority, path) = parts(url).ok_or_else(|| {
        Refusal::internal("the runtime's stream URL cannot be used: only http://HOST:PORT/PATH is")
    })?;
    let failed = |problem: String| {
        Refusal::internal(format!(
            "failed to speak to the runtime's stream server at {authority}: {problem}"
        ))
    };
    let stream = TcpStream::connect(&authority).await.map_err(|error| failed(error.to_string()))?;
    // Keystrokes are small, and are waited for.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
    let mut driving = JoinSet::new();
    driving.spawn(tasks::boxed(async move {
        // The answer, or the upgraded connection, says what has failed.
        let _ = connection.with_upgrades().await;
    }));
    let mut forwarded = Request::new(Empty::<Bytes>::new());
    *forwarded.method_mut() = request.method().clone();
    *forwarded.uri_mut() = path;
    let passed = request.headers().iter().filter(|(name, _)| !OWN.contains(name));
    forwarded.headers_mut().extend(passed.map(|(name, value)| (name.clone(), value.clone())));
    let host = HeaderValue::from_str(&authority).map_err(|error| failed(error.to_string()))?;
    forwarded.headers_mut().insert(HOST, host);
    let mut answer =
        sender.send_request(forwarded).await.map_err(|error| failed(error.to_string()))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (mut head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST_REFUSAL).collect().await;
        let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
        for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
        return Ok((Response::from_parts(head, whole(body)), None));
    }
    let tunnel = Tunnel {
        client: hyper::upgrade::on(&mut *request),
        runtime: hyper::upgrade::on(&mut answer),
        _driving: driving,
        in_flight: None,
    };
    let (head, _) = answer.into_parts();
    Ok((Response::from_parts(head, whole(Bytes::new())), Some(tunnel)))
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
    /// Counts a request until the tunnel has ended.
    pub(crate) fn hold(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }

    /// Carries bytes until both sides have closed.
    pub(crate) async fn run(self) -> hyper::Result<()> {
        let (client, runtime) = tokio::try_join!(self.client, self.runtime)?;
        carry(TokioIo::new(client), TokioIo::new(runtime)).await;
        Ok(())
    }
}

/// A side that has closed gets what the other one still sends, and the other one is given a while to close too. A connection is
/// not closed while its client sends: the kernel would reset it, and what the client has not read would be lost.
async fn carry<S: AsyncRead + AsyncWrite>(client: S, runtime: S) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_runtime, mut to_runtime) = split(runtime);
    // Errors are those of a side that has gone: the other direction ends by itself.
    let up = async {
        let _ = copy(&mut from_client, &mut to_runtime).await;
        let _ = to_runtime.shutdown().await;
        // What the runtime no longer takes.
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
    use rstest::rstest;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn client_reads_all_though_it_still_sends_when_the_runtime_has_closed() {
        const LENGTH: usize = 300_000;
        let ((mut client, to_client), (to_runtime, mut runtime)) = (pair().await, pair().await);
        let carrying = tasks::spawn(carry(to_client, to_runtime));
        let ending = tasks::spawn(async move {
            runtime.write_all(&vec![b'x'; LENGTH]).await.unwrap();
            runtime.shutdown().await.unwrap();
        });
        let mut bytes = vec![0; 1000];
        let mut length = 0;
        // As with the window updates of SPDY, every read is answered.
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
