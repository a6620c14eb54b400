//! ◆ The keyring: which credentials are tried for an image, and in which order.
//!
//! Source: Kubernetes 1.36, pkg/credentialprovider/keyring.go and pkg/credentialprovider/secrets/secrets.go.

use std::fmt::{self, Write};

use compact::Map;
use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};

use super::docker_config::{self, DockerConfig, DockerConfigError, Login};

/// The registry whose credentials apply to images without a registry in their name.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// The identity of the API object that a credential comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, which differs after it is created again.
    pub uid: String,
}

/// The owner of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// A pull secret.
    Secret(SourceRef),
    /// A service account, for whose token a provider returned the credential.
    ServiceAccount(SourceRef),
}

/// A credential for a pull.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
    /// The hash of user name, password and e-mail address, as in pull records.
    pub hash: String,
    /// The owner; `None` if every pod of the node may use it.
    pub source: Option<CredentialSource>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug ends up in logs.
        write!(f, "Credential({}, {:?})", self.username, self.source)
    }
}

/// Credentials by registry.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    credentials: Map<String, Vec<Credential>>,
}

impl Keyring {
    /// Creates the keyring of pull secrets. Secrets that are not of a docker type are ignored.
    ///
    /// # Errors
    /// If one of the secrets is malformed.
    pub fn of_secrets(secrets: &[Secret]) -> Result<Self, DockerConfigError> {
        let mut keyring = Self::default();
        for secret in secrets {
            let data = |key: &str| {
                let data = secret.data.as_ref()?.get(key)?;
                (!data.0.is_empty()).then_some(data.0.as_slice())
            };
            let config = match secret.type_.as_deref() {
                Some("kubernetes.io/dockerconfigjson") => {
                    data(".dockerconfigjson").map(docker_config::parse_config_json)
                }
                Some("kubernetes.io/dockercfg") => {
                    data(".dockercfg").map(docker_config::parse_dockercfg)
                }
                Some(_) | None => None,
            };
            if let Some(config) = config {
                let identity = SourceRef {
                    namespace: secret.metadata.namespace.clone().unwrap_or_default(),
                    name: secret.metadata.name.clone().unwrap_or_default(),
                    uid: secret.metadata.uid.clone().unwrap_or_default(),
                };
                keyring.add(Some(&CredentialSource::Secret(identity)), &config?);
            }
        }
        Ok(keyring)
    }

    /// Adds the logins of a docker configuration. An entry that is not a registry's URL is ignored.
    pub fn add(&mut self, source: Option<&CredentialSource>, config: &DockerConfig) {
        for (location, login) in config {
            let without_scheme = location
                .strip_prefix("https://")
                .or_else(|| location.strip_prefix("http://"))
                .unwrap_or(location);
            let Some(Location { host, path, .. }) = Location::parse(without_scheme) else {
                continue;
            };
            // The API version of a registry is not part of an image's name.
            let path = match path.get(..4) {
                Some("/v1/" | "/v2/") => &path[3..],
                Some(_) | None => path.as_str(),
            };
            let key = format!("{host}{}", if path == "/" { "" } else { path });
            let credential = Credential {
                username: login.username.clone(),
                password: login.password.clone(),
                hash: hash(login),
                source: source.cloned(),
            };
            self.credentials.entry(key).or_default().push(credential);
        }
    }

    /// The credentials for a repository such as `docker.io/library/nginx`, most specific first.
    pub fn lookup(&self, repository: &str) -> Vec<Credential> {
        let matching =
            self.credentials.iter().rev().filter(|(location, _)| matches(location, repository));
        let found: Vec<Credential> = matching.flat_map(|(_, found)| found.clone()).collect();
        if found.is_empty() && is_in_default_registry(repository) {
            return self.credentials.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

fn is_in_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        Some(("", _)) => false,
        Some((host, _)) => {
            matches!(host, "docker.io" | DEFAULT_REGISTRY) || !host.contains(['.', ':'])
        }
        None => !repository.is_empty(),
    }
}

/// Whether a repository matches a location: the host's labels match the location's, in which `*` stands for any text, the ports are
/// equal, and the path begins with the location's.
pub fn matches(location: &str, repository: &str) -> bool {
    let (Some(location), Some(image)) = (Location::parse(location), Location::parse(repository))
    else {
        return false;
    };
    let ((pattern, port), (name, port_of_image)) =
        (location.name_and_port(), image.name_and_port());
    port == port_of_image
        && image.path.starts_with(&location.path)
        && pattern.split('.').count() == name.split('.').count()
        && pattern.split('.').zip(name.split('.')).all(|(pattern, label)| glob(pattern, label))
}

/// Whether `text` matches a pattern with `*`.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        // The first occurrence leaves the most text for the rest.
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

/// Whether the text is a location that Go's `url.Parse` accepts, as required of `matchImages`.
pub fn is_location(text: &str) -> bool {
    Location::parse(text).is_some()
}

/// Host, port and path of a URL without a scheme.
struct Location {
    host: String,
    path: String,
}

impl Location {
    /// Parses what follows `https://`, as Go's `url.Parse` does; `None` if that rejects it.
    fn parse(text: &str) -> Option<Self> {
        if text.chars().any(|c| c.is_ascii_control()) {
            return None;
        }
        let text = text.split_once('#').map_or(text, |(before, _)| before);
        let text = text.split_once('?').map_or(text, |(before, _)| before);
        let (authority, path) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        Self::is_host(host).then_some(())?;
        Some(Self { host: host.to_owned(), path: unescaped(path)? })
    }

    fn is_host(host: &str) -> bool {
        let is_port = |port: &str| port.bytes().all(|c| c.is_ascii_digit());
        if let Some(bracketed) = host.strip_prefix('[') {
            let Some((address, rest)) = bracketed.split_once(']') else {
                return false;
            };
            let fits = address.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b':' | b'.'));
            return fits && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
        }
        let (name, port) = host.split_once(':').unwrap_or((host, ""));
        let fits = |c: char| {
            !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=<>\"".contains(c)
        };
        is_port(port) && name.chars().all(fits)
    }

    fn name_and_port(&self) -> (&str, &str) {
        match self.host.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
            Some(address) => address,
            None if self.host.starts_with('[') => (&self.host, ""),
            None => self.host.split_once(':').unwrap_or((&self.host, "")),
        }
    }
}

/// Decodes percent-encoding such as `%41`; `None` if a sequence is incomplete.
fn unescaped(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            // `from_str_radix` would accept a sign.
            (!digits.starts_with('+')).then_some(())?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(first);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The SHA-256 of the login as Go's JSON encoder writes it without empty members, in hexadecimal digits.
fn hash(login: &Login) -> String {
    let members =
        [("username", &login.username), ("password", &login.password), ("email", &login.email)];
    let members: Vec<String> = members
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("\"{name}\":{}", go_json(value)))
        .collect();
    hex(&Sha256::digest(format!("{{{}}}", members.join(","))))
}

/// A string as Go's `json.Marshal` formats it: it also escapes the characters of HTML and JavaScript markup.
fn go_json(text: &str) -> String {
    let mut json = String::from('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string cannot fail.
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn login(username: &str) -> Login {
        Login { username: username.to_owned(), ..Login::default() }
    }

    #[rstest]
    #[case("*.docker.io", "blah.docker.io/x", true)]
    #[case("*.docker.io", "not.right.io/x", false)]
    #[case("*.io", "a.b.io/x", false)]
    #[case("reg*.example.com", "registry.example.com/x", true)]
    #[case("*", "localhost/x", true)]
    #[case("*", "a.io/x", false)]
    #[case("a.io:5000", "a.io:5000/x", true)]
    #[case("a.io", "a.io:5000/x", false)]
    #[case("*:5000", "localhost:5000/x", true)]
    #[case("a.io:*", "a.io:5000/x", false)]
    #[case("a.io/team", "a.io/team/app", true)]
    #[case("a.io/team", "a.io/teams", true)]
    #[case("a.io/team/", "a.io/teams", false)]
    #[case("a.io/%74eam", "a.io/team", true)]
    #[case("user@a.io", "a.io/x", true)]
    #[case("a b.io", "a b.io/x", false)]
    #[case("[::1]:5000", "[::1]:5000/x", true)]
    fn locations_match_by_host_port_and_path(
        #[case] location: &str,
        #[case] repository: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(matches(location, repository), expected);
    }

    #[rstest]
    #[case("a*b*c", "aXbYc", true)]
    #[case("a*b", "ab", true)]
    #[case("a*ab", "ab", false)]
    #[case("**", "", true)]
    fn wildcard_matches_any_text(
        #[case] pattern: &str,
        #[case] text: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(glob(pattern, text), expected);
    }

    #[test]
    fn most_specific_credentials_come_first() {
        let mut keyring = Keyring::default();
        let config = DockerConfig::from([
            ("*.io".to_owned(), login("any")),
            ("https://q.io/v1/".to_owned(), login("host")),
            ("q.io/a".to_owned(), login("path")),
            ("https://index.docker.io/v1/".to_owned(), login("docker")),
        ]);
        keyring.add(None, &config);
        let users = |repository: &str| -> Vec<String> {
            let found = keyring.lookup(repository).into_iter();
            found.map(|credential| credential.username).collect()
        };
        assert_eq!(users("q.io/a/b"), ["path", "host", "any"]);
        assert_eq!(users("q.io/b"), ["host", "any"]);
        assert_eq!(users("docker.io/library/nginx"), ["any"]);
        assert_eq!(users("localhost:5000/x"), [""; 0]);
        assert_eq!(users("index.docker.io/x"), ["docker"]);
    }

    #[test]
    fn credential_hash_is_computed_from_go_json() {
        let login =
            Login { username: "u".to_owned(), password: "<&>".to_owned(), email: String::new() };
        let json = r#"{"username":"u","password":"\u003c\u0026\u003e"}"#;
        assert_eq!(hash(&login), hex(&Sha256::digest(json)));
    }

    proptest! {
        #[test]
        fn any_text_is_matched_without_a_panic(location in "\\PC{0,40}", image in "[a-z0-9.:/%*\\[\\]@-]{0,40}") {
            let mut keyring = Keyring::default();
            keyring.add(None, &DockerConfig::from([(location.clone(), login("u")), (image.clone(), login("v"))]));
            keyring.lookup(&image);
            matches(&location, &image);
        }
    }
}
