//! ◆ The columns of `-o custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image`, and `--sort-by`. Pure.

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

use api::quantity::Quantity;
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

    /// The columns of a file: a line of headings, and a line of paths.
    pub(super) fn of_file(text: &str) -> Result<Self, String> {
        let missing =
            || "custom-columns-file needs a line of headings and a line of paths".to_owned();
        let mut lines = text.lines();
        let headings: Vec<&str> = lines.next().ok_or_else(missing)?.split_whitespace().collect();
        let paths: Vec<&str> = lines.next().ok_or_else(missing)?.split_whitespace().collect();
        if headings.len() != paths.len() {
            let (headings, paths) = (headings.len(), paths.len());
            return Err(format!(
                "number of headers ({headings}) and field specifications ({paths}) don't match"
            ));
        }
        let column = |(heading, path): (&str, &str)| -> Result<CustomColumn, String> {
            Ok(CustomColumn { heading: heading.to_owned(), path: Path::relaxed(path)? })
        };
        headings.into_iter().zip(paths).map(column).collect::<Result<_, _>>().map(Self)
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

/// Sorts items by a field of their objects, as kubectl does: numbers and quantities by their amount, other strings byte by byte.
/// Objects without the field come first. Returns whether any object has the field.
pub(super) fn sort_by<T>(
    things: &mut Vec<T>,
    path: &Path,
    object: impl Fn(&T) -> &Value,
) -> Result<bool, String> {
    let mut keyed = Vec::new();
    for thing in things.drain(..) {
        let key = path.find(object(&thing))?.first().map(|value| (*value).clone());
        keyed.push((key, thing));
    }
    compact::sort_by(&mut keyed, |(left, _), (right, _)| match (left, right) {
        (Some(left), Some(right)) => order(left, right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    });
    let is_found = keyed.iter().any(|(key, _)| key.is_some());
    things.extend(keyed.into_iter().map(|(_, thing)| thing));
    Ok(is_found)
}

fn order(left: &Value, right: &Value) -> Ordering {
    if let (Some(left), Some(right)) = (left.as_f64(), right.as_f64()) {
        return left.total_cmp(&right);
    }
    let (left, right) = (text_of(left), text_of(right));
    match (Quantity::parse(&left), Quantity::parse(&right)) {
        (Ok(left), Ok(right)) => left.cmp(&right),
        // Otherwise the order of a list with both would be circular: 9 < 10 < 1x < 9.
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => left.cmp(&right),
    }
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

    #[rstest]
    #[case("NAME  IMAGES\n.metadata.name\t{.i}\n", Ok("NAME:.metadata.name,IMAGES:.i"))]
    #[case("NAME", Err("custom-columns-file needs a line of headings and a line of paths"))]
    #[case("A B\n.a", Err("number of headers (2) and field specifications (1) don't match"))]
    fn columns_are_read_from_a_file(#[case] text: &str, #[case] same: Result<&str, &str>) {
        let same = same.map(|columns| columns.parse::<CustomColumns>().unwrap());
        assert_eq!(CustomColumns::of_file(text), same.map_err(str::to_owned));
    }

    #[rstest]
    #[case::strings(json!(["web-9", "web-10", "db"]), json!(["db", "web-10", "web-9"]))]
    #[case::quantities(json!(["2Gi", "10Gi", "500Mi"]), json!(["500Mi", "2Gi", "10Gi"]))]
    #[case::both(json!(["9", "1x", "10"]), json!(["9", "10", "1x"]))]
    #[case::numbers(json!([10, 9, -1]), json!([-1, 9, 10]))]
    fn objects_are_sorted_by_field(#[case] values: Value, #[case] expected: Value) {
        let objects = |values: &Value| {
            let values = values.as_array().unwrap().iter();
            values.map(|value| json!({"n": value})).collect::<Vec<Value>>()
        };
        let mut all = objects(&values);
        all.push(json!({}));
        assert!(sort_by(&mut all, &Path::relaxed("n").unwrap(), |object| object).unwrap());
        assert_eq!(all.remove(0), json!({}));
        assert_eq!(all, objects(&expected));
    }

    #[test]
    fn field_of_no_object_is_not_found() {
        let mut all = vec![json!({"a": 1}), json!({})];
        assert!(!sort_by(&mut all, &Path::relaxed("n").unwrap(), |object| object).unwrap());
    }
}
