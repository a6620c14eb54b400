//! ◆ Tokens of a template: text, and the content of `{{ }}`.

use super::TemplateError;

/// A token, and its position.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
    /// Whether no space precedes it, as for `.b` in `.a.b`.
    pub(super) joined: bool,
}

/// The kind of a token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Text outside actions.
    Text(String),
    /// `{{`.
    Open,
    /// `}}`.
    Close,
    /// A name: a keyword or a function.
    Name(String),
    /// `.name`.
    Field(String),
    /// `.`.
    Dot,
    /// `$name`; the empty name is the root document.
    Variable(String),
    /// A string.
    Quoted(String),
    /// An integer.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// `|`, `(`, `)`, `,`, `=`, and `:` for `:=`.
    Sign(char),
}

/// Tokenises a template.
pub(super) fn lex(text: &str) -> Result<Vec<Token>, TemplateError> {
    let mut lexer = Lexer { rest: text, line: 1, tokens: Vec::new() };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    fn error<T>(&self, reason: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError::Syntax { line: self.line, reason: reason.into() })
    }

    fn push(&mut self, kind: Kind, joined: bool) {
        let line = self.line;
        self.tokens.push(Token { kind, line, joined });
    }

    /// Advances by `bytes` and returns the consumed text.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    fn run(&mut self) -> Result<(), TemplateError> {
        let mut trim = false;
        loop {
            let end = self.rest.find("{{");
            let mut text = self.take(end.unwrap_or(self.rest.len()));
            if trim {
                text = text.trim_start();
            }
            let trims_before = trims_before(self.rest.get(2..).unwrap_or_default());
            if end.is_some() && trims_before {
                text = text.trim_end();
            }
            if !text.is_empty() {
                self.push(Kind::Text(text.to_owned()), false);
            }
            if end.is_none() {
                return Ok(());
            }
            self.take(if trims_before { 3 } else { 2 });
            trim = self.action()?;
        }
    }

    /// Reads up to the end of an action; returns whether white space after it is trimmed.
    fn action(&mut self) -> Result<bool, TemplateError> {
        let blank = self.rest.len() - self.rest.trim_start().len();
        if self.rest.trim_start().starts_with("/*") {
            self.take(blank + 2);
            let Some(end) = self.rest.find("*/") else {
                return self.error("unclosed comment");
            };
            self.take(end + 2);
            let blank = self.rest.len() - self.rest.trim_start().len();
            if blank > 0 && self.rest.trim_start().starts_with("-}}") {
                self.take(blank + 3);
                return Ok(true);
            }
            if self.rest.starts_with("}}") {
                self.take(2);
                return Ok(false);
            }
            return self.error("a comment ends at the end of its action: */}}");
        }
        self.push(Kind::Open, false);
        let mut joined = false;
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            if blank > 0 {
                self.take(blank);
                joined = false;
            }
            if blank > 0 && self.rest.starts_with("-}}") {
                self.push(Kind::Close, false);
                self.take(3);
                return Ok(true);
            }
            if self.rest.starts_with("}}") {
                self.push(Kind::Close, false);
                self.take(2);
                return Ok(false);
            }
            let kind = self.word()?;
            self.push(kind, joined);
            joined = true;
        }
    }

    fn word(&mut self) -> Result<Kind, TemplateError> {
        let Some(first) = self.rest.chars().next() else {
            return self.error("unclosed action");
        };
        match first {
            '|' | '(' | ')' | ',' | '=' => {
                self.take(1);
                Ok(Kind::Sign(first))
            }
            ':' if self.rest.starts_with(":=") => {
                self.take(2);
                Ok(Kind::Sign(':'))
            }
            '"' => self.quoted(),
            '`' => {
                self.take(1);
                let Some(end) = self.rest.find('`') else {
                    return self.error("unterminated string");
                };
                let text = self.take(end).to_owned();
                self.take(1);
                Ok(Kind::Quoted(text))
            }
            '.' if !self.rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                self.take(1);
                Ok(match self.name() {
                    "" => Kind::Dot,
                    name => Kind::Field(name.to_owned()),
                })
            }
            '$' => {
                self.take(1);
                Ok(Kind::Variable(self.name().to_owned()))
            }
            c if c.is_ascii_digit() || c == '-' || c == '+' || c == '.' => self.number(),
            c if c.is_alphabetic() || c == '_' => Ok(Kind::Name(self.name().to_owned())),
            c => self.error(format!("unexpected character {c:?}")),
        }
    }

    fn name(&mut self) -> &'a str {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_part(c));
        self.take(end.unwrap_or(self.rest.len()))
    }

    fn number(&mut self) -> Result<Kind, TemplateError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let text = self.take(end);
        if let Ok(number) = text.parse() {
            return Ok(Kind::Int(number));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Kind::Float(number)),
            Ok(_) | Err(_) => self.error(format!("invalid number {text}")),
        }
    }

    fn quoted(&mut self) -> Result<Kind, TemplateError> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.take(at + 1);
                    return Ok(Kind::Quoted(text));
                }
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, 'r')) => text.push('\r'),
                    Some((_, c @ ('"' | '\\'))) => text.push(c),
                    Some((_, c)) => return self.error(format!("unknown escape \\{c}")),
                    None => break,
                },
                c => text.push(c),
            }
        }
        self.error("unterminated string")
    }
}

/// Whether an action starts with `{{- `: the white space is required, because `{{-3}}` is a number.
fn trims_before(action: &str) -> bool {
    let mut chars = action.chars();
    chars.next() == Some('-') && chars.next().is_some_and(char::is_whitespace)
}
