//! ◆ The grammar of image references, part by part.

use crate::ReferenceError;

/// Completes a familiar name to the host and the path there. The first component is a host if it has a dot, a colon or an
/// upper-case letter, or is `localhost`.
pub(crate) fn complete(text: &str) -> (String, String) {
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
    let domain = if domain == "index.docker.io" { "docker.io" } else { domain };
    if domain == "docker.io" && !path.contains('/') {
        (domain.to_owned(), format!("library/{path}"))
    } else {
        (domain.to_owned(), path.to_owned())
    }
}

/// The parts of a completed reference.
pub(crate) struct Parts<'a> {
    /// The path after the host; `None` if the first component is not a host.
    pub(crate) in_registry: Option<&'a str>,
    pub(crate) repository: &'a str,
    pub(crate) tag: Option<&'a str>,
    pub(crate) digest: Option<&'a str>,
}

impl<'a> Parts<'a> {
    /// `None` if the text does not follow the grammar.
    pub(crate) fn of(full: &'a str) -> Option<Self> {
        let (named, digest) = match full.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (full, None),
        };
        let (repository, tag) = match named.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            Some(_) | None => (named, None),
        };
        let in_registry = repository
            .split_once('/')
            .filter(|(host, path)| is_host_with_any_port(host) && is_path(path))
            .map(|(_, path)| path);
        let fits = (in_registry.is_some() || is_path(repository))
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        fits.then_some(Self { in_registry, repository, tag, digest })
    }
}

/// Whether the host has a numeric port that is not a TCP port.
pub(crate) fn has_bad_port(host: &str) -> bool {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| {
        let number = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        number && !port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

pub(crate) fn is_bad_port_of_localhost(text: &str) -> bool {
    let tag = text.strip_prefix("localhost:");
    tag.is_some_and(|tag| tag.parse::<u32>().is_ok_and(|tag| tag > u32::from(u16::MAX)))
}

/// A host name or a bracketed IPv6 address, with an optional port that exists.
pub fn is_host(text: &str) -> bool {
    is_host_with_any_port(text) && !has_bad_port(text)
}

fn is_host_with_any_port(text: &str) -> bool {
    let (host_fits, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let fits =
                !address.is_empty() && address.bytes().all(|c| c.is_ascii_hexdigit() || c == b':');
            let port = rest.strip_prefix(':').or((!rest.is_empty()).then_some(""));
            (fits, port)
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name.split('.').all(is_host_label), Some(port)),
            None => (text.split('.').all(is_host_label), None),
        },
    };
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    host_fits && port.is_none_or(is_number)
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
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(word)
        && text.ends_with(word)
        && text
            .split(word)
            .all(|gap| matches!(gap, "." | "_" | "__") || gap.bytes().all(|c| c == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|c| word(*c))
        && bytes.iter().all(|c| word(*c) || matches!(c, b'.' | b'-'))
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, digits)| {
        let algorithm_fits = algorithm.split(['-', '_', '+', '.']).all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphabetic())
                && part.bytes().all(|c| c.is_ascii_alphanumeric())
        });
        algorithm_fits && digits.len() >= 32 && digits.bytes().all(|c| c.is_ascii_hexdigit())
    })
}

pub(crate) fn check_digest(text: &str) -> Result<(), ReferenceError> {
    let (algorithm, digits) = text.split_once(':').ok_or(ReferenceError::DigestDigits)?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(ReferenceError::DigestAlgorithm),
    };
    if digits.len() != length {
        return Err(ReferenceError::DigestLength);
    }
    if !is_lower_hex(digits) {
        return Err(ReferenceError::DigestDigits);
    }
    Ok(())
}

pub(crate) fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}
