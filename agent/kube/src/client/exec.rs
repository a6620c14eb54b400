//! Credential plugins: programs that a kubeconfig names, which print a token or a certificate.
//!
//! A plugin runs before the first request, after its credential has expired, and after the server has rejected the credential.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::program::{excerpt, output};
use jiff::Timestamp;
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::ApiError;
use super::exec_credential::{Credential, exec_info, parse};

/// The time limit of a plugin.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A plugin, and its last credential.
#[derive(Debug)]
pub(crate) struct ExecPlugin {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// The API version of `client.authentication.k8s.io`.
    pub(crate) version: String,
    /// The cluster to describe to the plugin, if the kubeconfig requests that.
    pub(crate) cluster: Option<Value>,
    /// How to install the plugin.
    pub(crate) install_hint: String,
    /// Locked while the plugin runs, so that concurrent requests share one run.
    pub(crate) last: Mutex<Option<Arc<Credential>>>,
}

impl ExecPlugin {
    /// Returns a valid credential.
    pub(crate) async fn credential(&self) -> Result<Arc<Credential>, ApiError> {
        let mut last = self.last.lock().await;
        if let Some(known) = last.as_ref().filter(|known| known.is_valid(Timestamp::now())) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(self.run().await?);
        *last = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Returns a credential other than the one that the server rejected.
    pub(crate) async fn replacement_for(
        &self,
        rejected: &Arc<Credential>,
    ) -> Result<Arc<Credential>, ApiError> {
        let mut last = self.last.lock().await;
        if let Some(known) = last.as_ref().filter(|known| !Arc::ptr_eq(known, rejected)) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(self.run().await?);
        *last = Some(Arc::clone(&new));
        Ok(new)
    }

    async fn run(&self) -> Result<Credential, ApiError> {
        let problem = |problem: String| ApiError::Plugin {
            program: self.program.display().to_string(),
            problem,
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", exec_info(&self.version, self.cluster.as_ref()));
        let output = match timeout(PLUGIN_TIMEOUT, output(command, &[])).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                let hint = match self.install_hint.trim() {
                    "" => String::new(),
                    hint => format!(": {hint}"),
                };
                return Err(problem(format!("{error}{hint}")));
            }
            Err(_) => return Err(problem(format!("timed out after {PLUGIN_TIMEOUT:?}"))),
        };
        if !output.status.success() {
            return Err(problem(format!("{}: {}", output.status, excerpt(&output.stderr))));
        }
        parse(&output.stdout, &self.version).map_err(problem)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn plugin(script: &str) -> ExecPlugin {
        ExecPlugin {
            program: "sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            environment: Vec::new(),
            version: "client.authentication.k8s.io/v1".to_owned(),
            cluster: None,
            install_hint: String::new(),
            last: Mutex::default(),
        }
    }

    #[tokio::test]
    async fn plugin_that_prints_without_end_is_killed() {
        for script in ["exec cat /dev/zero", "exec cat /dev/zero >&2"] {
            let error = plugin(script).credential().await.unwrap_err().to_string();
            let expected = "failed to get a credential from plugin sh: output exceeds 16 MiB";
            assert_eq!(error, expected);
        }
    }

    #[tokio::test]
    async fn plugin_that_fails_is_quoted() {
        let error = plugin("echo no login >&2; exit 3").credential().await.unwrap_err();
        let expected = "failed to get a credential from plugin sh: exit status: 3: no login";
        assert_eq!(error.to_string(), expected);
    }
}
