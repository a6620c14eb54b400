//! ◆ The sections `registries:` and `pull:`, and `--registry-mirror`.

use std::collections::BTreeMap;
use std::str::FromStr;

use compact::Map;
use image::Reference;
use image::{Credentials, EVERY_HOST, Host, Mirror, Registries, Rewrite, Secret, is_host};
use serde::Deserialize;

use super::sections::{AbsolutePath, Timeout};

/// `registries:`, by host.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Map<HostName, HostSection>")]
pub(crate) struct RegistriesSection(Map<HostName, HostSection>);

/// A registry's host as in image names, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct HostName(String);

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == EVERY_HOST || is_host(&name) {
            return Ok(Self(name));
        }
        Err(format!(
            "{name:?} is not a registry host: use the host of image names, such as docker.io or localhost:5000, or \"*\" for all other hosts"
        ))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HostSection {
    mirrors: Option<Vec<MirrorUrl>>,
    mirrors_only: Option<bool>,
    rewrite: Option<BTreeMap<String, String>>,
    plain_http: Option<bool>,
    ca: Option<AbsolutePath>,
    credentials: Option<Login>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct MirrorUrl(Mirror);

impl TryFrom<String> for MirrorUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(to_message)
    }
}

fn to_message(error: impl std::error::Error) -> String {
    error.to_string()
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "LoginFields")]
struct Login(Credentials);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LoginFields {
    username: Option<String>,
    password: Option<String>,
    identity_token: Option<String>,
    registry_token: Option<String>,
}

impl TryFrom<LoginFields> for Login {
    type Error = String;

    fn try_from(fields: LoginFields) -> Result<Self, String> {
        let LoginFields { username, password, identity_token, registry_token } = fields;
        match (username, password, identity_token, registry_token) {
            (Some(username), Some(password), None, None) => {
                Ok(Self(Credentials::Basic { username, password: Secret::new(password) }))
            }
            (None, None, Some(token), None) => {
                Ok(Self(Credentials::IdentityToken(Secret::new(token))))
            }
            (None, None, None, Some(token)) => {
                Ok(Self(Credentials::RegistryToken(Secret::new(token))))
            }
            _ => Err(
                "give exactly one of these: username and password, identity_token, registry_token"
                    .to_owned(),
            ),
        }
    }
}

impl TryFrom<Map<HostName, HostSection>> for RegistriesSection {
    type Error = &'static str;

    fn try_from(hosts: Map<HostName, HostSection>) -> Result<Self, &'static str> {
        let every = hosts.get(&HostName(EVERY_HOST.to_owned()));
        match every.and_then(|host| host.credentials.as_ref()) {
            Some(_) => Err("credentials for host * would be sent to every registry: name the host"),
            None => Ok(Self(hosts)),
        }
    }
}

impl RegistriesSection {
    pub(crate) fn apply(self, to: &mut Registries) {
        for (HostName(name), section) in self.0 {
            let host = Host {
                mirrors: section
                    .mirrors
                    .map(|mirrors| mirrors.into_iter().map(|url| url.0).collect()),
                mirrors_only: section.mirrors_only,
                rewrite: section.rewrite.map(|rules| {
                    let rule = |(from, to)| Rewrite { from, to };
                    rules.into_iter().map(rule).collect()
                }),
                plain_http: section.plain_http,
                ca: section.ca.map(|path| path.0),
                credentials: section.credentials.map(|login| login.0),
            };
            to.hosts.insert(name, host);
        }
    }
}

/// `pull:`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pull {
    progress_timeout: Option<Timeout>,
    parallel_layers: Option<Layers>,
    docker_config: Option<AbsolutePath>,
    pinned: Vec<ImageName>,
}

/// The full form of an image name.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct ImageName(String);

impl TryFrom<String> for ImageName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let reference: Reference =
            text.parse().map_err(|error| format!("invalid image reference {text:?}: {error}"))?;
        Ok(Self(reference.to_string()))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "u8")]
struct Layers(usize);

impl TryFrom<u8> for Layers {
    type Error = &'static str;

    fn try_from(n: u8) -> Result<Self, &'static str> {
        if n == 0 {
            return Err("must be at least 1");
        }
        Ok(Self(n.into()))
    }
}

impl Pull {
    pub(crate) fn apply(self, to: &mut Registries) {
        if let Some(Timeout(timeout)) = self.progress_timeout {
            to.progress_timeout = timeout;
        }
        if let Some(Layers(n)) = self.parallel_layers {
            to.parallel_layers = n;
        }
        to.pinned.extend(self.pinned.into_iter().map(|name| name.0));
        if let Some(AbsolutePath(path)) = self.docker_config {
            to.docker_config = Some(path);
        }
    }
}

/// `HOST=URL`: an additional mirror, tried before those of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MirrorFlag {
    host: String,
    mirror: Mirror,
}

impl FromStr for MirrorFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, url) =
            text.split_once('=').ok_or("write HOST=URL, as in docker.io=http://127.0.0.1:5000")?;
        Ok(Self {
            host: HostName::try_from(host.to_owned())?.0,
            mirror: url.parse().map_err(to_message)?,
        })
    }
}

impl MirrorFlag {
    /// Adds mirrors in the given order.
    pub(crate) fn apply(flags: &[Self], to: &mut Registries) {
        for flag in flags.iter().rev() {
            let host = to.hosts.entry(flag.host.clone()).or_default();
            host.mirrors.get_or_insert_default().insert(0, flag.mirror.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rstest::rstest;

    use super::*;

    #[test]
    fn registries_section_and_mirror_flags_are_merged() {
        let text = "
docker.io:
  mirrors: [https://a.example.com/docker, http://127.0.0.1:5000]
  mirrors_only: true
  rewrite: {library/: mirrored/}
localhost:5000:
  plain_http: true
  ca: /ca.pem
  credentials: {username: me, password: secret}
";
        let section: RegistriesSection = serde_saphyr::from_str(text).unwrap();
        let mut registries = Registries::default();
        section.apply(&mut registries);
        let docker = &registries.hosts["docker.io"];
        let mirrors: Vec<String> =
            docker.mirrors.as_ref().unwrap().iter().map(Mirror::to_string).collect();
        assert_eq!(mirrors, ["https://a.example.com/docker", "http://127.0.0.1:5000"]);
        assert_eq!(docker.mirrors_only, Some(true));
        assert_eq!(docker.rewrite.as_ref().unwrap()[0].to, "mirrored/");
        let local = &registries.hosts["localhost:5000"];
        assert_eq!(local.plain_http, Some(true));
        assert_eq!(local.ca, Some(PathBuf::from("/ca.pem")));
        let login =
            Credentials::Basic { username: "me".to_owned(), password: Secret::new("secret") };
        assert_eq!(local.credentials, Some(login));

        let flags = ["docker.io=http://first:1", "docker.io=http://second:2", "*=http://all:3"]
            .map(|flag| flag.parse().unwrap());
        MirrorFlag::apply(&flags, &mut registries);
        let mirrors = |host: &str| -> Vec<String> {
            let mirrors = registries.hosts[host].mirrors.as_ref().unwrap();
            mirrors.iter().map(|mirror| mirror.host.clone()).collect()
        };
        let seen = mirrors("docker.io");
        assert_eq!(seen, ["first:1", "second:2", "a.example.com", "127.0.0.1:5000"]);
        assert_eq!(mirrors("*"), ["all:3"]);
    }

    #[rstest]
    #[case("docker.io", "write HOST=URL")]
    #[case("=http://a", "is not a registry host")]
    #[case("docker.io=a", "is not the URL of a mirror")]
    fn mirror_flag_rejects_malformed_text(#[case] text: &str, #[case] want: &str) {
        let to_message = text.parse::<MirrorFlag>().unwrap_err();
        assert!(to_message.contains(want), "{to_message}");
    }
}
