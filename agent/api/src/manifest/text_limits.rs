//! ◆ Limits of a text that are checked before it is parsed. The parser stores all tokens of the outermost brackets before it
//! reports the first of them, so that a limit of reported values does not bound its memory. Pure.

use super::json::is_json;

/// The maximum number of commas of a text. Lists and objects in brackets have one per value.
pub(super) const MAX_COMMAS: usize = 1_000_000;

/// The offset at which the object at the start of a JSON text exceeds `most` values; `None` for another text.
pub(super) fn excess_value(text: &str, most: usize) -> Option<usize> {
    if !is_json(text) {
        return None;
    }
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    // None of these exceeds the number of values.
    let (mut commas, mut brackets, mut strings) = (0_usize, 0_usize, 0_usize);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => {
                strings += usize::from(in_string);
                in_string = !in_string;
            }
            _ if in_string => {}
            b',' => commas += 1,
            b'{' | b'[' => {
                brackets += 1;
                depth += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return None;
                }
            }
            _ => {}
        }
        if commas.max(brackets).max(strings) > most {
            return Some(at);
        }
    }
    None
}

/// The offset at which a text exceeds [`MAX_COMMAS`].
pub(super) fn excess_comma(text: &str) -> Option<usize> {
    text.match_indices(',').nth(MAX_COMMAS).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::list("{\"a\":[0,0,0,0,0,0]}", Some(13))]
    #[case::brackets_without_commas("{\"a\":[[][][][]", Some(8))]
    #[case::strings_without_commas("{\"\" \"\" \"\" \"\" \"\"", Some(11))]
    #[case::commas_in_string("{\"a\": \",,,,\\\",,,\"}", None)]
    #[case::few_values("{\"a\": [0, 1], \"b\": {}}", None)]
    #[case::further_text_is_another_object("{}\n---\na: ,,,,,,\n", None)]
    #[case::yaml("a: [0,0,0,0,0,0]\n", None)]
    fn values_of_json_have_a_limit(#[case] text: &str, #[case] expected: Option<usize>) {
        assert_eq!(excess_value(text, 3), expected);
    }

    #[test]
    fn commas_have_a_limit() {
        let text = "0,".repeat(MAX_COMMAS);
        assert_eq!(excess_comma(&text), None);
        assert_eq!(excess_comma(&format!("{text},")), Some(text.len()));
    }
}
