//! ◆ YAML that kubectl reads and YAML 1.2 does not allow, made valid without a change of its meaning. Pure.
//!
//! kubectl's parser (libyaml's, in Go) does not look at the indentation of what is in brackets or quotes, and takes a tab for a space
//! between a key and its value. The parser here stops there and says where, so that only what it stopped at is altered.

use compact::Map;
use saphyr_parser::{Marker, ScanError};

/// What is put before a line that is not indented far enough: more than any manifest indents.
const INDENT: usize = 64;
/// How much is read again for repairs, in bytes: a limit for texts that need very many.
const MOST_READ: usize = 16 << 20;

/// What was put into a text so far.
#[derive(Default)]
pub(super) struct Repairs {
    /// Spaces before lines, by their numbers from 1.
    inserted: Map<usize, usize>,
    read: usize,
}

impl Repairs {
    /// How many characters of a line before a place in it are not the author's.
    pub(super) fn before(&self, line: usize) -> usize {
        self.inserted.get(&line).copied().unwrap_or(0)
    }

    /// The text without what the parser stopped at; `None` if kubectl would stop there too.
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

    /// Puts spaces before the lines that begin at these offsets.
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

/// The byte that the parser means.
fn offset(text: &str, at: &Marker) -> Option<usize> {
    let mut offset = 0;
    for _ in 1..at.line() {
        offset += text.get(offset..)?.find('\n')? + 1;
    }
    let line = text.get(offset..)?;
    let in_line = line.char_indices().nth(at.col()).map_or(line.len(), |(index, _)| index);
    Some(offset + in_line)
}

/// How many bytes of its line are before an offset.
fn column_bytes(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or_default();
    before.len() - before.rfind('\n').map_or(0, |end| end + 1)
}

/// Where the further lines of a quoted scalar begin, and their numbers. Empty ones are left out: they are line breaks of the text.
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
            // An escaped line break is one all the same.
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
