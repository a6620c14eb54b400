//! ◆ Foreign text inside XML and HTML: what it cannot break out of.

/// A text for an element or for an attribute in quotes. Control characters, which XML 1.0 does not have, are replaced.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(letter),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push('\u{fffd}');
            }
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_quotes_and_control_characters_are_replaced() {
        let text = "</script><b a='1' b=\"2\">&\u{1}\r\n\t\u{ffff}é";
        let expected = "&lt;/script&gt;&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;\u{fffd}\u{fffd}\n\t\u{fffd}é";
        assert_eq!(escaped(text), expected);
    }
}
