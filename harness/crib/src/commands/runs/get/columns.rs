//! ◆ The columns of `-o custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image`, and `--sort-by`. Pure.

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

use crib_base::columns::NONE;

use crate::objects::jsonpath::{Path, text_of};

/// Custom columns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CustomColumns(Vec<CustomColumn>);

#[derive(Clone, Debug, PartialEq)]
struct CustomColumn {
    heading: String,
    path: Path,
}

impl CustomColumns {
    pub(super) fn headings(&self) -> Vec<&str> {
        self.0.iter().map(|column| column.heading.as_str()).collect()
    }

    /// The cells of an object; a missing field is `<none>`.
    pub(super) fn cells(&self, object: &Value) -> Result<Vec<String>, String> {
        let cell = |column: &CustomColumn| {
            let found = column.path.find(object)?;
            let words = found.into_iter().map(|value| match value.is_null() {
                true => NONE.to_owned(),
                false => text_of(value),
            });
            let words: Vec<String> = words.collect();
            Ok(if words.is_empty() { NONE.to_owned() } else { words.join(",") })
        };
        self.0.iter().map(cell).collect()
    }
}

/// Splits columns at commas outside of square brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut all, mut from, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    all.extend(text.get(from..));
    all
}

impl FromStr for CustomColumns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err(
                "custom-columns needs columns: custom-columns=NAME:.metadata.name".to_owned()
            );
        }
        let column = |text: &str| match text.split_once(':') {
            Some((heading, path)) if !heading.is_empty() => {
                Ok(CustomColumn { heading: heading.to_owned(), path: Path::relaxed(path)? })
            }
            Some(_) | None => Err(format!("{text:?} is not a column: expected HEADING:PATH")),
        };
        split(text).into_iter().map(column).collect::<Result<_, _>>().map(Self)
    }
}

/// Sorts items by a field of their objects: numbers and strings by value, numbers within strings numerically. Objects without the
/// field come first.
pub(super) fn sort_by<T>(
    things: &mut Vec<T>,
    path: &Path,
    object: impl Fn(&T) -> &Value,
) -> Result<(), String> {
    let mut keyed = Vec::new();
    for thing in things.drain(..) {
        let key = path.find(object(&thing))?.first().map(|value| (*value).clone());
        keyed.push((key, thing));
    }
    compact::sort_by(&mut keyed, |(left, _), (right, _)| match (left, right) {
        (Some(left), Some(right)) => order(left, right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    });
    things.extend(keyed.into_iter().map(|(_, thing)| thing));
    Ok(())
}

fn order(left: &Value, right: &Value) -> Ordering {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left.total_cmp(&right),
        _ => natural(&text_of(left), &text_of(right)),
    }
}

/// Compares strings; digits in them are compared as numbers.
fn natural(mut left: &str, mut right: &str) -> Ordering {
    loop {
        let (Some(l), Some(r)) = (left.chars().next(), right.chars().next()) else {
            return left.len().cmp(&right.len());
        };
        let order = if l.is_ascii_digit() && r.is_ascii_digit() {
            let (a, b) = (digits(&mut left), digits(&mut right));
            a.len().cmp(&b.len()).then(a.cmp(b))
        } else {
            left = left.get(l.len_utf8()..).unwrap_or_default();
            right = right.get(r.len_utf8()..).unwrap_or_default();
            l.cmp(&r)
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Consumes the leading digits of a string, and returns them without leading zeros.
fn digits<'t>(text: &mut &'t str) -> &'t str {
    let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(length);
    *text = rest;
    digits.trim_start_matches('0')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("NAME:.metadata.name", &["web"])]
    #[case("NAME:metadata.name,X:{.x}", &["web", "<none>"])]
    #[case("I:.spec.containers[*].image", &["a:1,b:2"])]
    #[case("I:.spec.containers[0,1].name,N:.n", &["a,b", "<none>"])]
    #[case("L:.metadata.labels,R:.r", &[r#"{"app":"web"}"#, "3"])]
    fn columns_have_values_of_paths(#[case] columns: &str, #[case] expected: &[&str]) {
        let object = json!({
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}]},
            "n": null,
            "r": 3,
        });
        let columns: CustomColumns = columns.parse().unwrap();
        assert_eq!(columns.cells(&object).unwrap(), expected);
    }

    #[rstest]
    #[case("", "custom-columns needs columns: custom-columns=NAME:.metadata.name")]
    #[case("NAME", "\"NAME\" is not a column: expected HEADING:PATH")]
    #[case("A:.a,", "\"\" is not a column: expected HEADING:PATH")]
    #[case("A:.a b", "' ' is not supported here in \".a b\"")]
    fn invalid_columns_are_refused(#[case] columns: &str, #[case] expected: &str) {
        assert_eq!(columns.parse::<CustomColumns>().unwrap_err(), expected);
    }

    #[test]
    fn objects_are_sorted_by_field() {
        let mut all =
            vec![json!({"n": "web-10"}), json!({"n": "web-9"}), json!({}), json!({"n": "db"})];
        sort_by(&mut all, &Path::relaxed("n").unwrap(), |object| object).unwrap();
        assert_eq!(
            all,
            [json!({}), json!({"n": "db"}), json!({"n": "web-9"}), json!({"n": "web-10"})]
        );
        let mut all = vec![json!({"n": 10}), json!({"n": 9}), json!({"n": -1})];
        sort_by(&mut all, &Path::relaxed("n").unwrap(), |object| object).unwrap();
        assert_eq!(all, [json!({"n": -1}), json!({"n": 9}), json!({"n": 10})]);
    }
}
