//! ◆ The configuration of credential providers: documents of kind CredentialProviderConfig.
//!
//! Source: Kubernetes 1.36, pkg/credentialprovider/plugin/config.go and kubelet.config.k8s.io/v1.

use std::time::Duration;

use api::duration::parse_go_duration;
use api::manifest::qualified;
use compact::Set;
use serde::Deserialize;

use crate::images::keyring;

/// Versions of the configuration; their schemas are equal.
const CONFIG_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// The version of requests and responses that supports tokens.
const TOKEN_VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";
/// The feature gate of tokens.
pub const TOKEN_GATE: &str = "KubeletServiceAccountTokenForCredentialProviders";
/// Versions of requests and responses.
const PROVIDER_VERSIONS: [&str; 3] = [
    TOKEN_VERSION,
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// A provider: a program that returns credentials for images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    /// The name of the program in the directory of providers.
    pub name: String,
    /// Locations of images that the provider has credentials for.
    pub match_images: Vec<String>,
    /// How long credentials are cached if the response does not specify it.
    pub default_cache_duration: Duration,
    /// The version of requests and responses.
    pub api_version: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Variables added to the agent's environment.
    pub env: Vec<(String, String)>,
    /// Present if the provider gets tokens of service accounts.
    pub token_attributes: Option<TokenAttributes>,
}

/// The data of a pod's service account that a provider gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttributes {
    /// The audience of the token.
    pub audience: String,
    /// Whether its credentials are cached for one token alone instead of for all tokens of an account.
    pub keeps_by_token: bool,
    /// Whether it is not run for pods without a service account.
    pub requires_account: bool,
    /// Annotations of the account that the provider gets. It is not run if one is missing.
    pub required_annotations: Vec<String>,
    /// Annotations of the account that the provider gets if they exist.
    pub optional_annotations: Vec<String>,
}

/// Why a configuration is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderConfigError {
    /// It is not a CredentialProviderConfig.
    #[error("failed to decode credential provider config: {0}")]
    Decode(String),
    /// Fields have values that are not allowed.
    #[error("failed to validate credential provider config: {}", .0.join(", "))]
    Invalid(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigDocument {
    kind: String,
    api_version: String,
    #[serde(default)]
    providers: Option<Vec<ProviderDocument>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
struct ProviderDocument {
    name: String,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Option<Vec<String>>,
    env: Option<Vec<EnvDocument>>,
    token_attributes: Option<TokenDocument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvDocument {
    name: String,
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TokenDocument {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Option<Vec<String>>,
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Parses and validates the text of one or several files. `tokens`: whether providers may get tokens (gate
/// KubeletServiceAccountTokenForCredentialProviders).
///
/// # Errors
/// For the first text that is not such a document, or with all invalid fields of all documents.
pub(super) fn parse<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    tokens: bool,
) -> Result<Vec<ProviderConfig>, ProviderConfigError> {
    let mut documents = Vec::new();
    for text in texts {
        let document: ConfigDocument = serde_saphyr::from_str(text)
            .map_err(|error| ProviderConfigError::Decode(error.to_string()))?;
        if document.kind != "CredentialProviderConfig"
            || !CONFIG_VERSIONS.contains(&document.api_version.as_str())
        {
            let found = format!("unexpected {} of {}", document.kind, document.api_version);
            return Err(ProviderConfigError::Decode(found));
        }
        documents.extend(document.providers.unwrap_or_default());
    }
    let mut problems = Vec::new();
    if documents.is_empty() {
        problems.push("providers: at least 1 item is required".to_owned());
    }
    let mut names = Set::new();
    let mut providers = Vec::new();
    for document in documents {
        if !names.insert(document.name.clone()) {
            problems.push(format!("providers.name: duplicate {:?}", document.name));
        }
        providers.extend(document.validated(tokens, &mut problems));
    }
    if problems.is_empty() { Ok(providers) } else { Err(ProviderConfigError::Invalid(problems)) }
}

impl ProviderDocument {
    fn validated(self, tokens: bool, problems: &mut Vec<String>) -> Option<ProviderConfig> {
        let name = &self.name;
        let mut problem = |field: &str, what: &str| {
            problems.push(format!("providers.{field} of {name:?}: {what}"));
        };
        if name.contains(['/', ' ']) || matches!(name.as_str(), "." | "..") {
            problem("name", "must not contain '/' or spaces, and not be '.' or '..'");
        }
        if !PROVIDER_VERSIONS.contains(&self.api_version.as_str()) {
            let allowed = PROVIDER_VERSIONS.join(", ");
            problem("apiVersion", &format!("must be one of {allowed}"));
        }
        let match_images = self.match_images.unwrap_or_default();
        if match_images.is_empty() {
            problem("matchImages", "at least 1 item is required");
        }
        for pattern in &match_images {
            if !keyring::is_location(pattern) {
                problem("matchImages", &format!("{pattern:?} is not the location of an image"));
            }
        }
        let cached = self.default_cache_duration.as_deref().map(parse_go_duration);
        let default_cache_duration = match cached {
            Some(Some(nanos)) if nanos >= 0 => Some(Duration::from_nanos(nanos.unsigned_abs())),
            Some(Some(_)) => {
                problem("defaultCacheDuration", "must be greater than or equal to 0");
                None
            }
            Some(None) => {
                problem("defaultCacheDuration", "must be a duration such as 12h");
                None
            }
            None => {
                problem("defaultCacheDuration", "is required");
                None
            }
        };
        if let Some(token) = &self.token_attributes {
            if !tokens {
                problem("tokenAttributes", &format!("needs featureGates: {{{TOKEN_GATE}: true}}"));
            }
            token.validate(&self.api_version, problem);
        }
        Some(ProviderConfig {
            match_images,
            default_cache_duration: default_cache_duration?,
            api_version: self.api_version,
            args: self.args.unwrap_or_default(),
            env: self
                .env
                .unwrap_or_default()
                .into_iter()
                .map(|variable| (variable.name, variable.value))
                .collect(),
            token_attributes: self.token_attributes.map(TokenDocument::attributes),
            name: self.name,
        })
    }
}

impl TokenDocument {
    fn validate(&self, api_version: &str, mut problem: impl FnMut(&str, &str)) {
        if self.service_account_token_audience.is_empty() {
            problem("tokenAttributes.serviceAccountTokenAudience", "is required");
        }
        if api_version != TOKEN_VERSION {
            problem("tokenAttributes", &format!("needs apiVersion {TOKEN_VERSION}"));
        }
        if !matches!(self.cache_type.as_str(), "ServiceAccount" | "Token") {
            problem("tokenAttributes.cacheType", "must be ServiceAccount or Token");
        }
        let keys = |keys: &Option<Vec<String>>| keys.clone().unwrap_or_default();
        let required = keys(&self.required_service_account_annotation_keys);
        let optional = keys(&self.optional_service_account_annotation_keys);
        match self.require_service_account {
            None => problem("tokenAttributes.requireServiceAccount", "is required"),
            Some(false) if !required.is_empty() => problem(
                "tokenAttributes.requiredServiceAccountAnnotationKeys",
                "needs requireServiceAccount: true",
            ),
            Some(_) => {}
        }
        for key in required.iter().chain(&optional) {
            if let Some(expected) = qualified(&key.to_lowercase()) {
                problem("tokenAttributes", &format!("annotation key {key:?}: {expected}"));
            }
        }
        let mut seen = Set::new();
        for key in required.iter().chain(&optional) {
            if !seen.insert(key) {
                problem("tokenAttributes", &format!("annotation key {key:?} appears twice"));
            }
        }
    }

    /// The attributes, if they are valid.
    fn attributes(self) -> TokenAttributes {
        TokenAttributes {
            audience: self.service_account_token_audience,
            keeps_by_token: self.cache_type == "Token",
            requires_account: self.require_service_account.unwrap_or(true),
            required_annotations: self.required_service_account_annotation_keys.unwrap_or_default(),
            optional_annotations: self.optional_service_account_annotation_keys.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    const GOOD: &str = "
kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1
providers:
- name: ecr
  matchImages: ['*.dkr.ecr.*.amazonaws.com', 'r.io:5000/path']
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get-credentials]
  env: [{name: A, value: b}]
";

    #[test]
    fn configuration_of_a_kubelet_is_read() {
        let providers = parse([GOOD], true).unwrap();
        assert_eq!(
            providers,
            [ProviderConfig {
                name: "ecr".to_owned(),
                match_images: vec![
                    "*.dkr.ecr.*.amazonaws.com".to_owned(),
                    "r.io:5000/path".to_owned()
                ],
                default_cache_duration: Duration::from_secs(12 * 3600),
                api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
                args: vec!["get-credentials".to_owned()],
                env: vec![("A".to_owned(), "b".to_owned())],
                token_attributes: None,
            }]
        );
    }

    #[rstest]
    #[case("name: ecr", "name: a/b", "name")]
    #[case("name: ecr", "name: ..", "name")]
    #[case("12h", "-1s", "defaultCacheDuration")]
    #[case("12h", "never", "defaultCacheDuration")]
    #[case("credentialprovider.kubelet.k8s.io/v1", "v9", "apiVersion")]
    #[case("['*.dkr.ecr.*.amazonaws.com', 'r.io:5000/path']", "[]", "matchImages")]
    #[case("r.io:5000/path", "r.io:*", "matchImages")]
    #[case("args:", "tokenAttributes: {cacheType: Token}\n  args:", "requireServiceAccount")]
    #[case(
        "args:",
        "tokenAttributes: {requiredServiceAccountAnnotationKeys: [a b]}\n  args:",
        "\"a b\""
    )]
    #[case(
        "args:",
        "tokenAttributes: {optionalServiceAccountAnnotationKeys: [a, a]}\n  args:",
        "appears twice"
    )]
    fn wrong_values_are_named(#[case] from: &str, #[case] to: &str, #[case] field: &str) {
        let error = parse([GOOD.replacen(from, to, 1).as_str()], true).unwrap_err();
        let ProviderConfigError::Invalid(problems) = &error else {
            panic!("{error}");
        };
        assert!(problems.iter().any(|problem| problem.contains(field)), "{problems:?}");
    }

    #[test]
    fn tokens_need_their_gate() {
        let attributes = "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, \
                          requiredServiceAccountAnnotationKeys: [b.c/d], optionalServiceAccountAnnotationKeys: [E]}";
        let text = GOOD.replacen("args:", &format!("{attributes}\n  args:"), 1);
        let expected = TokenAttributes {
            audience: "a".to_owned(),
            keeps_by_token: true,
            requires_account: true,
            required_annotations: vec!["b.c/d".to_owned()],
            optional_annotations: vec!["E".to_owned()],
        };
        let providers = parse([text.as_str()], true).unwrap();
        assert_eq!(providers[0].token_attributes, Some(expected));
        let error = parse([text.as_str()], false).unwrap_err();
        assert!(error.to_string().contains(TOKEN_GATE), "{error}");
        assert!(parse([GOOD], false).is_ok());
    }

    #[rstest]
    #[case("kind: Credential", "kind: Other")]
    #[case("kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v9")]
    #[case("args:", "arguments:")]
    #[case("providers:", "providers: 1\nmore:")]
    fn other_documents_are_refused(#[case] from: &str, #[case] to: &str) {
        let error = parse([GOOD.replacen(from, to, 1).as_str()], true).unwrap_err();
        assert!(matches!(error, ProviderConfigError::Decode(_)), "{error}");
    }

    #[test]
    fn names_are_unique_over_files() {
        let error = parse([GOOD, GOOD], true).unwrap_err();
        assert!(error.to_string().contains("duplicate \"ecr\""), "{error}");
    }
}
