//! Authenticates clients by certificate or token, or as anonymous.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go: a rejected token is an error
//! even if anonymous clients are admitted, and a rejected credential is ignored if a later one is accepted. A certificate
//! without a common name is no credential.

pub(crate) mod websocket_token;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use kube_node::client::ApiClient;
use ring::digest::{Digest, SHA256, digest};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use serde_json::{Value, json};
use webpki::EndEntityCert;

use super::expiring::ExpiringCache;
use super::subject::{self, User};
use super::tls::ClientAuthority;
use super::tunnel::is_upgrade;
use super::tunnel::translate::is_websocket;
use websocket_token::ProtocolError;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// The reason that authentication failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unauthenticated {
    /// The client has no credentials.
    #[error("no credentials")]
    NoCredentials,
    /// The client's certificate is rejected.
    #[error("client certificate rejected: {0}")]
    Certificate(String),
    /// The API server rejected the token.
    #[error("token rejected")]
    Token,
    /// The protocols that a WebSocket client offers have a malformed token.
    #[error("token among the WebSocket protocols rejected: {0}")]
    Protocol(ProtocolError),
    /// The API server was unreachable, or its answer is inconclusive.
    #[error("failed to review the token: {0}")]
    Review(String),
}

/// Authenticates clients.
#[derive(Debug)]
pub(crate) struct Authenticator {
    /// Verifies client certificates, if there is an authority for them.
    pub(crate) authority: Option<Arc<ClientAuthority>>,
    /// Reviews tokens with the API server, if enabled.
    pub(crate) tokens: Option<TokenReviewer>,
    /// Whether clients without credentials are admitted.
    pub(crate) anonymous: bool,
    /// Whether client certificates may have the uid of their user (gate AllowParsingUserUIDFromCertAuth).
    pub(crate) reads_uids: bool,
}

impl Authenticator {
    /// The user of a request.
    pub(crate) async fn user(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<User, Unauthenticated> {
        let Some(mut user) = self.authenticated(peer, headers).await? else {
            return if self.anonymous {
                Ok(anonymous())
            } else {
                Err(Unauthenticated::NoCredentials)
            };
        };
        if !user.groups.iter().any(|group| group == AUTHENTICATED) {
            user.groups.push(AUTHENTICATED.to_owned());
        }
        Ok(user)
    }

    /// The user of the first credential that is accepted; `None` without credentials.
    async fn authenticated(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<User>, Unauthenticated> {
        let mut rejected = None;
        if let (Some(authority), [own, others @ ..]) = (&self.authority, peer) {
            match of_certificate(authority.verifier().as_ref(), own, others, self.reads_uids) {
                Ok(Some(user)) => return Ok(Some(user)),
                Ok(None) => {}
                Err(problem) => rejected = Some(Unauthenticated::Certificate(problem)),
            }
        }
        if let Some(reviewer) = &self.tokens {
            let of_header = Ok(bearer(headers).map(str::to_owned));
            let of_protocol = if is_websocket(headers) && is_upgrade(headers) {
                websocket_token::token(headers).map_err(Unauthenticated::Protocol)
            } else {
                Ok(None)
            };
            for token in [of_header, of_protocol] {
                let reviewed = match token {
                    Ok(Some(token)) => reviewer.review(&token).await,
                    Ok(None) => continue,
                    Err(error) => Err(error),
                };
                match reviewed {
                    Ok(user) => return Ok(Some(user)),
                    Err(error) => rejected = Some(error),
                }
            }
        }
        rejected.map_or(Ok(None), Err)
    }
}

fn anonymous() -> User {
    User {
        name: "system:anonymous".to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        ..User::default()
    }
}

/// The user of a certificate; `None` if it has no common name.
fn of_certificate(
    verifier: &dyn ClientCertVerifier,
    own: &CertificateDer<'static>,
    others: &[CertificateDer<'static>],
    reads_uids: bool,
) -> Result<Option<User>, String> {
    let verified = verifier.verify_client_cert(own, others, UnixTime::now());
    verified.map_err(|error| error.to_string())?;
    let parsed = EndEntityCert::try_from(own).map_err(|error| error.to_string())?;
    subject::user(parsed.subject(), reads_uids).map_err(|error| error.to_string())
}

/// ◆ The token of an Authorization header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.split(' ').next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Reviews tokens with the API server, and caches the results.
#[derive(Debug)]
pub(crate) struct TokenReviewer {
    client: ApiClient,
    /// The lifetime of a cached result.
    ttl: Duration,
    /// Results by the token's digest, so that tokens are not kept in memory; `None`: rejected.
    cache: Mutex<ExpiringCache<Vec<u8>, Option<User>>>,
}

impl TokenReviewer {
    pub(crate) fn new(client: ApiClient, ttl: Duration) -> Self {
        Self { client, ttl, cache: Mutex::default() }
    }

    async fn review(&self, token: &str) -> Result<User, Unauthenticated> {
        let hash: Digest = digest(&SHA256, token.as_bytes());
        let key = hash.as_ref().to_vec();
        let known = self.lock().get(&key, Instant::now()).cloned();
        let reviewed = match known {
            Some(known) => known,
            None => {
                let request = json!({
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenReview",
                    "spec": {"token": token},
                });
                let answer = self.client.review(REVIEWS, &request).await;
                let answer = answer.map_err(|error| Unauthenticated::Review(error.to_string()))?;
                let reviewed = reviewed(&answer["status"])?;
                let now = Instant::now();
                self.lock().insert(key, reviewed.clone(), now + self.ttl, now);
                reviewed
            }
        };
        reviewed.ok_or(Unauthenticated::Token)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ExpiringCache<Vec<u8>, Option<User>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// ◆ The user in the status of a TokenReview; `None` if the token is rejected.
fn reviewed(status: &Value) -> Result<Option<User>, Unauthenticated> {
    if status["authenticated"] == true {
        let user = &status["user"];
        let text = |field: &str| user[field].as_str().unwrap_or_default().to_owned();
        let extra = user["extra"].as_object().into_iter().flatten();
        return Ok(Some(User {
            name: text("username"),
            uid: text("uid"),
            groups: texts(&user["groups"]),
            extra: extra.map(|(name, values)| (name.clone(), texts(values))).collect(),
        }));
    }
    match status["error"].as_str().filter(|error| !error.is_empty()) {
        Some(error) => Err(Unauthenticated::Review(error.to_owned())),
        None => Ok(None),
    }
}

fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use compact::Map;
    use http::HeaderValue;
    use http::header::{CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
    use kube_node::client::Connection;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
        ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Bearer abc", Some("abc"))]
    #[case("bearer abc", Some("abc"))]
    #[case("Bearer abc def", Some("abc"))]
    #[case("Bearer ", None)]
    #[case("Bearer  abc", None)]
    #[case("Basic abc", None)]
    #[case("", None)]
    fn header_has_token(#[case] header: &'static str, #[case] expected: Option<&str>) {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(header))]);
        assert_eq!(bearer(&headers), expected);
    }

    #[test]
    fn review_has_user_or_error() {
        let status = json!({"authenticated": true, "user": {"username": "a", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}});
        let user = User {
            name: "a".to_owned(),
            uid: "1".to_owned(),
            groups: vec!["g".to_owned()],
            extra: Map::from([("k".to_owned(), vec!["v".to_owned()])]),
        };
        assert_eq!(reviewed(&status).unwrap(), Some(user));
        assert_eq!(reviewed(&json!({})).unwrap(), None);
        assert_eq!(reviewed(&json!({"authenticated": false, "error": ""})).unwrap(), None);
        assert!(reviewed(&json!({"error": "away"})).is_err());
    }

    #[rstest]
    #[case(false)]
    #[case(true)]
    #[tokio::test]
    async fn clients_without_credentials_are_anonymous_or_refused(#[case] anonymous: bool) {
        let authenticator =
            Authenticator { authority: None, tokens: None, anonymous, reads_uids: true };
        let user = authenticator.user(&[], &HeaderMap::new()).await;
        assert_eq!(
            user.ok().map(|user| user.name),
            anonymous.then(|| "system:anonymous".to_owned())
        );
    }

    /// A reviewer with cached results: the token `a` is valid, the token `b` is not. It has no server.
    fn reviewer() -> TokenReviewer {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("config");
        let config = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
            clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\n\
            users: [{name: u, user: {token: t}}]\n";
        std::fs::write(&kubeconfig, config).unwrap();
        let client = ApiClient::new(Connection::load(&kubeconfig).unwrap()).unwrap();
        let ttl = Duration::from_secs(3600);
        let reviewer = TokenReviewer::new(client, ttl);
        let user = User { name: "jane".to_owned(), ..User::default() };
        for (token, result) in [("a", Some(user)), ("b", None)] {
            let key = digest(&SHA256, token.as_bytes()).as_ref().to_vec();
            let now = Instant::now();
            reviewer.lock().insert(key, result, now + ttl, now);
        }
        reviewer
    }

    /// `TOKEN` stands for the prefix of a token; `YQ` is the token `a`, and `Yg` the token `b`.
    #[rstest]
    #[case::accepted("websocket", "v4, TOKEN.YQ", "", Ok("jane"))]
    #[case::rejected("websocket", "v4, TOKEN.Yg", "", Err("token rejected"))]
    #[case::malformed(
        "websocket",
        "TOKEN.YQ",
        "",
        Err("token among the WebSocket protocols rejected: no other protocol is offered")
    )]
    #[case::after_a_rejected_header("websocket", "v4, TOKEN.YQ", "Bearer b", Ok("jane"))]
    #[case::after_an_accepted_header("websocket", "TOKEN.Yg", "Bearer a", Ok("jane"))]
    #[case::of_spdy("SPDY/3.1", "v4, TOKEN.YQ", "", Ok("system:anonymous"))]
    #[tokio::test]
    async fn websocket_clients_authenticate_by_a_protocol(
        #[case] upgrade: &str,
        #[case] protocols: &str,
        #[case] authorization: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let protocols = protocols.replace("TOKEN", "base64url.bearer.authorization.k8s.io");
        let headers = [
            (CONNECTION, "Upgrade"),
            (UPGRADE, upgrade),
            (SEC_WEBSOCKET_PROTOCOL, protocols.as_str()),
            (AUTHORIZATION, authorization),
        ];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_str(value).unwrap()));
        let authenticator = Authenticator {
            authority: None,
            tokens: Some(reviewer()),
            anonymous: true,
            reads_uids: true,
        };
        let user = authenticator.user(&[], &headers.into_iter().collect()).await;
        let seen = user.map(|user| user.name).map_err(|error| error.to_string());
        assert_eq!(seen.as_deref().map_err(String::as_str), expected);
    }

    /// An authority, and a certificate that it issued. An empty common name is omitted.
    fn issued(common_name: &str) -> (ClientAuthority, CertificateDer<'static>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.crt");
        std::fs::write(&file, issuer.pem()).unwrap();
        let authority = ClientAuthority::new(file, false).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        if !common_name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, common_name);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        (authority, client.der().clone())
    }

    #[rstest]
    #[case::anonymous("", "", true, Ok("system:anonymous"))]
    #[case::refused("", "", false, Err("no credentials"))]
    #[case::with_a_token("", "Bearer a", true, Ok("jane"))]
    #[case::with_a_rejected_token("", "Bearer b", true, Err("token rejected"))]
    #[case::named("joe", "Bearer b", true, Ok("joe"))]
    #[tokio::test]
    async fn certificate_without_common_name_is_no_credential(
        #[case] common_name: &str,
        #[case] authorization: &str,
        #[case] anonymous: bool,
        #[case] expected: Result<&str, &str>,
    ) {
        let (authority, certificate) = issued(common_name);
        let authenticator = Authenticator {
            authority: Some(Arc::new(authority)),
            tokens: Some(reviewer()),
            anonymous,
            reads_uids: true,
        };
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
        let user = authenticator.user(&[certificate], &headers).await;
        let seen = user.map(|user| user.name).map_err(|error| error.to_string());
        assert_eq!(seen.as_deref().map_err(String::as_str), expected);
    }
}
