//! The data of pods' service accounts that providers get: a token for their audience, and annotations.
//!
//! Source: Kubernetes 1.36, pkg/credentialprovider/plugin/plugin.go serviceAccountProvider.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::pod::Pod;
use compact::Map;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::ProviderError;
use super::config::TokenAttributes;
use crate::cluster::token::CachedToken;
use crate::cluster::{Cluster, TokenRequest};
use crate::images::keyring::{SourceRef, hex};

/// The API's default of `expirationSeconds`.
const SECONDS: i64 = 3600;

/// The service accounts of a node's pods, and the tokens that the cluster has issued for providers.
pub(super) struct ServiceAccounts {
    cluster: Arc<dyn Cluster>,
    tokens: Mutex<Map<TokenRequest, CachedToken>>,
}

/// The data of a pod's service account for a provider. It has no `Debug`, so that it cannot end up in logs.
#[derive(Clone)]
pub(super) struct PodAccount {
    pub(super) identity: SourceRef,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) token: String,
}

/// The account that a provider's response is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountKey {
    identity: SourceRef,
    annotations: BTreeMap<String, String>,
    /// The SHA-256 of the token; `None`: the response is for all tokens of the account.
    token: Option<String>,
}

impl PodAccount {
    /// The cache key of a response: for this token alone, or for all tokens of the account.
    pub(super) fn key(&self, of_token: bool) -> AccountKey {
        AccountKey {
            identity: self.identity.clone(),
            annotations: self.annotations.clone(),
            token: of_token.then(|| hex(&Sha256::digest(&self.token))),
        }
    }
}

impl ServiceAccounts {
    pub(super) fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster, tokens: Mutex::default() }
    }

    /// The data of the account of this name for a provider with these attributes; `None`: the account lacks an annotation that the
    /// provider requires.
    pub(super) async fn get(
        &self,
        pod: &Pod,
        name: &str,
        attributes: &TokenAttributes,
        now: Timestamp,
    ) -> Result<Option<PodAccount>, ProviderError> {
        if !self.cluster.issues_tokens() {
            return Err(ProviderError::NoServiceAccounts);
        }
        let account = self.cluster.service_account(pod.namespace(), name).await;
        let metadata = account.map_err(ProviderError::Account)?.metadata;
        let has = metadata.annotations.unwrap_or_default();
        let Some(annotations) = annotations(attributes, &has) else {
            tracing::debug!(
                pod = pod.full_name(),
                account = name,
                "service account lacks an annotation that a credential provider requires"
            );
            return Ok(None);
        };
        let uid = metadata.uid.unwrap_or_default();
        let wanted = TokenRequest {
            uid: pod.uid().clone(),
            pod: pod.name().to_owned(),
            namespace: pod.namespace().to_owned(),
            account: name.to_owned(),
            account_uid: Some(uid.clone()),
            audience: Some(attributes.audience.clone()),
            seconds: SECONDS,
        };
        let token = self.token(wanted, now).await.map_err(ProviderError::Token)?;
        let namespace = pod.namespace().to_owned();
        let identity = SourceRef { namespace, name: name.to_owned(), uid };
        Ok(Some(PodAccount { identity, annotations, token }))
    }

    /// Returns a cached token, or a new one once its refresh time has come. If the cluster issues no other, the old one is used
    /// until it expires.
    async fn token(&self, wanted: TokenRequest, now: Timestamp) -> Result<String, String> {
        let kept = self.tokens().get(&wanted).cloned();
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_fresh(now)) {
            return Ok(kept.text.clone());
        }
        let issued = match self.cluster.issue_token(&wanted).await {
            Ok(issued) => issued,
            Err(why) => {
                let old = kept.filter(|old| old.is_good(now));
                let old = old.ok_or_else(|| format!("failed to fetch token: {why}"))?;
                let (pod, account) = (&wanted.pod, &wanted.account);
                tracing::warn!(pod, account, error = why, "failed to renew a token");
                return Ok(old.text);
            }
        };
        let text = issued.text.clone();
        let mut tokens = self.tokens();
        tokens.retain(|_, other| other.is_good(now));
        tokens.insert(wanted, CachedToken::new(issued, now));
        Ok(text)
    }

    fn tokens(&self) -> MutexGuard<'_, Map<TokenRequest, CachedToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// ◆ Those of an account's annotations that a provider gets; `None`: a required one is missing.
fn annotations(
    attributes: &TokenAttributes,
    has: &BTreeMap<String, String>,
) -> Option<BTreeMap<String, String>> {
    let of = |key: &String| Some((key.clone(), has.get(key)?.clone()));
    let required: Option<BTreeMap<_, _>> = attributes.required_annotations.iter().map(of).collect();
    let mut found = required?;
    found.extend(attributes.optional_annotations.iter().filter_map(of));
    Some(found)
}
