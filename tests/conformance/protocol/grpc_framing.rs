//! Requests that are valid HTTP/2 but invalid gRPC: each one fails, and the next one is answered.

use crate::protocol::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, Http2, METHOD_AND_SCHEME, Outcome, VERSION,
    WITHOUT_INDEXING, grpc, literal, path, request,
};
use crate::support::*;

/// A header block with this path and these additional fields.
fn block(at: &str, others: &[u8]) -> Vec<u8> {
    [&METHOD_AND_SCHEME[..], &path(at), others].concat()
}

fn version(more: &[u8]) -> Vec<u8> {
    block(VERSION, &[&grpc(), more].concat())
}

fn field(name: &str, value: &str) -> Vec<u8> {
    literal(WITHOUT_INDEXING, name, value.as_bytes())
}

#[rstest]
#[case::unknown_call(&block("/runtime.v1.RuntimeService/Nothing", &grpc()), &[0; 5])]
#[case::unknown_service(&block("/runtime.v1alpha2.RuntimeService/Version", &grpc()), &[0; 5])]
#[case::root_path(&block("/", &grpc()), &[0; 5])]
#[case::path_without_slash(&block("x", &grpc()), &[0; 5])]
#[case::message_longer_than_allowed(&version(&[]), &[0, 0xff, 0xff, 0xff, 0xff])]
#[case::message_cut_off(&version(&[]), &[0, 0, 0, 0, 9, 1, 2])]
#[case::prefix_cut_off(&version(&[]), &[0, 0])]
#[case::no_message(&version(&[]), &[])]
#[case::compressed_without_encoding(&version(&[]), &[1, 0, 0, 0, 0])]
#[case::unknown_compression(&version(&field("grpc-encoding", "snappy")), &[1, 0, 0, 0, 1, 7])]
#[case::invalid_flag(&version(&[]), &[7, 0, 0, 0, 0])]
#[case::undecodable_message(&version(&[]), &[0, 0, 0, 0, 2, 0xff, 0xff])]
#[tokio::test]
async fn malformed_request_fails_without_affecting_others(
    #[case] block: &[u8],
    #[case] message: &[u8],
) {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    client.frame(HEADERS, END_HEADERS, 1, block).await.unwrap();
    client.frame(DATA, END_STREAM, 1, message).await.unwrap();
    let outcome = client.wait_for_outcome(1).await;
    let failed = matches!(outcome, Outcome::Failed | Outcome::StreamError(_));
    assert!(failed, "{outcome:?}");
    assert_eq!(client.call(3, &request(&[])).await, Outcome::Answered);
}

/// Like containerd, the server ignores metadata that does not affect the message.
#[rstest]
#[case::invalid_timeout(&version(&field("grpc-timeout", "soon")))]
#[case::binary_field_not_base64(&version(&field("trace-bin", "%%%")))]
#[case::two_user_agents(&version(&[field("user-agent", "a"), field("user-agent", "b")].concat()))]
#[tokio::test]
async fn odd_metadata_is_ignored(#[case] block: &[u8]) {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    assert_eq!(client.call(1, block).await, Outcome::Answered);
}

/// A client may close its end before the call begins, or disconnect in the middle of a frame.
#[tokio::test]
async fn broken_connection_does_not_affect_others() {
    let runtime = Runtime::start().await.unwrap();
    for length in [0, 1, 9, 12] {
        let mut client = Http2::connect(&runtime).await;
        let whole = version(&[]);
        client.send_partial_frame(HEADERS, END_HEADERS, 1, &whole, length).await;
    }
    let mut client = Http2::connect(&runtime).await;
    assert_eq!(client.call(1, &request(&[])).await, Outcome::Answered);
}
