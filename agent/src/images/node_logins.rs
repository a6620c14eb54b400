//! The node's own docker configuration, whose logins every pod may use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use file_tree::named_text::{self, MOST};
use jiff::Timestamp;
use tokio::sync::Mutex;

use super::docker_config::{self, DockerConfig};
use super::keyring::{Credential, Keyring};
use crate::clock::after;
use tasks::blocking;

/// How long the file's content is cached.
const LIFETIME: Duration = Duration::from_secs(300);

/// Reads the first of several files that exists.
pub(crate) struct NodeLogins {
    files: Vec<PathBuf>,
    read: Mutex<Option<(Keyring, Timestamp)>>,
}

impl NodeLogins {
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        Self { files, read: Mutex::new(None) }
    }

    /// The node's credentials for a repository.
    pub(crate) async fn lookup(&self, repository: &str, now: Timestamp) -> Vec<Credential> {
        let mut read = self.read.lock().await;
        if let Some((keyring, until)) = &*read
            && now < *until
        {
            return keyring.lookup(repository);
        }
        let files = self.files.clone();
        let config = blocking(move || files.iter().find_map(|file| load(file))).await;
        let mut keyring = Keyring::default();
        keyring.add(None, &config.unwrap_or_default());
        let found = keyring.lookup(repository);
        *read = Some((keyring, after(now, LIFETIME)));
        found
    }
}

/// The logins in a file; `None` if it is missing or malformed.
fn load(file: &Path) -> Option<DockerConfig> {
    let bytes = match named_text::read_nonblocking(file, MOST) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(path = %file.display(), %error, "failed to read docker configuration");
            }
            return None;
        }
    };
    let parsed = if file.file_name().is_some_and(|name| name == ".dockercfg") {
        docker_config::parse_dockercfg(&bytes)
    } else {
        docker_config::parse_config_json(&bytes)
    };
    parsed
        .inspect_err(|error| {
            tracing::warn!(path = %file.display(), %error, "docker configuration is malformed");
        })
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn first_valid_file_counts_and_is_kept_for_five_minutes() {
        let dir = tempfile::tempdir().unwrap();
        let [missing, malformed, endless, old, last] =
            ["a", "b", "z", ".dockercfg", "c"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        std::fs::write(&malformed, "{").unwrap();
        std::fs::write(&old, r#"{"r.io":{"username":"old"}}"#).unwrap();
        std::fs::write(&last, r#"{"auths":{"r.io":{"username":"new"}}}"#).unwrap();
        let logins = NodeLogins::new(vec![missing, malformed, endless, old.clone(), last]);
        let at = |seconds| after(Timestamp::UNIX_EPOCH, Duration::from_secs(seconds));
        let found = logins.lookup("r.io/a", at(0)).await;
        assert_eq!((found.len(), found[0].username.as_str()), (1, "old"));
        assert_eq!(found[0].source, None);
        std::fs::remove_file(old).unwrap();
        assert_eq!(logins.lookup("r.io/a", at(299)).await[0].username, "old");
        assert_eq!(logins.lookup("r.io/a", at(300)).await[0].username, "new");
    }
}
