//! Rust text with comments and literals blanked out, so that only code is searched.

/// Whether `c` may be part of a Rust identifier.
fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code of a Rust file: the same lines, without comments and the content of literals.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let rest = &chars[at..];
        let word_before = at > 0 && is_ident(chars[at - 1]);
        let skipped = match c {
            '/' if rest.starts_with(&['/', '/']) => line_end(rest),
            '/' if rest.starts_with(&['/', '*']) => block_comment(rest),
            '"' => string(rest),
            'r' | 'b' | 'c' if !word_before => prefixed(rest).unwrap_or(0),
            '\'' => character(rest).unwrap_or(0),
            _ => 0,
        };
        if skipped == 0 {
            out.push(c);
            at += 1;
        } else {
            out.push(' ');
            out.extend(rest[..skipped].iter().filter(|c| **c == '\n'));
            at += skipped;
        }
    }
    out
}

fn line_end(rest: &[char]) -> usize {
    rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())
}

/// The length of a block comment; they nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// The length of a string literal that starts at its quote.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a literal with a prefix: `r"…"`, `br#"…"#`, `b"…"`, `c"…"`, `b'…'`. `None` for a plain word.
fn prefixed(rest: &[char]) -> Option<usize> {
    let letters = rest.iter().take(2).take_while(|c| matches!(c, 'r' | 'b' | 'c'));
    let prefix = letters.count();
    let raw = rest[..prefix].contains(&'r');
    let after = &rest[prefix..];
    if raw {
        let hashes = after.iter().take_while(|c| **c == '#').count();
        if after.get(hashes) != Some(&'"') {
            return None;
        }
        let mut end = vec!['"'];
        end.resize(hashes + 1, '#');
        let body = &after[hashes + 1..];
        let length = body.windows(end.len()).position(|w| w == end);
        return Some(length.map_or(rest.len(), |n| prefix + hashes + 1 + n + end.len()));
    }
    match after.first() {
        Some('"') => Some(prefix + string(after)),
        Some('\'') => character(after).map(|n| prefix + n),
        _ => None,
    }
}

/// The length of a character literal. `None` if the quote begins a lifetime.
fn character(rest: &[char]) -> Option<usize> {
    match rest {
        ['\'', '\\', _, tail @ ..] => Some(4 + tail.iter().position(|c| *c == '\'')?),
        ['\'', _, '\'', ..] => Some(3),
        _ => None,
    }
}

/// Code without its test module, which is at the end of a file.
pub(crate) fn without_tests(code: &str) -> String {
    let modules = code.match_indices("#[cfg(test)]").filter(|(at, attribute)| {
        let item = code[at + attribute.len()..].split_inclusive([';', '{']).next();
        item.is_some_and(|item| item.contains("mod ") && item.ends_with('{'))
    });
    let end = modules.map(|(at, _)| at).next().unwrap_or(code.len());
    code[..end].to_owned()
}

/// The 1-based lines on which `path` (a word, or words joined by `::`) occurs in `code`.
pub(crate) fn lines_naming(code: &str, path: &str) -> Vec<usize> {
    let names = |line: &str| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + path.len()..].chars().next();
            let goes_on = path.ends_with(is_ident) && after.is_some_and(is_ident);
            !(goes_on || before.is_some_and(is_ident))
        })
    };
    let numbered = code.lines().enumerate();
    numbered.filter(|(_, line)| names(line)).map(|(n, _)| n + 1).collect()
}

#[test]
fn comments_and_literals_are_blanked() {
    let text = r##"a(b"x\"unsafe", 'u', '\'', "unsafe // \\"); // unsafe
/* unsafe /* unsafe */ unsafe */ unsafe fn f<'a>(x: &'a str) { r#"unsafe " "# }
let br = r; br"unsafe"; car'x'; unsafe_code"##;
    let code = code_only(text);
    assert_eq!(code.lines().count(), 3, "{code}");
    assert_eq!(lines_naming(&code, "unsafe"), [2], "{code}");
    assert_eq!(lines_naming(&code, "unsafe_code"), [3], "{code}");
    assert!(code.contains("<'a>(x: &'a str)"), "{code}");
}

#[test]
fn paths_match_whole_words_only() {
    let code = "use cri::v1;\nuse crate::cri::v1::X;\nlet scri::v1 = cri::v10;\nuse cri::{v1}";
    assert_eq!(lines_naming(code, "cri::v1"), [1, 2]);
    assert_eq!(lines_naming(code, "cri::{"), [4]);
}

#[test]
fn inline_test_module_is_removed() {
    assert_eq!(without_tests("a\n#[cfg(test)]\nmod t;\nb"), "a\n#[cfg(test)]\nmod t;\nb");
    let seen = without_tests("a\n#[cfg(test)]\nfn t() {}\n#[cfg(test)]\n#[allow(x)]\nmod t {\nb }");
    assert_eq!(seen, "a\n#[cfg(test)]\nfn t() {}\n");
}
