//! ◆ Filters that the runtime itself does not support.

use std::collections::HashMap;

use clap::Args;
use regex_lite::Regex;

/// Filters for pods or containers.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Filter by name (regular expression)
    #[arg(long, value_parser = pattern, value_name = "REGEX")]
    name: Option<Regex>,
    /// Filter by namespace (regular expression)
    #[arg(long, value_parser = pattern, value_name = "REGEX")]
    namespace: Option<Regex>,
    /// Filter by label; repeatable
    #[arg(long, value_parser = label, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
    /// Show only the COUNT newest matches, in any state; 0: no limit
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "latest")]
    last: Option<usize>,
    /// Use only the newest match, in any state
    #[arg(short, long)]
    latest: bool,
}

impl Which {
    /// Whether any filter is given.
    pub(crate) fn given(&self) -> bool {
        let named = self.name.is_some() || self.namespace.is_some() || !self.label.is_empty();
        named || self.latest || self.last.is_some()
    }

    /// The labels, which the runtime filters by.
    pub(crate) fn labels(&self) -> HashMap<String, String> {
        labels(&self.label)
    }

    /// Whether an item with this name and namespace matches.
    pub(crate) fn fits(&self, name: &str, namespace: &str) -> bool {
        fits(self.name.as_ref(), name) && fits(self.namespace.as_ref(), namespace)
    }

    /// The number of newest items to show; `None` for all, as with `--last 0`.
    pub(crate) fn count(&self) -> Option<usize> {
        let last = self.last.filter(|count| *count > 0);
        last.or(self.latest.then_some(1))
    }
}

/// Parses `KEY=VALUE`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err(format!("invalid label {text:?}: expected KEY=VALUE")),
    }
}

/// Labels as a CRI filter.
pub(crate) fn labels(all: &[(String, String)]) -> HashMap<String, String> {
    all.iter().cloned().collect()
}

/// Parses a regular expression.
fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| format!("invalid regular expression {text:?}: {error}"))
}

/// Whether a name matches the pattern; without a pattern, every name does.
fn fits(pattern: Option<&Regex>, name: &str) -> bool {
    pattern.is_none_or(|pattern| pattern.is_match(name))
}

/// Sorts items, newest first, and keeps at most `count`.
pub(crate) fn newest<T>(all: &mut Vec<T>, created: impl Fn(&T) -> i64, count: Option<usize>) {
    compact::sort_by_key(all, |item| std::cmp::Reverse(created(item)));
    if let Some(count) = count {
        all.truncate(count);
    }
}

/// The item whose id begins with `text`, if there is only one; a full id takes precedence.
pub(crate) fn by_id<'a, T>(
    all: &'a [T],
    text: &str,
    id: impl Fn(&T) -> &str,
) -> Result<Option<&'a T>, ()> {
    if text.is_empty() {
        return Ok(None);
    }
    let bare = |item: &T| id(item).trim_start_matches("sha256:").to_owned();
    if let Some(item) = all.iter().find(|item| id(item) == text || bare(item) == text) {
        return Ok(Some(item));
    }
    let mut found =
        all.iter().filter(|item| id(item).starts_with(text) || bare(item).starts_with(text));
    match (found.next(), found.next()) {
        (Some(item), None) => Ok(Some(item)),
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a=b", Some(("a", "b")))]
    #[case("a=b=c", Some(("a", "b=c")))]
    #[case("a=", Some(("a", "")))]
    #[case("=b", None)]
    #[case("a", None)]
    fn label_parses_key_and_value(#[case] text: &str, #[case] expected: Option<(&str, &str)>) {
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(label(text).ok(), expected);
    }

    #[test]
    fn name_filter_matches_regex() {
        assert!(fits(None, "x"));
        assert!(fits(Some(&pattern("^web-\\d+$").unwrap()), "web-12"));
        assert!(!fits(Some(&pattern("^web$").unwrap()), "web-12"));
        pattern("(").unwrap_err();
    }

    #[test]
    fn newest_sorts_and_truncates_listing() {
        let mut all = vec![3, 9, 5];
        newest(&mut all, |item| *item, Some(2));
        assert_eq!(all, [9, 5]);
    }

    #[rstest]
    #[case("abc", Ok(Some("abc")))]
    #[case("abcd", Ok(Some("abcd")))]
    #[case("ab", Err(()))]
    #[case("x", Ok(Some("xyz")))]
    #[case("77", Ok(Some("sha256:7788")))]
    #[case("sha256:77", Ok(Some("sha256:7788")))]
    #[case("q", Ok(None))]
    #[case("", Ok(None))]
    fn id_prefix_selects_unique_match(
        #[case] text: &str,
        #[case] expected: Result<Option<&str>, ()>,
    ) {
        let all = ["abc", "abcd", "xyz", "sha256:7788"];
        assert_eq!(by_id(&all, text, |item| item).map(|found| found.copied()), expected);
    }
}
