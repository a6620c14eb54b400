//! Registry authentication and TLS.

use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cri::v1::AuthConfig;
use registry::{Auth, Bearer, Registry};

use super::Bench;
use crate::support::*;

fn user() -> (String, String) {
    ("me".to_owned(), "se:cret".to_owned())
}

pub(super) fn basic() -> Auth {
    let (user, password) = user();
    Auth::Basic { user, password }
}

pub(super) fn bearer() -> Auth {
    Auth::Bearer(Bearer {
        user: Some(user()),
        identity_token: Some("refresh-me".to_owned()),
        registry_token: Some("take-me".to_owned()),
    })
}

pub(super) fn password() -> AuthConfig {
    let (username, password) = user();
    AuthConfig { username, password, ..AuthConfig::default() }
}

pub(super) fn encoded_password() -> AuthConfig {
    AuthConfig { auth: BASE64_STANDARD.encode("me:se:cret"), ..AuthConfig::default() }
}

pub(super) fn identity() -> AuthConfig {
    AuthConfig { identity_token: "refresh-me".to_owned(), ..AuthConfig::default() }
}

pub(super) fn registry_token() -> AuthConfig {
    AuthConfig { registry_token: "take-me".to_owned(), ..AuthConfig::default() }
}

fn with_wrong_secrets(mut auth: AuthConfig) -> AuthConfig {
    for field in [&mut auth.password, &mut auth.identity_token, &mut auth.registry_token] {
        if !field.is_empty() {
            *field = "mistaken-7".to_owned();
        }
    }
    auth
}

#[rstest]
#[case::basic_nobody(basic(), None, "no credentials were given")]
#[case::basic_wrong(
    basic(),
    Some(with_wrong_secrets(password())),
    "the name and password given were not accepted"
)]
#[case::basic_identity(basic(), Some(identity()), "requires a name and a password")]
#[case::nobody(bearer(), None, "no credentials were given, and its token server requires them")]
#[case::with_wrong_secrets(
    bearer(),
    Some(with_wrong_secrets(password())),
    "did not accept the name and password"
)]
#[case::wrong_identity(
    bearer(),
    Some(with_wrong_secrets(identity())),
    "did not accept the identity token"
)]
#[case::wrong_registry(
    bearer(),
    Some(with_wrong_secrets(registry_token())),
    "the registry token given was not accepted"
)]
#[tokio::test]
async fn pull_reports_credentials_that_are_not_accepted(
    #[case] auth: Auth,
    #[case] brings: Option<AuthConfig>,
    #[case] says: &str,
) {
    let registry = Registry::with().auth(auth).start().await.unwrap();
    let bench = Bench::with(registry, Runtime::with()).await;
    let error = rejected(bench.pull(brings).await, Code::Unauthenticated, says);
    assert!(error.message().contains(&bench.registry.host()), "{error:?}");
    for secret in ["se:cret", "refresh-me", "take-me", "mistaken-7"] {
        assert!(
            !error.message().contains(secret) && !bench.runtime.log().contains(secret),
            "{secret}"
        );
    }
    bench.assert_nothing_left().await;
}

#[tokio::test]
async fn credentials_of_pull_take_precedence_over_configuration() {
    let registry = Registry::with().auth(bearer()).start().await.unwrap();
    let config = format!(
        "registries:\n  \"{}\":\n    credentials: {{username: me, password: 'se:cret'}}\n",
        registry.host()
    );
    let bench = Bench::with(registry, Runtime::with().config(&config)).await;
    assert_eq!(code(bench.pull(Some(with_wrong_secrets(password()))).await), Code::Unauthenticated);
    // Credentials for another registry are ignored.
    let other = AuthConfig {
        server_address: "https://elsewhere.example.com".to_owned(),
        ..with_wrong_secrets(password())
    };
    bench.pull(Some(other)).await.unwrap();
}

#[tokio::test]
async fn pull_rejects_malformed_credentials() {
    let runtime = Runtime::with().start().await.unwrap();
    for (auth, registry_token) in [("%", ""), ("bWU=", ""), ("", "a b"), ("", "a\r\nHost: b")] {
        let auth = AuthConfig {
            auth: auth.to_owned(),
            registry_token: registry_token.to_owned(),
            ..AuthConfig::default()
        };
        let seen = code(super::pull(&runtime, "127.0.0.1:1/app:1", Some(auth)).await);
        assert_eq!(seen, Code::InvalidArgument);
    }
}

#[tokio::test]
async fn docker_config_and_credential_helpers_are_used() {
    let place = tempfile::tempdir().unwrap();
    let registry = Registry::with().auth(bearer()).start().await.unwrap();
    let helped = Registry::with().auth(bearer()).start().await.unwrap();
    let helper = place.path().join("docker-credential-crib-test");
    let script = "#!/bin/sh\nread -r server\n[ \"$1\" = get ] && printf '{\"ServerURL\":\"%s\",\"Username\":\"<token>\",\"Secret\":\"refresh-me\"}' \"$server\"\n";
    write_program(&helper, script).unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = place.path().join("config.json");
    let text = format!(
        r#"{{"auths": {{"http://{}/v2/": {{"auth": "{}"}}}}, "credHelpers": {{"{}": "crib-test"}}}}"#,
        registry.host(),
        BASE64_STANDARD.encode("me:se:cret"),
        helped.host()
    );
    std::fs::write(&file, text).unwrap();
    let config = format!("pull: {{docker_config: {}}}\n", file.display());
    let path = format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap());
    helped.add(&super::image("app:1", 3)).unwrap();
    let bench = Bench::with(registry, Runtime::with().config(&config).env("PATH", path)).await;
    bench.pull(None).await.unwrap();
    let name = format!("{}/app:1", helped.host());
    super::pull(&bench.runtime, &name, None).await.unwrap();

    std::fs::write(&file, "{").unwrap();
    rejected(bench.pull(None).await, Code::FailedPrecondition, "is not a Docker configuration");
}

#[tokio::test]
async fn tls_certificates_are_verified() {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let ca = place.path().join("ca.pem");
    let registry = Registry::with().tls().auth(bearer()).start().await.unwrap();
    std::fs::write(&ca, registry.ca().unwrap()).unwrap();
    let unknown = Bench::with(Registry::with().tls().start().await.unwrap(), Runtime::with()).await;
    let error = rejected(unknown.pull(None).await, Code::Unavailable, "certificate");
    assert!(error.message().contains("`ca`"), "{error:?}");

    let config = format!("registries:\n  \"{}\": {{ca: {}}}\n", registry.host(), ca.display());
    let bench = Bench::with(registry, Runtime::with().config(&config)).await;
    bench.pull(Some(password())).await.unwrap();

    std::fs::write(&ca, "nothing").unwrap();
    let runtime = Runtime::with().config(&config).start().await.unwrap();
    rejected(
        super::pull(&runtime, &bench.name(), None).await,
        Code::FailedPrecondition,
        "holds no certificates",
    );
}
