//! Fuzz target: a container's output on its way into a log.

use fuzz_target::Target;
use jiff::Timestamp;

use crate::parent::log::{Encoder, MAX_PART, Stream};

pub(super) const TARGETS: &[Target] = &[Target::new("log_output", output, seeds)];

/// The log contains the output, cut as the first byte says, in lines that each have a time, a stream and a tag.
fn output(data: &[u8]) {
    let Some((cut, text)) = data.split_first() else {
        return;
    };
    let mut encoder = Encoder::new(Stream::Stderr);
    let mut log = Vec::new();
    for piece in text.chunks(usize::from(*cut) + 1) {
        encoder.feed(piece, Timestamp::UNIX_EPOCH, &mut log);
    }
    encoder.finish(Timestamp::UNIX_EPOCH, &mut log);
    let mut joined = Vec::new();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let rest = line.strip_prefix(b"1970-01-01T00:00:00.000000000Z stderr ").unwrap();
        let (tag, text) = (&rest[..2], &rest[2..rest.len() - 1]);
        assert!(text.len() <= MAX_PART);
        joined.extend_from_slice(text);
        match tag {
            b"F " => joined.push(b'\n'),
            b"P " => {}
            _ => panic!("tag {}", tag.escape_ascii()),
        }
    }
    assert_eq!(joined, text);
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        b"\x05one\ntwo\n\nthree".to_vec(),
        [b"\xff".to_vec(), vec![b'x'; MAX_PART], b"\ny\n".to_vec()].concat(),
    ]
}
