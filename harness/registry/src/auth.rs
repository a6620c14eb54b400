//! Authentication of a registry: none, basic, or bearer tokens of its token endpoint.

use std::collections::HashMap;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::route::{Route, field};

/// How clients authenticate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Without authentication.
    #[default]
    Open,
    /// With a name and a password in every request.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// With a token from the endpoint `/token`, for the requested scope.
    Bearer(Bearer),
}

/// The credentials that the token endpoint accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bearer {
    /// User name and password; without them every client gets a token.
    pub user: Option<(String, String)>,
    /// An identity token (an OAuth 2 refresh token) that the token endpoint also accepts.
    pub identity_token: Option<String>,
    /// A token that is valid for every scope, without a request to the token endpoint.
    pub registry_token: Option<String>,
}

/// Why a text is not a valid [`Auth`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected basic:USER:PASSWORD, bearer, or bearer:USER:PASSWORD")]
pub struct ParseAuthError;

impl FromStr for Auth {
    type Err = ParseAuthError;

    fn from_str(text: &str) -> Result<Self, ParseAuthError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let user = rest.split_once(':');
        let user = user.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let named = user.filter(|(user, _)| !user.is_empty());
        match (kind, named) {
            ("basic", Some((user, password))) => Ok(Self::Basic { user, password }),
            ("bearer", None) if rest.is_empty() => Ok(Self::Bearer(Bearer::default())),
            ("bearer", Some(user)) => {
                Ok(Self::Bearer(Bearer { user: Some(user), ..Bearer::default() }))
            }
            _ => Err(ParseAuthError),
        }
    }
}

/// The lifetime of a token.
const LIFETIME: Duration = Duration::from_secs(300);

/// The maximum number of tokens, and of scopes of a token: without a user, every client gets tokens.
const MOST_TOKENS: usize = 1024;
const MOST_SCOPES: usize = 64;

/// Options that deviate from the default.
#[derive(Clone, Debug, Default)]
pub(super) struct AuthOptions {
    /// `/v2/` needs no authentication.
    pub(super) open_base: bool,
    /// The token server's URL, if it is not this registry.
    pub(super) realm: Option<String>,
    /// If set, only repositories whose names contain this part need authentication.
    pub(super) only: Option<String>,
    /// How many requests a token is valid for.
    pub(super) token_uses: Option<u32>,
}

/// Authorises requests and issues tokens.
#[derive(Debug)]
pub(super) struct Authorizer {
    auth: Auth,
    options: AuthOptions,
    tokens: Mutex<HashMap<String, Token>>,
}

#[derive(Debug)]
struct Token {
    scopes: Vec<String>,
    until: Instant,
    left: Option<u32>,
}

/// The challenge for an unauthorised client: the header `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge(pub(super) String);

impl Authorizer {
    pub(super) fn new(auth: Auth, options: AuthOptions) -> Self {
        Self { auth, options, tokens: Mutex::default() }
    }

    /// Authorises a request by its `Authorization` header. `here` is the registry's URL for the client.
    pub(super) fn check(
        &self,
        header: Option<&str>,
        method: &str,
        route: &Route,
        here: &str,
    ) -> Result<(), Challenge> {
        if self.options.open_base && *route == Route::Base {
            return Ok(());
        }
        if let Some(part) = &self.options.only
            && !route.name().is_some_and(|name| name.contains(part))
        {
            return Ok(());
        }
        match &self.auth {
            Auth::Open => Ok(()),
            Auth::Basic { user, password } => {
                let credentials = header.and_then(basic);
                if credentials
                    .is_some_and(|credentials| credentials == (user.clone(), password.clone()))
                {
                    Ok(())
                } else {
                    Err(Challenge("Basic realm=\"crib registry\"".to_owned()))
                }
            }
            Auth::Bearer(bearer) => {
                let scope_needed = scope(method, route);
                let token = header.and_then(|header| header.strip_prefix("Bearer "));
                if token.is_some_and(|token| self.is_good(bearer, token, scope_needed.as_deref())) {
                    return Ok(());
                }
                let service = here.split_once("://").map_or(here, |(_, host)| host);
                let scope =
                    scope_needed.map(|scope| format!(",scope=\"{scope}\"")).unwrap_or_default();
                let own = format!("{here}/token");
                let realm = self.options.realm.as_ref().unwrap_or(&own);
                let error = token.map_or("", |_| ",error=\"invalid_token\"");
                Err(Challenge(format!(
                    "Bearer realm=\"{realm}\",service=\"{service}\"{scope}{error}"
                )))
            }
        }
    }

    fn is_good(&self, bearer: &Bearer, token: &str, scope_needed: Option<&str>) -> bool {
        if bearer.registry_token.as_deref() == Some(token) {
            return true;
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(token) = tokens.get_mut(token) else {
            return false;
        };
        let good = token.until > Instant::now()
            && token.left != Some(0)
            && scope_needed.is_none_or(|scope_needed| {
                token.scopes.iter().any(|has| covers(has, scope_needed))
            });
        token.left = token.left.map(|left| left.saturating_sub(1));
        good
    }

    /// The token endpoint: `fields` come from the query (GET) or the form (POST). Returns `None` if access is denied.
    pub(super) fn token(
        &self,
        header: Option<&str>,
        fields: &[(String, String)],
    ) -> io::Result<Option<Value>> {
        let Auth::Bearer(bearer) = &self.auth else {
            return Ok(None);
        };
        let identity = match (header.and_then(basic), field(fields, "grant_type")) {
            // docker sends an identity token in this way with GET.
            (Some((user, password)), _) if user == "<token>" => Some(password),
            (_, Some("refresh_token")) => field(fields, "refresh_token").map(str::to_owned),
            _ => None,
        };
        let named = match (header.and_then(basic), field(fields, "grant_type")) {
            (Some(named), _) => Some(named),
            (None, Some("password")) => field(fields, "username")
                .zip(field(fields, "password"))
                .map(|(user, password)| (user.to_owned(), password.to_owned())),
            (None, _) => None,
        };
        let good = match identity {
            Some(identity) => bearer.identity_token == Some(identity),
            None => match &bearer.user {
                Some(_) => named == bearer.user,
                None => named.is_none() && bearer.identity_token.is_none(),
            },
        };
        if !good {
            return Ok(None);
        }
        let scopes = fields.iter().filter(|(key, _)| key == "scope");
        let scopes: Vec<String> = scopes
            .flat_map(|(_, value)| value.split(' '))
            .take(MOST_SCOPES)
            .map(str::to_owned)
            .collect();
        let token_text = super::random_token()?;
        let mut response = json!({
            "token": token_text,
            "access_token": token_text,
            "expires_in": LIFETIME.as_secs(),
            "issued_at": jiff::Timestamp::now().to_string(),
            "scope": scopes.join(" "),
        });
        if let Some(identity) = &bearer.identity_token {
            response["refresh_token"] = json!(identity);
        }
        let until = Instant::now() + LIFETIME;
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|_, token| token.until > Instant::now());
        let oldest = tokens.iter().min_by_key(|(_, token)| token.until);
        let oldest = oldest.map(|(text, _)| text.clone());
        if let Some(oldest) = oldest.filter(|_| tokens.len() >= MOST_TOKENS) {
            tokens.remove(&oldest);
        }
        let left = self.options.token_uses;
        tokens.insert(token_text, Token { scopes, until, left });
        Ok(Some(response))
    }
}

/// The name and password in a header.
fn basic(header: &str) -> Option<(String, String)> {
    let encoded = header.strip_prefix("Basic ")?;
    let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// The scope that a request needs.
fn scope(method: &str, route: &Route) -> Option<String> {
    if *route == Route::Catalog {
        return Some("registry:catalog:*".to_owned());
    }
    let actions = match method {
        "GET" | "HEAD" => "pull",
        "DELETE" => "delete",
        _ => "pull,push",
    };
    Some(format!("repository:{}:{actions}", route.name()?))
}

/// Whether the scope of a token contains all of `scope_needed`.
fn covers(has: &str, scope_needed: &str) -> bool {
    match (has.rsplit_once(':'), scope_needed.rsplit_once(':')) {
        (Some((has, can)), Some((on, actions))) => {
            let may = |action: &str| can.split(',').any(|can| can == action || can == "*");
            has == on && actions.split(',').all(may)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("basic:me:se:cret", Some(Auth::Basic { user: "me".into(), password: "se:cret".into() }))]
    #[case("bearer", Some(Auth::Bearer(Bearer::default())))]
    #[case("bearer:me:secret", Some(Auth::Bearer(Bearer { user: Some(("me".into(), "secret".into())), ..Bearer::default() })))]
    #[case("basic", None)]
    #[case("basic:me", None)]
    #[case("bearer:me", None)]
    #[case("digest:me:secret", None)]
    #[case("", None)]
    fn auth_parses_flag_values(#[case] text: &str, #[case] auth: Option<Auth>) {
        assert_eq!(text.parse().ok(), auth);
    }

    #[rstest]
    #[case("repository:a:pull", "repository:a:pull", true)]
    #[case("repository:a:pull,push", "repository:a:pull", true)]
    #[case("repository:a:*", "repository:a:pull,push", true)]
    #[case("repository:localhost:5000/a:pull", "repository:localhost:5000/a:pull", true)]
    #[case("repository:a:pull", "repository:a:pull,push", false)]
    #[case("repository:b:pull", "repository:a:pull", false)]
    #[case("registry:catalog:*", "registry:catalog:*", true)]
    #[case("nonsense", "repository:a:pull", false)]
    fn token_scope_covers_requested_actions(
        #[case] has: &str,
        #[case] scope_needed: &str,
        #[case] enough: bool,
    ) {
        assert_eq!(covers(has, scope_needed), enough);
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn bearer_token_is_limited_to_its_scope() {
        let authorizer =
            Authorizer::new("bearer:me:secret".parse().unwrap(), AuthOptions::default());
        let manifest = Route::parse("/v2/a/manifests/x").unwrap();
        let here = "http://h:1";
        let Err(challenge) = authorizer.check(None, "GET", &manifest, here) else { panic!("open") };
        assert_eq!(
            challenge.0,
            r#"Bearer realm="http://h:1/token",service="h:1",scope="repository:a:pull""#
        );
        let form = pairs(&[("service", "h:1"), ("scope", "repository:a:pull")]);
        let header = format!("Basic {}", BASE64_STANDARD.encode("me:secret"));
        assert_eq!(authorizer.token(None, &form).unwrap(), None);
        let wrong = format!("Basic {}", BASE64_STANDARD.encode("me:wrong"));
        assert_eq!(authorizer.token(Some(&wrong), &form).unwrap(), None);
        let response = authorizer.token(Some(&header), &form).unwrap().unwrap();
        let token = format!("Bearer {}", response["token"].as_str().unwrap());
        assert_eq!(authorizer.check(Some(&token), "GET", &manifest, here), Ok(()));
        assert!(authorizer.check(Some(&token), "PUT", &manifest, here).is_err());
        let other = Route::parse("/v2/b/manifests/x").unwrap();
        assert!(authorizer.check(Some(&token), "GET", &other, here).is_err());
        assert!(authorizer.check(Some("Bearer x"), "GET", &manifest, here).is_err());
    }

    #[test]
    fn tokens_for_everyone_are_limited() {
        let authorizer = Authorizer::new("bearer".parse().unwrap(), AuthOptions::default());
        let scopes = "repository:a:pull ".repeat(MOST_SCOPES + 1);
        let form = pairs(&[("scope", scopes.as_str())]);
        let mut last = None;
        for _ in 0..=MOST_TOKENS {
            last = authorizer.token(None, &form).unwrap();
        }
        {
            let tokens = authorizer.tokens.lock().unwrap();
            assert_eq!(tokens.len(), MOST_TOKENS);
            assert!(tokens.values().all(|token| token.scopes.len() == MOST_SCOPES));
        }
        let token = format!("Bearer {}", last.unwrap()["token"].as_str().unwrap());
        let manifest = Route::parse("/v2/a/manifests/x").unwrap();
        assert_eq!(authorizer.check(Some(&token), "GET", &manifest, "http://h:1"), Ok(()));
    }

    #[rstest]
    #[case("/v2/mine/private/manifests/x", false)]
    #[case("/v2/mine/public/manifests/x", true)]
    #[case("/v2/", true)]
    fn repositories_that_need_no_authentication_are_open(#[case] path: &str, #[case] open: bool) {
        let options = AuthOptions { only: Some("private".to_owned()), ..AuthOptions::default() };
        let authorizer = Authorizer::new("basic:me:secret".parse().unwrap(), options);
        let route = Route::parse(path).unwrap();
        assert_eq!(authorizer.check(None, "GET", &route, "http://h").is_ok(), open);
    }

    #[test]
    fn identity_token_is_exchanged_like_password() {
        let authorizer = Authorizer::new(
            Auth::Bearer(Bearer {
                user: Some(("me".to_owned(), "secret".to_owned())),
                identity_token: Some("identity".to_owned()),
                registry_token: Some("everything".to_owned()),
            }),
            AuthOptions::default(),
        );
        let form = |token| pairs(&[("grant_type", "refresh_token"), ("refresh_token", token)]);
        assert!(authorizer.token(None, &form("identity")).unwrap().is_some());
        assert_eq!(authorizer.token(None, &form("other")).unwrap(), None);
        let password =
            pairs(&[("grant_type", "password"), ("username", "me"), ("password", "secret")]);
        let response = authorizer.token(None, &password).unwrap().unwrap();
        assert_eq!(response["refresh_token"], "identity");
        let put = Route::parse("/v2/a/manifests/x").unwrap();
        let header = Some("Bearer everything");
        assert_eq!(authorizer.check(header, "PUT", &put, "http://h"), Ok(()));
    }
}
