//! ◆ Parses the text of a rule from left to right, and reports the position of errors.

use std::borrow::Cow;
use std::str::FromStr;

use serde_json::Value;

/// The maximum length of a text in an error, in characters.
const MAX_SHOWN: usize = 256;
/// The maximum length, in bytes, of a name for which a similar one is suggested: the comparison takes time and memory in proportion
/// to it.
const MAX_COMPARED: usize = 64;

/// A position in a text.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// An error in a text, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The byte offset.
    pub(super) at: usize,
    pub(super) why: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The remaining text.
    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The byte offset of the next word.
    pub(super) fn at(&mut self) -> usize {
        self.skip_spaces();
        self.at
    }

    pub(super) fn problem(&mut self, why: impl Into<String>) -> Problem {
        Problem { at: self.at(), why: why.into() }
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// Takes the characters up to the next space; empty at the end.
    pub(super) fn word(&mut self) -> &'a str {
        self.skip_spaces();
        self.take_while(|c| !c.is_whitespace())
    }

    /// Skips spaces, and takes letters, digits and underscores.
    pub(super) fn name(&mut self) -> &'a str {
        self.skip_spaces();
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// Takes the characters before the first one of `ends`.
    pub(super) fn until(&mut self, ends: &[char]) -> &'a str {
        self.take_while(|c| !ends.contains(&c))
    }

    /// Skips spaces, and takes a symbol if it is next.
    pub(super) fn consume(&mut self, symbol: &str) -> bool {
        self.skip_spaces();
        self.consume_here(symbol)
    }

    /// Takes a symbol if it is next, without a space before it.
    pub(super) fn consume_here(&mut self, symbol: &str) -> bool {
        let comes = self.rest().starts_with(symbol);
        if comes {
            self.at += symbol.len();
        }
        comes
    }

    /// The next name, without taking it.
    pub(super) fn peek_name(&self) -> &'a str {
        self.clone().name()
    }

    /// Takes a keyword if it is the next whole word.
    pub(super) fn consume_word(&mut self, keyword: &str) -> bool {
        let comes = self.peek_name() == keyword;
        if comes {
            self.name();
        }
        comes
    }

    /// Takes a number, which an error calls `what`.
    pub(super) fn number<T: FromStr>(&mut self, what: &str) -> Result<T, Problem> {
        let at = self.at();
        let word = self.word();
        word.parse().map_err(|_| Problem { at, why: format!("{:?} is not {what}", excerpt(word)) })
    }

    /// Takes a JSON value.
    pub(super) fn json(&mut self) -> Result<Value, Problem> {
        let at = self.at();
        let rest = self.rest();
        let problem = |why: String| Problem { at, why };
        if rest.is_empty() {
            return Err(problem("a JSON value is missing".to_owned()));
        }
        if !rest.starts_with(['"', '[', '{']) {
            let word = self.take_while(|c| !c.is_whitespace() && c != ')' && c != ',');
            return serde_json::from_str(word).map_err(|_| {
                problem(format!("{:?} is not a JSON value: is it in quotes?", excerpt(word)))
            });
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                self.at += values.byte_offset();
                Ok(value)
            }
            Some(Err(error)) => Err(problem(format!("invalid JSON value: {error}"))),
            None => Err(problem("a JSON value is missing".to_owned())),
        }
    }

    /// Fails unless only a comment follows.
    pub(super) fn end(&mut self) -> Result<(), Problem> {
        self.skip_spaces();
        let rest = self.rest();
        if rest.is_empty() || rest.starts_with('#') {
            Ok(())
        } else {
            Err(self.problem(format!("unexpected {:?}", excerpt(rest))))
        }
    }
}

/// The beginning of a text, for an error: a rule may have megabytes.
pub(super) fn excerpt(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_SHOWN) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
    }
}

/// The end of an error message with the most similar candidate: `: did you mean "x"?`, or nothing.
pub(super) fn suggestion<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    if name.len() > MAX_COMPARED {
        return String::new();
    }
    let lower = name.to_lowercase();
    let distance = |candidate: &str| strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
    candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min()
        .map_or(String::new(), |(_, candidate)| format!(": did you mean {candidate:?}?"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_read_from_left_to_right() {
        let mut cursor = Cursor::new("  one two.three \"a b\") 5) {\"x\": [1]} # end");
        assert!(cursor.consume_word("one"));
        assert!(!cursor.consume_word("tw"));
        assert_eq!(cursor.name(), "two");
        assert!(cursor.consume_here(".") && !cursor.consume_here("."));
        assert_eq!(cursor.word(), "three");
        assert_eq!(cursor.json().unwrap(), json!("a b"));
        assert!(cursor.consume(")"));
        assert_eq!(cursor.json().unwrap(), json!(5));
        assert!(cursor.consume(")"));
        assert_eq!(cursor.json().unwrap(), json!({"x": [1]}));
        cursor.end().unwrap();
        assert_eq!(Cursor::new("a b").number::<u8>("a count").unwrap_err().at, 0);
        let mut left = Cursor::new("a  b");
        left.name();
        assert_eq!(left.end().unwrap_err().at, 3);
    }

    #[test]
    fn similar_name_is_suggested() {
        let all = ["ContainerStatus", "PodSandboxStatus", "Status"];
        assert_eq!(suggestion("ContainerStats", all), ": did you mean \"ContainerStatus\"?");
        assert_eq!(suggestion("status", all), ": did you mean \"Status\"?");
        assert_eq!(suggestion("Dance", all), "");
        let long = "a".repeat(MAX_COMPARED);
        let longer = format!("{long}a");
        assert_eq!(suggestion(&long, [longer.as_str()]), format!(": did you mean {longer:?}?"));
        assert_eq!(suggestion(&longer, [longer.as_str()]), "");
    }

    #[test]
    fn excerpt_ends_at_its_limit() {
        let fits = "é".repeat(MAX_SHOWN);
        assert_eq!(excerpt(&fits), fits);
        assert_eq!(excerpt(&format!("{fits}é")), format!("{fits}…"));
    }
}
