//! Fuzz targets: headers and error messages of a registry.

use std::time::Duration;

use super::{challenge::Challenge, peer::explanation, retry};
use fuzz_target::{Target, bytes, text};

pub(crate) const TARGETS: &[Target] = &[
    Target::new("registry_challenge", challenge, challenges),
    Target::new("registry_error", error, errors),
    Target::new("retry_after", retry_after, times),
];

/// The parts of a parsed challenge occur in the header.
fn challenge(data: &[u8]) {
    let text = text(data);
    let lower = text.to_ascii_lowercase();
    match Challenge::read(text.lines()) {
        Some(Challenge::Basic) => assert!(lower.contains("basic")),
        Some(Challenge::Bearer { .. }) => {
            assert!(lower.contains("bearer") && lower.contains("realm"))
        }
        None => {}
    }
}

fn challenges() -> Vec<Vec<u8>> {
    bytes(&[
        "Basic realm=\"it\"",
        "Bearer realm=\"https://auth/token\",service=\"reg\",scope=\"repository:a/b:pull\",error=\"invalid_token\"",
        "Basic realm=\"x\", Bearer realm=\"https://a\\\"b\"\nNegotiate",
    ])
}

/// A registry's message fits into one log line.
fn error(data: &[u8]) {
    for own in [true, false] {
        let said = explanation(data, own);
        assert!(said.chars().count() <= 200 && !said.contains(char::is_control), "{said:?}");
    }
}

fn errors() -> Vec<Vec<u8>> {
    bytes(&[
        r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required","detail":null}]}"#,
        r#"{"details":"incorrect username or password"}"#,
        "plain\ttext\n",
    ])
}

/// A number of seconds is parsed as that number.
fn retry_after(data: &[u8]) {
    let text = text(data);
    let pause = retry::retry_after(text, jiff::Timestamp::UNIX_EPOCH);
    if let Ok(seconds) = text.trim().parse() {
        assert_eq!(pause, Some(Duration::from_secs(seconds)));
    }
}

fn times() -> Vec<Vec<u8>> {
    bytes(&["120", "Wed, 21 Oct 2026 07:28:00 GMT", "Fri, 31 Dec 1999 23:59:59 +0000"])
}
