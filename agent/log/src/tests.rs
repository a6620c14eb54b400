//! Tables and properties of the log format: however a file is split, the joiner returns the same lines, and loses none.
use proptest::prelude::*;
use rstest::rstest;

use super::*;

const AT: &str = "2026-01-02T03:04:05.678901234Z";

fn joined(chunks: &[&[u8]]) -> Vec<(Stream, String)> {
    let (mut joiner, mut lines) = (Joiner::default(), Vec::new());
    for chunk in chunks {
        joiner.push(chunk, &mut lines);
    }
    joiner.finish(&mut lines);
    lines.into_iter().map(|line| (line.stream, line.text)).collect()
}

#[rstest]
#[case("stdout F hello", Stream::Stdout, false, "hello")]
#[case("stderr F a b  c ", Stream::Stderr, false, "a b  c ")]
#[case("stdout P half", Stream::Stdout, true, "half")]
#[case("stdout P:x:y half", Stream::Stdout, true, "half")]
#[case("stdout F ", Stream::Stdout, false, "")]
#[case("stdout F", Stream::Stdout, false, "")]
#[case("stdout F  indented", Stream::Stdout, false, " indented")]
fn parse_reads_valid_entries(
    #[case] rest: &str,
    #[case] stream: Stream,
    #[case] partial: bool,
    #[case] text: &str,
) {
    let line = format!("{AT} {rest}");
    let seen = parse(line.as_bytes());
    assert_eq!(seen, Some(Entry { time: AT, stream, partial, text: text.as_bytes() }));
}

#[rstest]
#[case("")]
#[case("plain text")]
#[case("2026-01-02T03:04:05Z stdin F x")]
#[case("2026-01-02T03:04:05Z stdout X x")]
#[case("yesterday stdout F x")]
#[case("2026-01-02T03:04:05Z stdout")]
fn parse_rejects_malformed_entries(#[case] line: &str) {
    assert_eq!(parse(line.as_bytes()), None);
    let shown = if line.is_empty() {
        vec![(Stream::Stdout, String::new())]
    } else {
        vec![(Stream::Stdout, line.to_owned())]
    };
    assert_eq!(joined(&[line.as_bytes(), b"\n"]), shown, "what cannot be read is shown as it is");
}

#[test]
fn joiner_keeps_streams_apart() {
    let file =
        format!("{AT} stdout P one \n{AT} stderr P uno \n{AT} stdout F two\n{AT} stderr F due\n");
    let expected = [(Stream::Stdout, "one two".to_owned()), (Stream::Stderr, "uno due".to_owned())];
    assert_eq!(joined(&[file.as_bytes()]), expected);
}

#[test]
fn joined_line_has_time_of_first_entry() {
    let (mut joiner, mut lines) = (Joiner::default(), Vec::new());
    joiner.push(b"2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:09Z stdout F b\n", &mut lines);
    assert_eq!(
        lines,
        [Line {
            time: "2026-01-01T00:00:00Z".to_owned(),
            stream: Stream::Stdout,
            text: "ab".to_owned()
        }]
    );
}

#[test]
fn finish_returns_incomplete_lines() {
    let file = format!("{AT} stderr P open\n{AT} stdout F cut");
    let seen = joined(&[file.as_bytes()]);
    assert_eq!(seen, [(Stream::Stdout, "cut".to_owned()), (Stream::Stderr, "open".to_owned())]);
}

#[test]
fn joiner_splits_lines_over_limit() {
    let piece = format!("{AT} stdout P {}\n", "x".repeat(LONGEST_LINE / 2));
    let (mut joiner, mut lines) = (Joiner::default(), Vec::new());
    for _ in 0..5 {
        joiner.push(piece.as_bytes(), &mut lines);
    }
    joiner.finish(&mut lines);
    let sizes: Vec<usize> = lines.iter().map(|line| line.text.len()).collect();
    assert_eq!(sizes, [LONGEST_LINE, LONGEST_LINE, LONGEST_LINE / 2]);
}

/// A runtime's entries for one line: partial entries, then the full one.
fn written(stream: Stream, pieces: &[String]) -> String {
    let last = pieces.len().saturating_sub(1);
    pieces
        .iter()
        .enumerate()
        .map(|(at, piece)| {
            format!("{AT} {stream} {} {piece}\n", if at == last { "F" } else { "P" })
        })
        .collect()
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)]
}

proptest! {
    #[test]
    fn joiner_output_is_independent_of_chunking(
        lines in proptest::collection::vec((stream(), proptest::collection::vec("[^\n]{0,12}", 1..4)), 0..12),
        cuts in proptest::collection::vec(1_usize..40, 0..40),
    ) {
        let file: String = lines.iter().map(|(stream, pieces)| written(*stream, pieces)).collect();
        let wanted: Vec<(Stream, String)> = lines.iter().map(|(stream, pieces)| (*stream, pieces.concat())).collect();
        let (mut chunks, mut rest) = (Vec::new(), file.as_bytes());
        for cut in cuts {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            chunks.push(head);
            rest = tail;
        }
        chunks.push(rest);
        prop_assert_eq!(joined(&chunks), wanted);
    }

    #[test]
    fn joiner_accepts_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let lines = joined(&[&bytes]);
        let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
        prop_assert!(lines.len() <= ends + 3);
        prop_assert!(bytes.is_empty() || !lines.is_empty());
    }
}
