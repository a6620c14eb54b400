//! ◆ Parses a registry's authentication challenge: its `WWW-Authenticate` header.

use fetch::Url;
use http_auth::ChallengeRef;

/// An authentication challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A user name and password with each request.
    Basic,
    /// A token, issued by `realm` (distribution, "Token Authentication Specification").
    Bearer {
        /// The token server's URL.
        realm: String,
        /// The registry's name at the token server.
        service: Option<String>,
        /// The requested access.
        scope: Option<String>,
        /// Why the token in the request was rejected.
        error: Option<String>,
    },
}

impl Challenge {
    /// Parses the header's values and prefers a token. Returns `None` if no supported challenge is among them.
    pub(crate) fn read<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut basic = None;
        for value in values {
            for challenge in http_auth::parse_challenges(value).unwrap_or_default() {
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    basic = Some(Self::Basic);
                }
                if challenge.scheme.eq_ignore_ascii_case("bearer")
                    && let Some(realm) = parameter(&challenge, "realm")
                {
                    return Some(Self::Bearer {
                        realm,
                        service: parameter(&challenge, "service"),
                        scope: parameter(&challenge, "scope"),
                        error: parameter(&challenge, "error"),
                    });
                }
            }
        }
        basic
    }
}

fn parameter(challenge: &ChallengeRef<'_>, name: &str) -> Option<String> {
    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.to_unescaped())
}

/// Whether credentials may be sent to the token server `realm`, which `registry` named in its challenge.
///
/// Any host may be a registry's token server (docker.io's is auth.docker.io), and only the registry can name it, so credentials
/// are sent to any realm with TLS. Without TLS they are sent to the registry's own host only, and only if the registry itself is
/// used without TLS. Other clients differ: containerd and docker send them to every realm, also without TLS; go-containerregistry
/// (2026) also requires TLS, and in addition the same last two labels of the host name, which some registries do not have.
pub(crate) fn may_have_credentials(realm: &Url, registry: &Url) -> bool {
    match realm.scheme() {
        "https" => true,
        "http" => {
            registry.scheme() == "http"
                && realm.hostname().eq_ignore_ascii_case(&registry.hostname())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
            error: None,
        })
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::basic(&[r#"Basic realm="it""#], Some(Challenge::Basic))]
    #[case::bearer(
        &[r#"Bearer realm="https://auth/token",service="reg",scope="repository:a/b:pull""#],
        bearer("https://auth/token", Some("reg"), Some("repository:a/b:pull"))
    )]
    #[case::lower_case(&[r#"bearer REALM="https://a""#], bearer("https://a", None, None))]
    #[case::a_comma_in_quotes(&[r#"Bearer realm="https://a",scope="a:pull,push""#], bearer("https://a", None, Some("a:pull,push")))]
    #[case::both(&[r#"Basic realm="x""#, r#"Bearer realm="https://a""#], bearer("https://a", None, None))]
    #[case::both_in_one(&[r#"Basic realm="x", Bearer realm="https://a""#], bearer("https://a", None, None))]
    #[case::no_realm(&["Bearer service=x"], None)]
    #[case::other(&["Negotiate"], None)]
    #[case::nonsense(&["\u{1},,,=\""], None)]
    fn challenge_headers_are_parsed(#[case] values: &[&str], #[case] want: Option<Challenge>) {
        assert_eq!(Challenge::read(values.iter().copied()), want);
    }

    #[rstest]
    #[case::its_own("https://r.io/token", "https://r.io/v2/", true)]
    #[case::another("https://auth.example/token", "https://r.io/v2/", true)]
    #[case::another_of_a_plain_one("https://auth.example/token", "http://r.io/v2/", true)]
    #[case::its_own_without_tls("http://r.io:5001/token", "http://r.io:5000/v2/", true)]
    #[case::less_safe("http://r.io/token", "https://r.io/v2/", false)]
    #[case::another_without_tls("http://auth.example/token", "http://r.io/v2/", false)]
    #[case::another_without_tls_of_a_safe_one("http://auth.example/token", "https://r.io/", false)]
    #[case::another_name("http://localhost:5000/token", "http://127.0.0.1:5000/v2/", false)]
    #[case::no_http("ftp://r.io/token", "https://r.io/v2/", false)]
    fn credentials_are_sent_to_trusted_realms_only(
        #[case] realm: &str,
        #[case] registry: &str,
        #[case] want: bool,
    ) {
        let (realm, registry) = (Url::parse(realm).unwrap(), Url::parse(registry).unwrap());
        assert_eq!(may_have_credentials(&realm, &registry), want);
    }
}
