//! Lines of a container log in the CRI's format: `TIME STREAM TAG TEXT`, where the tag is `F` for a full line and `P`
//! for a partial one (Kubernetes 1.36, `pkg/kubelet/kuberuntime/logs`).

pub mod file;

use std::io::Write as _;

use jiff::Timestamp;

/// The longest part of a line in bytes; longer lines are split.
pub const MAX_PART: usize = 16 << 10;

/// One of a container's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Turns a stream of bytes into log lines; one encoder a stream.
#[derive(Debug)]
pub struct Encoder {
    stream: Stream,
    /// The incomplete line: shorter than [`MAX_PART`], without a newline.
    pending: Vec<u8>,
}

impl Encoder {
    /// An encoder without pending bytes.
    #[must_use]
    pub const fn new(stream: Stream) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Appends to `out` the lines that `bytes`, read at `now`, complete.
    pub fn feed(&mut self, mut bytes: &[u8], now: Timestamp, out: &mut Vec<u8>) {
        let head = Head::new(now, self.stream);
        while !bytes.is_empty() {
            let room = MAX_PART - self.pending.len();
            let window = &bytes[..room.min(bytes.len())];
            if let Some(end) = window.iter().position(|b| *b == b'\n') {
                self.flush(&head, b'F', &bytes[..end], out);
                bytes = &bytes[end + 1..];
            } else if window.len() == room {
                // A line of exactly the maximum length, followed by its newline, is full, not partial with an empty rest.
                let whole = bytes.get(room) == Some(&b'\n');
                self.flush(&head, if whole { b'F' } else { b'P' }, window, out);
                bytes = &bytes[room + usize::from(whole)..];
            } else {
                self.pending.extend_from_slice(window);
                return;
            }
        }
    }

    /// Appends the incomplete line, if there is one, as partial, because its newline is missing.
    pub fn finish(&mut self, now: Timestamp, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.flush(&Head::new(now, self.stream), b'P', &[], out);
        }
    }

    fn flush(&mut self, head: &Head, tag: u8, rest: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&head.0);
        out.extend_from_slice(&[tag, b' ']);
        out.append(&mut self.pending);
        out.extend_from_slice(rest);
        out.push(b'\n');
    }
}

/// `TIME STREAM `, the same for all lines of one read.
struct Head(Vec<u8>);

impl Head {
    fn new(now: Timestamp, stream: Stream) -> Self {
        let mut text = Vec::with_capacity(48);
        // Always nine digits, so that lines align and sort as text. Writing to a vector cannot fail.
        let _ = write!(text, "{now:.9} {} ", stream.name());
        Self(text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn lines(pieces: &[impl AsRef<[u8]>]) -> Vec<(char, Vec<u8>)> {
        let mut encoder = Encoder::new(Stream::Stdout);
        let mut out = Vec::new();
        for piece in pieces {
            encoder.feed(piece.as_ref(), Timestamp::UNIX_EPOCH, &mut out);
        }
        encoder.finish(Timestamp::UNIX_EPOCH, &mut out);
        out.split_inclusive(|b| *b == b'\n')
            .map(|line| {
                let rest = line.strip_prefix(b"1970-01-01T00:00:00.000000000Z stdout ").unwrap();
                assert_eq!(rest[1], b' ');
                (rest[0] as char, rest[2..rest.len() - 1].to_vec())
            })
            .collect()
    }

    #[rstest]
    #[case::nothing(&[""], &[])]
    #[case::one_line(&["hello\n"], &[('F', "hello")])]
    #[case::empty_line(&["\n"], &[('F', "")])]
    #[case::no_newline(&["hello"], &[('P', "hello")])]
    #[case::across_reads(&["he", "llo\nwor", "ld\n"], &[('F', "hello"), ('F', "world")])]
    fn lines_carry_full_and_partial_tags(
        #[case] pieces: &[&str],
        #[case] expected: &[(char, &str)],
    ) {
        let expected: Vec<_> =
            expected.iter().map(|(tag, text)| (*tag, text.as_bytes().to_vec())).collect();
        assert_eq!(lines(pieces), expected);
    }

    #[test]
    fn lines_over_maximum_are_split() {
        let long = vec![b'x'; MAX_PART * 2 + 5];
        let tags: Vec<_> =
            lines(&[&long[..], b"\n"]).iter().map(|(tag, text)| (*tag, text.len())).collect();
        assert_eq!(tags, [('P', MAX_PART), ('P', MAX_PART), ('F', 5)]);
    }

    #[test]
    fn line_of_maximum_length_is_not_split() {
        let mut line = vec![b'x'; MAX_PART];
        line.push(b'\n');
        assert_eq!(lines(&[&line]).iter().map(|(tag, _)| *tag).collect::<String>(), "F");
    }

    proptest! {
        /// The log preserves all bytes, however the input is split: the text of a partial line is followed by the rest, that of a
        /// full line by a newline.
        #[test]
        fn log_preserves_all_bytes(pieces in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..60), 0..40)) {

            let mut joined = Vec::new();
            for (tag, text) in lines(&pieces) {
                joined.extend(text);
                if tag == 'F' {
                    joined.push(b'\n');
                }
            }
            prop_assert_eq!(joined, pieces.concat());
        }
    }
}
