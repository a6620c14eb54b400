//! Service account tokens for drivers.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_mounter.go podServiceAccountTokenAttrs; pkg/kubelet/token/token_manager.go
//! GetServiceAccountToken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use agent::cluster::TokenRequest;
use agent::cluster::token::CachedToken;
use api::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::TokenRequest as DriverToken;
use serde_json::{Map, Value, json};

use crate::cluster::VolumeCluster;
use crate::request::Strings;

/// The key of the tokens in a request.
const NAME: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The API's default of `expirationSeconds`.
const DEFAULT_SECONDS: i64 = 3600;

/// Tokens of pods for drivers.
pub(crate) struct Tokens {
    cluster: Arc<dyn VolumeCluster>,
    kept: Mutex<BTreeMap<TokenRequest, CachedToken>>,
}

impl Tokens {
    pub(crate) fn new(cluster: Arc<dyn VolumeCluster>) -> Self {
        Self { cluster, kept: Mutex::default() }
    }

    /// The pod's tokens for a driver in the format of the request; empty if the driver requests none.
    pub(crate) async fn of(&self, pod: &Pod, requested: &[DriverToken]) -> Result<Strings, String> {
        if requested.is_empty() {
            return Ok(Strings::new());
        }
        let mut tokens = Map::new();
        for requested in requested {
            let audience = requested.audience.clone();
            let request = TokenRequest {
                uid: pod.uid().clone(),
                pod: pod.name().to_owned(),
                namespace: pod.namespace().to_owned(),
                account: pod.spec().service_account_name.clone().unwrap_or_default(),
                account_uid: None,
                audience: (!audience.is_empty()).then(|| audience.clone()),
                seconds: requested.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
            };
            let CachedToken { text, expires_at, .. } = self.get(request, Timestamp::now()).await?;
            let expires = expires_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            tokens.insert(audience, json!({"token": text, "expirationTimestamp": expires}));
        }
        Ok(Strings::from([(NAME.to_owned(), Value::Object(tokens).to_string())]))
    }

    /// Returns a cached token, or requests a new one if it is due for renewal. If the request fails, the cached token is used
    /// until it expires.
    async fn get(&self, request: TokenRequest, now: Timestamp) -> Result<CachedToken, String> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let old = kept().get(&request).cloned();
        if let Some(old) = old.as_ref().filter(|old| old.is_fresh(now)) {
            return Ok(old.clone());
        }
        let issued = match self.cluster.token(&request).await {
            Ok(issued) => issued,
            Err(why) => {
                let old = old.filter(|old| old.is_good(now)).ok_or_else(|| why.clone())?;
                let (pod, account) = (&request.pod, &request.account);
                tracing::warn!(pod, account, error = why, "failed to renew a token");
                return Ok(old);
            }
        };
        let new = CachedToken::new(issued, now);
        let mut kept = kept();
        kept.retain(|_, other| other.is_good(now));
        if new.is_good(now) {
            kept.insert(request, new.clone());
        }
        Ok(new)
    }

    /// Removes the tokens of a pod.
    pub(crate) fn forget(&self, uid: &str) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|request, _| request.uid.as_str() != uid);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use agent::cluster::IssuedToken;
    use api::pod::PodUid;
    use async_trait::async_trait;
    use compact::Set;
    use k8s_openapi::api::core::v1::Secret;
    use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
    use tokio::sync::watch;

    use super::*;
    use crate::cluster::{NodeDriver, UpdatePeriods};

    const HOUR: i64 = 3600;

    /// A cluster that issues numbered tokens, each of which expires at its number times 1000 hours, until it refuses.
    #[derive(Default)]
    pub(crate) struct Numbered {
        issued: AtomicUsize,
        refuses: AtomicBool,
    }

    fn not_asked<T>() -> Result<T, String> {
        Err("not asked".to_owned())
    }

    #[async_trait]
    impl VolumeCluster for Numbered {
        async fn driver(&self, _name: &str) -> Result<Option<CSIDriver>, String> {
            not_asked()
        }

        async fn attachment(&self, _name: &str) -> Result<Option<VolumeAttachment>, String> {
            not_asked()
        }

        async fn secret(&self, _namespace: &str, _name: &str) -> Result<Secret, String> {
            not_asked()
        }

        async fn claim(&self, _namespace: &str, _name: &str) -> Result<Value, String> {
            not_asked()
        }

        async fn set_claim_status(
            &self,
            _before: &Value,
            _after: &Value,
            _is_current: bool,
        ) -> Result<Value, String> {
            not_asked()
        }

        async fn token(&self, _wanted: &TokenRequest) -> Result<IssuedToken, String> {
            if self.refuses.load(SeqCst) {
                return Err("no".to_owned());
            }
            let number = self.issued.fetch_add(1, SeqCst) + 1;
            let expires_at = at(i64::try_from(number).unwrap() * 1000 * HOUR);
            Ok(IssuedToken { text: format!("token-{number}"), expires_at })
        }

        async fn install(&self, _driver: &NodeDriver) -> Result<(), String> {
            not_asked()
        }

        async fn update(&self, _driver: &NodeDriver) -> Result<(), String> {
            not_asked()
        }

        async fn watch_update_periods(&self, _periods: &watch::Sender<UpdatePeriods>) {}

        async fn uninstall(&self, _name: &str) -> Result<(), String> {
            not_asked()
        }

        fn set_in_use(&self, _volumes: Set<String>) {}

        async fn wait_until_reported_in_use(&self, _volume: &str) {}
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test]
    async fn token_is_renewed_after_a_day_and_reused_if_renewal_fails() {
        let cluster = Arc::new(Numbered::default());
        let tokens = Tokens::new(cluster.clone());
        let requested = TokenRequest {
            uid: PodUid::new("u1"),
            pod: "p".to_owned(),
            namespace: "ns".to_owned(),
            account: "robot".to_owned(),
            account_uid: None,
            audience: None,
            seconds: 1000 * HOUR,
        };
        let token =
            async |now| tokens.get(requested.clone(), at(now)).await.map(|token| token.text);
        for (now, expected) in [(0, "token-1"), (24 * HOUR - 1, "token-1"), (24 * HOUR, "token-2")]
        {
            assert_eq!(token(now).await.unwrap(), expected);
        }
        cluster.refuses.store(true, SeqCst);
        assert_eq!(token(2000 * HOUR - 1).await.unwrap(), "token-2");
        assert_eq!(token(2000 * HOUR).await.unwrap_err(), "no");
    }
}
