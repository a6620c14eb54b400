//! ◆ Image references: `nginx`, `docker.io/library/nginx:1.25`, `host:5000/a/b@sha256:…`.
//!
//! The grammar is the one of the distribution project's reference package 0.6, which a kubelet applies to `image:` before it
//! calls a runtime. Familiar names are completed to full ones. Agent and runtime share this package and do not depend on each
//! other.

mod grammar;

use std::fmt;
use std::str::FromStr;

use grammar::{
    Parts, check_digest, complete, has_bad_port, is_bad_port_of_localhost, is_lower_hex,
};

pub use grammar::is_host;

/// Limit on the characters of a repository.
const LONGEST: usize = 255;

/// A fully qualified reference: a repository and a tag, a digest or both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The registry's host and the path in it: `docker.io/library/nginx`.
    pub repository: String,
    /// `latest` when the text has neither tag nor digest.
    pub tag: Option<String>,
    /// `sha256:…`, `sha384:…` or `sha512:…`; only form and length are checked.
    pub digest: Option<String>,
}

/// Why a text is not an image reference. `Display` describes what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// It does not follow the grammar.
    #[error(
        "it must look like [host[:port]/]path[:tag][@digest], in lower case apart from the tag"
    )]
    Format,
    /// The repository's path, which this contains, has an upper-case letter.
    #[error("the repository must be in lower case")]
    Uppercase(String),
    /// The first component has an upper-case letter and is not a host.
    #[error("the repository must be in lower case")]
    UppercaseHost,
    /// The port is not a TCP port.
    #[error("the registry's port must be from 1 to 65535")]
    Port,
    /// 64 hexadecimal digits could be an image id.
    #[error("64 hexadecimal digits are an image id, not a name")]
    Identifier(String),
    /// The repository's path has more than 255 characters.
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
    /// Parses and completes a name as a kubelet does, which accepts any number as a port.
    ///
    /// # Errors
    /// Returns why the text is not a reference; never [`ReferenceError::Port`].
    pub fn with_any_port(text: &str) -> Result<Self, ReferenceError> {
        if text.len() == 64 && is_lower_hex(text) {
            return Err(ReferenceError::Identifier(text.to_owned()));
        }
        let (domain, path) = complete(text);
        let unversioned = path.split_once(':').map_or(path.as_str(), |(before, _)| before);
        if unversioned.chars().any(char::is_uppercase) {
            return Err(ReferenceError::Uppercase(unversioned.to_owned()));
        }
        let full = format!("{domain}/{path}");
        let Some(Parts { in_registry, repository, tag, digest }) = Parts::of(&full) else {
            // The rules for the first component depend on whether it is a host.
            return Err(if Parts::of(&full.to_lowercase()).is_some() {
                ReferenceError::UppercaseHost
            } else {
                ReferenceError::Format
            });
        };
        if in_registry.unwrap_or(repository).len() > LONGEST {
            return Err(ReferenceError::TooLong);
        }
        if let Some(digest) = digest {
            check_digest(digest)?;
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

    /// Parses a reference that can be pulled: its port is a TCP port, and the repository, host included, fits into a file name.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let host = text.split_once('/').map(|(first, _)| first);
        // `localhost` is always a host name: with a tag it would otherwise be an image of docker.io, which is never
        // intended.
        if host.map_or_else(|| is_bad_port_of_localhost(text), has_bad_port) {
            return Err(ReferenceError::Port);
        }
        let reference = Self::with_any_port(text)?;
        if reference.repository.len() > LONGEST {
            return Err(ReferenceError::TooLong);
        }
        Ok(reference)
    }
}

/// A name without tag and digest, not completed.
///
/// # Errors
/// Returns why the text is not a reference.
pub fn without_version(text: &str) -> Result<&str, ReferenceError> {
    Reference::with_any_port(text)?;
    let named = text.split_once('@').map_or(text, |(named, _)| named);
    Ok(match named.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        Some(_) | None => named,
    })
}

#[cfg(test)]
mod tests;
