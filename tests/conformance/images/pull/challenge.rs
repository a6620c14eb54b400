//! Authentication challenges, and the hosts that credentials are sent to.

use std::os::unix::fs::PermissionsExt as _;

use cri::v1::AuthConfig;
use registry::{Auth, Bearer, Fault, Registry};

use super::auth::{basic, bearer, encoded_password, identity, password, registry_token};
use super::{Bench, blobs_sent, pull};
use crate::support::*;

/// Some registries answer `/v2/` anonymously, and challenge only requests for manifests and blobs.
#[rstest]
#[case::basic(basic(), Some(password()))]
#[case::basic_packed(basic(), Some(encoded_password()))]
#[case::anonymous(Auth::Bearer(Bearer::default()), None)]
#[case::password(bearer(), Some(password()))]
#[case::identity(bearer(), Some(identity()))]
#[case::registry_token(bearer(), Some(registry_token()))]
#[tokio::test]
async fn pull_works_when_only_repository_paths_challenge(
    #[case] auth: Auth,
    #[case] brings: Option<AuthConfig>,
) {
    let registry = Registry::with().auth(auth).open_base().start().await;
    let bench = Bench::with(registry.unwrap(), Runtime::with()).await;
    bench.pull(brings).await.unwrap();
    assert_eq!(bench.blobs(), 3);
}

#[tokio::test]
async fn every_request_answers_its_own_challenge() {
    let registry = Registry::with().auth(bearer()).token_uses(1).start().await.unwrap();
    // Sequentially, because requests cannot share a token that is valid only once.
    let runtime = Runtime::with().config("pull: {parallel_layers: 1}\n");
    let bench = Bench::with(registry, runtime).await;
    // Reconnecting after a broken connection needs a new token.
    bench.registry.fail(Fault::cut(100_000).on("/blobs/").times(2));
    bench.pull(Some(password())).await.unwrap();
}

/// A registry, and its token server under another host name, both without TLS.
async fn with_foreign_realm() -> (Bench, Registry) {
    let other = Registry::with().auth(bearer()).start().await.unwrap();
    let realm = format!("http://localhost:{}/token", other.address().port());
    let registry = Registry::with().auth(bearer()).realm(&realm).start().await;
    (Bench::with(registry.unwrap(), Runtime::with()).await, other)
}

#[rstest]
#[case::password(password())]
#[case::identity(identity())]
#[tokio::test]
async fn credentials_are_not_sent_to_foreign_token_server_without_tls(#[case] auth: AuthConfig) {
    let (bench, other) = with_foreign_realm().await;
    rejected(bench.pull(Some(auth)).await, Code::FailedPrecondition, "not sent there");
    assert_eq!(other.requests(), []);
    bench.assert_nothing_left().await;
}

#[tokio::test]
async fn foreign_token_server_gets_no_credentials() {
    let (bench, other) = with_foreign_realm().await;
    assert_eq!(code(bench.pull(None).await), Code::Unauthenticated);
    let seen = other.requests();
    assert!(!seen.is_empty() && seen.iter().all(|seen| !seen.authorized));
}

/// Usually a registry and its token server are different hosts: with TLS the registry's challenge is trusted.
#[tokio::test]
async fn credentials_are_sent_to_foreign_token_server_with_tls() {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = Registry::with().tls().auth(bearer()).start().await.unwrap();
    let realm = format!("https://localhost:{}/token", other.address().port());
    let ca = place.path().join("ca.pem");
    let registry = Registry::with().tls().auth(bearer()).realm(&realm).start().await.unwrap();
    std::fs::write(&ca, [registry.ca().unwrap(), other.ca().unwrap()].concat()).unwrap();
    let config = format!("registries:\n  \"{}\": {{ca: {}}}\n", registry.host(), ca.display());
    let bench = Bench::with(registry, Runtime::with().config(&config)).await;
    // A token of the other server is not valid for this registry.
    assert_eq!(code(bench.pull(Some(password())).await), Code::Unauthenticated);
    let seen = other.requests();
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.path == "/token"), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.authorized), "{seen:?}");
}

/// A redirect with code 307 would repeat the request with its body.
#[rstest]
#[case::password(password())]
#[case::identity(identity())]
#[tokio::test]
async fn credentials_do_not_follow_redirect_of_token_server(#[case] auth: AuthConfig) {
    let other = Registry::with().auth(bearer()).start().await.unwrap();
    let registry = Registry::with().auth(bearer()).start().await.unwrap();
    let bench = Bench::with(registry, Runtime::with()).await;
    bench.registry.fail(Fault::redirect(other.url()).on("/token"));
    assert_eq!(code(bench.pull(Some(auth)).await), Code::FailedPrecondition);
    assert_eq!(other.requests(), []);
}

/// For example a vanity name that redirects to another registry, or a registry that redirects authenticated requests to a blob
/// server.
#[rstest]
#[case::of_all("/v2/app/")]
#[case::of_blobs("/v2/app/blobs/")]
#[tokio::test]
async fn redirect_target_gets_anonymous_token(#[case] redirected: &str) {
    let other = Registry::with().auth(Auth::Bearer(Bearer::default())).start().await.unwrap();
    other.add(&super::image("app:1", 1)).unwrap();
    let registry = Registry::with().auth(basic()).start().await.unwrap();
    let bench = Bench::with(registry, Runtime::with()).await;
    bench.registry.fail(Fault::redirect(other.url()).on(redirected));
    bench.pull(Some(password())).await.unwrap();
    assert_eq!(blobs_sent(&other), 3);
    // A password sent after the redirect would be in the challenged request or in the request for the token.
    let seen = other.requests();
    let is_of_image = |seen: &&registry::RecordedRequest| seen.path.starts_with("/v2/app/");
    assert!(!seen.iter().find(is_of_image).unwrap().authorized, "{seen:?}");
    let mut tokens = seen.iter().filter(|seen| seen.path == "/token").peekable();
    assert!(tokens.peek().is_some() && tokens.all(|seen| !seen.authorized), "{seen:?}");
}

/// The reference is rejected before any request.
#[rstest]
#[case("localhost:99999")]
#[case("localhost:99999/app:1")]
#[case("127.0.0.1:65536/app")]
#[case("[::1]:65536/app")]
#[case("registry.example:0/app")]
#[tokio::test]
async fn pull_rejects_reference_with_invalid_port(#[case] name: &str) {
    let runtime = Runtime::with().start().await.unwrap();
    rejected(pull(&runtime, name, None).await, Code::InvalidArgument, "port");
}
