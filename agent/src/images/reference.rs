//! ◆ Image references as a kubelet parses them from `image:`, and its messages for invalid ones.

use std::fmt::Write;

use image_reference::{Reference, ReferenceError};

/// The `image` of a container as passed to the runtime: with the tag `latest` if it has neither tag nor digest. The runtime
/// completes the registry.
///
/// # Errors
/// The kubelet's message for a malformed name.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let reference = Reference::with_any_port(image).map_err(|error| {
        let image = quoted(image);
        format!(
            "Failed to apply default image tag {image}: couldn't parse image name {image}: {}",
            message(&error)
        )
    })?;
    Ok(match (reference.tag, reference.digest) {
        (Some(tag), None) if !image.ends_with(&format!(":{tag}")) => format!("{image}:{tag}"),
        (_, _) => image.to_owned(),
    })
}

/// A kubelet's message for a malformed name, in the words of the distribution project's reference package.
#[must_use]
pub fn message(error: &ReferenceError) -> String {
    match error {
        ReferenceError::Format | ReferenceError::Port => "invalid reference format".to_owned(),
        ReferenceError::Uppercase(name) => {
            format!("invalid reference format: repository name ({name}) must be lowercase")
        }
        ReferenceError::UppercaseHost => "repository name must be lowercase".to_owned(),
        ReferenceError::Identifier(text) => {
            format!("invalid repository name ({text}), cannot specify 64-byte hexadecimal strings")
        }
        ReferenceError::TooLong => {
            "repository name must not be more than 255 characters".to_owned()
        }
        ReferenceError::DigestLength => "invalid checksum digest length".to_owned(),
        ReferenceError::DigestDigits => "invalid checksum digest format".to_owned(),
        ReferenceError::DigestAlgorithm => "unsupported digest algorithm".to_owned(),
    }
}

/// The text in quotes as Go's `%q` formats it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            // Writing to a string cannot fail.
            c if c.is_ascii_control() => drop(write!(quoted, "\\x{:02x}", u32::from(c))),
            c if c.is_control() => drop(write!(quoted, "\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("web", Some("web:latest"))]
    #[case("web:1", Some("web:1"))]
    #[case("localhost:5000/a/b", Some("localhost:5000/a/b:latest"))]
    #[case("host:99999/a", Some("host:99999/a:latest"))]
    #[case("crib.local/host", Some("crib.local/host:latest"))]
    #[case("a/b__c-d:V1.2_3", Some("a/b__c-d:V1.2_3"))]
    #[case("web:", None)]
    #[case("", None)]
    #[case("Web", None)]
    #[case("a//b", None)]
    #[case("-a", None)]
    #[case("a@sha256:12", None)]
    fn image_references_are_validated_and_tagged(
        #[case] image: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(with_default_tag(image).ok().as_deref(), expected);
    }

    #[test]
    fn control_characters_are_escaped_in_messages() {
        assert_eq!(quoted("a\t\"\u{1}é\u{85}"), "\"a\\t\\\"\\x01é\\u0085\"");
    }
}
