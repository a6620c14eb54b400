//! Service account tokens of projected volumes: JSON Web Tokens that an API server issues, or that the agent signs itself.
//!
//! Tokens of an API server are requested before the volumes of a pod are prepared. Without one the agent is its own issuer: its key
//! is in the agent's directory, and `service-account.jwks` beside it has the public key, with which a program can verify the tokens
//! of its clients. Claims as in Kubernetes 1.36, pkg/serviceaccount/claims.go.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::pod::{Pod, PodUid};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use compact::Map;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ServiceAccountTokenProjection;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::cluster::token::CachedToken;
use crate::cluster::{Cluster, IssuedToken, TokenRequest};

/// The API's default of `expirationSeconds`.
const DEFAULT_SECONDS: i64 = 3600;
/// The delay before the next request after an issuer failed while the old token is unexpired.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// The key cannot be read or written.
    #[error("failed to use service account key {path}: {problem}")]
    Key {
        /// Its path.
        path: String,
        /// The cause.
        problem: String,
    },
    /// The token cannot be signed.
    #[error("failed to sign service account token")]
    Sign,
    /// The issuer failed.
    #[error("failed to fetch token: {0}")]
    Refused(String),
    /// The issuer failed, and the last token has expired.
    #[error("token {key} expired and refresh failed: {why}")]
    Expired {
        /// The request, as a kubelet shows it.
        key: String,
        /// The issuer's error.
        why: String,
    },
}

/// The request of a token (Kubernetes 1.36, pkg/kubelet/token/token_manager.go keyFunc).
fn shown(wanted: &TokenRequest) -> String {
    let TokenRequest { uid, pod, namespace, account, account_uid, audience, seconds } = wanted;
    let audiences = match audience {
        Some(audience) => format!("[]string{{{audience:?}}}"),
        None => "[]string(nil)".to_owned(),
    };
    let account_uid = account_uid.as_deref().unwrap_or_default();
    format!(
        "{account:?}/{namespace:?}/{audiences}/{seconds}/v1.BoundObjectReference{{Kind:\"Pod\", APIVersion:\"v1\", \
         Name:{pod:?}, UID:{:?}}}/{account_uid:?}",
        uid.as_str()
    )
}

/// Issues tokens, and caches them until their refresh times.
pub(crate) struct Tokens {
    /// The cluster, which may issue the tokens instead of the agent.
    cluster: Arc<dyn Cluster>,
    root: PathBuf,
    /// The agent's name as an issuer.
    own_name: String,
    node_name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    key: Option<EcdsaKeyPair>,
    issued: Map<TokenRequest, CachedToken>,
    /// The errors of the issuer.
    refused: Map<TokenRequest, TokenError>,
}

/// The token request of a pod's volume.
fn request(pod: &Pod, wanted: &ServiceAccountTokenProjection) -> TokenRequest {
    let account = pod.spec().service_account_name.clone().filter(|name| !name.is_empty());
    TokenRequest {
        uid: pod.uid().clone(),
        pod: pod.name().to_owned(),
        namespace: pod.namespace().to_owned(),
        account: account.unwrap_or_else(|| "default".to_owned()),
        account_uid: None,
        audience: wanted.audience.clone().filter(|audience| !audience.is_empty()),
        seconds: wanted.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
    }
}

/// The token requests of a pod's volumes.
fn requests(pod: &Pod) -> impl Iterator<Item = TokenRequest> {
    let volumes = pod.spec().volumes.iter().flatten();
    let projected = volumes.filter_map(|volume| volume.projected.as_ref());
    let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    let wanted = sources.filter_map(|source| source.service_account_token.as_ref());
    wanted.map(|wanted| request(pod, wanted))
}

impl Tokens {
    /// Creates the tokens of a node's pods: the cluster issues them or, if it does not, the agent, which keeps its key in `root`.
    pub(crate) fn new(
        root: &Path,
        cluster_domain: &str,
        node_name: &str,
        cluster: Arc<dyn Cluster>,
    ) -> Self {
        let domain = match cluster_domain {
            "" => String::new(),
            domain => format!(".{domain}"),
        };
        Self {
            cluster,
            root: root.to_owned(),
            own_name: format!("https://kubernetes.default.svc{domain}"),
            node_name: node_name.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Requests a pod's missing and outdated tokens from the cluster, if it issues any. An old token is used until it expires.
    pub(crate) async fn renew(&self, pod: &Pod, now: Timestamp) {
        if !self.cluster.issues_tokens() {
            return;
        }
        for wanted in requests(pod) {
            if self.state().issued.get(&wanted).is_some_and(|issued| issued.is_fresh(now)) {
                continue;
            }
            let answer = self.cluster.issue_token(&wanted).await;
            let state = &mut *self.state();
            match answer {
                Ok(issued) => {
                    state.refused.remove(&wanted);
                    let mut new = CachedToken::new(issued, now);
                    // The clocks differ: the pause avoids a request at every call.
                    if !new.is_good(now) {
                        new.retry_after(RETRY, now);
                    }
                    state.issued.insert(wanted, new);
                }
                Err(why) => {
                    let (pod, account) = (pod.full_name(), &wanted.account);
                    tracing::warn!(pod, account, error = why, "failed to fetch a token");
                    match state.issued.get_mut(&wanted) {
                        Some(old) if old.is_good(now) => old.retry_after(RETRY, now),
                        // A kubelet forgets expired tokens, once a minute.
                        Some(_) => {
                            state.issued.remove(&wanted);
                            let error = TokenError::Expired { key: shown(&wanted), why };
                            state.refused.insert(wanted, error);
                        }
                        None => {
                            state.refused.insert(wanted, TokenError::Refused(why));
                        }
                    }
                }
            }
        }
    }

    /// The token that a pod's volume requests: the cached one, until its refresh time.
    pub(crate) fn token(
        &self,
        pod: &Pod,
        wanted: &ServiceAccountTokenProjection,
        now: Timestamp,
    ) -> Result<String, TokenError> {
        let wanted = request(pod, wanted);
        let mut state = self.state();
        if let Some(issued) = state.issued.get(&wanted)
            && (self.cluster.issues_tokens() || issued.is_fresh(now))
        {
            return Ok(issued.text.clone());
        }
        if self.cluster.issues_tokens() {
            let refused = state.refused.get(&wanted).cloned();
            let unknown = || TokenError::Refused("there is none yet".to_owned());
            return Err(refused.unwrap_or_else(unknown));
        }
        let key = match state.key.take() {
            Some(key) => key,
            None => self.key()?,
        };
        let text = self.signed(&key, pod, &wanted, now);
        state.key = Some(key);
        let seconds = SignedDuration::from_secs(wanted.seconds);
        let issued = IssuedToken {
            text: text?,
            expires_at: now.saturating_add(seconds).unwrap_or(Timestamp::MAX),
        };
        let text = issued.text.clone();
        state.issued.insert(wanted, CachedToken::new(issued, now));
        Ok(text)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The earliest refresh time of a pod's tokens.
    pub(crate) fn refresh_at(&self, uid: &PodUid) -> Option<Timestamp> {
        let state = self.state();
        let own = state.issued.iter().filter(|(wanted, _)| wanted.uid == *uid);
        own.map(|(_, issued)| issued.refresh_at()).min()
    }

    /// Removes the tokens of a pod that was removed.
    pub(crate) fn forget(&self, uid: &PodUid) {
        let mut state = self.state();
        state.issued.retain(|wanted, _| wanted.uid != *uid);
        state.refused.retain(|wanted, _| wanted.uid != *uid);
    }

    fn signed(
        &self,
        key: &EcdsaKeyPair,
        pod: &Pod,
        wanted: &TokenRequest,
        now: Timestamp,
    ) -> Result<String, TokenError> {
        let random = SystemRandom::new();
        let mut id = [0_u8; 16];
        random.fill(&mut id).map_err(|_| TokenError::Sign)?;
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": key_id(key)});
        let TokenRequest { namespace, account, seconds, .. } = wanted;
        let issued_at = now.as_second();
        let claims = json!({
            "iss": self.own_name,
            "sub": format!("system:serviceaccount:{namespace}:{account}"),
            "aud": [wanted.audience.as_deref().unwrap_or(&self.own_name)],
            "iat": issued_at,
            "nbf": issued_at,
            "exp": issued_at.saturating_add(*seconds),
            "jti": as_uuid(&id),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {
                    "name": account,
                    "uid": as_uuid(&Sha256::digest(format!("{namespace}/{account}"))),
                },
                "pod": {"name": pod.name(), "uid": pod.uid().as_str()},
                "node": {"name": self.node_name},
            },
        });
        let encoded = |part: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(part);
        let signed = format!(
            "{}.{}",
            encoded(header.to_string().as_bytes()),
            encoded(claims.to_string().as_bytes())
        );
        let signature = key.sign(&random, signed.as_bytes()).map_err(|_| TokenError::Sign)?;
        Ok(format!("{signed}.{}", encoded(signature.as_ref())))
    }

    /// Reads the key, or creates one.
    fn key(&self) -> Result<EcdsaKeyPair, TokenError> {
        let path = self.root.join("service-account.key");
        let failed =
            |problem: String| TokenError::Key { path: path.display().to_string(), problem };
        let random = SystemRandom::new();
        let parse = |bytes: &[u8]| {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, bytes, &random)
                .map_err(|error| failed(format!("{error}; remove it to have a new one made")))
        };
        match fs::read(&path) {
            Ok(bytes) => return parse(&bytes),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(error.to_string()));
            }
            Err(_) => {}
        }
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(|error| failed(error.to_string()))?;
        let key = parse(made.as_ref())?;
        let keys = self.root.join("service-account.jwks");
        replace(&path, made.as_ref(), 0o600)
            .and_then(|()| replace(&keys, public_keys(&key).as_bytes(), 0o644))
            .map_err(|error| failed(error.to_string()))?;
        Ok(key)
    }
}

/// Writes a file atomically.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

fn key_id(key: &EcdsaKeyPair) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(key.public_key().as_ref()))
}

/// The public key as a JSON Web Key Set (RFC 7517). An uncompressed point is 4, then both coordinates.
fn public_keys(key: &EcdsaKeyPair) -> String {
    let point = key.public_key().as_ref();
    let (x, y) = point[1..].split_at(32);
    let encoded = |part: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(part);
    json!({"keys": [{
        "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig",
        "kid": key_id(key), "x": encoded(x), "y": encoded(y),
    }]})
    .to_string()
}

/// The first 16 bytes as a UUID.
fn as_uuid(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use async_trait::async_trait;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
    use serde_json::Value;

    use super::*;
    use crate::cluster::Standalone;
    use crate::fixtures;
    use crate::objects::ObjectStore;

    fn pod() -> Pod {
        fixtures::pod(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u1"},
            "spec": {"containers": [], "serviceAccountName": "robot"}}))
    }

    fn projection(audience: &str) -> ServiceAccountTokenProjection {
        ServiceAccountTokenProjection {
            audience: Some(audience.to_owned()),
            expiration_seconds: Some(1000),
            path: "token".to_owned(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn decoded(part: &str) -> Vec<u8> {
        BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()
    }

    #[test]
    fn token_is_signed_by_published_key_and_names_its_pod() {
        let root = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(root.path(), "cluster.local", "node", alone());
        let token = tokens.token(&pod(), &projection("vault"), at(100)).unwrap();
        let parts: Vec<&str> = token.split('.').collect();
        let claims: Value = serde_json::from_slice(&decoded(parts[1])).unwrap();
        assert_eq!(claims["sub"], "system:serviceaccount:n:robot");
        assert_eq!(claims["aud"], json!(["vault"]));
        assert_eq!((&claims["iat"], &claims["exp"]), (&json!(100), &json!(1100)));
        assert_eq!(claims["kubernetes.io"]["pod"]["uid"], "u1");
        let keys = fs::read(root.path().join("service-account.jwks")).unwrap();
        let keys: Value = serde_json::from_slice(&keys).unwrap();
        let key = &keys["keys"][0];
        let header: Value = serde_json::from_slice(&decoded(parts[0])).unwrap();
        assert_eq!(header["kid"], key["kid"]);
        let mut point = vec![4];
        point.extend(decoded(key["x"].as_str().unwrap()));
        point.extend(decoded(key["y"].as_str().unwrap()));
        let signed = format!("{}.{}", parts[0], parts[1]);
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(signed.as_bytes(), &decoded(parts[2]))
            .unwrap();
    }

    #[test]
    fn token_is_replaced_after_four_fifths_of_its_life() {
        let root = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(root.path(), "", "node", alone());
        let token = |second| tokens.token(&pod(), &projection(""), at(second)).unwrap();
        let first = token(0);
        assert_eq!(token(799), first);
        assert_eq!(tokens.refresh_at(pod().uid()), Some(at(800)));
        assert_ne!(token(800), first);
        tokens.forget(pod().uid());
        assert_eq!(tokens.refresh_at(pod().uid()), None);
    }

    #[test]
    fn key_is_private_and_outlives_agent() {
        let root = tempfile::tempdir().unwrap();
        let kid = |token: String| token.split('.').next().unwrap().to_owned();
        let first = Tokens::new(root.path(), "", "node", alone());
        let first = first.token(&pod(), &projection("a"), at(0)).unwrap();
        let second = Tokens::new(root.path(), "", "node", alone());
        let second = second.token(&pod(), &projection("a"), at(0)).unwrap();
        assert_eq!(kid(first), kid(second));
        let key = root.path().join("service-account.key");
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&key, "x").unwrap();
        let broken =
            Tokens::new(root.path(), "", "node", alone()).token(&pod(), &projection("a"), at(0));
        assert!(matches!(broken, Err(TokenError::Key { .. })), "{broken:?}");
    }

    fn alone() -> Arc<dyn Cluster> {
        Arc::new(Standalone::default())
    }

    /// An issuer with numbered tokens, until it fails.
    #[derive(Default)]
    struct Numbered {
        count: std::sync::atomic::AtomicI64,
        refuses: std::sync::atomic::AtomicBool,
        /// The number of seconds by which a token's life is shorter than requested.
        shorter: i64,
    }

    #[async_trait]
    impl Cluster for Numbered {
        fn name(&self) -> String {
            "numbered".to_owned()
        }

        fn objects(&self) -> Arc<ObjectStore> {
            Arc::default()
        }

        fn issues_tokens(&self) -> bool {
            true
        }

        async fn issue_token(&self, wanted: &TokenRequest) -> Result<IssuedToken, String> {
            use std::sync::atomic::Ordering::SeqCst;
            if self.refuses.load(SeqCst) {
                return Err("no".to_owned());
            }
            let number = self.count.fetch_add(1, SeqCst);
            let expires_at = at(number * 800 + wanted.seconds - self.shorter);
            Ok(IssuedToken { text: format!("{}-{number}", wanted.account), expires_at })
        }
    }

    #[tokio::test]
    async fn token_is_renewed_in_time_and_the_old_one_used_until_expiry() {
        use std::sync::atomic::Ordering::SeqCst;
        let root = tempfile::tempdir().unwrap();
        let issuer = Arc::new(Numbered::default());
        let tokens = Tokens::new(root.path(), "", "node", issuer.clone());
        let sources = json!([{"serviceAccountToken": {"path": "token", "audience": "a", "expirationSeconds": 1000}}]);
        let pod = fixtures::pod(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u1"},
            "spec": {"containers": [], "serviceAccountName": "robot",
                "volumes": [{"name": "v", "projected": {"sources": sources}}]}}));
        let token = |now| tokens.token(&pod, &projection("a"), at(now));
        assert!(matches!(token(0), Err(TokenError::Refused(_))));
        tokens.renew(&pod, at(0)).await;
        tokens.renew(&pod, at(799)).await;
        assert_eq!(token(799).unwrap(), "robot-0");
        tokens.renew(&pod, at(800)).await;
        assert_eq!(token(800).unwrap(), "robot-1");
        issuer.refuses.store(true, SeqCst);
        tokens.renew(&pod, at(1700)).await;
        assert_eq!(token(1700).unwrap(), "robot-1");
        assert_eq!(tokens.refresh_at(pod.uid()), Some(at(1710)));
        tokens.renew(&pod, at(1800)).await;
        let expired = token(1800).unwrap_err();
        assert_eq!(
            expired.to_string(),
            "token \"robot\"/\"n\"/[]string{\"a\"}/1000/v1.BoundObjectReference{Kind:\"Pod\", APIVersion:\"v1\", \
             Name:\"p\", UID:\"u1\"}/\"\" expired and refresh failed: no"
        );
        tokens.renew(&pod, at(1801)).await;
        let refused = token(1801).unwrap_err();
        assert_eq!(refused.to_string(), "failed to fetch token: no");
        assert!(!root.path().join("service-account.key").exists());
    }

    /// An issuer with `--service-account-max-token-expiration`.
    #[tokio::test]
    async fn token_with_shorter_lifetime_than_requested_is_renewed_in_time() {
        let root = tempfile::tempdir().unwrap();
        let issuer = Arc::new(Numbered { shorter: 500, ..Numbered::default() });
        let tokens = Tokens::new(root.path(), "", "node", issuer);
        let sources = json!([{"serviceAccountToken": {"path": "token", "audience": "a", "expirationSeconds": 1000}}]);
        let pod = fixtures::pod(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u1"},
            "spec": {"containers": [], "serviceAccountName": "robot",
                "volumes": [{"name": "v", "projected": {"sources": sources}}]}}));
        tokens.renew(&pod, at(0)).await;
        assert_eq!(tokens.refresh_at(pod.uid()), Some(at(400)));
    }
}
