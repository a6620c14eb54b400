//! ◆ Docker configurations (`.dockercfg`, `config.json`), as in pull secrets and in files of the node.
//!
//! Source: Kubernetes 1.36, pkg/credentialprovider/config.go. Members are matched like Go's JSON decoder does: case-insensitively,
//! the last of several wins, null counts as absent, unknown ones are ignored.

use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use compact::Map;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// The login at one registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
    /// The e-mail address, which is only used in the hash of the credential.
    pub email: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug ends up in logs.
        write!(f, "Login({})", self.username)
    }
}

/// Logins by registry: a host with an optional port and path; a label of the host may have `*`.
pub type DockerConfig = Map<String, Login>;

/// Why a docker configuration cannot be used. The text never contains a part of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    /// It is not the JSON of such a configuration.
    #[error("error occurred while trying to unmarshal json")]
    Json,
}

/// Parses a `.dockercfg`.
///
/// # Errors
/// If it is not an object of logins.
pub fn parse_dockercfg(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    let Members(logins) = parse::<Members<Login>>(bytes)?;
    Ok(logins.into_iter().collect())
}

/// Parses a `config.json`, which has the logins in `auths`.
///
/// # Errors
/// If it is not an object with this member.
pub fn parse_config_json(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    let ConfigJson(logins) = parse(bytes)?;
    Ok(logins)
}

fn parse<T: DeserializeOwned + Default>(bytes: &[u8]) -> Result<T, DockerConfigError> {
    // Go's decoder replaces invalid UTF-8 too.
    let text = String::from_utf8_lossy(bytes);
    let parsed = serde_json::from_str::<Option<T>>(&text).map_err(|_| DockerConfigError::Json)?;
    Ok(parsed.unwrap_or_default())
}

/// A `config.json`.
#[derive(Default)]
struct ConfigJson(DockerConfig);

impl<'de> Deserialize<'de> for ConfigJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ConfigVisitor;
        impl<'de> Visitor<'de> for ConfigVisitor {
            type Value = ConfigJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a docker configuration")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigJson, A::Error> {
                let mut logins = DockerConfig::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name.to_ascii_lowercase().as_str() {
                        "auths" => {
                            let members: Option<Members<Login>> = map.next_value()?;
                            logins.extend(members.unwrap_or_default().0);
                        }
                        // Unused, but validated.
                        "httpheaders" => drop(map.next_value::<Option<Members<Option<String>>>>()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(ConfigJson(logins))
            }
        }
        from.deserialize_map(ConfigVisitor)
    }
}

/// The members of an object in their order, repeated ones included.
struct Members<T>(Vec<(String, T)>);

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
            type Value = Members<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<T>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(InOrder(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Login {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct LoginVisitor;
        impl<'de> Visitor<'de> for LoginVisitor {
            type Value = Login;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a login")
            }

            fn visit_unit<E>(self) -> Result<Login, E> {
                Ok(Login::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Login, A::Error> {
                let (mut login, mut auth) = (Login::default(), String::new());
                while let Some(name) = map.next_key::<String>()? {
                    let member = match name.to_ascii_lowercase().as_str() {
                        "username" => &mut login.username,
                        "password" => &mut login.password,
                        "email" => &mut login.email,
                        "auth" => &mut auth,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    if let Some(value) = map.next_value::<Option<String>>()? {
                        *member = value;
                    }
                }
                if !auth.is_empty() {
                    (login.username, login.password) =
                        decode_auth(&auth).ok_or_else(|| A::Error::custom("invalid auth"))?;
                }
                Ok(login)
            }
        }
        from.deserialize_any(LoginVisitor)
    }
}

/// The user name and password in `auth`: base64 of `username:password`, with or without padding.
fn decode_auth(auth: &str) -> Option<(String, String)> {
    let padding = if auth.trim().ends_with('=') {
        DecodePaddingMode::RequireCanonical
    } else {
        DecodePaddingMode::RequireNone
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(padding);
    // Go's decoder skips line ends.
    let digits: Vec<u8> = auth.bytes().filter(|c| !matches!(c, b'\r' | b'\n')).collect();
    let decoded = GeneralPurpose::new(&STANDARD, config).decode(digits).ok()?;
    let text = String::from_utf8_lossy(&decoded);
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    fn login(username: &str, password: &str, email: &str) -> Login {
        Login {
            username: username.to_owned(),
            password: password.to_owned(),
            email: email.to_owned(),
        }
    }

    #[rstest]
    #[case(r#"{"username":"u","password":"p","email":"e"}"#, Some(login("u", "p", "e")))]
    #[case(r#"{"Username":"u","PASSWORD":"p","x":{}}"#, Some(login("u", "p", "")))]
    #[case(r#"{"auth":"dTpw"}"#, Some(login("u", "p", "")))]
    #[case(r#"{"auth":"dTpwYTpy","username":"other"}"#, Some(login("u", "pa:r", "")))]
    #[case(r#"{"auth":"dTpwYQ=="}"#, Some(login("u", "pa", "")))]
    #[case(r#"{"auth":"dTpwYQ"}"#, Some(login("u", "pa", "")))]
    #[case(r#"{"auth":"dTpw\nYQ==\n"}"#, Some(login("u", "pa", "")))]
    #[case(r#"{"auth":null,"username":null}"#, Some(login("", "", "")))]
    #[case("null", Some(login("", "", "")))]
    #[case(r#"{"auth":"dTpwYQ="}"#, None)]
    #[case(r#"{"auth":"bm9jb2xvbg=="}"#, None)]
    #[case(r#"{"auth":" dTpw"}"#, None)]
    #[case(r#"{"username":1}"#, None)]
    #[case("[]", None)]
    fn logins_are_decoded_as_go_does(#[case] entry: &str, #[case] expected: Option<Login>) {
        let dockercfg = parse_dockercfg(format!("{{\"r.io\":{entry}}}").as_bytes());
        assert_eq!(dockercfg.ok().map(|logins| logins["r.io"].clone()), expected);
        let json = parse_config_json(format!("{{\"auths\":{{\"r.io\":{entry}}}}}").as_bytes());
        assert_eq!(json.ok().map(|logins| logins["r.io"].clone()), expected);
    }

    #[rstest]
    #[case("{}", Some(0))]
    #[case("null", Some(0))]
    #[case(r#"{"auths":null,"HttpHeaders":{"a":"b"}}"#, Some(0))]
    #[case(r#"{"Auths":{"a":{}},"auths":{"b":{}}}"#, Some(2))]
    #[case(r#"{"auths":[]}"#, None)]
    #[case(r#"{"auths":{}} x"#, None)]
    #[case("{not json", None)]
    fn config_json_has_logins_in_auths(#[case] text: &str, #[case] logins: Option<usize>) {
        let parsed = parse_config_json(text.as_bytes());
        assert_eq!(parsed.ok().map(|parsed| parsed.len()), logins);
    }

    #[test]
    fn debug_output_hides_passwords() {
        assert!(!format!("{:?}", login("u", "secret", "")).contains("secret"));
    }
}
