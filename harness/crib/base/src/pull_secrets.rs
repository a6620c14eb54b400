//! Registry credentials from a file (`--pull-secrets` of `crib run` and `crib agent`).

use std::path::{Path, PathBuf};

use agent::images::docker_config::parse_config_json;
use agent::images::{ImageConfig, parse_secrets};
use agent::objects::ObjectMap;

use crate::named_text;

/// The contents of a credentials file.
#[derive(Debug, Default)]
pub struct PullSecrets {
    /// Secrets that pods name in `imagePullSecrets`.
    objects: ObjectMap,
    /// Docker's configuration, whose credentials apply to all pods.
    logins: Option<PathBuf>,
}

/// Reads docker's `config.json`, or manifests of Secrets.
pub fn read(file: &Path) -> Result<PullSecrets, String> {
    let failed =
        |error: String| format!("failed to read --pull-secrets {}: {error}", file.display());
    let text = named_text::read_text(file).map_err(|error| failed(error.to_string()))?;
    if is_docker_config(&text) {
        parse_config_json(text.as_bytes()).map_err(|error| failed(error.to_string()))?;
        let path = std::path::absolute(file).map_err(|error| failed(error.to_string()))?;
        return Ok(PullSecrets { logins: Some(path), ..PullSecrets::default() });
    }
    let objects = parse_secrets(&text).map_err(|error| failed(error.to_string()))?;
    Ok(PullSecrets { objects, ..PullSecrets::default() })
}

impl PullSecrets {
    /// Sets the credentials that apply to all pods: those of the file, or else of docker's configuration in the user's home
    /// directory, as a kubelet uses root's. Returns the Secrets.
    pub fn apply(self, config: &mut ImageConfig) -> ObjectMap {
        // The first file that exists is used.
        if let Some(file) = self.logins {
            config.docker_configs.insert(0, file);
        }
        if let Some(home) = std::env::home_dir() {
            let files = [home.join(".docker/config.json"), home.join(".dockercfg")];
            config.docker_configs.extend(files);
        }
        self.objects
    }
}

/// Whether the text is docker's `config.json` and not a manifest.
fn is_docker_config(text: &str) -> bool {
    let document: Result<serde_json::Value, _> = serde_json::from_str(text);
    document.is_ok_and(|document| document.get("auths").is_some() && document.get("kind").is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_configuration_is_distinguished_from_manifests() {
        assert!(is_docker_config("{\"auths\": {\"r\": {\"auth\": \"bWU6eA==\"}}}"));
        assert!(!is_docker_config("apiVersion: v1\nkind: Secret\n"));
        assert!(!is_docker_config("{\"kind\": \"Secret\", \"auths\": 1}"));
        assert!(!is_docker_config(""));
    }

    #[test]
    fn malformed_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        for text in ["{\"auths\": 1}", "{}", "a: ["] {
            std::fs::write(&file, text).unwrap();
            let error = read(&file).unwrap_err();
            let words = format!("failed to read --pull-secrets {}: ", file.display());
            assert!(error.starts_with(&words), "{error}");
        }
    }

    #[test]
    fn docker_configuration_comes_before_that_of_the_home_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, "{\"auths\": {}}").unwrap();
        let mut config = ImageConfig::new(dir.path());
        read(&file).unwrap().apply(&mut config);
        assert_eq!(config.docker_configs.first(), Some(&file));
        assert!(config.docker_configs.len() >= 3);
    }
}
