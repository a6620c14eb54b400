//! The `Debug` form of messages with secrets: it shows whether a secret is set, but not the secret.

use std::collections::HashMap;
use std::fmt;

use crate::csi::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use crate::v1::AuthConfig;

impl fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &Secrets(&self.secrets))
            .field("volume_context", &Secrets(&self.volume_context))
            .finish()
    }
}

impl fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &Secrets(&self.secrets))
            .field("volume_context", &Secrets(&self.volume_context))
            .finish()
    }
}

/// The names of secrets. A volume's context counts among them: it may have tokens of service accounts.
struct Secrets<'a>(&'a HashMap<String, String>);

impl fmt::Debug for Secrets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, secret)| (name, Secret(secret)))).finish()
    }
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("password", &Secret(&self.password))
            .field("auth", &Secret(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &Secret(&self.identity_token))
            .field("registry_token", &Secret(&self.registry_token))
            .finish()
    }
}

/// A secret that shows only whether it is empty.
struct Secret<'a>(&'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "\"(redacted)\"" })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crate::csi::{NodePublishVolumeRequest, NodeStageVolumeRequest};
    use crate::v1::{AuthConfig, PullImageRequest};

    #[test]
    fn volume_requests_show_names_of_secrets_alone() {
        let secrets = || HashMap::from([("password".to_owned(), "secret-1".to_owned())]);
        let tokens = || HashMap::from([("tokens".to_owned(), "secret-2".to_owned())]);
        let stage = NodeStageVolumeRequest {
            volume_id: "v".to_owned(),
            secrets: secrets(),
            volume_context: tokens(),
            ..NodeStageVolumeRequest::default()
        };
        let publish = NodePublishVolumeRequest {
            volume_id: "v".to_owned(),
            secrets: secrets(),
            volume_context: tokens(),
            ..NodePublishVolumeRequest::default()
        };
        for shown in [format!("{stage:?}"), format!("{publish:?}")] {
            assert!(!shown.contains("secret-"), "{shown}");
            assert!(shown.contains("volume_id: \"v\""), "{shown}");
            assert!(shown.contains("\"password\": \"(redacted)\""), "{shown}");
        }
    }

    #[test]
    fn a_request_shows_names_but_no_secret() {
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "alice".to_owned(),
                password: "secret-1".to_owned(),
                auth: "secret-2".to_owned(),
                server_address: "registry.example".to_owned(),
                identity_token: "secret-3".to_owned(),
                registry_token: String::new(),
            }),
            ..PullImageRequest::default()
        };
        let shown = format!("{request:?}");
        assert!(!shown.contains("secret-"), "{shown}");
        for expected in ["alice", "registry.example", "registry_token: \"\""] {
            assert!(shown.contains(expected), "{expected} is not in {shown}");
        }
        assert_eq!(shown.matches("(redacted)").count(), 3, "{shown}");
    }
}
