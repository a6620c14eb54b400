//! `:authority` as clients of unix sockets send it, and hostile header blocks, as raw bytes on the socket.

use crate::protocol::http2::{
    CONTINUATION, END_HEADERS, HEADERS, Http2, Outcome, PADDED, PROTOCOL_ERROR, WITH_INDEXING,
    WITHOUT_INDEXING, literal, request,
};
use crate::support::*;

fn authority(value: &[u8]) -> Vec<u8> {
    literal(WITHOUT_INDEXING, ":authority", value)
}

#[rstest]
#[case::path(&authority(b"/run/crib/crib.sock"))]
#[case::encoded_path(&authority(b"%2Frun%2Fcrib%2Fcrib.sock"))]
#[case::socket_url(&authority(b"unix:/run/crib/crib.sock"))]
#[case::localhost(&authority(b"localhost"))]
#[case::unspecified_address(&authority(b"[::]:50051"))]
#[case::empty(&authority(b""))]
#[case::empty_in_static_table(&[0x81])]
#[case::absent(&[])]
#[case::abstract_name(&authority(b"@crib"))]
#[case::spaces_and_percent_signs(&authority(b"a b%zz\t<>\"^`{}|\\#?"))]
#[case::bytes_beyond_ascii(&authority("/run/é🦀".as_bytes()))]
#[case::non_utf8_bytes(&authority(&[0x80, 0xff, 0xfe]))]
#[case::huffman_coded_path(&[0x41, 0x89, 0x62, 0xcb, 0x6a, 0x63, 0xca, 0xe8, 0x39, 0x3a, 0xff])]
#[case::long(&authority(&[b'/'; 12_000]))]
#[tokio::test]
async fn server_accepts_authority(#[case] field: &[u8]) {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    for stream in [1, 3] {
        let outcome = client.call(stream, &request(field)).await;
        assert_eq!(outcome, Outcome::Answered);
    }
}

/// grpc-go's server rejects these too.
#[rstest]
#[case::line_end(&authority(b"a\nb"))]
#[case::nul(&authority(b"/run/x\0"))]
#[case::twice(&[authority(b"/run/x"), authority(b"/run/x")].concat())]
#[tokio::test]
async fn server_resets_stream_with_invalid_authority(#[case] field: &[u8]) {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    let outcome = client.call(1, &request(field)).await;
    assert_eq!(outcome, Outcome::StreamError(PROTOCOL_ERROR));
    let outcome = client.call(3, &request(&authority(b"/run/x"))).await;
    assert_eq!(outcome, Outcome::Answered);
}

/// Later requests refer to entries that earlier requests added to the dynamic table.
#[tokio::test]
async fn server_follows_header_table_of_connection() {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    let indexed = literal(WITH_INDEXING, ":authority", b"/run/x.sock");
    assert_eq!(client.call(1, &request(&indexed)).await, Outcome::Answered);
    assert_eq!(client.call(3, &request(&[0xbe])).await, Outcome::Answered);
    let other = literal(WITH_INDEXING, "x-other", b"1");
    let block = [request(&[0xbe]), other].concat();
    assert_eq!(client.call(5, &block).await, Outcome::Answered);
    // The next entry has shifted the index, which now refers to a field that is not an authority.
    let block = [request(&[0xbf]), vec![0xbe]].concat();
    assert_eq!(client.call(7, &block).await, Outcome::Answered);
    // Sets the table size to 0, which empties the table, and back to the maximum.
    let block = [&[0x20, 0x3f, 0xe1, 0x1f][..], &request(&indexed)].concat();
    assert_eq!(client.call(9, &block).await, Outcome::Answered);
    assert_eq!(client.call(11, &request(&[0xbe])).await, Outcome::Answered);
    let outcome = client.call(13, &request(&[0xbf])).await;
    assert_eq!(outcome, Outcome::ConnectionError(PROTOCOL_ERROR));
}

#[tokio::test]
async fn server_accepts_block_in_many_frames() {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    let block = request(&authority(&[b'/'; 20_000]));
    client.frame(HEADERS, 0, 1, &block[..1]).await.unwrap();
    for fragment in block[1..].chunks(2000) {
        client.frame(CONTINUATION, 0, 1, fragment).await.unwrap();
        client.frame(CONTINUATION, 0, 1, &[]).await.unwrap();
    }
    client.frame(CONTINUATION, END_HEADERS, 1, &[]).await.unwrap();
    assert_eq!(client.finish(1).await, Outcome::Answered);
}

#[rstest]
#[case::index_without_entry(&[0xff, 0x80, 0x01])]
#[case::index_0(&[0x80])]
#[case::string_cut_off(&[0x41, 0x20, b'/'])]
#[case::huffman_end_of_string(&[0x41, 0x84, 0xff, 0xff, 0xff, 0xff])]
#[case::endless_integer(&[0xff; 64])]
#[case::table_larger_than_allowed(&[0x3f, 0xe2, 0x1f])]
#[case::table_size_after_field(&[0x83, 0x20])]
#[tokio::test]
async fn server_closes_connection_after_invalid_block(#[case] block: &[u8]) {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    let outcome = client.call(1, block).await;
    assert_eq!(outcome, Outcome::ConnectionError(PROTOCOL_ERROR));
    runtime.client.version().await.unwrap();
}

#[tokio::test]
async fn server_closes_connection_after_broken_framing() {
    let runtime = Runtime::start().await.unwrap();
    let good = request(&authority(b"/run/x"));
    let mut client = Http2::connect(&runtime).await;
    client.frame(HEADERS, 0, 1, &good).await.unwrap();
    let outcome = client.call(3, &good).await;
    assert_eq!(outcome, Outcome::ConnectionError(PROTOCOL_ERROR));

    let mut client = Http2::connect(&runtime).await;
    let padded = client.frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0x83]);
    padded.await.unwrap();
    let outcome = client.finish(1).await;
    assert_eq!(outcome, Outcome::ConnectionError(PROTOCOL_ERROR));

    // An endless sequence of CONTINUATION frames.
    let mut client = Http2::connect(&runtime).await;
    client.frame(HEADERS, 0, 1, &good).await.unwrap();
    while client.frame(CONTINUATION, 0, 1, &[]).await.is_ok() {}
    let outcome = client.finish(1).await;
    assert!(matches!(outcome, Outcome::ConnectionError(_) | Outcome::Closed), "{outcome:?}");
    runtime.client.version().await.unwrap();
}

/// Each byte of the block refers to an entry of 4 KiB.
#[tokio::test]
async fn server_closes_connection_after_header_bomb() {
    let runtime = Runtime::start().await.unwrap();
    let mut client = Http2::connect(&runtime).await;
    let entry = literal(WITH_INDEXING, "x-bomb", &[b'x'; 4000]);
    let first = [request(&authority(b"/run/x")), entry].concat();
    assert_eq!(client.call(1, &first).await, Outcome::Answered);
    let outcome = client.call(3, &[0xbe; 16_000]).await;
    assert!(matches!(outcome, Outcome::ConnectionError(_)), "{outcome:?}");
    runtime.client.version().await.unwrap();
}
