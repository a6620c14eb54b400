//! Requests, whole and in pieces, valid and invalid.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const PREFACE_BYTES: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = payload.len().to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], payload].concat()
}

fn fields(authority: &[u8]) -> Vec<Field> {
    let field = |name: &'static str, value: &[u8]| Field {
        name: Bytes::from_static(name.as_bytes()),
        value: Bytes::copy_from_slice(value),
    };
    vec![field(":method", b"POST"), field(":authority", authority), field("te", b"trailers")]
}

fn block(authority: &[u8]) -> Vec<u8> {
    hpack::encode(&fields(authority))
}

fn rewritten(input: &[u8]) -> Vec<u8> {
    let mut output = Vec::new();
    AuthorityRewriter::default().push(input, &mut output);
    output
}

#[rstest]
#[case::path(b"/run/x.sock", b"localhost")]
#[case::empty(b"", b"localhost")]
#[case::not_ascii("é".as_bytes(), b"localhost")]
#[case::host(b"example.com", b"localhost")]
#[case::line_end(b"a\nb", b"a\nb")]
#[case::nul(b"a\0b", b"a\0b")]
#[case::delete(b"a\x7f", b"a\x7f")]
fn authority_is_replaced_if_header_value_is_valid(#[case] sent: &[u8], #[case] read: &[u8]) {
    let request = |authority| {
        let headers = frame(HEADERS, END_HEADERS, 1, &block(authority));
        [PREFACE_BYTES, &headers, &frame(DATA, END_STREAM, 1, b"abc")].concat()
    };
    assert_eq!(rewritten(&request(sent)), request(read));
}

#[test]
fn blocks_in_several_frames_become_one() {
    let whole = block(b"/x");
    let (one, two) = whole.split_at(7);
    let input = [
        PREFACE_BYTES,
        &frame(HEADERS, END_STREAM, 1, &[]),
        &frame(CONTINUATION, 0, 1, one),
        &frame(CONTINUATION, 0, 1, &[]),
        &frame(CONTINUATION, END_HEADERS, 1, two),
    ]
    .concat();
    let output = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(b"localhost"));
    assert_eq!(rewritten(&input), [PREFACE_BYTES, &output].concat());
}

#[test]
fn padding_is_dropped_and_priority_kept() {
    let flags = END_HEADERS | PADDED | PRIORITY;
    let payload = [&[3][..], &[0, 0, 0, 0, 7], &block(b"/x"), &[0; 3]].concat();
    let input = [PREFACE_BYTES, &frame(HEADERS, flags, 1, &payload)].concat();
    let payload = [&[0, 0, 0, 0, 7][..], &block(b"localhost")].concat();
    let output = frame(HEADERS, END_HEADERS | PRIORITY, 1, &payload);
    assert_eq!(rewritten(&input), [PREFACE_BYTES, &output].concat());
}

#[test]
fn blocks_longer_than_a_frame_are_split() {
    let mut list = fields(b"/x");
    list[2].value = vec![b'x'; 40_000].into();
    let payload = hpack::encode(&list);
    let mut input = [PREFACE_BYTES, &frame(HEADERS, 0, 1, &payload[..16_384])].concat();
    input.extend(frame(CONTINUATION, 0, 1, &payload[16_384..30_000]));
    input.extend(frame(CONTINUATION, END_HEADERS, 1, &payload[30_000..]));
    list[1].value = ACCEPTED;
    let payload = hpack::encode(&list);
    let mut output = [PREFACE_BYTES, &frame(HEADERS, 0, 1, &payload[..16_384])].concat();
    output.extend(frame(CONTINUATION, 0, 1, &payload[16_384..32_768]));
    output.extend(frame(CONTINUATION, END_HEADERS, 1, &payload[32_768..]));
    assert!(rewritten(&input) == output);
}

/// These bytes, and all later ones, reach h2 unchanged.
#[rstest]
#[case::padding_longer_than_the_frame(frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0x82]))]
#[case::padding_without_length(frame(HEADERS, END_HEADERS | PADDED, 1, &[]))]
#[case::priority_cut_off(frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 4]))]
#[case::frame_longer_than_allowed(frame(HEADERS, END_HEADERS, 1, &vec![0x82; 16_385]))]
#[case::data_within_a_block([frame(HEADERS, 0, 1, &[0x82]), frame(DATA, 0, 1, b"x")].concat())]
#[case::continuation_of_another_stream([frame(HEADERS, 0, 1, &[0x82]), frame(CONTINUATION, END_HEADERS, 3, &[])].concat())]
#[case::block_without_end([frame(HEADERS, 0, 1, &[0x82]), frame(CONTINUATION, 0, 1, &[]).repeat(8000)].concat())]
fn broken_framing_is_forwarded_unchanged(#[case] frames: Vec<u8>) {
    let later = frame(HEADERS, END_HEADERS, 5, &block(b"/x"));
    let input = [PREFACE_BYTES, &frames, &later].concat();
    assert!(rewritten(&input) == input);
}

#[test]
fn block_that_cannot_be_decoded_becomes_invalid_block() {
    let input =
        [PREFACE_BYTES, &frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff, 0xff])].concat();
    let output = frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0x80]);
    assert_eq!(rewritten(&input), [PREFACE_BYTES, &output].concat());
}

/// Frames with and without headers, some of them invalid.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        any::<Vec<u8>>(),
        Just(block(b"/x")),
        Just([&[2][..], &block(b""), &[0; 2]].concat()),
    ];
    let one = (0_u8..11, any::<u8>(), 0_u8..3, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload));
    prop::collection::vec(prop_oneof![9 => one, 1 => any::<Vec<u8>>()], 0..20)
        .prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn result_is_the_same_however_bytes_arrive(frames in frames(), cuts in prop::collection::vec(1_usize..60, 1..20)) {
        let input = [PREFACE_BYTES, &frames].concat();
        let (mut rewriter, mut output) = (AuthorityRewriter::default(), Vec::new());
        let (mut rest, mut cuts) = (&input[..], cuts.into_iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(cuts.next().unwrap()));
            rewriter.push(piece, &mut output);
            rest = after;
        }
        prop_assert_eq!(output, rewritten(&input));
    }
}
