//! Credential providers: programs that return credentials for images, as configured for a kubelet.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::pod::Pod;
use compact::Map;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::docker_config::DockerConfig;
use super::keyring::{self, Credential, Keyring};
use crate::clock::Clock;

mod config;
mod response;

pub use config::{ProviderConfig, ProviderConfigError};
use response::{ProviderResponse, ResponseCache, ResponseError};

/// How long a provider may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Validated providers and the directory of their programs. [`CredentialProviders::default`] has none.
#[derive(Clone, Debug, Default)]
pub struct CredentialProviders {
    configs: Vec<ProviderConfig>,
    bin_dir: PathBuf,
}

/// Why credential providers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProvidersError {
    /// The configuration cannot be read.
    #[error("failed to read credential provider config {path}")]
    Read {
        /// The file or directory.
        path: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A directory has no configuration.
    #[error("no *.json, *.yaml or *.yml file in {0}")]
    NoFile(String),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ProviderConfigError),
    /// A program is missing.
    #[error("credential provider {0} is not an executable file")]
    NoProgram(String),
}

impl CredentialProviders {
    /// Reads the configuration in a file, or in the `*.json`, `*.yaml` and `*.yml` files of a directory by name, and checks
    /// that the programs exist.
    ///
    /// # Errors
    /// Fails if the configuration is missing or invalid, or a program is missing.
    pub fn read(config: &Path, bin_dir: &Path) -> Result<Self, ProvidersError> {
        let failed =
            |path: &Path, source| ProvidersError::Read { path: path.display().to_string(), source };
        let mut files = vec![config.to_owned()];
        if config.is_dir() {
            let entries = std::fs::read_dir(config).map_err(|error| failed(config, error))?;
            files = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| {
                    let extension = path.extension().and_then(|extension| extension.to_str());
                    path.is_file() && matches!(extension, Some("json" | "yaml" | "yml"))
                })
                .collect();
            files.sort();
            if files.is_empty() {
                return Err(ProvidersError::NoFile(config.display().to_string()));
            }
        }
        let mut texts = Vec::new();
        for file in files {
            texts.push(std::fs::read_to_string(&file).map_err(|error| failed(&file, error))?);
        }
        let configs = config::parse(texts.iter().map(String::as_str))?;
        for config in &configs {
            let program = bin_dir.join(&config.name);
            let executable = std::fs::metadata(&program).is_ok_and(|metadata| {
                let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
                metadata.is_file() && mode & 0o111 != 0
            });
            if !executable {
                return Err(ProvidersError::NoProgram(program.display().to_string()));
            }
        }
        Ok(Self { configs, bin_dir: bin_dir.to_owned() })
    }
}

/// Runs providers and keeps their responses.
pub(crate) struct ProviderRunner {
    providers: Vec<Provider>,
    clock: Arc<dyn Clock>,
}

/// One provider.
struct Provider {
    config: ProviderConfig,
    program: PathBuf,
    cache: Mutex<ResponseCache>,
    /// Runs by image, so that concurrent pulls of one image share a run.
    runs: Mutex<Map<String, Arc<Run>>>,
}

type Run = OnceCell<Result<ProviderResponse, Arc<ProviderError>>>;

#[derive(Debug, thiserror::Error)]
enum ProviderError {
    #[error("failed to run")]
    Spawn(#[source] io::Error),
    #[error("it did not end within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("it failed with {status}: {stderr}")]
    Failed { status: String, stderr: String },
    #[error(transparent)]
    Response(ResponseError),
    #[error("the pod has a service account, and tokens of service accounts need an API server")]
    NoServiceAccounts,
}

impl ProviderRunner {
    pub(crate) fn new(providers: CredentialProviders, clock: Arc<dyn Clock>) -> Self {
        let CredentialProviders { configs, bin_dir } = providers;
        let provider = |config: ProviderConfig| Provider {
            program: bin_dir.join(&config.name),
            config,
            cache: Mutex::default(),
            runs: Mutex::default(),
        };
        Self { providers: configs.into_iter().map(provider).collect(), clock }
    }

    /// The credentials that all providers together have for a repository. A provider that fails has none.
    pub(crate) async fn lookup(&self, repository: &str, pod: &Pod) -> Vec<Credential> {
        let mut keyring = Keyring::default();
        for provider in &self.providers {
            match provider.logins(repository, pod, &*self.clock).await {
                Ok(logins) => keyring.add(None, &logins),
                Err(error) => {
                    let error: &dyn std::error::Error = &*error;
                    tracing::error!(
                        provider = provider.config.name,
                        image = repository,
                        error,
                        "credential provider failed"
                    );
                }
            }
        }
        keyring.lookup(repository)
    }
}

impl Provider {
    async fn logins(
        &self,
        image: &str,
        pod: &Pod,
        clock: &dyn Clock,
    ) -> Result<DockerConfig, Arc<ProviderError>> {
        let matches = |pattern: &String| keyring::matches(pattern, image);
        if !self.config.match_images.iter().any(matches) {
            return Ok(DockerConfig::new());
        }
        let account = pod.spec().service_account_name.as_deref();
        match (self.config.requires_service_account, account.unwrap_or_default()) {
            (None, _) | (Some(false), "") => {}
            (Some(true), "") => return Ok(DockerConfig::new()),
            (Some(_), _) => return Err(Arc::new(ProviderError::NoServiceAccounts)),
        }
        if let Some(logins) = lock(&self.cache).get(image, clock.now()) {
            return Ok(logins.clone());
        }
        let run = Arc::clone(lock(&self.runs).entry(image.to_owned()).or_default());
        let response = run.get_or_init(async || self.run(image).await.map_err(Arc::new)).await;
        {
            // The next pull begins a new run.
            let mut runs = lock(&self.runs);
            if runs.get(image).is_some_and(|known| Arc::ptr_eq(known, &run)) {
                runs.remove(image);
            }
        }
        let response = response.as_ref().map_err(Arc::clone)?;
        let default = self.config.default_cache_duration;
        lock(&self.cache).insert(image, response, default, clock.now());
        Ok(response.logins.clone())
    }

    async fn run(&self, image: &str) -> Result<ProviderResponse, ProviderError> {
        let mut child = Command::new(&self.program)
            .args(&self.config.args)
            .envs(self.config.env.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(ProviderError::Spawn)?;
        let request = response::request(&self.config.api_version, image);
        let stdin = child.stdin.take();
        let write = async move {
            if let Some(mut stdin) = stdin {
                // A program that does not read its input may still have an answer.
                let _ = stdin.write_all(&request).await;
            }
        };
        let ended = async { tokio::join!(child.wait_with_output(), write).0 };
        let output = tokio::time::timeout(TIMEOUT, ended)
            .await
            .map_err(|_| ProviderError::Timeout)?
            .map_err(ProviderError::Spawn)?;
        if !output.status.success() {
            return Err(ProviderError::Failed {
                status: output.status.to_string(),
                stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        response::parse(&output.stdout, &self.config.api_version).map_err(ProviderError::Response)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
