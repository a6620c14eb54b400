//! Tests of DNS messages.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn edns(mut query: Vec<u8>, payload: u16) -> Vec<u8> {
    query[11] = 1;
    let size = payload.to_be_bytes();
    query.extend([&[0, 0, 41][..], &size, &[0; 6]].concat());
    query
}

#[test]
fn query_is_read_as_it_was_asked() {
    let bytes = ask(7, "Web.Default.svc", kind::A).unwrap();
    let read = query(&bytes).unwrap();
    assert_eq!((read.id, read.name.as_str(), read.kind), (7, "web.default.svc", 1));
    assert_eq!(read.limit(), 512);
    assert_eq!(query(&edns(bytes.clone(), 1232)).unwrap().limit(), 1232);
    assert_eq!(query(&edns(bytes, 100)).unwrap().limit(), 512);
}

#[rstest]
#[case::short(&[0; 11], QueryError::Ignore)]
#[case::answer(&[0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0], QueryError::Ignore)]
#[case::update(&[0, 1, 0x28, 0, 0, 1, 0, 0, 0, 0, 0, 0], QueryError::Refuse(1, Outcome::NotImplemented))]
#[case::no_question(&[0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], QueryError::Refuse(1, Outcome::FormatError))]
#[case::cut_name(&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, b'w'], QueryError::Refuse(1, Outcome::FormatError))]
#[case::pointer_to_itself(&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1], QueryError::Refuse(1, Outcome::FormatError))]
fn malformed_queries_are_rejected(#[case] bytes: &[u8], #[case] expected: QueryError) {
    assert_eq!(query(bytes), Err(expected));
}

#[test]
fn answer_repeats_the_question_and_has_the_records() {
    let asked = query(&ask(9, "WEB", kind::A).unwrap()).unwrap();
    let record = |data| Record { name: String::new(), data };
    let records =
        [record(Data::Cname("other.example".to_owned())), record(Data::A([10, 0, 0, 1].into()))];
    let bytes = asked.answer(Outcome::NoError, &records, 512);
    assert_eq!(bytes[..12], [0, 9, 0x85, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
    // The answer keeps the client's upper and lower case.
    assert_eq!(bytes[12..17], *b"\x03WEB\0");
    let (outcome, read) = answers(&bytes).unwrap();
    assert_eq!(outcome, 0);
    let target = encoded("other.example").unwrap();
    assert_eq!(
        read,
        [(kind::CNAME, target), (kind::A, vec![10, 0, 0, 1])].map(|(kind, data)| Record {
            name: "web".to_owned(),
            data: Data::Raw(kind, TTL, data)
        })
    );
}

#[test]
fn long_answer_over_udp_is_truncated_and_whole_over_tcp() {
    let asked = query(&ask(9, "web", kind::A).unwrap()).unwrap();
    let record = Record { name: String::new(), data: Data::A([10, 0, 0, 1].into()) };
    let records = vec![record; 40];
    let cut = asked.answer(Outcome::NoError, &records, asked.limit());
    assert_eq!((cut[2] & 2, &cut[6..8]), (2, &[0, 0][..]));
    let whole = asked.answer(Outcome::NoError, &records, 65_535);
    assert_eq!((whole[2] & 2, answers(&whole).unwrap().1.len()), (0, 40));
    let bytes = edns(ask(9, "web", kind::A).unwrap(), 1232);
    let larger = query(&bytes).unwrap();
    let whole = larger.answer(Outcome::NoError, &records, larger.limit());
    assert_eq!((whole[2] & 2, whole[11]), (0, 1));
}

#[rstest]
#[case::empty_label("a..b")]
#[case::long_label(&"a".repeat(64))]
#[case::long_name(&"abc.".repeat(64))]
fn names_that_do_not_fit_are_not_written(#[case] name: &str) {
    assert_eq!(encoded(name), None);
}

proptest! {
    #[test]
    fn message_parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), start in 0usize..3) {
        // Most random headers are rejected: some inputs get a valid one.
        let mut bytes = bytes;
        if start > 0 && bytes.len() >= HEADER {
            bytes[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 2, 0, 0, 0, 1]);
        }
        let _ = answers(&bytes);
        if let Ok(query) = query(&bytes) {
            prop_assert!(query.answer(Outcome::NoError, &[], 512).len() >= HEADER);
        }
    }

    #[test]
    fn names_round_trip(name in "[a-z0-9_-]{1,20}(\\.[a-z0-9_-]{1,20}){0,6}") {
        let bytes = encoded(&name).unwrap();
        prop_assert_eq!(name_at(&bytes, 0), Some((name, bytes.len())));
    }
}
