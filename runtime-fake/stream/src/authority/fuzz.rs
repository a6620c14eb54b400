//! Fuzz target: a client's connection, up to h2.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use fuzz_target::Target;

use super::AuthorityRewriter;

pub(crate) const TARGETS: &[Target] = &[Target::new("http2_requests", requests, connections)];

/// The output does not depend on how the input is split, rewriting it again changes nothing, and it is not much
/// longer than the input: one byte of a block may expand to an entry of the table, but a list has its limit.
fn requests(data: &[u8]) {
    let whole = rewritten(data, data.len());
    for piece in [1, 7, 100] {
        assert_eq!(rewritten(data, piece), whole);
    }
    assert_eq!(rewritten(&whole, whole.len()), whole);
    let blocks = data.len() / HEAD + 1;
    assert!(whole.len() <= data.len() + blocks * (70 << 10));
}

/// The length of a frame's header.
const HEAD: usize = 9;

fn rewritten(data: &[u8], piece: usize) -> Vec<u8> {
    let (mut rewriter, mut output) = (AuthorityRewriter::default(), Vec::new());
    for piece in data.chunks(piece.max(1)) {
        rewriter.push(piece, &mut output);
    }
    output
}

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Connections with one or two requests: indexed, Huffman-coded and literal fields, padding, a priority, several
/// frames.
fn connections() -> Vec<Vec<u8>> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let settings = frame(4, 0, &[]);
    let path = b"\x83\x86\x45\x8b\x62\xcb\x6a\x63\xca\xe8\x39\x3a\xff\x1f\x1f";
    let indexed = b"\x83\x86\x41\x89\x62\xcb\x6a\x63\xca\xe8\x39\x3a\xff\x40\x02te\x08trailers";
    let literal = b"\x83\x00\x0a:authority\x06/run/x";
    let padded = b"\x02\x20\x3f\xe1\x1f\xbe\xbf\x00\x00";
    let prioritised = b"\x00\x00\x00\x00\x07\xbe";
    vec![
        [&preface[..], &settings, &frame(HEADERS, 4, indexed), &frame(0, 1, b"\0\0\0\0\0")]
            .concat(),
        [&preface[..], &frame(HEADERS, 4, indexed), &frame(HEADERS, 12, padded)].concat(),
        [&preface[..], &frame(HEADERS, 4, indexed), &frame(HEADERS, 36, prioritised)].concat(),
        [&preface[..], &frame(HEADERS, 0, literal), &frame(CONTINUATION, 4, b"\x81")].concat(),
        [&preface[..], &frame(HEADERS, 5, path)].concat(),
    ]
}
