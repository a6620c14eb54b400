//! Endpoints and connection errors.
#![allow(clippy::unwrap_used)]
use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use super::*;

#[rstest]
#[case("unix:///run/crib.sock", "/run/crib.sock")]
#[case("unix:/run/crib.sock", "/run/crib.sock")]
#[case("/run/crib.sock", "/run/crib.sock")]
fn socket_path_accepts_unix_endpoints(#[case] endpoint: &str, #[case] path: &str) {
    assert_eq!(socket_path(endpoint).unwrap(), PathBuf::from(path));
}

#[rstest]
#[case("tcp://localhost:1")]
#[case("unix://relative.sock")]
#[case("")]
fn socket_path_rejects_other_endpoints(#[case] endpoint: &str) {
    assert!(matches!(socket_path(endpoint), Err(ConnectError::NotUnix { .. })));
}

#[test]
fn socket_path_may_have_107_bytes() {
    let long = format!("unix:///{}", "x".repeat(107));
    let message = socket_path(&long).unwrap_err().to_string();
    assert!(message.contains("108 bytes"), "{message}");
    assert!(socket_path(&format!("unix:///{}", "x".repeat(106))).is_ok());
}

#[tokio::test]
async fn connect_reports_missing_and_stale_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.sock");
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::NotReachable { .. }), "{error:?}");
    drop(UnixListener::bind(&path).unwrap());
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::NotReachable { .. }), "a stale socket: {error:?}");
}

#[tokio::test]
async fn connect_reports_server_that_is_not_cri() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ =
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    server.abort();
    assert!(matches!(error, ConnectError::NotCri { .. }), "{error:?}");
    assert!(
        error.to_string().contains("does not implement the Container Runtime Interface v1"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn connect_times_out_on_silent_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("silent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::Silent { .. }), "{error:?}");
}
