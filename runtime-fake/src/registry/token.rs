//! Rights to pull: what a challenge and credentials come to, with a token server's help where there is one.

use serde::Deserialize;

use super::challenge::Challenge;
use super::problem::PullError;
use super::session::Session;
use super::settings::{Credentials, Secret};

/// The longest answer of a token server.
const LONGEST: u64 = 1 << 20;

/// What requests carry to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Nothing.
    None,
    /// A name and its password.
    Basic { username: String, password: Secret },
    /// A token.
    Bearer(Secret),
}

impl Grant {
    /// Puts it on a request.
    pub(crate) fn show(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match self {
            Self::None => request,
            Self::Basic { username, password } => {
                request.basic_auth(username, Some(password.reveal()))
            }
            Self::Bearer(token) => request.bearer_auth(token.reveal()),
        }
    }
}

/// Gets grants for one session.
pub(crate) struct Tokens<'a> {
    pub(crate) session: &'a Session,
    pub(crate) http: &'a reqwest::Client,
    pub(crate) credentials: &'a Credentials,
}

/// Servers have either name for it.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Tokens<'_> {
    /// Meets `challenge`, which `old` did not.
    pub(crate) async fn grant(
        &self,
        old: &Grant,
        challenge: &Challenge,
    ) -> Result<Grant, PullError> {
        match (challenge, self.credentials) {
            // It was shown already, and there is nothing else to show.
            (_, Credentials::RegistryToken(_)) => {
                Err(self.refused("the registry token given was not accepted", ""))
            }
            (Challenge::Basic, Credentials::Basic { username, password }) => {
                let grant = Grant::Basic {
                    username: username.clone(),
                    password: password.clone(),
                };
                if *old == grant {
                    return Err(self.refused("the name and password given were not accepted", ""));
                }
                Ok(grant)
            }
            (Challenge::Basic, Credentials::Anonymous) => Err(self.refused(
                "no credentials were given, and it wants a name and a password",
                "",
            )),
            (Challenge::Basic, Credentials::IdentityToken(_)) => Err(self.refused(
                "an identity token was given, and it wants a name and a password",
                "",
            )),
            (
                Challenge::Bearer {
                    realm,
                    service,
                    scope,
                    error,
                },
                Credentials::Anonymous | Credentials::Basic { .. } | Credentials::IdentityToken(_),
            ) => {
                if matches!(old, Grant::Bearer(_)) && error.as_deref() == Some("insufficient_scope")
                {
                    return Err(self.refused(
                        "the token that its token server gave is not allowed this",
                        "",
                    ));
                }
                let own = format!("repository:{}:pull", self.session.endpoint.repository);
                let scope = scope.as_deref().unwrap_or(&own);
                self.token(realm, service.as_deref(), scope).await
            }
        }
    }

    /// Asks a token server (distribution: "Token Authentication", "OAuth 2.0 Token Authentication").
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
    ) -> Result<Grant, PullError> {
        let host = self.session.endpoint.host.clone();
        let unusable = |why: String| PullError::Credentials {
            host: host.clone(),
            why,
        };
        let mut url: reqwest::Url = realm.parse().map_err(|_| {
            unusable(format!(
                "it names {realm:?} as its token server, which is no URL"
            ))
        })?;
        let secret = *self.credentials != Credentials::Anonymous;
        if secret && !self.session.is_as_safe(&url) {
            return Err(unusable(format!(
                "its token server {realm} does not speak TLS: they are not sent there"
            )));
        }
        let mut fields = vec![("scope", scope)];
        fields.extend(service.map(|service| ("service", service)));
        let request = match self.credentials {
            Credentials::IdentityToken(token) => {
                fields.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "crib"),
                    ("refresh_token", token.reveal()),
                ]);
                self.http.post(url).form(&fields)
            }
            Credentials::Basic { username, password } => {
                fields.push(("account", username));
                url.query_pairs_mut().extend_pairs(&fields);
                self.http
                    .get(url)
                    .basic_auth(username, Some(password.reveal()))
            }
            Credentials::Anonymous | Credentials::RegistryToken(_) => {
                url.query_pairs_mut().extend_pairs(&fields);
                self.http.get(url)
            }
        };
        let doing = "giving out a token";
        let response = request
            .send()
            .await
            .map_err(|error| self.session.broken(&error, doing))?;
        let status = response.status();
        if !status.is_success() {
            let error = self.session.refusal(response, doing, "token").await;
            let is_refusal = matches!(status.as_u16(), 400 | 401 | 403);
            return Err(if is_refusal {
                self.denied(error)
            } else {
                error
            });
        }
        let bytes = self.session.read(response, LONGEST, doing).await?;
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| {
            unusable(format!("its token server answered with nonsense: {error}"))
        })?;
        let token = [answer.token, answer.access_token]
            .into_iter()
            .find(|token| !token.is_empty());
        // It goes into a header.
        match token.filter(|token| token.bytes().all(|c| c.is_ascii_graphic())) {
            Some(token) => Ok(Grant::Bearer(Secret::new(token))),
            None => Err(unusable(
                "its token server answered without a token".to_owned(),
            )),
        }
    }

    /// A token server's refusal is about who asks, whatever its code.
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
            Credentials::Anonymous => "no credentials were given, and its token server wants some",
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
            host: self.session.endpoint.host.clone(),
            repository: self.session.endpoint.repository.clone(),
            why,
            text: text.to_owned(),
        }
    }
}
