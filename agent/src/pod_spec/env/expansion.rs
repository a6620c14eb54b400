//! ◆ `$(VAR)` in texts.
//!
//! Source: Kubernetes 1.36, third_party/forked/golang/expansion. It has no limit: a few variables that refer to each other fill the
//! memory of the kubelet.

/// The maximum size of a container's environment, and of a command: the kernel starts no process with 16 MiB of either.
pub const MOST_BYTES: usize = 16 << 20;

/// A text, or the variables of a container together, are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the values of environment variables are too long: shorten them, or refer to them less often"
)]
pub struct TooLong;

/// Bytes that a field of the CRI cannot have; the error of a kubelet's CreateContainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("grpc: error while marshaling: string field contains invalid UTF-8")]
pub struct NotUtf8;

/// Replaces `$(NAME)` by `lookup(NAME)`; unknown references are unchanged, and `$$` is one `$`.
///
/// | text | becomes |
/// |---|---|
/// | `$(A)` | the value of `A`, or `$(A)` if there is none |
/// | `$$(A)` | `$(A)` |
/// | `$(A` , `$A`, a `$` at the end | itself |
///
/// # Errors
/// If the result has more than `most` bytes.
pub fn expand<'a>(
    text: &str,
    most: usize,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len().min(most));
    each_part(text, |part| {
        let value = match part {
            Part::Text(text) => text,
            Part::Reference { name, whole } => lookup(name).unwrap_or(whole),
        };
        if value.len() > most.saturating_sub(out.len()) {
            return Err(TooLong);
        }
        out.push_str(value);
        Ok(())
    })?;
    Ok(out)
}

/// Like [`expand`], with values that may be no text.
///
/// # Errors
/// If the result has more than `most` bytes.
pub fn expand_bytes<'a>(
    text: &str,
    most: usize,
    lookup: impl Fn(&str) -> Option<&'a [u8]>,
) -> Result<Vec<u8>, TooLong> {
    let mut out = Vec::with_capacity(text.len().min(most));
    each_part(text, |part| {
        let value = match part {
            Part::Text(text) => text.as_bytes(),
            Part::Reference { name, whole } => lookup(name).unwrap_or(whole.as_bytes()),
        };
        if value.len() > most.saturating_sub(out.len()) {
            return Err(TooLong);
        }
        out.extend_from_slice(value);
        Ok(())
    })?;
    Ok(out)
}

/// A part of a text.
enum Part<'t> {
    /// Characters of the result.
    Text(&'t str),
    /// `whole` is the reference itself.
    Reference { name: &'t str, whole: &'t str },
}

fn each_part<'t>(
    text: &'t str,
    mut add: impl FnMut(Part<'t>) -> Result<(), TooLong>,
) -> Result<(), TooLong> {
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        add(Part::Text(&rest[..at]))?;
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            add(Part::Text("$"))?;
            rest = after;
        } else if let Some((name, after)) =
            tail.strip_prefix('(').and_then(|inner| inner.split_once(')'))
        {
            let whole = &rest[at..rest.len() - after.len()];
            add(Part::Reference { name, whole })?;
            rest = after;
        } else {
            add(Part::Text("$"))?;
            rest = tail;
        }
    }
    add(Part::Text(rest))
}

/// Expands the words of a command.
///
/// # Errors
/// If they have more than [`MOST_BYTES`] together.
pub fn expand_words<'a>(
    words: &[String],
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<Vec<String>, TooLong> {
    let mut room = MOST_BYTES;
    let mut expanded = Vec::with_capacity(words.len());
    for word in words {
        let word = expand(word, room, &lookup)?;
        room = room.saturating_sub(word.len());
        expanded.push(word);
    }
    Ok(expanded)
}

/// Like [`expand_words`], with values that may be no text.
///
/// # Errors
/// If they have more than [`MOST_BYTES`] together.
pub fn expand_words_of_bytes<'a>(
    words: &[String],
    lookup: impl Fn(&str) -> Option<&'a [u8]>,
) -> Result<Vec<Vec<u8>>, TooLong> {
    let mut room = MOST_BYTES;
    let mut expanded = Vec::with_capacity(words.len());
    for word in words {
        let word = expand_bytes(word, room, &lookup)?;
        room = room.saturating_sub(word.len());
        expanded.push(word);
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn known(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("1"),
            "" => Some("empty"),
            _ => None,
        }
    }

    #[rstest]
    #[case("$(A)$(A)", 2, Ok("11"))]
    #[case("$(A)$(A)", 1, Err(TooLong))]
    #[case("$(B)", 4, Ok("$(B)"))]
    #[case("$(B)", 3, Err(TooLong))]
    #[case("$$", 1, Ok("$"))]
    #[case("$$", 0, Err(TooLong))]
    #[case("x$", 1, Err(TooLong))]
    #[case("xy", 1, Err(TooLong))]
    #[case("", 0, Ok(""))]
    fn expanded_text_has_at_most_the_given_bytes(
        #[case] text: &str,
        #[case] most: usize,
        #[case] expected: Result<&str, TooLong>,
    ) {
        assert_eq!(expand(text, most, known), expected.map(str::to_owned));
        let of_bytes = expand_bytes(text, most, |name| known(name).map(str::as_bytes));
        assert_eq!(of_bytes, expected.map(|text| text.as_bytes().to_vec()));
    }

    #[test]
    fn words_have_a_limit_together() {
        let long = "x".repeat(MOST_BYTES / 2);
        let lookup = |_: &str| Some(long.as_str());
        let expanded = |count: usize| expand_words(&vec!["$(L)".to_owned(); count], lookup);
        assert_eq!(expanded(2).unwrap().len(), 2);
        assert_eq!(expanded(3), Err(TooLong));
    }

    proptest! {
        #[test]
        fn text_without_dollar_is_unchanged(text in "[^$]*") {
            prop_assert_eq!(expand(&text, MOST_BYTES, known).unwrap(), text);
        }

        #[test]
        fn doubled_dollars_escape_references(text in ".*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), MOST_BYTES, known).unwrap(), text);
        }

        #[test]
        fn unknown_references_are_unchanged(text in "([^$]|\\$\\([a-z]+\\))*") {
            prop_assert_eq!(expand(&text, MOST_BYTES, |_| None).unwrap(), text);
        }
    }
}
