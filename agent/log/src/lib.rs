//! The log format of CRI runtimes: `<RFC 3339 time> <stdout|stderr> <tags> <text>\n`, one file for each container attempt.
//!
//! | file | what |
//! |---|---|
//! | this one | ◆ entries, and [`Joiner`], which joins them into lines of text |
//! | [`reader`] | ◆ filters entries, and returns their bytes as the container wrote them |
//! | [`follower`] | follows a log file that grows and is rotated |
//!
//! The rules are those of the kubelet of Kubernetes 1.36 (`k8s.io/cri-client/pkg/logs`):
//! tags are separated by `:`, and the first is `P` for a partial line, continued in the next
//! entry of the same stream, or `F` for the end of a line. [`Joiner`] takes bytes as they
//! arrive and returns whole lines, so tests can cut the bytes anywhere.

pub mod follower;
pub mod reader;

use std::fmt;

/// The stream that a container wrote a line to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The name used in log files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One entry of a log file, without its line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// RFC 3339 with nanoseconds, as in the file.
    pub time: &'a str,
    /// The stream.
    pub stream: Stream,
    /// Whether the line continues in the stream's next entry.
    pub partial: bool,
    /// The text.
    pub text: &'a [u8],
}

/// Parses one entry; `None` if it is malformed.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    time.parse::<jiff::Timestamp>().ok()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let partial = match parts.next()?.split(|byte| *byte == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    Some(Entry { time, stream, partial, text: parts.next().unwrap_or_default() })
}

/// One whole line of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The time of its first entry: RFC 3339; empty for a malformed entry.
    pub time: String,
    /// The stream.
    pub stream: Stream,
    /// The line without its end; bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// The longest joined line in bytes; a longer one is returned in pieces of at least this size.
pub const LONGEST_LINE: usize = 1 << 20;

/// Joins the bytes of one log file, in chunks of any size, into whole lines.
#[derive(Debug, Default)]
pub struct Joiner {
    unread: Vec<u8>,
    open: [Option<Open>; 2],
}

/// The pieces of a line whose end has not been read.
#[derive(Debug)]
struct Open {
    time: String,
    text: Vec<u8>,
}

/// The lines of a whole log file.
#[must_use]
pub fn lines(file: &[u8]) -> Vec<Line> {
    let (mut joiner, mut lines) = (Joiner::default(), Vec::new());
    joiner.push(file, &mut lines);
    joiner.finish(&mut lines);
    lines
}

impl Joiner {
    /// Takes the next bytes of the file and appends the lines they complete to `lines`.
    pub fn push(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = rest.split_at(end);
            rest = tail.get(1..).unwrap_or_default();
            if self.unread.is_empty() {
                self.entry(head, lines);
            } else {
                let mut whole = std::mem::take(&mut self.unread);
                whole.extend_from_slice(head);
                self.entry(&whole, lines);
            }
        }
        self.unread.extend_from_slice(rest);
    }

    /// Returns the rest at the end of the file: an entry without a line end, lines without their last entry.
    pub fn finish(&mut self, lines: &mut Vec<Line>) {
        let unread = std::mem::take(&mut self.unread);
        if !unread.is_empty() {
            self.entry(&unread, lines);
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(open) = self.slot(stream).take() {
                lines.push(open.close(stream));
            }
        }
    }

    fn entry(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        let Some(entry) = parse(bytes) else {
            lines.push(Line {
                time: String::new(),
                stream: Stream::Stdout,
                text: String::from_utf8_lossy(bytes).into_owned(),
            });
            return;
        };
        let slot = self.slot(entry.stream);
        let mut open =
            slot.take().unwrap_or_else(|| Open { time: entry.time.to_owned(), text: Vec::new() });
        open.text.extend_from_slice(entry.text);
        if entry.partial && open.text.len() < LONGEST_LINE {
            *slot = Some(open);
        } else {
            lines.push(open.close(entry.stream));
        }
    }

    fn slot(&mut self, stream: Stream) -> &mut Option<Open> {
        let [stdout, stderr] = &mut self.open;
        match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        }
    }
}

impl Open {
    fn close(self, stream: Stream) -> Line {
        Line { time: self.time, stream, text: String::from_utf8_lossy(&self.text).into_owned() }
    }
}

#[cfg(test)]
mod tests;
