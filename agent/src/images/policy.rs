//! ◆ Which images need a check of the pod's credentials although they are present (`imagePullCredentialsVerificationPolicy`).
//!
//! Source: Kubernetes 1.36, pkg/kubelet/images/pullmanager/image_pull_policies.go.

use compact::Set;
use image_reference::{ReferenceError, without_version};

/// `imagePullCredentialsVerificationPolicy`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CredentialVerification {
    /// Every pod may use every image that is present.
    NeverVerify,
    /// Every pod may use an image that the agent has not pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// Every pod may use the listed images.
    NeverVerifyAllowlistedImages(Allowlist),
    /// A pod may use an image only if one of its credentials could pull it.
    AlwaysVerify,
}

impl CredentialVerification {
    /// Whether a pod needs credentials for an image that is present.
    pub(crate) fn applies_to(&self, image: &str, pulled_by_agent: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled_by_agent,
            Self::NeverVerifyAllowlistedImages(allowlist) => !allowlist.contains(image),
            Self::AlwaysVerify => true,
        }
    }
}

/// `preloadedImagesVerificationAllowlist`: names without tag and digest, and prefixes that end with `/*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: Set<String>,
    prefixes: Vec<String>,
}

/// Why a pattern of the list is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowlistError {
    /// It begins or ends with a space.
    #[error("leading/trailing spaces are not allowed: {0}")]
    Spaces(String),
    /// It is empty.
    #[error("the supplied pattern is too short: {0}")]
    Empty(String),
    /// A `*` is elsewhere than after the last slash.
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0}")]
    Wildcard(String),
    /// It is `/*`.
    #[error("at least registry hostname is required")]
    NoHost,
    /// It is not the name of an image.
    #[error("failed to parse as an image name")]
    Name(#[source] ReferenceError),
    /// It has a tag or a digest.
    #[error("neither tag nor digest is accepted in an image reference: {0}")]
    Versioned(String),
}

impl Allowlist {
    /// Validates the patterns.
    ///
    /// # Errors
    /// If a pattern is neither a name nor a prefix.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, AllowlistError> {
        let mut list = Self::default();
        for pattern in patterns {
            if pattern != pattern.trim() {
                return Err(AllowlistError::Spaces(pattern.to_owned()));
            }
            let is_prefix = pattern.ends_with("/*");
            let trimmed = match pattern.strip_suffix('*') {
                Some(prefix) if is_prefix => prefix,
                Some(_) | None => pattern,
            };
            if trimmed.is_empty() {
                return Err(AllowlistError::Empty(pattern.to_owned()));
            }
            if trimmed.contains('*') {
                return Err(AllowlistError::Wildcard(pattern.to_owned()));
            }
            if is_prefix {
                if trimmed.len() == 1 {
                    return Err(AllowlistError::NoHost);
                }
                list.prefixes.push(trimmed.to_owned());
                continue;
            }
            let name = without_version(trimmed).map_err(AllowlistError::Name)?;
            if name != trimmed {
                return Err(AllowlistError::Versioned(pattern.to_owned()));
            }
            list.names.insert(name.to_owned());
        }
        Ok(list)
    }

    fn contains(&self, image: &str) -> bool {
        let name = without_version(image).unwrap_or(image);
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("nginx", "nginx:1", true)]
    #[case("nginx", "docker.io/library/nginx", false)]
    #[case(
        "q.io/*",
        "q.io/a/b@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        true
    )]
    #[case("q.io/*", "q.iox/a", false)]
    #[case("q.io/a/*", "q.io/a", false)]
    fn listed_images_need_no_check(
        #[case] pattern: &str,
        #[case] image: &str,
        #[case] listed: bool,
    ) {
        let policy = CredentialVerification::NeverVerifyAllowlistedImages(
            Allowlist::new([pattern]).unwrap(),
        );
        assert_eq!(policy.applies_to(image, true), !listed);
        assert_eq!(policy.applies_to(image, false), !listed);
    }

    #[rstest]
    #[case(" nginx")]
    #[case("")]
    #[case("*")]
    #[case("/*")]
    #[case("q.*/a")]
    #[case("q.io/*/*")]
    #[case("q.io/**")]
    #[case("nginx:1")]
    #[case("NGINX")]
    fn other_patterns_are_refused(#[case] pattern: &str) {
        assert!(Allowlist::new(["good", pattern]).is_err());
    }

    #[test]
    fn preloaded_images_are_those_that_the_agent_did_not_pull() {
        let policy = CredentialVerification::default();
        assert!(!policy.applies_to("a", false));
        assert!(policy.applies_to("a", true));
        assert!(!CredentialVerification::NeverVerify.applies_to("a", true));
        assert!(CredentialVerification::AlwaysVerify.applies_to("a", false));
    }
}
