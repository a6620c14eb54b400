//! A client against servers and proxies on the loopback interface.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Mutex;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const NO_PROXIES: &str = "";

/// The heads of received requests, each with the number of its connection.
type Seen = Arc<Mutex<Vec<(usize, String)>>>;

/// A server's certificate, and an acceptor with it.
fn identity() -> (CertificateDer<'static>, TlsAcceptor) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    (cert.der().clone(), TlsAcceptor::from(Arc::new(config)))
}

async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Answers the requests of a connection.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    number: usize,
    answer: &str,
    seen: &Seen,
) {
    while let Some(head) = head(&mut stream).await {
        seen.lock().unwrap().push((number, head));
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// A server that gives this answer to every request, and its port.
async fn server(tls: Option<TlsAcceptor>, answer: &'static str) -> (u16, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Seen::default();
    let requests = seen.clone();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let (tls, requests) = (tls.clone(), requests.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve(stream, number, answer, &requests).await,
                    // A client that does not trust it ends the handshake.
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(stream, number, answer, &requests).await;
                        }
                    }
                }
            });
        }
    });
    (port, seen)
}

/// A proxy that opens tunnels, and the requests for them.
async fn tunnels() -> (u16, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Seen::default();
    let requests = seen.clone();
    tokio::spawn(async move {
        for number in 0.. {
            let (mut client, _) = listener.accept().await.unwrap();
            let request = head(&mut client).await.unwrap();
            let target = request.split(' ').nth(1).unwrap().to_owned();
            requests.lock().unwrap().push((number, request));
            let mut server = TcpStream::connect(target).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, seen)
}

fn client(options: Options, proxy: &str) -> Client {
    Client::with_proxies(options, Matcher::builder().all(proxy.to_owned()).build()).unwrap()
}

async fn get(client: &Client, url: &str) -> Result<String, FetchError> {
    let url = Url::of_server(url).unwrap();
    let mut response = client.send(Method::GET, &url, HeaderMap::new(), Bytes::new()).await?;
    let mut body = format!("{} ", response.status.as_u16());
    while let Some(chunk) = response.chunk().await? {
        body.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    Ok(body)
}

fn causes(error: &FetchError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn connections_are_kept_for_further_requests() {
    let (port, seen) = server(None, HELLO).await;
    let client = client(Options::default(), NO_PROXIES);
    for _ in 0..3 {
        let url = format!("http://me:secret@localhost:{port}/a b?c");
        assert_eq!(get(&client, &url).await.unwrap(), "200 hello");
    }
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 3 && seen.iter().all(|(connection, _)| *connection == 0), "{seen:?}");
    let request = seen[0].1.to_lowercase();
    assert!(request.starts_with("get /a%20b?c http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: localhost:{port}\r\n")), "{request}");
    assert!(request.contains("authorization: basic bwu6c2vjcmv0\r\n"), "{request}");
}

/// An acceptor for clients with this certificate.
fn of_known_clients(client: &CertificateDer<'static>) -> (CertificateDer<'static>, TlsAcceptor) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["server".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = Arc::new(ring::default_provider());
    let mut clients = RootCertStore::empty();
    clients.add(client.clone()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider.clone()).build();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.unwrap())
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    (cert.der().clone(), TlsAcceptor::from(Arc::new(config)))
}

#[tokio::test]
async fn client_shows_its_certificate_to_a_server_of_another_name() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["client".to_owned()]).unwrap();
    let (certificate, tls) = of_known_clients(cert.der());
    let (port, seen) = server(Some(tls), HELLO).await;
    let options = |known: bool| Options {
        roots: vec![certificate.clone()],
        only_roots: true,
        identity: known.then(|| Identity {
            certificates: vec![cert.der().clone()],
            key: PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der())),
        }),
        server_name: Some(ServerName::try_from("server").unwrap()),
        ..Options::default()
    };
    let url = format!("https://127.0.0.1:{port}/");
    assert!(get(&client(options(false), NO_PROXIES), &url).await.is_err());
    assert_eq!(seen.lock().unwrap().len(), 0);
    assert_eq!(get(&client(options(true), NO_PROXIES), &url).await.unwrap(), "200 hello");
}

#[tokio::test]
async fn certificates_are_verified() {
    let (certificate, tls) = identity();
    let (port, seen) = server(Some(tls), HELLO).await;
    let url = format!("https://localhost:{port}/");
    let error = get(&client(Options::default(), NO_PROXIES), &url).await.unwrap_err();
    assert!(error.is_connect() && !error.is_timeout(), "{error:?}");
    assert!(causes(&error).contains("certificate"), "{}", causes(&error));
    let trusting = || Options { roots: vec![certificate.clone()], ..Options::default() };
    let other_name = format!("https://127.0.0.1:{port}/");
    let error = get(&client(trusting(), NO_PROXIES), &other_name).await.unwrap_err();
    assert!(causes(&error).contains("certificate"), "{}", causes(&error));
    assert_eq!(seen.lock().unwrap().len(), 0);
    assert_eq!(get(&client(trusting(), NO_PROXIES), &url).await.unwrap(), "200 hello");
}

#[tokio::test]
async fn client_with_new_connections_keeps_its_options() {
    let (certificate, tls) = identity();
    let (port, seen) = server(Some(tls), HELLO).await;
    let first = client(Options { roots: vec![certificate], ..Options::default() }, NO_PROXIES);
    let second = first.with_new_connections();
    for client in [&first, &second, &first] {
        let url = format!("https://localhost:{port}/");
        assert_eq!(get(client, &url).await.unwrap(), "200 hello");
    }
    let used: Vec<usize> = seen.lock().unwrap().iter().map(|(connection, _)| *connection).collect();
    assert_eq!(used, [0, 1, 0]);
}

#[tokio::test]
async fn plain_requests_are_given_to_proxy_with_its_credentials() {
    let (port, seen) = server(None, HELLO).await;
    let proxy = format!("http://p:q@127.0.0.1:{port}");
    let got = get(&client(Options::default(), &proxy), "http://server.test/x").await;
    assert_eq!(got.unwrap(), "200 hello");
    let request = seen.lock().unwrap()[0].1.to_lowercase();
    assert!(request.starts_with("get http://server.test/x http/1.1\r\n"), "{request}");
    assert!(request.contains("proxy-authorization: basic cdpx\r\n"), "{request}");
}

#[tokio::test]
async fn https_goes_through_tunnel_of_proxy_and_is_verified() {
    let (certificate, tls) = identity();
    let (port, seen) = server(Some(tls), HELLO).await;
    let (proxy_port, asked) = tunnels().await;
    let proxy = format!("http://p:q@127.0.0.1:{proxy_port}");
    let url = format!("https://localhost:{port}/x");
    let error = get(&client(Options::default(), &proxy), &url).await.unwrap_err();
    assert!(error.is_connect() && causes(&error).contains("certificate"), "{}", causes(&error));
    let options = Options { roots: vec![certificate], ..Options::default() };
    assert_eq!(get(&client(options, &proxy), &url).await.unwrap(), "200 hello");
    let request = asked.lock().unwrap()[1].1.to_lowercase();
    assert!(request.starts_with(&format!("connect localhost:{port} ")), "{request}");
    assert!(request.contains("proxy-authorization: basic cdpx\r\n"), "{request}");
    let request = seen.lock().unwrap()[0].1.to_lowercase();
    assert!(request.starts_with("get /x http/1.1\r\n"), "{request}");
    assert!(!request.contains("proxy-authorization"), "{request}");
}

#[tokio::test]
async fn silent_server_times_out_request_and_body() {
    let options =
        || Options { read_timeout: Some(Duration::from_millis(50)), ..Options::default() };
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"] {
        let (port, _) = server(None, answer).await;
        let url = format!("http://localhost:{port}/");
        let error = get(&client(options(), NO_PROXIES), &url).await.unwrap_err();
        assert!(error.is_timeout() && !error.is_connect(), "{answer}: {error:?}");
    }
}

#[tokio::test]
async fn failures_to_connect_differ_from_broken_connections() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", unused.local_addr().unwrap());
    drop(unused);
    let error = get(&client(Options::default(), NO_PROXIES), &url).await.unwrap_err();
    assert!(error.is_connect() && causes(&error).contains("refused"), "{}", causes(&error));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = get(&client(Options::default(), NO_PROXIES), &url).await.unwrap_err();
    assert!(!error.is_connect() && !error.is_timeout(), "{error:?}");
}

#[tokio::test]
async fn connection_attempt_times_out() {
    // The server does not answer the TLS handshake.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let options =
        Options { connect_timeout: Some(Duration::from_millis(50)), ..Options::default() };
    let error = get(&client(options, NO_PROXIES), &url).await.unwrap_err();
    assert!(error.is_connect() && error.is_timeout(), "{error:?}");
    drop(listener);
}

#[tokio::test]
async fn redirects_are_returned_to_caller() {
    let moved = "HTTP/1.1 307 Moved\r\nLocation: ../c?d\r\nContent-Length: 0\r\n\r\n";
    let (port, _) = server(None, moved).await;
    let url = Url::of_server(&format!("http://localhost:{port}/a/b")).unwrap();
    let client = client(Options::default(), NO_PROXIES);
    let response = client.send(Method::GET, &url, HeaderMap::new(), Bytes::new()).await.unwrap();
    let next = response.redirect().map(|url| url.to_string());
    assert_eq!(next, Some(format!("http://localhost:{port}/c?d")));
}
