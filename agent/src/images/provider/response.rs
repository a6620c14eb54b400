//! ◆ Requests to credential providers and their responses: documents of credentialprovider.kubelet.k8s.io.

use std::collections::BTreeMap;
use std::time::Duration;

use api::duration::parse_go_duration;
use compact::Map;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::accounts::{AccountKey, PodAccount};
use crate::clock::after;
use crate::images::docker_config::{DockerConfig, Login};

/// The request, on the provider's standard input.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestDocument<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_annotations: Option<&'a BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[serde(default)]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResponseDocument {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<Map<String, AuthDocument>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthDocument {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// The images that a response is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// A provider's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderResponse {
    pub(super) logins: DockerConfig,
    pub(super) cache_key_type: CacheKeyType,
    /// How long it may be cached; `None`: as configured.
    pub(super) cache_duration: Option<Duration>,
}

/// Why a response is rejected. No text contains a part of the response, which has passwords.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("failed to read the apiVersion of the response")]
    NoType,
    #[error("the response has apiVersion {found:?} instead of {expected:?}")]
    Version { found: String, expected: String },
    #[error("failed to decode the response")]
    Decode,
    #[error("the response has no valid cacheKeyType")]
    CacheKeyType,
}

/// The request for an image's credentials, for the pods of this account.
pub(super) fn request(api_version: &str, image: &str, account: Option<&PodAccount>) -> Vec<u8> {
    let annotations = account.map(|account| &account.annotations);
    let document = RequestDocument {
        kind: "CredentialProviderRequest",
        api_version,
        image,
        service_account_token: account.map(|account| account.token.as_str()),
        service_account_annotations: annotations.filter(|annotations| !annotations.is_empty()),
    };
    // A document of strings can always be serialized.
    serde_json::to_vec(&document).unwrap_or_default()
}

/// Parses a response.
pub(super) fn parse(bytes: &[u8], api_version: &str) -> Result<ProviderResponse, ResponseError> {
    let meta: TypeMeta = serde_json::from_slice(bytes).map_err(|_| ResponseError::NoType)?;
    if meta.api_version != api_version {
        return Err(ResponseError::Version {
            found: meta.api_version,
            expected: api_version.to_owned(),
        });
    }
    let document: ResponseDocument =
        serde_json::from_slice(bytes).map_err(|_| ResponseError::Decode)?;
    if document.kind != "CredentialProviderResponse" {
        return Err(ResponseError::Decode);
    }
    let cache_key_type = match document.cache_key_type.as_str() {
        "Image" => CacheKeyType::Image,
        "Registry" => CacheKeyType::Registry,
        "Global" => CacheKeyType::Global,
        _ => return Err(ResponseError::CacheKeyType),
    };
    let cache_duration = match document.cache_duration.as_deref().map(parse_go_duration) {
        // A negative duration expires immediately.
        Some(Some(nanos)) => Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))),
        Some(None) => return Err(ResponseError::Decode),
        None => None,
    };
    let login = |auth: AuthDocument| Login {
        username: auth.username,
        password: auth.password,
        email: String::new(),
    };
    Ok(ProviderResponse {
        logins: document
            .auth
            .unwrap_or_default()
            .into_iter()
            .map(|(location, auth)| (location, login(auth)))
            .collect(),
        cache_key_type,
        cache_duration,
    })
}

/// The cache key of a response.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CacheKey {
    Image(String),
    Registry(String),
    Global,
}

impl CacheKey {
    fn of(kind: CacheKeyType, image: &str) -> Self {
        match kind {
            CacheKeyType::Image => Self::Image(image.to_owned()),
            CacheKeyType::Registry => {
                let registry = image.split_once('/').map_or(image, |(registry, _)| registry);
                Self::Registry(registry.to_owned())
            }
            CacheKeyType::Global => Self::Global,
        }
    }
}

/// Cached responses of one provider, by image or registry and, if the provider got a token, by account.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseCache {
    entries: Map<(CacheKey, Option<AccountKey>), (DockerConfig, Timestamp)>,
}

impl ResponseCache {
    /// The logins for an image: from the response for the image, for its registry, or for all images.
    pub(super) fn get(
        &self,
        image: &str,
        account: Option<&AccountKey>,
        now: Timestamp,
    ) -> Option<&DockerConfig> {
        [CacheKeyType::Image, CacheKeyType::Registry, CacheKeyType::Global].into_iter().find_map(
            |kind| {
                let key = (CacheKey::of(kind, image), account.cloned());
                let (logins, expires_at) = self.entries.get(&key)?;
                (now <= *expires_at).then_some(logins)
            },
        )
    }

    /// Caches a response for the duration that it specifies, else for `default`; not at all for 0.
    pub(super) fn insert(
        &mut self,
        image: &str,
        account: Option<AccountKey>,
        response: &ProviderResponse,
        default: Duration,
        now: Timestamp,
    ) {
        self.entries.retain(|_, (_, expires_at)| now <= *expires_at);
        let duration = response.cache_duration.unwrap_or(default);
        if !duration.is_zero() {
            let key = (CacheKey::of(response.cache_key_type, image), account);
            let entry = (response.logins.clone(), after(now, duration));
            self.entries.insert(key, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn at(seconds: u64) -> Timestamp {
        after(Timestamp::UNIX_EPOCH, Duration::from_secs(seconds))
    }

    fn document(members: &str) -> String {
        format!("{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{VERSION}\"{members}}}")
    }

    #[test]
    fn response_has_logins_and_their_lifetime() {
        let text = document(
            r#","cacheKeyType":"Registry","cacheDuration":"5m","auth":{"r.io":{"username":"u","password":"p"}}"#,
        );
        let response = parse(text.as_bytes(), VERSION).unwrap();
        assert_eq!(response.logins["r.io"].password, "p");
        assert_eq!(response.cache_key_type, CacheKeyType::Registry);
        assert_eq!(response.cache_duration, Some(Duration::from_secs(300)));
    }

    #[rstest]
    #[case("", ResponseError::CacheKeyType)]
    #[case(r#","cacheKeyType":"Pod""#, ResponseError::CacheKeyType)]
    #[case(r#","cacheKeyType":"Image","more":1"#, ResponseError::Decode)]
    #[case(r#","cacheKeyType":"Image","cacheDuration":"x""#, ResponseError::Decode)]
    #[case(r#","#, ResponseError::NoType)]
    fn bad_responses_are_refused(#[case] members: &str, #[case] expected: ResponseError) {
        assert_eq!(parse(document(members).as_bytes(), VERSION), Err(expected));
    }

    #[test]
    fn response_of_another_version_is_refused() {
        let error = parse(document("").as_bytes(), "v2").unwrap_err();
        assert!(error.to_string().contains("instead of \"v2\""), "{error}");
    }

    #[rstest]
    #[case(CacheKeyType::Image, [true, false, false])]
    #[case(CacheKeyType::Registry, [true, true, false])]
    #[case(CacheKeyType::Global, [true, true, true])]
    fn responses_are_kept_by_key_type(#[case] kind: CacheKeyType, #[case] hits: [bool; 3]) {
        let mut cache = ResponseCache::default();
        let response = ProviderResponse {
            logins: DockerConfig::new(),
            cache_key_type: kind,
            cache_duration: None,
        };
        cache.insert("r.io/a", None, &response, Duration::from_secs(10), at(0));
        let images = ["r.io/a", "r.io/b", "q.io/a"];
        assert_eq!(images.map(|image| cache.get(image, None, at(10)).is_some()), hits);
        assert_eq!(cache.get("r.io/a", None, at(11)), None);
    }

    #[rstest]
    #[case(Some(0), 60, false)]
    #[case(Some(60), 0, true)]
    #[case(None, 0, false)]
    fn zero_duration_keeps_nothing(
        #[case] own: Option<u64>,
        #[case] default: u64,
        #[case] kept: bool,
    ) {
        let mut cache = ResponseCache::default();
        let response = ProviderResponse {
            logins: DockerConfig::new(),
            cache_key_type: CacheKeyType::Global,
            cache_duration: own.map(Duration::from_secs),
        };
        cache.insert("a", None, &response, Duration::from_secs(default), at(0));
        assert_eq!(cache.get("a", None, at(1)).is_some(), kept);
    }
}
