//! Requests to servers on the loopback interface.
#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{HTTPGetAction, HTTPHeader};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::checks::dialer::SystemDialer;
use crate::checks::http_action::{Purpose, http_request};

/// Answers each connection with the next response, and returns the requests.
async fn server(answers: Vec<String>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async move {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            requests.push(read_head(&mut stream).await);
            let answer = answer.replace("PORT", &port.to_string());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        requests
    };
    (port, tokio::spawn(serve))
}

async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn request(port: u16, path: &str, headers: &[(&str, &str)]) -> HttpRequest {
    let header = |(name, value): &(&str, &str)| HTTPHeader {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
    };
    let action = HTTPGetAction {
        path: Some(path.to_owned()),
        port: IntOrString::Int(i32::from(port)),
        http_headers: Some(headers.iter().map(header).collect()),
        ..HTTPGetAction::default()
    };
    http_request(&action, &[], "127.0.0.1", Purpose::Probe).unwrap()
}

fn over_tls(port: u16) -> HttpRequest {
    let action = HTTPGetAction {
        scheme: Some("HTTPS".to_owned()),
        port: IntOrString::Int(i32::from(port)),
        ..HTTPGetAction::default()
    };
    http_request(&action, &[], "127.0.0.1", Purpose::Probe).unwrap()
}

async fn sent(request: &HttpRequest) -> Result<HttpAnswer, HttpError> {
    send(&SystemDialer, request, Some(Duration::from_secs(5))).await
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn request_has_headers_of_kubelet_and_closes_its_connection() {
    let (port, requests) = server(vec![OK.to_owned()]).await;
    let headers = [("x-a", "1"), ("x-a", "2"), ("Host", "example.com"), ("Content-Length", "7")];
    let answer = sent(&request(port, "/a b?c", &headers)).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, b"ok".as_slice()));
    assert_eq!(
        requests.await.unwrap()[0],
        "GET /a%20b?c HTTP/1.1\r\nHost: example.com\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\n\
         X-A: 1\r\nX-A: 2\r\nConnection: close\r\n\r\n"
    );
}

#[tokio::test]
async fn redirects_on_same_host_are_followed() {
    let redirect = "HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n";
    let other_port =
        "HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:PORT/c\r\nContent-Length: 0\r\n\r\n";
    let (port, requests) = server(vec![redirect.into(), other_port.into(), OK.into()]).await;
    let answer = sent(&request(port, "/a", &[("Host", "h")])).await.unwrap();
    assert_eq!(answer.status, 200);
    let requests = requests.await.unwrap();
    let line = |head: &str, start: &str| {
        head.lines().find(|line| line.starts_with(start)).map(str::to_owned)
    };
    assert_eq!(line(&requests[1], "GET").unwrap(), "GET /b HTTP/1.1");
    assert_eq!(line(&requests[1], "Host").unwrap(), "Host: h");
    assert_eq!(
        line(&requests[1], "Referer").unwrap(),
        format!("Referer: http://127.0.0.1:{port}/a")
    );
    assert_eq!(line(&requests[2], "Host").unwrap(), format!("Host: 127.0.0.1:{port}"));
}

#[tokio::test]
async fn redirect_to_another_host_is_the_answer() {
    let answer = "HTTP/1.1 301 x\r\nLocation: http://localhost:1/\r\nContent-Length: 4\r\n\r\ngone";
    let (port, _requests) = server(vec![answer.to_owned()]).await;
    let answer = sent(&request(port, "/", &[])).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (301, b"gone".as_slice()));
}

#[tokio::test]
async fn eleventh_request_is_not_made() {
    let redirect = "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
    let (port, _requests) = server(vec![redirect.to_owned(); 10]).await;
    let error = sent(&request(port, "/", &[])).await.unwrap_err();
    assert_eq!(error.to_string(), "Get \"/\": stopped after 10 redirects");
}

#[tokio::test]
async fn body_is_cut_at_10_kib() {
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n{}", "x".repeat(20000));
    let (port, _requests) = server(vec![long]).await;
    assert_eq!(sent(&request(port, "/", &[])).await.unwrap().body.len(), 10 * 1024);
}

#[rstest]
#[case::announced_as_long("Content-Length: 10241\r\n", 0, false)]
#[case::longer_than_10_kib("", MAX_BODY, false)]
#[case::incomplete("Content-Length: 2\r\n", 0, true)]
#[tokio::test]
async fn hook_does_not_wait_for_long_bodies(
    #[case] header: &str,
    #[case] sent: usize,
    #[case] closes: bool,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = format!("HTTP/1.1 200 OK\r\n{header}\r\n{}", "x".repeat(sent));
    let serve = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        if !closes {
            // Until the client closes the connection.
            let _ = stream.read(&mut [0; 1]).await;
        }
    });
    let request = request(port, "/", &[]);
    let answered =
        tokio::time::timeout(Duration::from_secs(60), send_hook(&SystemDialer, &request));
    assert!(answered.await.unwrap().is_ok());
    serve.await.unwrap();
}

#[tokio::test]
async fn silent_server_and_closed_port_have_kubelet_messages() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let timeout = Some(Duration::from_millis(50));
    let error = send(&SystemDialer, &request(port, "/x", &[]), timeout).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "Get \"http://127.0.0.1:{port}/x\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )
    );
    // Bound but not listening, so that no other process gets the port.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let error = sent(&request(port, "/x", &[])).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "Get \"http://127.0.0.1:{port}/x\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        )
    );
}

#[tokio::test]
async fn connection_without_an_answer_is_eof() {
    let (port, _requests) = server(vec![String::new()]).await;
    let error = sent(&request(port, "", &[])).await.unwrap_err();
    assert_eq!(error.to_string(), format!("Get \"http://127.0.0.1:{port}\": EOF"));
}

#[tokio::test]
async fn any_certificate_is_accepted() {
    let made = rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream =
            TlsAcceptor::from(std::sync::Arc::new(config)).accept(stream).await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    assert_eq!(sent(&over_tls(port)).await.unwrap().status, 200);
    serve.await.unwrap();
}

#[tokio::test]
async fn server_without_tls_is_recognized() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let error = sent(&over_tls(port)).await.unwrap_err();
    assert!(error.is_plain_http(), "{error}");
    assert!(error.to_string().ends_with("http: server gave HTTP response to HTTPS client"));
}
