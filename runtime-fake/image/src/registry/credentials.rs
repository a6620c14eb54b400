//! Selects the credentials for a registry: from the pull, the settings, or docker's configuration file and its
//! helpers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;

use super::endpoint::{Endpoint, split};
use super::settings::{Credentials, Registries, Secret};
use crate::error::PullError;

/// Timeout of a credential helper.
const HELPER: Duration = Duration::from_secs(30);

/// The credentials of a pull (CRI v1, AuthConfig).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user name, with a password.
    pub username: String,
    /// The password.
    pub password: Option<Secret>,
    /// base64 of `name:password`.
    pub auth: Option<Secret>,
    /// The server of the credentials; empty: any.
    pub server_address: String,
    /// Exchanged for an access token.
    pub identity_token: Option<Secret>,
    /// Sent as a bearer token, unchanged.
    pub registry_token: Option<Secret>,
}

impl Login {
    /// The credentials; `None` if it has none.
    ///
    /// # Errors
    /// Why they are invalid.
    pub fn credentials(&self) -> Result<Option<Credentials>, String> {
        if !self.username.is_empty() {
            return Ok(Some(Credentials::Basic {
                username: self.username.clone(),
                password: self.password.clone().unwrap_or_else(|| Secret::new("")),
            }));
        }
        if let Some(token) = &self.identity_token {
            return Ok(Some(Credentials::IdentityToken(token.clone())));
        }
        if let Some(token) = &self.registry_token {
            if !token.reveal().bytes().all(|c| c.is_ascii_graphic()) {
                return Err(
                    "the registry token holds characters that no header can carry".to_owned()
                );
            }
            return Ok(Some(Credentials::RegistryToken(token.clone())));
        }
        match &self.auth {
            Some(auth) => basic(auth.reveal()).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the credentials are for this registry.
    fn is_for(&self, name: &str) -> bool {
        self.server_address.is_empty() || host_of(&self.server_address) == host_of(name)
    }
}

/// Decodes base64 of `name:password`; docker pads passwords with NULs.
fn basic(auth: &str) -> Result<Credentials, String> {
    let refuse = || "auth is not base64 of name:password".to_owned();
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(auth.trim()).map_err(|_| refuse())?;
    let text = String::from_utf8(bytes).map_err(|_| refuse())?;
    let (username, password) = text.split_once(':').ok_or_else(refuse)?;
    Ok(Credentials::Basic {
        username: username.to_owned(),
        password: Secret::new(password.trim_end_matches('\0')),
    })
}

/// The host of an address as docker's files and clients write it (`https://index.docker.io/v1/`), or of a
/// repository.
fn host_of(address: &str) -> &str {
    let (host, _) = split(without_scheme(address));
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    }
}

fn without_scheme(address: &str) -> &str {
    address.split_once("://").map_or(address, |(_, rest)| rest)
}

/// The credentials for `endpoint`. A mirror's own credentials take precedence over a pull's, which are for the
/// registry that the image's name begins with; a pull's take precedence over the settings' for that registry.
pub(crate) async fn of(
    settings: &Registries,
    login: Option<&Login>,
    endpoint: &Endpoint,
) -> Result<Credentials, PullError> {
    let host = &endpoint.name;
    let unusable = |why: String| PullError::Credentials { host: host.clone(), why };
    let configured = settings.hosts.get(host).and_then(|settings| settings.credentials.clone());
    if let (Some(credentials), true) = (&configured, endpoint.mirrored.is_some()) {
        return Ok(credentials.clone());
    }
    if let Some(login) = login.filter(|login| login.is_for(host))
        && let Some(credentials) = login.credentials().map_err(unusable)?
    {
        return Ok(credentials);
    }
    if let Some(credentials) = configured {
        return Ok(credentials);
    }
    let Some(path) = &settings.docker_config else {
        return Ok(Credentials::Anonymous);
    };
    let file = DockerConfig::read(path).map_err(unusable)?;
    match file.look_up(host, &endpoint.repository).map_err(unusable)? {
        Place::Here(credentials) => Ok(credentials),
        Place::Helper { program, server } => ask(&program, &server).await.map_err(unusable),
    }
}

/// The registry settings in docker's `config.json`.
#[derive(Debug, Default, Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: String,
}

#[derive(Debug, Default, Clone, Deserialize)]
struct DockerAuth {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    identitytoken: String,
    #[serde(default)]
    registrytoken: String,
}

/// Where docker keeps the credentials for a host.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Here(Credentials),
    Helper { program: String, server: String },
}

impl DockerConfig {
    fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let bytes = std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
        // The error message contains positions only, no values of the file.
        serde_json::from_slice(&bytes).map_err(|error| {
            format!(
                "{shown} is not a Docker configuration (line {}, column {})",
                error.line(),
                error.column()
            )
        })
    }

    /// Searches as docker does: a helper for the host, then the file's own entries, then the default store. Of
    /// several matching entries the longest is taken, so that `host/team` may have its own.
    fn look_up(&self, host: &str, repository: &str) -> Result<Place, String> {
        let program = |name: &str| format!("docker-credential-{name}");
        if let Some((server, name)) =
            self.helpers.iter().find(|(key, _)| host_of(key) == host_of(host))
        {
            return Ok(Place::Helper { program: program(name), server: server.clone() });
        }
        let wanted = format!("{}/{repository}", host_of(host));
        let fitting = self.auths.iter().filter(|(key, _)| {
            let path = without_scheme(key).trim_end_matches('/');
            let path =
                path.strip_suffix("/v1").or_else(|| path.strip_suffix("/v2")).unwrap_or(path);
            let (_, rest) = split(path);
            let full = if rest.is_empty() {
                host_of(key).to_owned()
            } else {
                format!("{}/{rest}", host_of(key))
            };
            wanted == full || wanted.strip_prefix(&full).is_some_and(|rest| rest.starts_with('/'))
        });
        let found = fitting
            .max_by_key(|(key, _)| without_scheme(key).trim_end_matches('/').split('/').count());
        if let Some((_, auth)) = found
            && let Some(credentials) = auth.login().credentials()?
        {
            return Ok(Place::Here(credentials));
        }
        if self.store.is_empty() {
            return Ok(Place::Here(Credentials::Anonymous));
        }
        let server =
            if host_of(host) == "docker.io" { "https://index.docker.io/v1/" } else { host };
        Ok(Place::Helper { program: program(&self.store), server: server.to_owned() })
    }
}

impl DockerAuth {
    fn login(&self) -> Login {
        let secret = |text: &str| (!text.is_empty()).then(|| Secret::new(text));
        // docker writes the token beside an `auth` that has only the user name.
        let token = secret(&self.identitytoken);
        Login {
            username: if token.is_some() { String::new() } else { self.username.clone() },
            password: secret(&self.password),
            auth: secret(&self.auth),
            server_address: String::new(),
            identity_token: token,
            registry_token: secret(&self.registrytoken),
        }
    }
}

/// The output of a helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperOutput {
    username: String,
    secret: String,
}

/// Calls a credential helper (docker-credential-helpers, "get").
async fn ask(program: &str, server: &str) -> Result<Credentials, String> {
    if program.contains('/') {
        return Err(format!("{program:?} is not the name of a credential helper"));
    }
    let failed = |error: std::io::Error| {
        format!("cannot run {program}: {error}; is it on the runtime's PATH?")
    };
    let mut child = tokio::process::Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the helper does not read its input, its output or status shows it.
        let _ = stdin.write_all(format!("{server}\n").as_bytes()).await;
    }
    let output = tokio::time::timeout(HELPER, child.wait_with_output())
        .await
        .map_err(|_| format!("{program} did not answer within {} s", HELPER.as_secs()))?
        .map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        // In the protocol this error means that there are no credentials for the server.
        if said.contains("credentials not found") {
            return Ok(Credentials::Anonymous);
        }
        return Err(format!("{program} failed ({})", output.status));
    }
    let parsed: HelperOutput = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("{program} returned invalid JSON"))?;
    Ok(if parsed.username == "<token>" {
        Credentials::IdentityToken(Secret::new(parsed.secret))
    } else {
        Credentials::Basic { username: parsed.username, password: Secret::new(parsed.secret) }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::registry::endpoint::endpoints;
    use crate::registry::settings::Host;

    fn named(username: &str) -> Credentials {
        Credentials::Basic { username: username.to_owned(), password: Secret::new("p") }
    }

    fn login(username: &str, server: &str) -> Login {
        Login {
            username: username.to_owned(),
            password: Some(Secret::new("p")),
            server_address: server.to_owned(),
            ..Login::default()
        }
    }

    #[rstest]
    #[case::nothing(Login::default(), Ok(None))]
    #[case::name(login("me", ""), Ok(Some(named("me"))))]
    #[case::auth(Login { auth: Some(Secret::new("bWU6cA==")), ..Login::default() }, Ok(Some(named("me"))))]
    #[case::padded(Login { auth: Some(Secret::new("bWU6cAA=")), ..Login::default() }, Ok(Some(named("me"))))]
    #[case::no_colon(Login { auth: Some(Secret::new("bWU=")), ..Login::default() }, Err("auth is not base64 of name:password"))]
    #[case::no_base64(Login { auth: Some(Secret::new("%%%")), ..Login::default() }, Err("auth is not base64 of name:password"))]
    #[case::identity(
        Login { identity_token: Some(Secret::new("t")), ..Login::default() },
        Ok(Some(Credentials::IdentityToken(Secret::new("t"))))
    )]
    #[case::registry(
        Login { registry_token: Some(Secret::new("t")), ..Login::default() },
        Ok(Some(Credentials::RegistryToken(Secret::new("t"))))
    )]
    #[case::a_header_more(
        Login { registry_token: Some(Secret::new("t\r\nx: y")), ..Login::default() },
        Err("the registry token holds characters that no header can carry")
    )]
    fn login_yields_credentials(
        #[case] login: Login,
        #[case] want: Result<Option<Credentials>, &str>,
    ) {
        assert_eq!(login.credentials(), want.map_err(str::to_owned));
    }

    fn docker_file() -> DockerConfig {
        serde_json::from_str(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "aHViOnA="},
                "example.com": {"username": "all", "password": "p"},
                "https://example.com/team/": {"username": "team", "password": "p"},
                "token.io": {"auth": "bWU6", "username": "me", "identitytoken": "i"},
                "bearer.io": {"registrytoken": "r"},
                "broken.io": {"auth": "x"}},
              "credHelpers": {"helped.io": "mine"}, "HttpHeaders": {"a": "b"}}"#,
        )
        .unwrap()
    }

    #[rstest]
    #[case::docker("docker.io", "library/a", Ok(Place::Here(named("hub"))))]
    #[case::all("example.com", "a", Ok(Place::Here(named("all"))))]
    #[case::team("example.com", "team/a", Ok(Place::Here(named("team"))))]
    #[case::like_the_team("example.com", "teams/a", Ok(Place::Here(named("all"))))]
    #[case::identity(
        "token.io",
        "a",
        Ok(Place::Here(Credentials::IdentityToken(Secret::new("i"))))
    )]
    #[case::registry(
        "bearer.io",
        "a",
        Ok(Place::Here(Credentials::RegistryToken(Secret::new("r"))))
    )]
    #[case::helper("helped.io", "a", Ok(Place::Helper { program: "docker-credential-mine".to_owned(), server: "helped.io".to_owned() }))]
    #[case::nobody("other.io", "a", Ok(Place::Here(Credentials::Anonymous)))]
    #[case::broken("broken.io", "a", Err("auth is not base64 of name:password".to_owned()))]
    fn docker_config_yields_credentials(
        #[case] host: &str,
        #[case] repository: &str,
        #[case] want: Result<Place, String>,
    ) {
        assert_eq!(docker_file().look_up(host, repository), want);
    }

    #[rstest]
    #[case::the_pulls(Some(login("pull", "")), "own.io/a", &["pull"])]
    #[case::for_another(Some(login("pull", "https://other.io")), "own.io/a", &["settings"])]
    #[case::for_this(Some(login("pull", "https://own.io/v2/")), "own.io/a", &["pull"])]
    #[case::none(None, "own.io/a", &["settings"])]
    #[case::a_mirrors_own(Some(login("pull", "")), "mirrored.io/a", &["mirror", "pull", "pull"])]
    #[case::for_the_registry_only(Some(login("pull", "mirrored.io")), "mirrored.io/a", &["mirror", "", "pull"])]
    #[tokio::test]
    async fn credentials_follow_precedence_of_sources(
        #[case] login: Option<Login>,
        #[case] reference: &str,
        #[case] want: &[&str],
    ) {
        let mut settings = Registries::default();
        let with = |username: &str| Host { credentials: Some(named(username)), ..Host::default() };
        let mirrored = Host {
            mirrors: Some(vec!["https://m.io".parse().unwrap(), "https://n.io".parse().unwrap()]),
            ..Host::default()
        };
        settings.hosts.extend([
            ("own.io".to_owned(), with("settings")),
            ("m.io".to_owned(), with("mirror")),
            ("mirrored.io".to_owned(), mirrored),
        ]);
        let mut taken = Vec::new();
        for endpoint in endpoints(&settings, &reference.parse().unwrap()) {
            taken.push(match of(&settings, login.as_ref(), &endpoint).await.unwrap() {
                Credentials::Basic { username, .. } => username,
                Credentials::Anonymous
                | Credentials::IdentityToken(_)
                | Credentials::RegistryToken(_) => String::new(),
            });
        }
        assert_eq!(taken, want);
    }
}
