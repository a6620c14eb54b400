//! ◆ Image references: `nginx`, `docker.io/library/nginx:1.25`, `host:5000/a/b@sha256:…`.
//!
//! The grammar is that of the distribution project's reference package, which a kubelet applies to `image:` before
//! it calls a runtime. Familiar names are completed to full ones.

use std::fmt;
use std::str::FromStr;

/// A fully qualified reference: a repository and a tag, a digest or both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// `docker.io/library/nginx`: the registry's host and the path in it.
    pub repository: String,
    /// `latest` when the text has neither tag nor digest.
    pub tag: Option<String>,
    /// `sha256:…`, `sha384:…` or `sha512:…`; only form and length are checked.
    pub digest: Option<String>,
}

/// Why a text is not an image reference. Display says what to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// It does not follow the grammar.
    #[error(
        "it must look like [host[:port]/]path[:tag][@digest], in lower case apart from the tag"
    )]
    Format,
    /// The repository's path has an upper-case letter.
    #[error("the repository must be in lower case")]
    Uppercase,
    /// The port is not a TCP port.
    #[error("the registry's port must be from 1 to 65535")]
    Port,
    /// 64 hexadecimal digits could be an image ID.
    #[error("64 hexadecimal digits are an image id, not a name")]
    Identifier,
    /// More than 255 characters of repository.
    #[error("the repository has more than 255 characters")]
    TooLong,
    /// The digest has the wrong number of digits.
    #[error("the digest has the wrong length for its algorithm")]
    DigestLength,
    /// The digest has an upper-case digit.
    #[error("the digest must be in lower-case hexadecimal digits")]
    DigestDigits,
    /// Neither sha256, sha384 nor sha512.
    #[error("the digest's algorithm is none of sha256, sha384 and sha512")]
    DigestAlgorithm,
}

impl Reference {
    /// `repository:tag`, when there is a tag and no digest: the form of a CRI `repo_tags` entry.
    pub fn as_tag(&self) -> Option<String> {
        match (&self.tag, &self.digest) {
            (Some(tag), None) => Some(format!("{}:{tag}", self.repository)),
            (_, Some(_)) | (None, None) => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.len() == 64 && is_lower_hex(text) {
            return Err(ReferenceError::Identifier);
        }
        let (domain, path) = complete(text);
        // `localhost` is always a host name: with a tag it would otherwise be an image of docker.io, which is never
        // intended.
        if has_bad_port(&domain) || (!text.contains('/') && is_bad_port_of_localhost(text)) {
            return Err(ReferenceError::Port);
        }
        let unversioned = path
            .split_once(':')
            .map_or(path.as_str(), |(before, _)| before);
        if unversioned.chars().any(char::is_uppercase) {
            return Err(ReferenceError::Uppercase);
        }
        let full = format!("{domain}/{path}");
        let (named, digest) = match full.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (full.as_str(), None),
        };
        let (repository, tag) = match named.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            Some(_) | None => (named, None),
        };
        if !is_repository(repository) || !tag.is_none_or(is_tag) {
            return Err(ReferenceError::Format);
        }
        if let Some(digest) = digest {
            check_digest(digest)?;
        }
        if repository.len() > 255 {
            return Err(ReferenceError::TooLong);
        }
        let tag = match (tag, digest) {
            (None, None) => Some("latest"),
            (Some(_), _) | (None, Some(_)) => tag,
        };
        Ok(Self {
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }
}

/// Completes a familiar name to the host and the path there. The first component is a host if it has a dot, a
/// colon or an upper-case letter, or is `localhost`.
fn complete(text: &str) -> (String, String) {
    let (domain, path) = match text.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        Some(_) | None => ("docker.io", text),
    };
    let domain = if domain == "index.docker.io" {
        "docker.io"
    } else {
        domain
    };
    if domain == "docker.io" && !path.contains('/') {
        (domain.to_owned(), format!("library/{path}"))
    } else {
        (domain.to_owned(), path.to_owned())
    }
}

fn is_repository(text: &str) -> bool {
    let with_host = text
        .split_once('/')
        .is_some_and(|(first, rest)| is_host(first) && is_path(rest));
    with_host || is_path(text)
}

/// Whether the host has a numeric port that is not a TCP port.
fn has_bad_port(host: &str) -> bool {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| {
        let number = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        number && !port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

fn is_bad_port_of_localhost(text: &str) -> bool {
    let tag = text.strip_prefix("localhost:");
    tag.is_some_and(|tag| {
        tag.parse::<u32>()
            .is_ok_and(|tag| tag > u32::from(u16::MAX))
    })
}

/// A host name or a bracketed IPv6 address, with an optional port.
pub fn is_host(text: &str) -> bool {
    let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let address_fits =
                !address.is_empty() && address.bytes().all(|c| c.is_ascii_hexdigit() || c == b':');
            (
                address_fits,
                rest.strip_prefix(':').or((!rest.is_empty()).then_some("")),
            )
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name.split('.').all(is_host_label), Some(port)),
            None => (text.split('.').all(is_host_label), None),
        },
    };
    let is_number = |p: &str| !p.is_empty() && p.bytes().all(|c| c.is_ascii_digit());
    name && port.is_none_or(is_number) && !has_bad_port(text)
}

fn is_host_label(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_path(text: &str) -> bool {
    text.split('/').all(is_path_component)
}

/// Lower-case letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn is_path_component(text: &str) -> bool {
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends_fit =
        bytes.first().is_some_and(|c| alnum(*c)) && bytes.last().is_some_and(|c| alnum(*c));
    ends_fit
        && text
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|c| c == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|c| word(*c))
        && bytes.iter().all(|c| word(*c) || matches!(c, b'.' | b'-'))
}

fn check_digest(text: &str) -> Result<(), ReferenceError> {
    let (algorithm, hex) = text.split_once(':').ok_or(ReferenceError::Format)?;
    let algorithm_fits = algorithm.split(['-', '_', '+', '.']).all(|part| {
        part.bytes().next().is_some_and(|c| c.is_ascii_alphabetic())
            && part.bytes().all(|c| c.is_ascii_alphanumeric())
    });
    if !algorithm_fits || hex.len() < 32 || !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(ReferenceError::Format);
    }
    let digits = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(ReferenceError::DigestAlgorithm),
    };
    if hex.len() != digits {
        return Err(ReferenceError::DigestLength);
    }
    if !is_lower_hex(hex) {
        return Err(ReferenceError::DigestDigits);
    }
    Ok(())
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// The reference of an image in an archive that gives it a bare tag or no name: `crib.local/<file stem>:<tag>`,
/// with characters that a repository may not contain replaced by dashes.
pub(super) fn of_file(file_name: &str, tag: Option<&str>) -> Option<Reference> {
    let lower = file_name.to_lowercase();
    let mut stem = lower.as_str();
    for suffix in [".gz", ".tgz", ".zst", ".tar", ".oci"] {
        stem = stem.strip_suffix(suffix).unwrap_or(stem);
    }
    let mut name = String::new();
    for c in stem.chars() {
        let fits = c.is_ascii_lowercase() || c.is_ascii_digit();
        let gap = name.ends_with(['-', '.', '_']);
        match c {
            c if fits => name.push(c),
            '.' | '_' if !gap && !name.is_empty() => name.push(c),
            _ if !gap && !name.is_empty() => name.push('-'),
            _ => {}
        }
    }
    let name = name.trim_end_matches(['-', '.', '_']);
    let name = if name.is_empty() { "image" } else { name };
    format!("crib.local/{name}:{}", tag.unwrap_or("latest"))
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// The results of Kubernetes 1.36 for 549 strings, one JSON object per line.
    const VECTORS: &[u8] = include_bytes!("../../../tests/vectors/image-refs.jsonl.gz");

    #[test]
    fn agrees_with_kubernetes_on_every_vector() {
        let mut text = String::new();
        flate2::read::GzDecoder::new(VECTORS)
            .read_to_string(&mut text)
            .unwrap();
        let mut wrong = Vec::new();
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let image = row["in"]["image"].as_str().unwrap();
            let out = &row["out"];
            let text_of = |key: &str| out[key].as_str().map(str::to_owned);
            let agrees =
                match image.parse::<Reference>() {
                    Ok(got) => {
                        Some(got.repository) == text_of("repository")
                            && got.tag == text_of("tag")
                            && got.digest == text_of("digest")
                    }
                    Err(ReferenceError::DigestLength) => text_of("error")
                        .is_some_and(|e| e.ends_with("invalid checksum digest length")),
                    Err(ReferenceError::DigestDigits) => text_of("error")
                        .is_some_and(|e| e.ends_with("invalid checksum digest format")),
                    Err(ReferenceError::Uppercase) => {
                        text_of("error").is_some_and(|e| e.ends_with("must be lowercase"))
                    }
                    Err(_) => out["error"].is_string(),
                };
            if !agrees {
                wrong.push(format!(
                    "{image:?}: {:?}, expected {out}",
                    image.parse::<Reference>()
                ));
            }
        }
        assert_eq!(text.lines().count(), 549);
        assert!(
            wrong.is_empty(),
            "{} differ:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
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
    #[case("app.tar", None, "crib.local/app:latest")]
    #[case("App v2.tar.gz", None, "crib.local/app-v2:latest")]
    #[case("--.tar", None, "crib.local/image:latest")]
    #[case("a__b.oci", Some("1.0"), "crib.local/a_b:1.0")]
    #[case("my.app", Some("v1"), "crib.local/my.app:v1")]
    fn named_after_the_file(#[case] file: &str, #[case] tag: Option<&str>, #[case] want: &str) {
        assert_eq!(of_file(file, tag).unwrap().to_string(), want);
    }

    proptest! {
        #[test]
        fn any_file_name_gives_a_reference(name in "\\PC{0,40}") {
            prop_assert!(of_file(&name, None).is_some(), "{name:?}");
        }

        #[test]
        fn parsing_any_text_never_panics_and_the_full_form_is_stable(text in "[a-zA-Z0-9:/@._\\-\\[\\]]{0,60}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let full = reference.to_string();
                if reference.repository.contains('/') && reference.repository.starts_with("docker.io/") {
                    prop_assert_eq!(full.parse::<Reference>().unwrap(), reference);
                }
            }
        }
    }
}
