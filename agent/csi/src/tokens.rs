//! The tokens of service accounts that drivers get, kept until most of their time is over.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_mounter.go podServiceAccountTokenAttrs; pkg/kubelet/token/token_manager.go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use agent::cluster::TokenRequest;
use api::pod::Pod;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::storage::v1::TokenRequest as DriverToken;
use serde_json::{Map, Value, json};

use crate::cluster::VolumeCluster;
use crate::request::Strings;

/// The name under which a driver gets the tokens.
const NAME: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The API's default of `expirationSeconds`.
const DEFAULT_SECONDS: i64 = 3600;

/// Tokens of pods for drivers.
pub(crate) struct Tokens {
    cluster: Arc<dyn VolumeCluster>,
    kept: Mutex<BTreeMap<TokenRequest, Kept>>,
}

#[derive(Clone)]
struct Kept {
    text: String,
    expires_at: Timestamp,
    refresh_at: Timestamp,
}

impl Tokens {
    pub(crate) fn new(cluster: Arc<dyn VolumeCluster>) -> Self {
        Self { cluster, kept: Mutex::default() }
    }

    /// The tokens of a pod that a driver wants, as it gets them; nothing if it wants none.
    pub(crate) async fn of(&self, pod: &Pod, wanted: &[DriverToken]) -> Result<Strings, String> {
        if wanted.is_empty() {
            return Ok(Strings::new());
        }
        let mut tokens = Map::new();
        for wanted in wanted {
            let audience = wanted.audience.clone();
            let request = TokenRequest {
                uid: pod.uid().clone(),
                pod: pod.name().to_owned(),
                namespace: pod.namespace().to_owned(),
                account: pod.spec().service_account_name.clone().unwrap_or_default(),
                account_uid: None,
                audience: (!audience.is_empty()).then(|| audience.clone()),
                seconds: wanted.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
            };
            let Kept { text, expires_at, .. } = self.get(request, Timestamp::now()).await?;
            let expires = expires_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            tokens.insert(audience, json!({"token": text, "expirationTimestamp": expires}));
        }
        Ok(Strings::from([(NAME.to_owned(), Value::Object(tokens).to_string())]))
    }

    async fn get(&self, request: TokenRequest, now: Timestamp) -> Result<Kept, String> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept().get(&request).filter(|found| found.refresh_at > now) {
            return Ok(found.clone());
        }
        let issued = self.cluster.token(&request).await?;
        let lifetime = issued.expires_at.duration_since(now);
        // A fifth of its time is left.
        let refresh_at = now.checked_add(lifetime - lifetime / 5).unwrap_or(now);
        let found = Kept { text: issued.text, expires_at: issued.expires_at, refresh_at };
        let mut kept = kept();
        kept.retain(|_, other| other.expires_at > now);
        if lifetime > SignedDuration::ZERO {
            kept.insert(request, found.clone());
        }
        Ok(found)
    }

    /// Forgets the tokens of a pod.
    pub(crate) fn forget(&self, uid: &str) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|request, _| request.uid.as_str() != uid);
    }
}
