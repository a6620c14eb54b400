//! ◆ Parses tokens into the structure of a template.

use super::TemplateError;
use super::functions;
use super::lexer::{Kind, Token};

/// A part of a template.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Text(String),
    Action(Pipeline),
    If(Pipeline, Vec<Node>, Vec<Node>),
    With(Pipeline, Vec<Node>, Vec<Node>),
    Range(Pipeline, Vec<Node>, Vec<Node>),
    Break,
    Continue,
}

/// Commands; each gets the result of the previous one as its last argument.
#[derive(Debug, Clone)]
pub(super) struct Pipeline {
    /// The variables that are assigned.
    pub(super) variables: Vec<String>,
    /// Whether the variables are declared (`:=`).
    pub(super) declares: bool,
    pub(super) commands: Vec<Vec<Operand>>,
}

/// An operand of a command.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Variable(String),
    Function(String),
    Pipeline(Pipeline),
    Field(Box<Operand>, String),
}

/// Go template statements that are not supported.
const REFUSED: [&str; 3] = ["define", "template", "block"];

/// Parses tokens.
pub(super) fn parse(tokens: Vec<Token>) -> Result<Vec<Node>, TemplateError> {
    let line = tokens.last().map_or(1, |token| token.line);
    let mut parser = Parser { tokens: tokens.into_iter().peekable(), line, last: line, loops: 0 };
    let (nodes, end) = parser.nodes()?;
    match end {
        Closing::Template => Ok(nodes),
        Closing::End => parser.error("unexpected `end`"),
        Closing::Else(_) => parser.error("unexpected `else`"),
    }
}

/// The end of a list of nodes.
enum Closing {
    Template,
    End,
    /// With the statement that follows in the same action: `else if`.
    Else(Option<String>),
}

struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    line: usize,
    last: usize,
    loops: usize,
}

impl Parser {
    fn error<T>(&self, reason: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError::Syntax { line: self.line, reason: reason.into() })
    }

    fn next(&mut self) -> Option<Kind> {
        let token = self.tokens.next();
        self.line = token.as_ref().map_or(self.last, |token| token.line);
        token.map(|token| token.kind)
    }

    fn peek(&mut self) -> Option<&Kind> {
        self.tokens.peek().map(|token| &token.kind)
    }

    fn take_if(&mut self, kind: &Kind) -> bool {
        let found = self.peek() == Some(kind);
        if found {
            self.next();
        }
        found
    }

    fn close(&mut self) -> Result<(), TemplateError> {
        match self.next() {
            Some(Kind::Close) => Ok(()),
            Some(Kind::Sign(sign)) => self.error(format!("unexpected {sign:?}")),
            _ => self.error("expected the end of the action, }}"),
        }
    }

    fn nodes(&mut self) -> Result<(Vec<Node>, Closing), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(kind) = self.next() {
            if let Kind::Text(text) = kind {
                nodes.push(Node::Text(text));
                continue;
            }
            let keyword = match self.peek() {
                Some(Kind::Name(name)) => name.clone(),
                _ => String::new(),
            };
            let is_statement = matches!(
                keyword.as_str(),
                "if" | "with" | "range" | "else" | "end" | "break" | "continue"
            );
            if is_statement {
                self.next();
            }
            if REFUSED.contains(&keyword.as_str()) {
                return self.error(format!("`{keyword}` is not supported"));
            }
            match keyword.as_str() {
                "if" | "with" | "range" => nodes.push(self.statement(&keyword)?),
                "break" | "continue" if self.loops == 0 => {
                    return self.error(format!("`{keyword}` outside of `range`"));
                }
                "break" | "continue" => {
                    self.close()?;
                    nodes.push(if keyword == "break" { Node::Break } else { Node::Continue });
                }
                "end" => {
                    self.close()?;
                    return Ok((nodes, Closing::End));
                }
                "else" => {
                    let next = match self.peek() {
                        Some(Kind::Name(name)) if name == "if" || name == "with" => {
                            Some(name.clone())
                        }
                        _ => None,
                    };
                    match next {
                        Some(_) => {
                            self.next();
                        }
                        None => self.close()?,
                    }
                    return Ok((nodes, Closing::Else(next)));
                }
                _ => {
                    let pipeline = self.pipeline()?;
                    self.close()?;
                    nodes.push(Node::Action(pipeline));
                }
            }
        }
        Ok((nodes, Closing::Template))
    }

    /// Parses `if`, `with` or `range` up to its `end`.
    fn statement(&mut self, keyword: &str) -> Result<Node, TemplateError> {
        let line = self.line;
        let unclosed = TemplateError::Syntax { line, reason: format!("`{keyword}` without `end`") };
        let pipeline = self.pipeline()?;
        self.close()?;
        self.loops += usize::from(keyword == "range");
        let (body, end) = self.nodes()?;
        self.loops -= usize::from(keyword == "range");
        let otherwise = match end {
            Closing::Template => return Err(unclosed),
            Closing::End => Vec::new(),
            // `else if` is an `if` inside the `else`, with the same `end`.
            Closing::Else(Some(next)) => vec![self.statement(&next)?],
            Closing::Else(None) => match self.nodes()? {
                (nodes, Closing::End) => nodes,
                (_, Closing::Template) => return Err(unclosed),
                (_, Closing::Else(_)) => return self.error("unexpected `else`"),
            },
        };
        Ok(match keyword {
            "if" => Node::If(pipeline, body, otherwise),
            "with" => Node::With(pipeline, body, otherwise),
            _ => Node::Range(pipeline, body, otherwise),
        })
    }

    fn pipeline(&mut self) -> Result<Pipeline, TemplateError> {
        let (variables, declares, first) = self.variables()?;
        let mut commands = vec![self.command(first)?];
        while self.take_if(&Kind::Sign('|')) {
            let next = self.command(None)?;
            match next.first() {
                Some(Operand::Function(_)) => commands.push(next),
                Some(_) => return self.error("only a function can follow `|`"),
                None => return self.error("missing a command after `|`"),
            }
        }
        if commands.first().is_none_or(Vec::is_empty) {
            return self.error("missing a value");
        }
        Ok(Pipeline { variables, declares, commands })
    }

    /// Parses `$a :=`, `$a =` or `$a, $b :=`; a variable without an assignment is the first operand of the command.
    fn variables(&mut self) -> Result<(Vec<String>, bool, Option<Operand>), TemplateError> {
        let Some(Kind::Variable(name)) = self.peek().cloned() else {
            return Ok((Vec::new(), false, None));
        };
        self.next();
        let mut names = vec![name.clone()];
        if self.take_if(&Kind::Sign(',')) {
            match self.next() {
                Some(Kind::Variable(name)) => names.push(name),
                _ => return self.error("expected a variable after `,`"),
            }
        }
        if self.take_if(&Kind::Sign(':')) {
            return Ok((names, true, None));
        }
        if self.take_if(&Kind::Sign('=')) {
            return Ok((names, false, None));
        }
        if names.len() > 1 {
            return self.error("expected `:=` after the variables");
        }
        Ok((Vec::new(), false, Some(self.fields(Operand::Variable(name)))))
    }

    fn command(&mut self, first: Option<Operand>) -> Result<Vec<Operand>, TemplateError> {
        let mut words: Vec<Operand> = first.into_iter().collect();
        while !matches!(
            self.peek(),
            None | Some(Kind::Close | Kind::Sign('|' | ')' | ',' | '=' | ':'))
        ) {
            let operand = self.operand()?;
            words.push(operand);
        }
        Ok(words)
    }

    fn operand(&mut self) -> Result<Operand, TemplateError> {
        let operand = match self.next() {
            Some(Kind::Dot) => Operand::Dot,
            Some(Kind::Field(name)) => Operand::Field(Box::new(Operand::Dot), name),
            Some(Kind::Variable(name)) => Operand::Variable(name),
            Some(Kind::Quoted(text)) => Operand::Text(text),
            Some(Kind::Int(number)) => Operand::Int(number),
            Some(Kind::Float(number)) => Operand::Float(number),
            Some(Kind::Sign('(')) => {
                let pipeline = self.pipeline()?;
                if !self.take_if(&Kind::Sign(')')) {
                    return self.error("missing `)`");
                }
                Operand::Pipeline(pipeline)
            }
            Some(Kind::Name(name)) => match name.as_str() {
                "true" | "false" => Operand::Bool(name == "true"),
                "nil" => Operand::Nil,
                name if functions::NAMES.contains(&name) => Operand::Function(name.to_owned()),
                name => {
                    let supported = functions::NAMES.join(", ");
                    return self.error(format!(
                        "function {name:?} is not supported; supported are {supported}"
                    ));
                }
            },
            Some(Kind::Sign(_) | Kind::Text(_) | Kind::Open | Kind::Close) | None => {
                return self.error("missing a value");
            }
        };
        Ok(self.fields(operand))
    }

    /// Parses the fields that directly follow an operand.
    fn fields(&mut self, mut operand: Operand) -> Operand {
        while let Some(Token { kind: Kind::Field(name), joined: true, .. }) = self.tokens.peek() {
            operand = Operand::Field(Box::new(operand), name.clone());
            self.next();
        }
        operand
    }
}
