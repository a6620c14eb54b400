//! The grammar, compared with Kubernetes on 549 texts; ports; and arbitrary texts.

#![allow(clippy::unwrap_used)]

use std::io::Read as _;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// The results of Kubernetes 1.36 for 549 strings, one JSON object per line.
const VECTORS: &[u8] = include_bytes!("../../../tests/vectors/image-refs.jsonl.gz");

#[test]
fn agrees_with_kubernetes_on_every_vector() {
    let mut text = String::new();
    flate2::read::GzDecoder::new(VECTORS).read_to_string(&mut text).unwrap();
    let mut wrong = Vec::new();
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let image = row["in"]["image"].as_str().unwrap();
        let out = &row["out"];
        let text_of = |key: &str| out[key].as_str().map(str::to_owned);
        let agrees = match image.parse::<Reference>() {
            Ok(got) => {
                Some(got.repository) == text_of("repository")
                    && got.tag == text_of("tag")
                    && got.digest == text_of("digest")
            }
            Err(ReferenceError::DigestLength) => {
                text_of("error").is_some_and(|e| e.ends_with("invalid checksum digest length"))
            }
            Err(ReferenceError::DigestDigits) => {
                text_of("error").is_some_and(|e| e.ends_with("invalid checksum digest format"))
            }
            Err(ReferenceError::Uppercase(_)) => {
                text_of("error").is_some_and(|e| e.ends_with("must be lowercase"))
            }
            Err(_) => out["error"].is_string(),
        };
        if !agrees {
            wrong.push(format!("{image:?}: {:?}, expected {out}", image.parse::<Reference>()));
        }
    }
    assert_eq!(text.lines().count(), 549);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[rstest]
#[case("localhost:99999", true)]
#[case("localhost:99999/app:1", true)]
#[case("example.com:65536/app", true)]
#[case("example.com:0/app", true)]
#[case("[::1]:65536/app", true)]
#[case("example.com:65535/app", false)]
#[case("localhost:5000", false)]
#[case("app:99999", false)]
#[case("[::1]/app", false)]
fn ports_that_do_not_exist_are_refused(#[case] text: &str, #[case] refused: bool) {
    let got = text.parse::<Reference>();
    assert_eq!(got == Err(ReferenceError::Port), refused, "{got:?}");
}

#[rstest]
#[case("nginx", "docker.io/library/nginx", "nginx")]
#[case("index.docker.io/a/b:1", "docker.io/a/b", "index.docker.io/a/b")]
#[case("localhost:5000/a:1", "localhost:5000/a", "localhost:5000/a")]
#[case("localhost:5000", "docker.io/library/localhost", "localhost")]
#[case(
    "q.io/a:1@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "q.io/a",
    "q.io/a"
)]
fn repository_and_name_are_derived_from_image(
    #[case] image: &str,
    #[case] repository: &str,
    #[case] name: &str,
) {
    assert_eq!(Reference::with_any_port(image).map(|r| r.repository), Ok(repository.to_owned()));
    assert_eq!(without_version(image), Ok(name));
}

proptest! {
    /// No text makes the parser panic; what it accepts is cut to a prefix of the text, and its full form is stable.
    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-zA-Z0-9:/@._\\[\\] -]{0,80}") {
        if let Ok(name) = without_version(&text) {
            prop_assert!(text.starts_with(name));
        }
        if let Ok(reference) = text.parse::<Reference>() {
            let full = reference.to_string();
            if reference.repository.starts_with("docker.io/") {
                prop_assert_eq!(full.parse::<Reference>().unwrap(), reference);
            }
        }
    }
}
