//! The `Debug` form of messages with `debug_redact` fields: it shows whether a secret is set, but not the secret.

use std::fmt;

use crate::v1::AuthConfig;

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
    use crate::v1::{AuthConfig, PullImageRequest};

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
