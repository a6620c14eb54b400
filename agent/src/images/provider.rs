//! Credential providers: programs that return credentials for images, as configured for a kubelet.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::pod::Pod;
use compact::Map;
use file_tree::named_text::{self, MOST};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::docker_config::DockerConfig;
use super::keyring::{self, Credential, CredentialSource, Keyring, hex};
use super::lock;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::program::{self, ProgramError};
use crate::reporting::measures::Measures;

mod accounts;
mod config;
mod response;

use accounts::{AccountKey, PodAccount, ServiceAccounts};
pub use config::{ProviderConfig, ProviderConfigError, TOKEN_GATE, TokenAttributes};
use response::{ProviderResponse, ResponseCache, ResponseError};

/// The time limit of a provider.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Validated providers and the directory of their programs. [`CredentialProviders::default`] has none.
#[derive(Clone, Debug, Default)]
pub struct CredentialProviders {
    configs: Vec<ProviderConfig>,
    bin_dir: PathBuf,
    /// The hash of the configuration, for a metric; `None` without one.
    hash: Option<String>,
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
    /// Reads the configuration in a file, or in the `*.json`, `*.yaml` and `*.yml` files of a directory by name, and checks that
    /// the programs exist. `tokens`: whether providers may get tokens of service accounts ([`TOKEN_GATE`]).
    ///
    /// # Errors
    /// If the configuration is missing or invalid, or a program is missing.
    pub fn read(config: &Path, bin_dir: &Path, tokens: bool) -> Result<Self, ProvidersError> {
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
            let text = named_text::read_text_nonblocking(&file, MOST);
            texts.push(text.map_err(|error| failed(&file, error))?);
        }
        let configs = config::parse(texts.iter().map(String::as_str), tokens)?;
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
        Ok(Self { configs, bin_dir: bin_dir.to_owned(), hash: Some(hash(&texts)) })
    }
}

/// The hash of the texts of a configuration, each after its length (readCredentialProviderConfig).
fn hash(texts: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    }
    format!("sha256:{}", hex(&hash.finalize()))
}

/// Runs providers and caches their responses.
pub(crate) struct ProviderRunner {
    providers: Vec<Provider>,
    clock: Arc<dyn Clock>,
    accounts: ServiceAccounts,
}

/// One provider.
struct Provider {
    config: ProviderConfig,
    program: PathBuf,
    cache: Mutex<ResponseCache>,
    measures: Measures,
    /// Concurrent pulls share a run if they have the same request.
    runs: Mutex<Map<RequestKey, Arc<Run>>>,
}

/// The key by which concurrent requests share a run: the image and, if the provider gets a token, the account with the token.
type RequestKey = (String, Option<AccountKey>);

/// The pods that a provider is run for.
enum RunFor {
    /// No pod: the provider is not run.
    Nobody,
    /// All pods alike.
    All,
    /// The pods of this service account.
    Account(PodAccount),
}

/// A provider's response for an image.
#[derive(Default)]
struct Found {
    logins: DockerConfig,
    /// The owner of the logins; `None`: every pod may use them.
    source: Option<CredentialSource>,
}

type Run = OnceCell<Result<ProviderResponse, Arc<ProviderError>>>;

#[derive(Debug, thiserror::Error)]
enum ProviderError {
    #[error("failed to run")]
    Spawn(#[source] io::Error),
    #[error(transparent)]
    Program(ProgramError),
    #[error("timed out after {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("exited with {status}: {stderr}")]
    Failed { status: String, stderr: String },
    #[error(transparent)]
    Response(ResponseError),
    #[error("service account tokens need an API server")]
    NoServiceAccounts,
    #[error("failed to get service account: {0}")]
    Account(String),
    #[error("failed to get service account token: {0}")]
    Token(String),
    #[error("the response returns the token as a password, which needs cacheType: Token")]
    ReturnedToken,
}

impl ProviderRunner {
    /// Creates a runner of these providers, which records their runs. The `cluster` may issue tokens for them.
    pub(crate) fn new(
        providers: CredentialProviders,
        clock: Arc<dyn Clock>,
        measures: &Measures,
        cluster: Arc<dyn Cluster>,
    ) -> Self {
        let CredentialProviders { configs, bin_dir, hash } = providers;
        measures.set_provider_config(hash);
        let provider = |config: ProviderConfig| Provider {
            program: bin_dir.join(&config.name),
            config,
            cache: Mutex::default(),
            measures: measures.clone(),
            runs: Mutex::default(),
        };
        let providers = configs.into_iter().map(provider).collect();
        Self { providers, clock, accounts: ServiceAccounts::new(cluster) }
    }

    /// The credentials of all providers for a repository. A provider that fails contributes none.
    pub(crate) async fn lookup(&self, repository: &str, pod: &Pod) -> Vec<Credential> {
        let mut keyring = Keyring::default();
        for provider in &self.providers {
            match provider.logins(repository, pod, &self.accounts, &*self.clock).await {
                Ok(found) => keyring.add(found.source.as_ref(), &found.logins),
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
        accounts: &ServiceAccounts,
        clock: &dyn Clock,
    ) -> Result<Found, Arc<ProviderError>> {
        let matches = |pattern: &String| keyring::matches(pattern, image);
        if !self.config.match_images.iter().any(matches) {
            return Ok(Found::default());
        }
        let account = match self.run_for(pod, accounts, clock).await.map_err(Arc::new)? {
            RunFor::Nobody => return Ok(Found::default()),
            RunFor::All => None,
            RunFor::Account(account) => Some(account),
        };
        let attributes = self.config.token_attributes.as_ref();
        let keeps_by_token = attributes.is_some_and(|attributes| attributes.keeps_by_token);
        let key = account.as_ref().map(|account| account.key(keeps_by_token));
        let identity = account.as_ref().map(|account| account.identity.clone());
        let source = identity.map(CredentialSource::ServiceAccount);
        if let Some(logins) = lock(&self.cache).get(image, key.as_ref(), clock.now()) {
            return Ok(Found { logins: logins.clone(), source });
        }
        let request: RequestKey =
            (image.to_owned(), account.as_ref().map(|account| account.key(true)));
        let run = Arc::clone(lock(&self.runs).entry(request.clone()).or_default());
        let account = account.as_ref();
        let response =
            run.get_or_init(async || self.run(image, account).await.map_err(Arc::new)).await;
        {
            // The next pull begins a new run.
            let mut runs = lock(&self.runs);
            if runs.get(&request).is_some_and(|known| Arc::ptr_eq(known, &run)) {
                runs.remove(&request);
            }
        }
        let response = response.as_ref().map_err(Arc::clone)?;
        let token = account.map(|account| &account.token).filter(|_| !keeps_by_token);
        if token.is_some_and(|token| response.logins.values().any(|it| it.password == *token)) {
            return Err(Arc::new(ProviderError::ReturnedToken));
        }
        let default = self.config.default_cache_duration;
        lock(&self.cache).insert(image, key, response, default, clock.now());
        Ok(Found { logins: response.logins.clone(), source })
    }

    /// Decides for which account, if any, the provider is run for this pod.
    async fn run_for(
        &self,
        pod: &Pod,
        accounts: &ServiceAccounts,
        clock: &dyn Clock,
    ) -> Result<RunFor, ProviderError> {
        let Some(attributes) = &self.config.token_attributes else {
            return Ok(RunFor::All);
        };
        match pod.spec().service_account_name.as_deref().unwrap_or_default() {
            "" if attributes.requires_account => Ok(RunFor::Nobody),
            "" => Ok(RunFor::All),
            name => {
                let account = accounts.get(pod, name, attributes, clock.now()).await?;
                Ok(account.map_or(RunFor::Nobody, RunFor::Account))
            }
        }
    }

    async fn run(
        &self,
        image: &str,
        account: Option<&PodAccount>,
    ) -> Result<ProviderResponse, ProviderError> {
        let mut command = Command::new(&self.program);
        command.args(&self.config.args).envs(self.config.env.iter().cloned());
        let request = response::request(&self.config.api_version, image, account);
        let began = Instant::now();
        let output = tokio::time::timeout(TIMEOUT, program::output(command, &request)).await;
        let succeeded = matches!(&output, Ok(Ok(output)) if output.status.success());
        self.measures.record_provider_run(&self.config.name, !succeeded, began.elapsed());
        let output = output.map_err(|_| ProviderError::Timeout)?.map_err(|error| match error {
            ProgramError::Io(error) => ProviderError::Spawn(error),
            ProgramError::Printed => ProviderError::Program(error),
        })?;
        if !output.status.success() {
            return Err(ProviderError::Failed {
                status: output.status.to_string(),
                stderr: program::excerpt(&output.stderr),
            });
        }
        response::parse(&output.stdout, &self.config.api_version).map_err(ProviderError::Response)
    }
}

#[cfg(test)]
mod tests;
