//! Obtains a grant for a challenge and credentials, from a token server if the registry names one.

use bytes::Bytes;
use fetch::{Client, Response, Url};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;

use super::challenge::{self, Challenge};
use super::peer::Peer;
use super::settings::{Credentials, Secret};
use super::transport::{get, headers};
use crate::error::PullError;

/// Limit on the response of a token server.
const LONGEST: u64 = 1 << 20;

/// Limit on redirects of a token server.
const REDIRECTS: usize = 3;

const FORM: &str = "application/x-www-form-urlencoded";

const DOING: &str = "issuing a token";

/// The authorization of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Grant {
    /// None.
    None,
    /// A user name and password.
    Basic { username: String, password: Secret },
    /// A bearer token.
    Bearer(Secret),
}

impl Grant {
    /// Adds it to the headers of a request. A token that is not a valid header value is omitted.
    pub(crate) fn show(&self, headers: &mut HeaderMap) {
        let value = match self {
            Self::None => None,
            Self::Basic { username, password } => Some(basic(username, password)),
            Self::Bearer(token) => fetch::bearer(token.reveal()),
        };
        headers.extend(value.map(|value| (AUTHORIZATION, value)));
    }
}

fn basic(username: &str, password: &Secret) -> HeaderValue {
    fetch::basic(username.as_bytes(), password.reveal().as_bytes())
}

/// Obtains grants for one session with one registry.
pub(crate) struct Tokens<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) http: &'a Client,
    /// The URL whose request was challenged.
    pub(crate) registry: &'a Url,
    pub(crate) credentials: &'a Credentials,
}

/// Servers use either field name for the token.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Tokens<'_> {
    /// Obtains a grant for `challenge`, which `old` did not satisfy.
    pub(crate) async fn grant(
        &self,
        old: &Grant,
        challenge: &Challenge,
    ) -> Result<Grant, PullError> {
        match (challenge, self.credentials) {
            // The registry token was sent already, and there is nothing else to send.
            (_, Credentials::RegistryToken(_)) => {
                Err(self.refused("the registry token given was not accepted", ""))
            }
            (Challenge::Basic, Credentials::Basic { username, password }) => {
                let grant = Grant::Basic { username: username.clone(), password: password.clone() };
                if *old == grant {
                    return Err(self.refused("the name and password given were not accepted", ""));
                }
                Ok(grant)
            }
            (Challenge::Basic, Credentials::Anonymous) => Err(self
                .refused("no credentials were given, and it requires a name and a password", "")),
            (Challenge::Basic, Credentials::IdentityToken(_)) => Err(self
                .refused("an identity token was given, and it requires a name and a password", "")),
            (
                Challenge::Bearer { realm, service, scope, error },
                Credentials::Anonymous | Credentials::Basic { .. } | Credentials::IdentityToken(_),
            ) => {
                if matches!(old, Grant::Bearer(_)) && error.as_deref() == Some("insufficient_scope")
                {
                    return Err(
                        self.refused("the token of its token server does not grant access", "")
                    );
                }
                let own = format!("repository:{}:pull", self.peer.endpoint.repository);
                let scope = scope.as_deref().unwrap_or(&own);
                self.token(realm, service.as_deref(), scope).await
            }
        }
    }

    /// Requests a token from a token server (distribution: "Token Authentication", "OAuth 2.0 Token Authentication").
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
    ) -> Result<Grant, PullError> {
        let url = Url::of_server(realm)
            .ok_or_else(|| self.unusable(format!("its token server {realm:?} is not a URL")))?;
        let secret = *self.credentials != Credentials::Anonymous;
        if secret && !challenge::may_have_credentials(&url, self.registry) {
            return Err(self.unusable(format!(
                "its token server {realm} does not speak TLS and is not the registry's own host: they are not sent there"
            )));
        }
        let mut fields = vec![("scope", scope)];
        fields.extend(service.map(|service| ("service", service)));
        let response = self.ask(url, fields, secret).await?;
        let status = response.status;
        if !status.is_success() {
            let error = self.peer.refusal(response, DOING, "token").await;
            let is_refusal = matches!(status.as_u16(), 400 | 401 | 403);
            return Err(if is_refusal { self.denied(error) } else { error });
        }
        let bytes = self.peer.read(response, LONGEST, DOING).await?;
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| {
            // The parser's message may contain values of the document.
            let (line, column) = (error.line(), error.column());
            self.unusable(format!(
                "its token server returned an invalid document (line {line}, column {column})"
            ))
        })?;
        let token = [answer.token, answer.access_token].into_iter().find(|token| !token.is_empty());
        // The token must be valid in a header.
        match token.filter(|token| token.bytes().all(|c| c.is_ascii_graphic())) {
            Some(token) => Ok(Grant::Bearer(Secret::new(token))),
            None => Err(self.unusable("its token server answered without a token".to_owned())),
        }
    }

    /// Sends the request and follows redirects, but sends credentials to no other origin: with 307 and 308 they are
    /// in the body, too.
    async fn ask(
        &self,
        mut url: Url,
        mut fields: Vec<(&str, &str)>,
        secret: bool,
    ) -> Result<Response, PullError> {
        if let Credentials::IdentityToken(token) = self.credentials {
            fields.extend([
                ("grant_type", "refresh_token"),
                ("client_id", "crib"),
                ("refresh_token", token.reveal()),
            ]);
        } else {
            if let Credentials::Basic { username, .. } = self.credentials {
                fields.push(("account", username));
            }
            url = url.with_query(&fields);
        }
        let mut redirects = 0;
        loop {
            let mut headers = headers();
            let response = match self.credentials {
                Credentials::IdentityToken(_) => {
                    headers.insert(CONTENT_TYPE, HeaderValue::from_static(FORM));
                    let form = Bytes::from(fetch::form(&fields));
                    self.http.send(Method::POST, &url, headers, form).await
                }
                Credentials::Basic { username, password } => {
                    headers.insert(AUTHORIZATION, basic(username, password));
                    get(self.http, &url, headers).await
                }
                Credentials::Anonymous | Credentials::RegistryToken(_) => {
                    get(self.http, &url, headers).await
                }
            };
            let response = response.map_err(|error| self.peer.broken(&error, DOING))?;
            let Some(next) = response.redirect().filter(|_| redirects < REDIRECTS) else {
                return Ok(response);
            };
            if secret && next.origin() != url.origin() {
                let to = next.origin();
                return Err(self.unusable(format!(
                    "its token server redirects to {to}: credentials are not sent there"
                )));
            }
            redirects += 1;
            url = next;
        }
    }

    fn unusable(&self, why: String) -> PullError {
        PullError::Credentials { host: self.peer.endpoint.host.clone(), why }
    }

    /// Any error of a token server is treated as an error of the credentials, regardless of its status.
    fn denied(&self, error: PullError) -> PullError {
        let text = if let PullError::Unauthenticated { text, .. }
        | PullError::Denied { text, .. }
        | PullError::Refused { text, .. } = error
        {
            text
        } else {
            String::new()
        };
        let why = match self.credentials {
            Credentials::Anonymous => {
                "no credentials were given, and its token server requires them"
            }
            Credentials::Basic { .. } => {
                "its token server did not accept the name and password given"
            }
            Credentials::IdentityToken(_) => {
                "its token server did not accept the identity token given"
            }
            Credentials::RegistryToken(_) => "the registry token given was not accepted",
        };
        self.refused(why, &text)
    }

    fn refused(&self, why: &'static str, text: &str) -> PullError {
        PullError::Unauthenticated {
            host: self.peer.endpoint.host.clone(),
            repository: self.peer.endpoint.repository.clone(),
            why,
            text: text.to_owned(),
        }
    }
}
