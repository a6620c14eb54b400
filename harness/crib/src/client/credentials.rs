//! Registry credentials on the command line.

use std::io::{self, Write as _};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use cri::v1;

use super::CallError;
use crate::terminal::read_hidden;

/// Registry credentials, with crictl's flag names.
#[derive(Debug, Args)]
pub(crate) struct CredentialArgs {
    /// Credentials for the registry
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        env = "CRICTL_CREDS",
        hide_env_values = true,
        conflicts_with = "auth"
    )]
    creds: Option<String>,
    /// Credentials in base64, as in docker's configuration file
    #[arg(long, value_name = "BASE64", env = "CRICTL_AUTH", hide_env_values = true)]
    auth: Option<String>,
    /// User name; the password is read from standard input
    #[arg(short, long, value_name = "USER", conflicts_with_all = ["creds", "auth"])]
    username: Option<String>,
}

impl CredentialArgs {
    /// The credentials, if given.
    pub(crate) async fn auth(&self) -> Result<Option<v1::AuthConfig>, CallError> {
        if let Some(user) = &self.username {
            let password = password().await.map_err(|source| CallError::Io {
                doing: "read the password from standard input".to_owned(),
                source,
            })?;
            return Ok(Some(config(user, &password)));
        }
        let text = match (&self.creds, &self.auth) {
            (Some(creds), _) => creds.clone(),
            (None, Some(auth)) => {
                let bytes = BASE64_STANDARD.decode(auth).ok();
                let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                text.ok_or_else(|| {
                    CallError::Usage("--auth is not base64 of USER:PASSWORD".to_owned())
                })?
            }
            (None, None) => return Ok(None),
        };
        let (user, password) = text
            .trim_end_matches(['\n', '\0'])
            .split_once(':')
            .filter(|(user, _)| !user.is_empty())
            .ok_or_else(|| CallError::Usage("expected credentials as USER:PASSWORD".to_owned()))?;
        Ok(Some(config(user, password)))
    }
}

fn config(user: &str, password: &str) -> v1::AuthConfig {
    v1::AuthConfig {
        username: user.to_owned(),
        password: password.to_owned(),
        ..Default::default()
    }
}

async fn password() -> io::Result<String> {
    write!(io::stderr(), "Enter Password:")?;
    let line = read_hidden().await;
    writeln!(io::stderr())?;
    line
}
