//! ◆ The settings for registries: mirrors, certificates, credentials, timeouts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The key of the settings for hosts without their own.
pub const EVERY_HOST: &str = "*";

/// How images are pulled from registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registries {
    /// Settings by host as in image names (`docker.io`, `registry.example.com:5000`), or `*`.
    pub hosts: BTreeMap<String, Host>,
    /// A docker `config.json` to read credentials from.
    pub docker_config: Option<PathBuf>,
    /// A pull without progress for this long fails.
    pub progress_timeout: Duration,
    /// Limit on concurrent downloads of layers of one image.
    pub parallel_layers: usize,
    /// Full names of images (`registry.k8s.io/pause:3.10`) that no garbage collection may remove.
    pub pinned: BTreeSet<String>,
}

impl Default for Registries {
    fn default() -> Self {
        Self {
            hosts: BTreeMap::new(),
            docker_config: None,
            progress_timeout: Duration::from_secs(5 * 60),
            parallel_layers: 3,
            pinned: BTreeSet::new(),
        }
    }
}

/// Settings for one host. Unset fields are taken from the settings for [every host](EVERY_HOST).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Mirrors, which are tried before the host, in this order.
    pub mirrors: Option<Vec<Mirror>>,
    /// Only mirrors are used, not the host itself.
    pub mirrors_only: Option<bool>,
    /// Rewrites of repository paths on mirrors: the longest matching prefix is replaced.
    pub rewrite: Option<Vec<Rewrite>>,
    /// The host is used without TLS.
    pub plain_http: Option<bool>,
    /// A file of certificates (PEM) trusted for this host in addition to the system's.
    pub ca: Option<PathBuf>,
    /// The credentials for this host, for pulls without their own.
    pub credentials: Option<Credentials>,
}

/// A prefix of repository paths and its replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// `library/`
    pub from: String,
    /// `mirrored/library/`
    pub to: String,
}

/// A mirror of a registry: `https://mirror.example.com:5000/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Without TLS: its URL begins with `http:`.
    pub plain_http: bool,
    /// Host and port.
    pub host: String,
    /// The path before repositories; empty, or without leading and trailing slashes.
    pub prefix: String,
}

/// Why a text is not a mirror's URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the URL of a mirror: write https://HOST[:PORT][/PATH], or http:// for one without TLS"
)]
pub struct MirrorError(String);

impl FromStr for Mirror {
    type Err = MirrorError;

    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let refuse = || MirrorError(text.to_owned());
        let (plain_http, rest) = match text.split_once("://") {
            Some(("https", rest)) => (false, rest),
            Some(("http", rest)) => (true, rest),
            Some(_) | None => return Err(refuse()),
        };
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        // `/v2` is the root of the protocol on every host; some users write it, so it is dropped.
        let prefix = prefix.strip_suffix("v2").map_or(prefix, |before| {
            if before.is_empty() || before.ends_with('/') {
                before.trim_end_matches('/')
            } else {
                prefix
            }
        });
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
        let climbs = prefix.split('/').any(|part| matches!(part, "." | ".."));
        let empty_part = !prefix.is_empty() && prefix.split('/').any(str::is_empty);
        if !crate::is_host(host) || !prefix.chars().all(fits) || climbs || empty_part {
            return Err(refuse());
        }
        Ok(Self { plain_http, host: host.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.plain_http { "http" } else { "https" };
        write!(f, "{scheme}://{}", self.host)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        Ok(())
    }
}

/// A text that must not be logged.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the request that sends it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Credentials for a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Credentials {
    /// No credentials.
    #[default]
    Anonymous,
    /// A user name and password.
    Basic {
        /// The user name.
        username: String,
        /// The password.
        password: Secret,
    },
    /// Exchanged for an access token if the registry requires one (OAuth 2.0, refresh_token).
    IdentityToken(Secret),
    /// Sent as a bearer token, unchanged.
    RegistryToken(Secret),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://m.example.com", "https://m.example.com")]
    #[case("http://127.0.0.1:5000/", "http://127.0.0.1:5000")]
    #[case("http://[::1]:5000/a/b/", "http://[::1]:5000/a/b")]
    #[case("https://m.example.com/v2/", "https://m.example.com")]
    #[case("https://m.example.com/a/v2", "https://m.example.com/a")]
    #[case("https://m.example.com/av2", "https://m.example.com/av2")]
    fn mirror_url_is_parsed(#[case] text: &str, #[case] want: &str) {
        assert_eq!(text.parse::<Mirror>().unwrap().to_string(), want);
    }

    #[rstest]
    #[case("m.example.com")]
    #[case("ftp://m.example.com")]
    #[case("https://")]
    #[case("https://user:password@m.example.com")]
    #[case("https://m.example.com/../x")]
    #[case("https://m.example.com/a//b")]
    #[case("https://m.example.com/?q")]
    #[case("https://m example.com")]
    fn invalid_mirror_url_is_rejected(#[case] text: &str) {
        text.parse::<Mirror>().unwrap_err();
    }

    #[test]
    fn debug_output_hides_secrets() {
        let credentials =
            Credentials::Basic { username: "me".to_owned(), password: Secret::new("hunter2") };
        let shown = format!("{credentials:?}");
        assert!(shown.contains("me") && !shown.contains("hunter2"), "{shown}");
    }
}
