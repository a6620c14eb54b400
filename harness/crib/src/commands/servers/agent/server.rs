//! Flags of `crib agent` for the node's HTTPS server, which the API server and its clients use.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::Config;
use agent::local_node::kubelet_config::{GoDuration, KubeletConfiguration, count};
use clap::{ArgAction, Args, ValueEnum};
use kubelet_server::{Authorization, Handlers, KeyPairFiles, Server, ServerError, Settings};

/// The default port of a kubelet's server.
const PORT: u16 = 10250;
/// The default lifetimes of cached responses: token reviews, allowed and denied access reviews (Kubernetes 1.36,
/// pkg/kubelet/apis/config/v1beta1/defaults.go).
const TOKENS: Duration = Duration::from_secs(120);
const ALLOWED: Duration = Duration::from_secs(300);
const REFUSED: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Node server, with --kubeconfig")]
pub(crate) struct ServerArgs {
    /// Port of the HTTPS server for logs, exec, attach and port-forward; 0: disabled [default: 10250, or a free port if 10250 is
    /// in use]
    #[arg(long, value_name = "PORT", requires = "kubeconfig")]
    port: Option<u16>,
    /// Address that the HTTPS server listens on [default: 0.0.0.0]
    #[arg(long, value_name = "IP", requires = "kubeconfig")]
    address: Option<IpAddr>,
    /// Certificate of the HTTPS server in PEM [default: a certificate in --cert-dir, generated once for the node's name and
    /// addresses]
    #[arg(long, value_name = "FILE", requires_all = ["kubeconfig", "tls_private_key_file"])]
    tls_cert_file: Option<PathBuf>,
    /// Private key of --tls-cert-file in PEM
    #[arg(long, value_name = "FILE", requires_all = ["kubeconfig", "tls_cert_file"])]
    tls_private_key_file: Option<PathBuf>,
    /// PEM file of CA certificates that verify client certificates; a client certificate's common name is the user, and its
    /// organizations are the groups [default: none; client certificates are not accepted]
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    client_ca_file: Option<PathBuf>,
    /// Accept requests without credentials, as user system:anonymous [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, requires = "kubeconfig")]
    anonymous_auth: Option<bool>,
    /// Authenticate bearer tokens of clients with the API server's TokenReview [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, requires = "kubeconfig")]
    authentication_token_webhook: Option<bool>,
    /// How requests are authorized: Webhook (the API server's SubjectAccessReview) or AlwaysAllow [default: Webhook]
    #[arg(long, value_name = "MODE", ignore_case = false, requires = "kubeconfig")]
    authorization_mode: Option<AuthorizationMode>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum AuthorizationMode {
    AlwaysAllow,
    Webhook,
}

impl ServerArgs {
    /// Whether no certificate is given, so that the server generates or requests one.
    pub(super) fn generates_certificate(&self, file: &KubeletConfiguration) -> bool {
        self.tls_cert_file.is_none() && path(file.tls_cert_file.as_ref()).is_none()
    }

    /// Binds the server of the flags, or else of the file; `None` if it is disabled. `joins`: the agent joins a cluster. `signed`
    /// is the certificate that the cluster signs; once it exists, it replaces the certificate that the agent generates in `pki`.
    pub(super) async fn bind(
        &self,
        file: &KubeletConfiguration,
        joins: bool,
        config: &Config,
        pki: &Path,
        signed: Option<PathBuf>,
    ) -> Result<Option<(Server, u16)>, String> {
        let named = self.port.or(count(file.port));
        let port = named.unwrap_or(PORT);
        if port == 0 || file.enable_server == Some(false) {
            return Ok(None);
        }
        let (token_reviews, authorization) = (self.token_reviews(file), self.authorization(file)?);
        if !joins && (token_reviews.is_some() || authorization != Authorization::AlwaysAllow) {
            warn_without_cluster(file);
            return Ok(None);
        }
        let address = SocketAddr::new(self.ip(file)?, port);
        let settings = Settings {
            address,
            // The default port may be replaced, because several nodes may share a machine.
            any_port: named.is_none(),
            certificate: self.certificate(file, config, pki)?,
            reloads_certificate: file.gates().enabled("ReloadKubeletServerCertificateFile"),
            signed: signed.filter(|_| self.generates_certificate(file)),
            client_authority: self.client_authority(file),
            reloads_client_authority: file.gates().enabled("ReloadKubeletClientCAFile"),
            reads_user_ids: file.gates().enabled("AllowParsingUserUIDFromCertAuth"),
            anonymous: self.anonymous(file),
            token_reviews,
            authorization,
            cipher_suites: file.tls_cipher_suites.clone().unwrap_or_default(),
            requires_tls_1_3: file.tls_min_version.as_deref() == Some("VersionTLS13"),
            handlers: handlers(file, config),
        };
        let server = Server::bind(settings).await.map_err(|error| {
            let problem = in_words(&error);
            match error {
                ServerError::Tls(_) => problem,
                ServerError::Bind { .. } => {
                    format!("{problem}: set another --port or --address, or --port 0 to disable the server")
                }
            }
        })?;
        let (taken, address) = (port, server.address());
        if address.port() != taken {
            tracing::warn!(%address, taken, "node server port is in use; using another port");
        }
        tracing::info!(%address, "node server is listening");
        Ok(Some((server, address.port())))
    }

    fn ip(&self, file: &KubeletConfiguration) -> Result<IpAddr, String> {
        let in_file = file.address.as_deref().filter(|text| !text.is_empty());
        match (self.address, in_file) {
            (Some(address), _) => Ok(address),
            (None, Some(text)) => text
                .parse()
                .map_err(|_| format!("--config: address: {text:?} is not an IP address")),
            (None, None) => Ok(Ipv4Addr::UNSPECIFIED.into()),
        }
    }

    fn certificate(
        &self,
        file: &KubeletConfiguration,
        config: &Config,
        pki: &Path,
    ) -> Result<KeyPairFiles, String> {
        let of_flags = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone());
        let in_file = (path(file.tls_cert_file.as_ref()), path(file.tls_private_key_file.as_ref()));
        match (of_flags, in_file) {
            (Some((certificate, key)), _) | (None, (Some(certificate), Some(key))) => {
                Ok(KeyPairFiles { certificate, key })
            }
            (None, (None, None)) => {
                let names = [&[config.node_name.clone()][..], &config.node_ips].concat();
                KeyPairFiles::own(pki, &names).map_err(|error| in_words(&error))
            }
            (None, _) => {
                Err("--config: tlsCertFile and tlsPrivateKeyFile must be set together".to_owned())
            }
        }
    }

    fn client_authority(&self, file: &KubeletConfiguration) -> Option<PathBuf> {
        let x509 = file.authentication.as_ref().and_then(|all| all.x509.as_ref());
        let in_file = path(x509.and_then(|x509| x509.client_ca_file.as_ref()));
        self.client_ca_file.clone().or(in_file)
    }

    fn anonymous(&self, file: &KubeletConfiguration) -> bool {
        let anonymous = file.authentication.as_ref().and_then(|all| all.anonymous.as_ref());
        let in_file = anonymous.and_then(|anonymous| anonymous.enabled);
        self.anonymous_auth.or(in_file).unwrap_or_default()
    }

    fn token_reviews(&self, file: &KubeletConfiguration) -> Option<Duration> {
        let webhook = file.authentication.as_ref().and_then(|all| all.webhook.as_ref());
        let in_file = webhook.and_then(|webhook| webhook.enabled);
        let keep = webhook.and_then(|webhook| webhook.cache_ttl).map(GoDuration::get);
        let is_on = self.authentication_token_webhook.or(in_file).unwrap_or(true);
        is_on.then(|| given(keep).unwrap_or(TOKENS))
    }

    fn authorization(&self, file: &KubeletConfiguration) -> Result<Authorization, String> {
        let in_file = file.authorization.as_ref();
        let mode = in_file.and_then(|authorization| authorization.mode.as_deref());
        let mode = mode.filter(|mode| !mode.is_empty()).map(|mode| {
            AuthorizationMode::from_str(mode, false).map_err(|_| {
                format!("--config: authorization.mode: {mode:?} is neither Webhook nor AlwaysAllow")
            })
        });
        let mode = match self.authorization_mode {
            Some(mode) => mode,
            None => mode.transpose()?.unwrap_or(AuthorizationMode::Webhook),
        };
        let webhook = in_file.and_then(|authorization| authorization.webhook.as_ref());
        let allowed = webhook.and_then(|webhook| webhook.cache_authorized_ttl).map(GoDuration::get);
        let refused =
            webhook.and_then(|webhook| webhook.cache_unauthorized_ttl).map(GoDuration::get);
        Ok(match mode {
            AuthorizationMode::AlwaysAllow => Authorization::AlwaysAllow,
            AuthorizationMode::Webhook => Authorization::Webhook {
                allowed_ttl: given(allowed).unwrap_or(ALLOWED),
                denied_ttl: given(refused).unwrap_or(REFUSED),
            },
        })
    }
}

/// Warns that requests cannot be authenticated without a cluster, if the file configures the server.
fn warn_without_cluster(file: &KubeletConfiguration) {
    let is_configured =
        file.enable_server == Some(true) || file.port.is_some() || file.address.is_some();
    let has_certificate = file.tls_cert_file.is_some() || file.tls_private_key_file.is_some();
    if is_configured
        || has_certificate
        || file.authentication.is_some()
        || file.authorization.is_some()
    {
        tracing::warn!(
            "the node server needs --kubeconfig, because the API server authenticates and authorizes its clients: without --kubeconfig, set authorization.mode AlwaysAllow and authentication.webhook.enabled false"
        );
    }
}

/// The debugging handlers of the server.
fn handlers(file: &KubeletConfiguration, config: &Config) -> Handlers {
    let (all, gates) = (Handlers::default(), file.gates());
    let serves_logs = file.enable_system_log_handler.unwrap_or(true);
    Handlers {
        debugging: file.enable_debugging_handlers.unwrap_or(all.debugging),
        system_logs: all.system_logs.filter(|_| serves_logs),
        checkpoints: gates.enabled("ContainerCheckpoint"),
        flagz: gates.enabled("ComponentFlagz"),
        statusz: gates.enabled("ComponentStatusz"),
        log_streams: config.selects_log_streams,
        translates_websockets: gates.enabled("ExtendWebSocketsToKubelet"),
    }
}

/// As in a kubelet's configuration file, 0 means not set.
fn given(duration: Option<Duration>) -> Option<Duration> {
    duration.filter(|duration| !duration.is_zero())
}

fn path(text: Option<&String>) -> Option<PathBuf> {
    text.filter(|text| !text.is_empty()).map(|text| Path::new(text).to_owned())
}

fn in_words(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
