//! Formats of names. Each function returns what was expected, or nothing if the name is valid.
//!
//! Source: Kubernetes 1.36, apimachinery/pkg/util/validation.

use std::net::IpAddr;

const LABEL: &str =
    "must consist of lower-case letters, digits and '-', and begin and end with a letter or digit";
const SUBDOMAIN: &str = "must consist of lower-case letters, digits, '-' and '.', and begin and end with a letter or digit";

/// Whether a word is in a list of words.
pub(super) fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

pub(super) fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether a text begins and ends with one of these bytes, and consists only of them and `others`.
pub(super) fn is_framed(text: &str, is_end: fn(u8) -> bool, others: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    ends.is_some_and(|(first, last)| is_end(*first) && is_end(*last))
        && bytes.iter().all(|byte| is_end(*byte) || others.contains(byte))
}

fn is_label(text: &str) -> bool {
    is_framed(text, is_lower, b"-")
}

/// A DNS label (RFC 1123): `web-1`.
pub(super) fn dns_label(text: &str) -> Option<&'static str> {
    if text.contains('.') {
        Some("must not contain dots")
    } else if text.len() > 63 {
        Some("must be no more than 63 characters")
    } else {
        (!is_label(text)).then_some(LABEL)
    }
}

/// A DNS name (RFC 1123): `web-1.example`.
pub fn dns_subdomain(text: &str) -> Option<&'static str> {
    if text.len() > 253 {
        Some("must be no more than 253 characters")
    } else {
        (!text.split('.').all(is_label)).then_some(SUBDOMAIN)
    }
}

/// The prefix of a generated DNS name, which may end with a hyphen.
pub(super) fn dns_subdomain_prefix(text: &str) -> Option<&'static str> {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut chars = rest.chars();
            chars.next_back();
            dns_subdomain(&format!("{}a", chars.as_str()))
        }
        Some(_) | None => dns_subdomain(text),
    }
}

/// A search domain: a DNS name that may have underscores and a dot at the end, or a dot alone.
pub(super) fn search_domain(text: &str) -> Option<&'static str> {
    let is_part = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        let bytes = part.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(first, last)| is_lower(*first) && is_lower(*last))
            && bytes.iter().all(|byte| is_lower(*byte) || matches!(byte, b'-' | b'_'))
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    if text == "." {
        None
    } else if name.len() > 253 {
        Some("must be no more than 253 characters")
    } else {
        (!name.split('.').all(is_part)).then_some(SUBDOMAIN)
    }
}

/// The address of a host.
pub(super) fn ip_address(text: &str) -> Option<&'static str> {
    match text.parse() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        Ok(IpAddr::V4(_) | IpAddr::V6(_)) => None,
        Err(_) => Some("must be a valid IP address, such as 10.9.8.7 or 2001:db8::ffff"),
    }
}

/// The name of a signer of certificates: a domain, `/` and a name.
pub(super) fn signer(text: &str) -> Option<&'static str> {
    const EXPECTED: &str = "must be a domain and a name, such as example.com/signer";
    let Some((domain, name)) = text.split_once('/') else {
        return Some(EXPECTED);
    };
    let labels = domain.split('.');
    let is_domain =
        domain.contains('.') && labels.into_iter().all(|part| dns_label(part).is_none());
    (!is_domain || dns_subdomain(name).is_some()).then_some(EXPECTED)
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    ends.is_some_and(|(first, last)| first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// A name with an optional domain before it: `example.com/role`.
pub fn qualified(text: &str) -> Option<&'static str> {
    const EXPECTED: &str =
        "must be a name of letters, digits, '-', '_' and '.', after an optional DNS name and '/'";
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if prefix.is_some_and(|prefix| dns_subdomain(prefix).is_some()) || !is_name_part(name) {
        Some(EXPECTED)
    } else {
        (name.len() > 63).then_some("the name must be no more than 63 characters")
    }
}

/// The value of a label; it may be empty.
pub fn label_value(text: &str) -> Option<&'static str> {
    if text.len() > 63 {
        Some("must be no more than 63 characters")
    } else {
        (!text.is_empty() && !is_name_part(text))
            .then_some("must be empty or consist of letters, digits, '-', '_' and '.', and begin and end with a letter or digit")
    }
}

/// The name of an environment variable: any printable ASCII but `=`.
pub(super) fn env_name(text: &str) -> Option<&'static str> {
    let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    (!printable).then_some("must consist of printable ASCII characters other than '='")
}

/// The name of a port: a lower-case name of at most 15 characters with a letter in it.
pub(super) fn port_name(text: &str) -> Option<&'static str> {
    if text.len() > 15 {
        Some("must be no more than 15 characters")
    } else if !text.bytes().all(|byte| is_lower(byte) || byte == b'-') {
        Some("must contain only lower-case letters, digits and '-'")
    } else if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Some("must contain at least one letter")
    } else if text.contains("--") {
        Some("must not contain consecutive hyphens")
    } else {
        (text.starts_with('-') || text.ends_with('-'))
            .then_some("must not begin or end with a hyphen")
    }
}

/// The key of a ConfigMap or Secret, which is a file name.
pub(super) fn config_key(text: &str) -> Option<&'static str> {
    if text.len() > 253 {
        Some("must be no more than 253 characters")
    } else if text == "." {
        Some("must not be '.'")
    } else if text.starts_with("..") {
        Some("must not begin with '..'")
    } else {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (text.is_empty() || !text.bytes().all(good))
            .then_some("must consist of letters, digits, '-', '_' or '.'")
    }
}

/// A relative path without `..`.
pub(super) fn inner_path(text: &str) -> Option<&'static str> {
    if text.starts_with('/') { Some("must be a relative path") } else { no_backsteps(text) }
}

/// A path without `..`.
pub(super) fn no_backsteps(text: &str) -> Option<&'static str> {
    text.split('/').any(|part| part == "..").then_some("must not contain '..'")
}
