//! ◆ Parses the paths and queries of the OCI distribution specification 1.1.

use std::fmt;
use std::str::FromStr;

/// The resource of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/v2/`: checks the API version and the client's authentication.
    Base,
    /// `/token`: issues bearer tokens.
    Token,
    /// `/v2/_catalog`.
    Catalog,
    /// `/v2/NAME/tags/list`.
    Tags {
        /// The repository in the path.
        name: String,
    },
    /// `/v2/NAME/manifests/REFERENCE`.
    Manifest {
        /// The repository in the path.
        name: String,
        /// A tag or a digest.
        reference: Reference,
    },
    /// `/v2/NAME/blobs/DIGEST`.
    Blob {
        /// The repository in the path.
        name: String,
        /// The blob.
        digest: Digest,
    },
    /// `/v2/NAME/blobs/uploads/`.
    Uploads {
        /// The repository in the path.
        name: String,
    },
    /// `/v2/NAME/blobs/uploads/ID`.
    Upload {
        /// The repository in the path.
        name: String,
        /// The server's id of the upload.
        id: String,
    },
    /// `/v2/NAME/referrers/DIGEST`.
    Referrers {
        /// The repository in the path.
        name: String,
        /// The subject of the listing.
        digest: Digest,
    },
}

/// Why a path is not a [`Route`]: each variant has an error code of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathError {
    /// The path is not served.
    Unknown,
    /// The repository's name breaks the grammar.
    Name,
    /// It is neither a tag nor a digest.
    Reference,
    /// The digest is not of the form `sha256:…` or `sha512:…`.
    Digest,
}

impl Route {
    /// Parses the path of a request.
    pub(super) fn parse(path: &str) -> Result<Self, PathError> {
        match path {
            "/v2" | "/v2/" => return Ok(Self::Base),
            "/v2/_catalog" => return Ok(Self::Catalog),
            "/token" => return Ok(Self::Token),
            _ => {}
        }
        let rest = path.strip_prefix("/v2/").ok_or(PathError::Unknown)?;
        let rest = decode(rest);
        let words: Vec<&str> = rest.split('/').collect();
        match words.as_slice() {
            [name @ .., "tags", "list"] => Ok(Self::Tags { name: repository(name)? }),
            [name @ .., "blobs", "uploads", ""] | [name @ .., "blobs", "uploads"] => {
                Ok(Self::Uploads { name: repository(name)? })
            }
            [name @ .., "blobs", "uploads", id] => {
                Ok(Self::Upload { name: repository(name)?, id: (*id).to_owned() })
            }
            [name @ .., "manifests", reference] => Ok(Self::Manifest {
                name: repository(name)?,
                reference: reference.parse().map_err(|_| PathError::Reference)?,
            }),
            [name @ .., "blobs", digest] => Ok(Self::Blob {
                name: repository(name)?,
                digest: digest.parse().map_err(|_| PathError::Digest)?,
            }),
            [name @ .., "referrers", digest] => Ok(Self::Referrers {
                name: repository(name)?,
                digest: digest.parse().map_err(|_| PathError::Digest)?,
            }),
            _ => Err(PathError::Unknown),
        }
    }

    /// The repository, if the route has one.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Base | Self::Token | Self::Catalog => None,
            Self::Tags { name }
            | Self::Manifest { name, .. }
            | Self::Blob { name, .. }
            | Self::Uploads { name }
            | Self::Upload { name, .. }
            | Self::Referrers { name, .. } => Some(name),
        }
    }
}

/// Joins the components of a repository's name if each one is valid. The first may be a registry's host with a port, since one
/// server can stand in for several registries.
fn repository(words: &[&str]) -> Result<String, PathError> {
    let (first, rest) = words.split_first().ok_or(PathError::Unknown)?;
    let name = first
        .split_once(':')
        .map_or(*first, |(host, port)| if port.parse::<u16>().is_ok() { host } else { "" });
    let whole = words.join("/");
    if std::iter::once(&name).chain(rest).all(|word| is_component(word)) && whole.len() <= 255 {
        Ok(whole)
    } else {
        Err(PathError::Name)
    }
}

/// Lower-case letters and digits, with single separators between them: `.`, `_`, `__` or dashes.
fn is_component(word: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = word.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    let separators = word.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends.is_some_and(|(first, last)| alphanumeric(*first) && alphanumeric(*last))
        && separators.into_iter().all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

/// A tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// Up to 128 letters, digits, `_`, `.` and `-`.
    Tag(String),
    /// A digest.
    Digest(Digest),
}

impl FromStr for Reference {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text.contains(':') {
            return text.parse().map(Self::Digest);
        }
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let first = text.bytes().next().is_some_and(word);
        let rest = text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'));
        if first && rest && text.len() <= 128 { Ok(Self::Tag(text.to_owned())) } else { Err(()) }
    }
}

/// A well-formed `sha256:…` or `sha512:…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    /// The digest for a hash.
    pub(super) fn of_hash(algorithm: &str, hash: &[u8]) -> Self {
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{algorithm}:{digits}"))
    }

    /// The algorithm and the hexadecimal digits.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or((&self.0, ""))
    }

    /// The digest's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = match text.split_once(':') {
            Some(("sha256", digits)) if digits.len() == 64 => digits,
            Some(("sha512", digits)) if digits.len() == 128 => digits,
            Some(_) | None => return Err(()),
        };
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.bytes().all(lower) { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// The fields of a query or a form, decoded, in order.
pub(super) fn fields(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&key.replace('+', " ")), decode(&value.replace('+', " ")))
        })
        .collect()
}

/// The first field with this name.
pub(super) fn field<'a>(fields: &'a [(String, String)], key: &str) -> Option<&'a str> {
    let found = fields.iter().find(|(name, _)| name == key);
    found.map(|(_, value)| value.as_str())
}

/// Decodes percent-encoding such as `%2F`; malformed codes stay as they are.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let code = tail
            .get(..2)
            .filter(|_| *byte == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses a `Range` header for a file of `length` bytes, into first byte and length. Returns `None` if the range is outside the
/// file; a malformed header means the whole file.
pub(super) fn range(header: Option<&str>, length: u64) -> Option<Option<(u64, u64)>> {
    let Some((first, last)) = header
        .and_then(|header| header.strip_prefix("bytes="))
        .and_then(|range| range.split_once('-'))
    else {
        return Some(None);
    };
    let (from, to) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => (from, to.min(length.saturating_sub(1))),
        (Ok(from), Err(_)) if last.is_empty() => (from, length.saturating_sub(1)),
        (Err(_), Ok(0)) if first.is_empty() => return None,
        (Err(_), Ok(end)) if first.is_empty() => {
            (length.saturating_sub(end), length.saturating_sub(1))
        }
        _ => return Some(None),
    };
    (from < length).then(|| Some((from, to - from + 1)))
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
