//! ◆ Filters the entries of a log file and returns their bytes as the container wrote them.

use jiff::Timestamp;

use super::{Stream, parse};

/// Selects and formats entries.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// A prefix for each line.
    pub prefix: String,
    /// Skips older entries.
    pub since: Option<Timestamp>,
    /// Whether to print the timestamp before each line.
    pub timestamps: bool,
    /// The maximum number of bytes.
    pub limit: Option<u64>,
    /// Only this stream.
    pub stream: Option<Stream>,
}

/// Bytes for one of the two output streams.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stream.
    pub stream: Stream,
    /// The bytes that the container wrote, with line ends.
    pub bytes: Vec<u8>,
}

/// Reads a log in chunks of any size.
#[derive(Debug)]
pub struct Reader {
    filter: Filter,
    unread: Vec<u8>,
    /// Whether the last entry of stdout and of stderr was partial.
    open: [bool; 2],
    left: u64,
}

impl Reader {
    /// Creates a reader that starts at the beginning of a log or of a line.
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        let left = filter.limit.unwrap_or(u64::MAX);
        Self { filter, unread: Vec::new(), open: [false; 2], left }
    }

    /// Whether the byte limit is reached.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Takes the next bytes of the file and returns the pieces that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, tail) = rest.split_at(end);
            rest = tail.get(1..).unwrap_or_default();
            let mut whole = std::mem::take(&mut self.unread);
            whole.extend_from_slice(line);
            let Some(piece) = self.entry(&whole) else {
                continue;
            };
            match pieces.last_mut().filter(|last| last.stream == piece.stream) {
                Some(last) => last.bytes.extend(piece.bytes),
                None => pieces.push(piece),
            }
        }
        self.unread.extend_from_slice(rest);
        pieces
    }

    /// The remainder at the end of the log: an entry without a line end.
    pub fn finish(&mut self) -> Option<Piece> {
        let rest = std::mem::take(&mut self.unread);
        if rest.is_empty() {
            return None;
        }
        self.entry(&rest)
    }

    fn entry(&mut self, line: &[u8]) -> Option<Piece> {
        let Some(entry) = parse(line) else {
            // Returned unchanged: one malformed line must not make the log unreadable.
            let bytes = [self.filter.prefix.as_bytes(), line, b"\n"].concat();
            return self.limited(Stream::Stdout, bytes);
        };
        let [stdout, stderr] = &mut self.open;
        let open = match entry.stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        };
        let is_continuation = std::mem::replace(open, entry.partial);
        if self.filter.stream.is_some_and(|stream| stream != entry.stream) {
            return None;
        }
        if let Some(since) = self.filter.since
            && entry.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return None;
        }
        let mut bytes = Vec::with_capacity(entry.text.len() + 1);
        if !is_continuation {
            bytes.extend_from_slice(self.filter.prefix.as_bytes());
        }
        if self.filter.timestamps && !is_continuation {
            bytes.extend_from_slice(entry.time.as_bytes());
            bytes.push(b' ');
        }
        bytes.extend_from_slice(entry.text);
        if !entry.partial {
            bytes.push(b'\n');
        }
        self.limited(entry.stream, bytes)
    }

    fn limited(&mut self, stream: Stream, mut bytes: Vec<u8>) -> Option<Piece> {
        bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= bytes.len() as u64;
        (!bytes.is_empty()).then_some(Piece { stream, bytes })
    }
}

/// Finds the start of the last lines of a log, which the caller pushes in chunks.
#[derive(Debug)]
pub struct Tail {
    lines: usize,
    starts: std::collections::VecDeque<u64>,
    line: Vec<u8>,
    offset: u64,
    begin: u64,
    open: [bool; 2],
}

/// The length of the prefix of an entry that contains its stream and its tags.
const HEAD: usize = 64;

impl Tail {
    /// Creates a finder of the last `lines` lines.
    #[must_use]
    pub fn new(lines: usize) -> Self {
        Self {
            lines,
            starts: std::collections::VecDeque::new(),
            line: Vec::new(),
            offset: 0,
            begin: 0,
            open: [false; 2],
        }
    }

    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.offset += 1;
            if *byte == b'\n' {
                self.entry();
            } else if self.line.len() < HEAD {
                self.line.push(*byte);
            }
        }
    }

    fn entry(&mut self) {
        let entry = parse(&self.line);
        let [stdout, stderr] = &mut self.open;
        let is_continuation = match entry {
            Some(entry) => {
                let open = match entry.stream {
                    Stream::Stdout => stdout,
                    Stream::Stderr => stderr,
                };
                std::mem::replace(open, entry.partial)
            }
            None => false,
        };
        if !is_continuation {
            self.starts.push_back(self.begin);
            if self.starts.len() > self.lines {
                self.starts.pop_front();
            }
        }
        self.line.clear();
        self.begin = self.offset;
    }

    /// The offset to read from.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.starts.front().copied().unwrap_or(self.begin)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:01Z stdout F one\n\
        2026-01-01T00:00:02Z stderr P er\n\
        2026-01-01T00:00:03Z stdout F two\n\
        2026-01-01T00:00:04Z stderr F ror\n\
        nonsense\n\
        2026-01-01T00:00:05Z stdout P thr\n\
        2026-01-01T00:00:06Z stdout F ee\n";

    fn read(filter: Filter, from: u64) -> (String, String) {
        let mut reader = Reader::new(filter);
        let (mut out, mut err) = (String::new(), String::new());
        for piece in reader.push(&LOG.as_bytes()[usize::try_from(from).unwrap()..]) {
            let text = String::from_utf8(piece.bytes).unwrap();
            match piece.stream {
                Stream::Stdout => out += &text,
                Stream::Stderr => err += &text,
            }
        }
        (out, err)
    }

    #[test]
    fn log_reader_prints_entries_as_lines() {
        let expected = ("one\ntwo\nnonsense\nthree\n".to_owned(), "error\n".to_owned());
        assert_eq!(read(Filter::default(), 0), expected);
        let prefixed = Filter { prefix: "[p] ".to_owned(), ..Filter::default() };
        let expected = "[p] one\n[p] two\n[p] nonsense\n[p] three\n";
        assert_eq!(read(prefixed, 0), (expected.to_owned(), "[p] error\n".to_owned()));
        let filter = Filter {
            timestamps: true,
            since: Some("2026-01-01T00:00:03Z".parse().unwrap()),
            ..Filter::default()
        };
        let (out, err) = read(filter, 0);
        let expected = "2026-01-01T00:00:03Z two\nnonsense\n2026-01-01T00:00:05Z three\n";
        assert_eq!((out.as_str(), err.as_str()), (expected, "ror\n"));
    }

    #[test]
    fn log_reader_flushes_partial_entry_at_end() {
        let mut reader = Reader::new(Filter::default());
        assert_eq!(reader.push(b"2026-01-01T00:00:01Z stderr F ab"), []);
        let bytes = b"ab\n".to_vec();
        let stream = Stream::Stderr;
        assert_eq!(reader.finish(), Some(Piece { stream, bytes }));
        assert_eq!(reader.finish(), None);
    }

    #[rstest]
    #[case(0, "")]
    #[case(2, "on")]
    #[case(5, "one\nt")]
    #[case(999, "one\ntwo\nnonsense\nthree\n")]
    fn log_reader_stops_at_byte_limit(#[case] limit: u64, #[case] out: &str) {
        let limit = Some(limit + u64::from(limit > 4) * 2);
        let filter = Filter { limit, ..Filter::default() };
        assert_eq!(read(filter, 0).0, out);
    }

    #[rstest]
    #[case(0, "")]
    #[case(1, "three\n")]
    #[case(2, "nonsense\nthree\n")]
    #[case(3, "two\nnonsense\nthree\n")]
    #[case(99, "one\ntwo\nnonsense\nthree\n")]
    fn log_tail_starts_at_last_lines(#[case] lines: usize, #[case] out: &str) {
        let mut tail = Tail::new(lines);
        tail.push(LOG.as_bytes());
        assert_eq!(read(Filter::default(), tail.start()).0, out);
    }

    proptest! {
        #[test]
        fn log_reader_output_is_independent_of_chunking(cuts in proptest::collection::vec(0..LOG.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.extend([0, LOG.len()]);
            cuts.sort_unstable();
            let mut reader = Reader::new(Filter::default());
            let mut out = Vec::new();
            for pair in cuts.windows(2) {
                for piece in reader.push(&LOG.as_bytes()[pair[0]..pair[1]]) {
                    if piece.stream == Stream::Stdout {
                        out.extend(piece.bytes);
                    }
                }
            }
            prop_assert_eq!(String::from_utf8(out).unwrap(), "one\ntwo\nnonsense\nthree\n");
        }
    }
}
