//! ◆ Makes YAML valid that kubectl accepts and YAML 1.2 does not allow, without a change of its meaning. Pure.
//!
//! kubectl's parser (libyaml's, in Go) ignores the indentation inside brackets and quotes, and accepts a tab as a space between a
//! key and its value. The parser here stops there and reports the position, so that only this position is altered.

use compact::Map;
use saphyr_parser::{Marker, ScanError};

/// The indentation added to a line that is not indented far enough: more than any manifest has.
const INDENT: usize = 64;
/// The limit of rereading for repairs, in bytes, for texts that need very many.
const MOST_READ: usize = 16 << 20;

/// The insertions into a text so far.
#[derive(Default)]
pub(super) struct Repairs {
    /// The number of inserted spaces, by line number from 1.
    inserted: Map<usize, usize>,
    read: usize,
}

impl Repairs {
    /// The number of inserted characters at the start of a line.
    pub(super) fn before(&self, line: usize) -> usize {
        self.inserted.get(&line).copied().unwrap_or(0)
    }

    /// Repairs the position at which the parser stopped; `None` if kubectl would stop there too.
    pub(super) fn repair(&mut self, text: &str, error: &ScanError) -> Option<String> {
        self.read += text.len();
        if self.read > MOST_READ {
            return None;
        }
        let at = error.marker();
        let offset = offset(text, at)?;
        match error.info() {
            "invalid indentation" | "invalid indentation in flow construct" => {
                let start = offset.checked_sub(column_bytes(text, offset))?;
                let blank = text.get(start..offset)?.chars().all(|c| matches!(c, ' ' | '\t'));
                blank.then(|| self.indent(text, &[(start, at.line())]))
            }
            "invalid indentation in quoted scalar" => {
                let lines = lines_of_quoted(text, offset, at.line())?;
                (!lines.is_empty()).then(|| self.indent(text, &lines))
            }
            "':' must be followed by a valid YAML whitespace" => {
                let (before, after) = text.split_at_checked(offset)?;
                let key = before.trim_end_matches([' ', '\t']);
                let blanks = before.get(key.len()..)?;
                blanks.contains('\t').then(|| format!("{key}{}{after}", " ".repeat(blanks.len())))
            }
            _ => None,
        }
    }

    /// Inserts spaces before the lines that begin at these offsets.
    fn indent(&mut self, text: &str, lines: &[(usize, usize)]) -> String {
        let mut indented = String::with_capacity(text.len() + lines.len() * INDENT);
        let mut done = 0;
        for (start, line) in lines {
            indented.push_str(text.get(done..*start).unwrap_or_default());
            indented.push_str(&" ".repeat(INDENT));
            *self.inserted.entry(*line).or_default() += INDENT;
            done = *start;
        }
        indented.push_str(text.get(done..).unwrap_or_default());
        indented
    }
}

/// The byte offset of the parser's position.
fn offset(text: &str, at: &Marker) -> Option<usize> {
    let mut offset = 0;
    for _ in 1..at.line() {
        offset += text.get(offset..)?.find('\n')? + 1;
    }
    let line = text.get(offset..)?;
    let in_line = line.char_indices().nth(at.col()).map_or(line.len(), |(index, _)| index);
    Some(offset + in_line)
}

/// The number of bytes before an offset in its line.
fn column_bytes(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or_default();
    before.len() - before.rfind('\n').map_or(0, |end| end + 1)
}

/// The offsets and numbers of the continuation lines of a quoted scalar. Empty lines are skipped: they are line breaks of the text.
fn lines_of_quoted(text: &str, start: usize, line: usize) -> Option<Vec<(usize, usize)>> {
    let mut rest = text.get(start..)?.char_indices().peekable();
    let (_, quote) = rest.next().filter(|(_, quote)| matches!(quote, '\'' | '"'))?;
    let (mut line, mut lines) = (line, Vec::new());
    while let Some((index, c)) = rest.next() {
        match c {
            '\n' => {
                line += 1;
                let next = rest.peek().is_some_and(|(_, next)| !matches!(next, '\n' | '\r'));
                if next {
                    lines.push((start + index + 1, line));
                }
            }
            // An escaped line break still ends the line.
            '\\' if quote == '"' => drop(rest.next_if(|(_, escaped)| *escaped != '\n')),
            c if c == quote => {
                let doubled = quote == '\'' && rest.next_if(|(_, next)| *next == quote).is_some();
                if !doubled {
                    break;
                }
            }
            _ => {}
        }
    }
    Some(lines)
}
