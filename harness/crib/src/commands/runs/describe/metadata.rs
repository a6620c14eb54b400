//! ◆ Labels and annotations in the format of `kubectl describe`. Pure.

use std::collections::BTreeMap;

/// An annotation that kubectl does not show: a copy of the manifest.
const HIDDEN: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The maximum length of an annotation in one line.
const ANNOTATION_LENGTH: usize = 140;

/// The pairs of a map, one per line.
pub(super) fn pairs(map: Option<&BTreeMap<String, String>>) -> Vec<String> {
    map.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect()
}

/// The annotations. The lines of a long value, or of one with several lines, are below its key.
pub(super) fn annotations(map: Option<&BTreeMap<String, String>>) -> Vec<String> {
    let shown = map.into_iter().flatten().filter(|(key, _)| *key != HIDDEN);
    shown.flat_map(|(key, value)| annotation(key, value)).collect()
}

fn annotation(key: &str, value: &str) -> Vec<String> {
    let value = value.strip_suffix('\n').unwrap_or(value);
    let line = format!("{key}: {value}");
    if line.len() <= ANNOTATION_LENGTH && !value.contains('\n') {
        return vec![line];
    }
    let lines = value.split('\n').map(|line| format!("  {}", shortened(line)));
    std::iter::once(format!("{key}:")).chain(lines).collect()
}

/// A line below a key.
fn shortened(line: &str) -> String {
    const MOST: usize = ANNOTATION_LENGTH - 2;
    match line.len() > MOST {
        true => format!("{}...", &line[..line.floor_char_boundary(MOST)]),
        false => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn map(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[rstest]
    #[case::short("note", "x", &["note: x"])]
    #[case::empty("note", "", &["note: "])]
    #[case::final_newline("note", "x\n", &["note: x"])]
    #[case::several_lines("note", "x\n\n y\n", &["note:", "  x", "  ", "   y"])]
    #[case::manifest(HIDDEN, "{}", &[])]
    fn annotation_has_lines_of_kubectl(
        #[case] key: &str,
        #[case] value: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(annotations(Some(&map(key, value))), expected);
    }

    #[test]
    fn long_annotation_is_below_its_key_and_shortened() {
        assert_eq!(annotations(Some(&map("a", &"x".repeat(137)))).len(), 1);
        let long = annotations(Some(&map("a", &"x".repeat(138))));
        assert_eq!(long, ["a:".to_owned(), format!("  {}", "x".repeat(138))]);
        let longest = annotations(Some(&map("a", &"é".repeat(70))));
        assert_eq!(longest, ["a:".to_owned(), format!("  {}...", "é".repeat(69))]);
    }

    #[test]
    fn labels_are_pairs() {
        assert_eq!(pairs(Some(&map("app", "web"))), ["app=web"]);
        assert!(pairs(None).is_empty());
    }
}
