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
fn endpoints_that_are_sockets(#[case] endpoint: &str, #[case] path: &str) {
    assert_eq!(socket_path(endpoint).unwrap(), PathBuf::from(path));
}

#[rstest]
#[case("tcp://localhost:1")]
#[case("unix://relative.sock")]
#[case("")]
fn endpoints_that_are_not(#[case] endpoint: &str) {
    assert!(matches!(
        socket_path(endpoint),
        Err(ConnectError::NotUnix { .. })
    ));
}

#[test]
fn a_path_of_108_bytes_is_too_long_and_107_are_not() {
    let long = format!("unix:///{}", "x".repeat(107));
    let message = socket_path(&long).unwrap_err().to_string();
    assert!(message.contains("108 bytes"), "{message}");
    assert!(socket_path(&format!("unix:///{}", "x".repeat(106))).is_ok());
}

#[tokio::test]
async fn nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.sock");
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    assert!(
        matches!(error, ConnectError::NotReachable { .. }),
        "{error:?}"
    );
    drop(UnixListener::bind(&path).unwrap());
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    assert!(
        matches!(error, ConnectError::NotReachable { .. }),
        "a stale socket: {error:?}"
    );
}

#[tokio::test]
async fn a_server_of_another_kind_is_one_clear_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    });
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    server.abort();
    assert!(matches!(error, ConnectError::NotCri { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("does not implement the Container Runtime Interface v1"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("silent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = connect(path.to_str().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::Silent { .. }), "{error:?}");
}
