//! Flags of `crib agent` for the cluster that it joins.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::Config;
use agent::local_node::kubelet_config::{GoDuration, KubeletConfiguration, count};
use agent::services::ServiceTable;
use clap::{ArgAction, Args, ValueEnum};
use crib_base::service_stream::{self, Outcome};
use jiff::Timestamp;
use kube_node::client::{ApiClient, Connection, Rate};
use kube_node::{Bootstrap, Certificates, NodeLimits, NodeSettings, ServiceProxy, StatusSettings};
use tokio::sync::watch;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Kubeconfig of an API server: the agent registers a node, runs the node's pods, and reports the pods' statuses [default:
    /// none; the agent runs standalone]
    #[arg(long, value_name = "FILE", conflicts_with = "objects")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Kubeconfig for TLS bootstrapping: if the --kubeconfig file is missing or has no valid client certificate, the agent
    /// requests a certificate (CertificateSigningRequest), and writes the --kubeconfig file
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory for the node's client and serving certificates [default: pki in --root-dir]
    #[arg(long, value_name = "DIR", requires = "kubeconfig")]
    pub(crate) cert_dir: Option<PathBuf>,
    /// Request a new client certificate before the client certificate in --cert-dir expires [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, requires = "kubeconfig")]
    rotate_certificates: Option<bool>,
    /// Request the serving certificate from the cluster and keep it in --cert-dir, unless --tls-cert-file is given; an
    /// administrator must approve the requests [default: serverTLSBootstrap of --config]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, requires = "kubeconfig")]
    rotate_server_certificates: Option<bool>,
    /// Serve ClusterIPs and node ports of the cluster's Services to the pods of this node, as kube-proxy does. auto: serve
    /// Services unless the node has a kube-proxy pod; off: for a node where kube-proxy runs outside of a pod [default: auto]
    #[arg(long, value_name = "MODE", value_enum, requires = "kubeconfig")]
    service_proxy: Option<ProxyMode>,
    /// Whether a cloud controller manager sets the node's addresses and makes it schedulable.
    #[arg(skip)]
    pub(crate) external_cloud: bool,
    /// Whether --node-ip is 0.0.0.0, the address of the default route.
    #[arg(skip)]
    pub(crate) node_ip_is_any: bool,
}

/// The value of --service-proxy.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProxyMode {
    Auto,
    On,
    Off,
}

impl ClusterArgs {
    /// Whether the agent serves the cluster's Services.
    pub(super) fn service_proxy(&self) -> ServiceProxy {
        match self.service_proxy {
            None | Some(ProxyMode::Auto) => ServiceProxy::Auto,
            Some(ProxyMode::On) => ServiceProxy::On,
            Some(ProxyMode::Off) => ServiceProxy::Off,
        }
    }

    /// Whether the agent joins a cluster.
    pub(super) fn joins(&self) -> bool {
        self.kubeconfig.is_some()
    }

    /// Checks the kubeconfig that is used first, before the agent starts.
    pub(super) fn check(&self) -> Result<(), String> {
        match (self.to_bootstrap(), &self.kubeconfig) {
            (Some((from, _)), _) => match Connection::load(from) {
                Ok(_) => Ok(()),
                Err(error) => Err(of_bootstrap(&error)),
            },
            (None, Some(path)) => client(path).map(drop),
            (None, None) => Ok(()),
        }
    }

    /// The kubeconfigs to read and to write, if TLS bootstrapping is needed.
    fn to_bootstrap(&self) -> Option<(&Path, &Path)> {
        let (from, to) = (self.bootstrap_kubeconfig.as_deref()?, self.kubeconfig.as_deref()?);
        (!kube_node::is_valid(to, Timestamp::now())).then_some((from, to))
    }

    /// The TLS bootstrapping of the node, if it needs a certificate.
    pub(super) fn bootstrap(&self, config: &Config) -> Option<Bootstrap> {
        let (from, kubeconfig) = self.to_bootstrap()?;
        Some(Bootstrap {
            from: from.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            directory: self.cert_dir(config),
            node: config.node_name.clone(),
        })
    }

    /// A client of the cluster's API server. During TLS bootstrapping, requests wait for the certificate.
    pub(super) fn client(
        &self,
        file: &KubeletConfiguration,
        bootstrap: Option<&Bootstrap>,
    ) -> Result<Option<ApiClient>, String> {
        let client = match bootstrap {
            Some(bootstrap) => bootstrap.client().map(Some).map_err(|error| of_bootstrap(&error)),
            None => self.kubeconfig.as_deref().map(client).transpose(),
        };
        // For requests, 0 means client-go's default; for events, 0 means no limit.
        let or_own = |field: Option<i32>, own| if field == Some(0) { Some(own) } else { field };
        let rate = rate(or_own(file.kube_api_qps, 5), or_own(file.kube_api_burst, 10));
        Ok(client?.map(|client| client.with_rate(rate)))
    }

    /// The directory of certificates.
    pub(super) fn cert_dir(&self, config: &Config) -> PathBuf {
        self.cert_dir.clone().unwrap_or_else(|| config.root_dir.join("pki"))
    }

    /// The certificates to request from the cluster. `serves`: the server has no certificate of its own.
    pub(super) fn certificates(
        &self,
        file: &KubeletConfiguration,
        config: &Config,
        serves: bool,
    ) -> Certificates {
        let names = || [&[config.node_name.clone()][..], &config.node_ips].concat();
        Certificates {
            directory: self.cert_dir(config),
            client: self.rotate_certificates.or(file.rotate_certificates).unwrap_or_default(),
            server: (serves && self.signs_server(file)).then(names),
        }
    }

    /// The file of the serving certificate, if the cluster signs it.
    pub(super) fn signed(&self, file: &KubeletConfiguration, config: &Config) -> Option<PathBuf> {
        self.signs_server(file).then(|| kube_node::server_certificate(&self.cert_dir(config)))
    }

    /// The settings for registering the node. `server_port` is the port of its server; `provided` are the addresses given by
    /// --node-ip.
    pub(super) fn node(
        &self,
        file: &KubeletConfiguration,
        config: &Config,
        provided: &[IpAddr],
        server_port: Option<u16>,
        certificates: Certificates,
    ) -> NodeSettings {
        let usual = StatusSettings::default();
        let period = |field: Option<GoDuration>, usual| field.map_or(usual, GoDuration::get);
        let status = StatusSettings {
            period: period(file.node_status_update_frequency, usual.period),
            report_period: period(file.node_status_report_frequency, usual.report_period),
            lease: count(file.node_lease_duration_seconds)
                .map_or(usual.lease, |seconds: u32| Duration::from_secs(seconds.into())),
            // -1: no limit.
            max_images: file
                .node_status_max_images
                .map_or(usual.max_images, |most| usize::try_from(most).unwrap_or(usize::MAX)),
        };
        NodeSettings {
            name: config.node_name.clone(),
            labels: config.admission.node_labels.clone().unwrap_or_default(),
            taints: config.admission.taints.clone(),
            addresses: config.node_ips.clone(),
            server_port,
            certificates,
            provider_id: file.provider_id.clone(),
            external_cloud: self.external_cloud,
            // pkg/kubelet/nodestatus/setters.go NodeAddress.
            awaits_addresses: self.external_cloud && provided.is_empty() && !self.node_ip_is_any,
            registers: file.register_node.unwrap_or(true),
            status,
            provided_addresses: provided.iter().map(IpAddr::to_string).collect(),
            event_rate: Some(rate(file.event_record_qps, file.event_burst)),
            gates: file.gates(),
            resync_period: config.resync_period,
        }
    }

    /// Applies the flags to the displayed configuration.
    pub(super) fn fill_configz(&self, file: &mut KubeletConfiguration) {
        file.rotate_certificates = self.rotate_certificates.or(file.rotate_certificates);
        file.server_tls_bootstrap = Some(self.signs_server(file));
    }

    fn signs_server(&self, file: &KubeletConfiguration) -> bool {
        self.rotate_server_certificates.or(file.server_tls_bootstrap).unwrap_or_default()
    }
}

/// The request rate from two fields. Source: Kubernetes 1.36, pkg/kubelet/apis/config/v1beta1/defaults.go.
fn rate(per_second: Option<i32>, burst: Option<i32>) -> Rate {
    Rate { per_second: count(per_second).unwrap_or(50), burst: count(burst).unwrap_or(100) }
}

fn client(path: &Path) -> Result<ApiClient, String> {
    let connection = Connection::load(path).map_err(|error| in_words("--kubeconfig", &error))?;
    ApiClient::new(connection).map_err(|error| in_words("--kubeconfig", &error))
}

/// An error of TLS bootstrapping, with its causes.
fn of_bootstrap(error: &dyn Error) -> String {
    in_words("--bootstrap-kubeconfig", error)
}

fn in_words(flag: &str, error: &dyn Error) -> String {
    let mut text = format!("{flag}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Makes the runtime at `socket` serve the tables. Sets a node condition while it does not serve them.
pub(crate) async fn serve_services(
    socket: PathBuf,
    tables: watch::Receiver<ServiceTable>,
    proxy: ServiceProxy,
    limits: NodeLimits,
) {
    /// The reason of the node condition.
    const REASON: &str = "ServicesNotServed";
    let mut is_logged = false;
    let report = |outcome| {
        let message = match outcome {
            Outcome::Served => None,
            // kube-proxy may serve them.
            Outcome::Unsupported if proxy == ServiceProxy::Auto => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::info!(
                        "the runtime does not serve Services: pods reach ClusterIPs only through kube-proxy"
                    );
                }
                None
            }
            Outcome::Unsupported => Some(
                "ClusterIPs are not served: this runtime does not serve Services; run kube-proxy and set --service-proxy=off"
                    .to_owned(),
            ),
            Outcome::Failed(why) => Some(format!("ClusterIPs are not served by the runtime: {why}")),
        };
        limits.set(REASON, message);
    };
    service_stream::serve(socket, tables, report).await;
}
