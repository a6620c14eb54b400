//! ◆ Whether an image has the tag `latest`, on which its pull policy depends.
//!
//! Source: Kubernetes 1.36, pkg/util/parsers, and the grammar of references of the distribution project.

/// The maximum length of a repository's path.
const MAX_PATH: usize = 255;

/// Whether a reference has the tag `latest`, or neither a tag nor a digest. A malformed one has no tag.
pub(super) fn is_latest(image: &str) -> bool {
    tag(image).is_some_and(|tag| tag == "latest")
}

/// The tag of a valid reference; `latest` without tag and digest, empty with only a digest.
fn tag(image: &str) -> Option<&str> {
    // 64 hex digits are the id of an image.
    if image.len() == 64 && image.bytes().all(is_hex) {
        return None;
    }
    let (domain, rest) = match image.split_once('/') {
        Some((first, rest)) if is_domain_like(first) => (Some(first), rest),
        Some(_) | None => (None, image),
    };
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (rest, None),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    let is_official = matches!(domain, None | Some("docker.io" | "index.docker.io"));
    let prefix = if is_official && !path.contains('/') { "library/".len() } else { 0 };
    let is_valid = domain.is_none_or(is_domain)
        && path.split('/').all(is_component)
        && prefix + path.len() <= MAX_PATH
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    let default = if digest.is_some() { "" } else { "latest" };
    is_valid.then(|| tag.unwrap_or(default))
}

/// Whether the part before the first slash is a registry, not part of a path.
fn is_domain_like(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[') {
        Some(rest) => {
            let Some((address, rest)) = rest.split_once(']') else {
                return false;
            };
            let is_address = !address.is_empty()
                && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
            if !is_address {
                return false;
            }
            (None, rest.strip_prefix(':').or((!rest.is_empty()).then_some("")))
        }
        None => match domain.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(domain), None),
        },
    };
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(first, last)| {
            first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric()
        }) && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    host.is_none_or(|host| host.split('.').all(is_part))
        && port
            .is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Lower-case letters and digits, separated by `.`, `_`, `__` or hyphens.
fn is_component(part: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    let separators = part
        .split(|c: char| c.is_ascii() && is_word(c as u8))
        .filter(|separator| !separator.is_empty());
    ends.is_some_and(|(first, last)| is_word(*first) && is_word(*last))
        && separators.into_iter().all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let length = match digest.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        Some(_) | None => return false,
    };
    digest.split_once(':').is_some_and(|(_, hex)| hex.len() == length && hex.bytes().all(is_hex))
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::is_latest;

    const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[rstest]
    #[case("nginx", true)]
    #[case("nginx:latest", true)]
    #[case("nginx:1.29", false)]
    #[case("localhost:5000/web", true)]
    #[case("localhost:5000/web:2", false)]
    #[case("[fd00::1]:5000/web", true)]
    #[case("quay.io/a/b__c/d---e", true)]
    #[case::upper_case_registry("LOCALHOST/web", true)]
    #[case::upper_case_path("quay.io/Web", false)]
    #[case::repeated_separator("a..b", false)]
    #[case::tag_without_name(":latest", false)]
    #[case::blank(" nginx", false)]
    #[case::image_id(SHA, false)]
    #[case::longest_path(&"a".repeat(247), true)]
    #[case::too_long_path(&"a".repeat(248), false)]
    #[case::digest(&format!("nginx@sha256:{SHA}"), false)]
    #[case::latest_with_digest(&format!("nginx:latest@sha256:{SHA}"), true)]
    #[case::latest_with_short_digest("nginx:latest@sha256:abc", false)]
    fn latest_tag_is_distinguished_from_others(#[case] image: &str, #[case] expected: bool) {
        assert_eq!(is_latest(image), expected);
    }
}
