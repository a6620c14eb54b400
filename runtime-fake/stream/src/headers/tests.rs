//! Headers in both directions, and the limits on inflating them.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn dictionary_has_checksum_of_specification() {
    let bytes = dictionary::bytes();
    assert_eq!(bytes.len(), 1423);
    // The Adler-32 checksum that every zlib stream of SPDY/3 has in its header.
    let (mut a, mut b) = (1u32, 0u32);
    for byte in bytes {
        a = (a + u32::from(byte)) % 65521;
        b = (b + a) % 65521;
    }
    assert_eq!((b << 16) | a, 0xe3c6_a7c2);
}

#[test]
fn inflater_keeps_state_between_blocks() {
    let (mut out, mut back) = (Deflater::new(), Inflater::new());
    let mut sizes = Vec::new();
    for id in 0..200 {
        let id = id.to_string();
        let headers = Headers::of(&[("streamType", "data"), ("port", "8080"), ("requestID", &id)]);
        let block = out.block(&headers);
        sizes.push(block.len());
        let read = back.headers(&block).unwrap();
        assert_eq!(read, headers);
        assert_eq!(read.get("requestID"), Some(id.as_str()));
        assert_eq!(read.get("Streamtype"), Some("data"));
        assert_eq!(read.get("none"), None);
    }
    assert!(sizes[100] < sizes[0] / 2, "{sizes:?}");
}

#[test]
fn get_returns_first_of_several_values() {
    assert_eq!(Headers::of(&[("a", "1\u{0}2")]).get("A"), Some("1"));
}

#[test]
fn inflater_rejects_compression_bombs() {
    let bomb = Headers::of(&[("a", &"a".repeat(MAX_BLOCK * 8))]);
    let block = Deflater::new().block(&bomb);
    assert!(block.len() < 8 << 10, "{}", block.len());
    assert_eq!(Inflater::new().headers(&block), Err(HeadersError::TooLong));
    let nearly = Headers::of(&[("a", &"a".repeat(MAX_BLOCK - 100))]);
    let block = Deflater::new().block(&nearly);
    assert_eq!(Inflater::new().headers(&block), Ok(nearly));
}

#[test]
fn inflater_rejects_wrong_lengths() {
    for (plain, problem) in [
        (vec![], HeadersError::Short),
        (vec![0xff; 4], HeadersError::TooMany),
        (vec![0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], HeadersError::Short),
        (vec![0, 0, 0, 1, 0, 0, 0, 1, b'a'], HeadersError::Short),
    ] {
        assert_eq!(Headers::decode(&plain), Err(problem));
    }
}

proptest! {
    #[test]
    fn headers_round_trip(pairs: Vec<(String, String)>) {
        let pairs: Vec<_> = pairs.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let headers = Headers::of(&pairs);
        let block = Deflater::new().block(&headers);
        prop_assert_eq!(Inflater::new().headers(&block), Ok(headers));
    }

    #[test]
    fn connection_ends_on_malformed_input(block: Vec<u8>, more: Vec<u8>) {
        let mut inflater = Inflater::new();
        let _ = inflater.headers(&block);
        let _ = inflater.headers(&more);
        // After a valid first block.
        let mut inflater = Inflater::new();
        inflater.headers(&Deflater::new().block(&Headers::default())).unwrap();
        let _ = inflater.headers(&block);
    }
}
