//! ◆ Parses templates and paths. Pure.

use serde_json::Value;

use super::{Comparison, Filter, Node, Operand, Path, Slice, Step};

/// The characters that end a field name.
const TERMINATORS: &str = ".,[]$@{}()?&|=!<>\"'";

/// Parses a template.
pub(super) fn template(text: &str) -> Result<Vec<Node>, String> {
    let mut rest = text;
    nodes(&mut rest, false)
}

/// The nodes up to the end of the text or, in a range, up to its `{end}`.
fn nodes(rest: &mut &str, in_range: bool) -> Result<Vec<Node>, String> {
    let mut all = Vec::new();
    loop {
        let Some((before, behind)) = rest.split_once('{') else {
            if in_range {
                return Err("{range} without {end}".to_owned());
            }
            all.extend((!rest.is_empty()).then(|| Node::Text((*rest).to_owned())));
            return Ok(all);
        };
        all.extend((!before.is_empty()).then(|| Node::Text(before.to_owned())));
        let length = find(behind, '}').ok_or("'{' without '}'")?;
        let (action, behind) = behind.split_at(length);
        *rest = behind.get(1..).unwrap_or_default();
        let action = action.trim();
        match action.strip_prefix("range") {
            _ if action == "end" && in_range => return Ok(all),
            _ if action == "end" => return Err("{end} without {range}".to_owned()),
            Some(of) if of.starts_with([' ', '.', '[', '$', '@']) => {
                let path = path(of.trim())?;
                all.push(Node::Range(path, nodes(rest, true)?));
            }
            _ if action.starts_with(['"', '\'']) => all.push(Node::Text(quoted(action)?)),
            _ if action.is_empty() => return Err("{} is empty".to_owned()),
            _ => all.push(Node::Path(path(action)?)),
        }
    }
}

/// The characters outside quotes and brackets, with their byte offsets. An unmatched closing bracket counts as outside.
fn outside(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    text.char_indices().filter(move |(_, c)| {
        let is_escaped = std::mem::take(&mut escaped);
        match (quote, c) {
            _ if is_escaped => {}
            (_, '\\') => escaped = true,
            (Some(of), c) if *c == of => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(*c),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') if depth > 0 => depth -= 1,
            (None, _) => return depth == 0,
        }
        false
    })
}

/// The offset of a character outside quotes and brackets.
fn find(text: &str, wanted: char) -> Option<usize> {
    outside(text).find(|(_, c)| *c == wanted).map(|(at, _)| at)
}

/// Splits text at commas.
fn split(text: &str) -> Vec<&str> {
    let (mut all, mut from) = (Vec::new(), 0);
    for (at, _) in outside(text).filter(|(_, c)| *c == ',') {
        all.extend(text.get(from..at));
        from = at + 1;
    }
    all.extend(text.get(from..));
    all
}

/// The content of a quoted string, unescaped.
fn quoted(text: &str) -> Result<String, String> {
    let quote = text.chars().next().filter(|c| ['"', '\''].contains(c));
    let inside = quote.and_then(|quote| text.get(1..)?.strip_suffix(quote));
    let inside = inside.ok_or_else(|| format!("{text} is not one text in quotes"))?;
    let mut resolved = String::new();
    let mut rest = inside.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => resolved.push(match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(c @ ('\\' | '"' | '\'' | '/')) => c,
                Some(c) => return Err(format!("\\{c} is not supported in {text}")),
                None => return Err(format!("{text} is not one text in quotes")),
            }),
            c if Some(c) == quote => return Err(format!("{text} is not one text in quotes")),
            c => resolved.push(c),
        }
    }
    Ok(resolved)
}

/// Parses a path: `.a.b`, `$.a`, `@.a`, `.a['b'][0]`.
pub(super) fn path(text: &str) -> Result<Path, String> {
    let from_root = text.starts_with('$');
    let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
    if rest == text && !text.starts_with(['.', '[']) {
        return Err(format!("{text:?} is not supported: a path begins with '.', '[', '$' or '@'"));
    }
    let mut steps = Vec::new();
    while let Some(c) = rest.chars().next() {
        let behind = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            '.' if behind.starts_with('.') => {
                steps.push(Step::Descend);
                // The second dot belongs to the field.
                rest = behind;
                if rest.starts_with(".[") {
                    rest = rest.get(1..).unwrap_or_default();
                }
            }
            '.' => {
                let (name, length) = field(behind);
                rest = behind.get(length..).unwrap_or_default();
                match name.as_str() {
                    "*" => steps.push(Step::Wildcard),
                    // `{.}` is the whole document, and `.[0]` equals `[0]`.
                    "" if rest.is_empty() || rest.starts_with('[') => {}
                    "" => return Err(format!("a field has no name in {text:?}")),
                    _ => steps.push(Step::Fields(vec![name])),
                }
            }
            '[' => {
                let length = find(behind, ']');
                let length = length.ok_or_else(|| format!("'[' without ']' in {text:?}"))?;
                let (inside, closed) = behind.split_at(length);
                steps.push(bracket(inside.trim())?);
                rest = closed.get(1..).unwrap_or_default();
            }
            c => return Err(format!("{c:?} is not supported here in {text:?}")),
        }
    }
    Ok(Path { from_root, steps })
}

/// The name of a field, in which a backslash escapes the next character, and its length in the text.
fn field(text: &str) -> (String, usize) {
    let (mut name, mut escaped) = (String::new(), false);
    for (at, c) in text.char_indices() {
        match c {
            c if escaped => {
                escaped = false;
                name.push(c);
            }
            '\\' => escaped = true,
            c if TERMINATORS.contains(c) || c.is_whitespace() => return (name, at),
            c => name.push(c),
        }
    }
    (name, text.len())
}

/// Parses the content of square brackets.
fn bracket(inside: &str) -> Result<Step, String> {
    if inside == "*" {
        return Ok(Step::Wildcard);
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return filter(condition.trim()).map(Step::Filter);
    }
    let pieces = split(inside).into_iter().map(str::trim);
    match inside.starts_with(['"', '\'']) {
        true => pieces.map(quoted).collect::<Result<_, _>>().map(Step::Fields),
        false => pieces.map(slice).collect::<Result<_, _>>().map(Step::Slices),
    }
}

fn slice(text: &str) -> Result<Slice, String> {
    let invalid = || {
        format!(
            "[{text}] is not supported: give an index, a slice, '*', a quoted field or a filter"
        )
    };
    let number = |part: &str| match part.trim() {
        "" => Ok(None),
        part => part.parse().map(Some).map_err(|_| invalid()),
    };
    let parts = text.split(':').map(number).collect::<Result<Vec<_>, _>>()?;
    let part = |index: usize| parts.get(index).copied().flatten();
    match parts.len() {
        1 if part(0).is_some() => Ok(Slice { from: part(0), to: None, step: None, single: true }),
        2 | 3 => Ok(Slice { from: part(0), to: part(1), step: part(2), single: false }),
        _ => Err(invalid()),
    }
}

/// Parses a filter: a path that must exist, or a comparison.
fn filter(text: &str) -> Result<Filter, String> {
    let unsupported = |what: &str| Err(format!("{what} is not supported in a filter: {text:?}"));
    let operators = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    for word in ["&&", "||", "=~"] {
        let begins = |at: usize| text.get(at..).is_some_and(|rest| rest.starts_with(word));
        if outside(text).any(|(at, _)| begins(at)) {
            return unsupported(word);
        }
    }
    let at = outside(text).find(|(_, c)| "=!<>".contains(*c)).map(|(at, _)| at);
    let (left, rest) = text.split_at(at.unwrap_or(text.len()));
    let left = path(left.trim())?;
    if rest.is_empty() {
        return Ok(Filter { left, test: None });
    }
    let found = operators
        .into_iter()
        .find_map(|(word, comparison)| Some((rest.strip_prefix(word)?, comparison)));
    let Some((right, comparison)) = found else {
        return unsupported(rest);
    };
    let right = right.trim();
    let operand = match right.chars().next() {
        Some('"' | '\'') => Operand::Literal(Value::String(quoted(right)?)),
        Some('@' | '$' | '.') => Operand::Path(path(right)?),
        _ => match serde_json::from_str(right) {
            Ok(value @ (Value::Bool(_) | Value::Number(_))) => Operand::Literal(value),
            _ => return unsupported(right),
        },
    };
    Ok(Filter { left, test: Some((comparison, operand)) })
}
