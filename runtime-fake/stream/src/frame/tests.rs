//! Frames as other implementations send them, and malformed frames.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    let (first, payload) = bytes.split_first_chunk().ok_or(FrameError::Length("any"))?;
    match head(*first)? {
        Head::Control { kind, flags, length } => {
            assert_eq!(length, payload.len());
            control(kind, flags, payload)
        }
        Head::Data { .. } => panic!("data"),
    }
}

// Bytes spelled out from the protocol's text.
#[rstest]
#[case::reset(
    Frame::Reset { id: 5, status: 3 },
    &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 3]
)]
#[case::ping(Frame::Ping(1), &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1])]
#[case::go_away(
    Frame::GoAway { last: 9, status: 0 },
    &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0]
)]
#[case::window(
    Frame::WindowUpdate { id: 1, delta: 0x8000 },
    &[0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0x80, 0]
)]
#[case::open(
    Frame::SynStream { id: 1, fin: true, unidirectional: false, block: vec![7] },
    &[0x80, 3, 0, 1, 1, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7]
)]
#[case::reply(
    Frame::SynReply { id: 1, fin: false, block: vec![7, 8] },
    &[0x80, 3, 0, 2, 0, 0, 0, 6, 0, 0, 0, 1, 7, 8]
)]
#[case::headers(
    Frame::Headers { id: 3, fin: true, block: vec![] },
    &[0x80, 3, 0, 8, 1, 0, 0, 4, 0, 0, 0, 3]
)]
#[case::settings(
    Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 1024)]),
    &[0x80, 3, 0, 4, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 4, 0]
)]
fn frames_encode_and_decode(#[case] frame: Frame, #[case] bytes: &[u8]) {
    let mut out = Vec::new();
    frame.encode(&mut out);
    assert_eq!(out, bytes);
    assert_eq!(decode(bytes), Ok(frame));
}

#[rstest]
#[case::another_version(&[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], FrameError::Version(2))]
#[case::short_ping(&[0x80, 3, 0, 6, 0, 0, 0, 3, 0, 0, 0], FrameError::Length("PING"))]
#[case::long_ping(&[0x80, 3, 0, 6, 0, 0, 0, 5, 0, 0, 0, 1, 1], FrameError::Length("PING"))]
#[case::no_stream(&[0x80, 3, 0, 3, 0, 0, 0, 8, 0x80, 0, 0, 0, 0, 0, 0, 3], FrameError::NoStream("RST_STREAM"))]
#[case::half_a_syn(&[0x80, 3, 0, 1, 0, 0, 0, 5, 0, 0, 0, 1, 0], FrameError::Length("SYN_STREAM"))]
#[case::settings_that_are_not_there(
    &[0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff],
    FrameError::Length("SETTINGS")
)]
fn invalid_frames_are_refused(#[case] bytes: &[u8], #[case] problem: FrameError) {
    assert_eq!(decode(bytes), Err(problem));
}

#[test]
fn head_rejects_long_control_frames() {
    assert_eq!(head([0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]), Err(FrameError::TooLong(0xff_ffff)));
}

#[test]
fn data_frame_header_is_parsed() {
    let bytes = data_head(5, true, 0x01_02_03);
    assert_eq!(bytes, [0, 0, 0, 5, 1, 1, 2, 3]);
    let length = 0x01_02_03;
    assert_eq!(head(bytes), Ok(Head::Data { id: 5, fin: true, length }));
    assert_eq!(head([0; 8]), Err(FrameError::NoStream("data")));
}

#[test]
fn control_accepts_unknown_kinds() {
    assert_eq!(control(0x1234, 0xff, b"whatever"), Ok(Frame::Unknown));
}

proptest! {
    #[test]
    fn frame_parser_never_panics(first: [u8; HEAD], payload: Vec<u8>) {
        if let Ok(Head::Control { kind, flags, .. }) = head(first) {
            let _ = control(kind, flags, &payload);
        }
    }

    #[test]
    fn frames_round_trip(kind in 1u16..10, flags in 0u8..4, payload: Vec<u8>) {
        if let Ok(frame) = control(kind, flags, &payload) {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            if frame != Frame::Unknown {
                prop_assert_eq!(decode(&bytes), Ok(frame));
            }
        }
    }
}
