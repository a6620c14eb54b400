//! The read-only part of the server: health, pods, statistics and metrics. The read-only port serves it without authentication.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go InstallAuthNotRequiredHandlers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::AgentView;
use agent::cri::{Code, Cri, CriError, LastLists};
use agent::local_node::kubelet_config::{GateState, Gates};
use agent::storage::drivers::VolumeDrivers;
use api::manifest::pod_json;
use http::{Method, Response, StatusCode, Uri};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_node::ClusterView;
use tokio::sync::{Mutex, watch};

use super::metrics::cadvisor::{self, MachineSize, RuntimeMetrics};
use super::metrics::http::{HttpCounts, ServerType};
use super::metrics::kubelet::{self, KubeletInputs};
use super::metrics::process::{self, Files, Process};
use super::metrics::resource;
use super::metrics::slis::Slis;
use super::metrics::starts::PodStarts;
use super::metrics::text::{MEDIA_TYPE, Metrics};
use super::metrics::work;
use super::metrics::{claims, counts, resizes};
use super::query::Query;
use super::response::{self, Body, ErrorResponse};
use super::route::{self, NoRoute, Page};
use super::stats::{self, DriverVolumes, Locations, ProcMachine, Statistics, Summarizer};
use super::{configz, health};

/// Health, pods, statistics and metrics of a node.
pub struct NodeApi {
    pub(crate) view: AgentView,
    pub(crate) cri: Arc<dyn Cri>,
    /// The node's cluster, if it is in one.
    cluster: Option<ClusterView>,
    /// The sockets of plugins, and whether each is registered.
    plugins: Option<watch::Receiver<Vec<(PathBuf, bool)>>>,
    statistics: Statistics,
    /// The feature gates that the agent uses.
    gates: Vec<GateState>,
    starts: PodStarts,
    slis: Slis,
    /// Requests to all servers of the node.
    pub(crate) http: HttpCounts,
    /// Serializes measurements, so that many concurrent clients load the runtime no more than one.
    scrape_lock: Mutex<()>,
}

impl NodeApi {
    /// Serves the data of an agent with this configuration, these feature gates and its runtime.
    #[must_use]
    pub fn new(config: &agent::Config, gates: &Gates, view: AgentView, cri: Arc<dyn Cri>) -> Self {
        let locations = Locations {
            node: config.node_name.clone(),
            root_dir: config.root_dir.clone(),
            logs: config.pod_logs_dir.clone(),
            pods_cgroup: view.pods_cgroup().map(PathBuf::from),
        };
        let summarizer = Summarizer::new(Arc::new(ProcMachine::new()), locations);
        let statistics = Statistics::new(Arc::clone(&cri), summarizer);
        Self {
            view,
            cri,
            cluster: None,
            plugins: None,
            statistics,
            gates: configz::feature_gates(config, gates),
            starts: PodStarts::default(),
            slis: Slis::default(),
            http: HttpCounts::default(),
            scrape_lock: Mutex::default(),
        }
    }

    /// Adds the cluster of the node.
    #[must_use]
    pub fn with_cluster(self, cluster: Option<ClusterView>) -> Self {
        Self { cluster, ..self }
    }

    /// Adds the sockets of plugins, with whether the plugin of each is registered.
    #[must_use]
    pub fn with_plugins(self, plugins: watch::Receiver<Vec<(PathBuf, bool)>>) -> Self {
        Self { plugins: Some(plugins), ..self }
    }

    /// Adds CSI drivers, which measure their volumes. The conditions of volumes are included if `shows_health`.
    #[must_use]
    pub fn with_drivers(
        mut self,
        drivers: Option<Arc<dyn VolumeDrivers>>,
        shows_health: bool,
    ) -> Self {
        if let Some(drivers) = drivers {
            let view = self.view.clone();
            self.statistics.set_drivers(DriverVolumes { drivers, view, shows_health });
        }
        self
    }

    /// Whether a uid in a URL is the pod's, or that of its mirror pod.
    pub(crate) fn matches_uid(&self, uid: &str, pod: &str) -> bool {
        let static_pod = self.cluster.as_ref().and_then(|cluster| cluster.static_pod_uid(uid));
        uid == pod || static_pod.is_some_and(|static_pod| static_pod.as_str() == pod)
    }

    /// The node's name.
    pub(crate) fn node(&self) -> &str {
        &self.statistics.summarizer.locations.node
    }

    /// The agent's directory.
    pub(crate) fn root_dir(&self) -> &Path {
        &self.statistics.summarizer.locations.root_dir
    }

    /// Measures the starts of pods. Never returns.
    pub async fn measure_starts(&self) {
        self.starts.follow(&self.view).await;
    }

    /// Answers a request on a port without authentication. With `health_alone` only the health endpoints exist.
    pub async fn answer(&self, method: &Method, uri: &Uri, health_alone: bool) -> Response<Body> {
        // Like the kubelet, it does not count requests to the health port.
        let is_counted = !health_alone;
        let path = route::decoded(uri.path()).unwrap_or_default();
        let in_flight = is_counted.then(|| self.http.begin(method, &path, ServerType::ReadOnly));
        let result = self.respond(method, uri, health_alone).await;
        let response = result.unwrap_or_else(ErrorResponse::into_response);
        response.map(|body| response::body_with_guard(body, in_flight))
    }

    async fn respond(
        &self,
        method: &Method,
        uri: &Uri,
        health_alone: bool,
    ) -> Result<Response<Body>, ErrorResponse> {
        let path = route::decoded(uri.path())
            .ok_or_else(|| ErrorResponse::bad_request("the path is not UTF-8"))?;
        // Go's servers answer HEAD like GET, without the body.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let page = route::page(method, &path).map_err(no_route)?;
        let is_health = matches!(page, Page::Health | Page::HealthCheck(_));
        if health_alone && !is_health {
            return Err(no_route(NoRoute::NotFound));
        }
        self.page(page, &Query::parse(uri.query().unwrap_or_default())).await
    }

    /// Serves a page.
    pub(crate) async fn page(
        &self,
        page: Page,
        query: &Query,
    ) -> Result<Response<Body>, ErrorResponse> {
        let health = |checked: Result<String, String>| {
            checked.map(response::text).map_err(ErrorResponse::internal)
        };
        let _scrape_guard = match page {
            Page::Summary | Page::Metrics | Page::Cadvisor | Page::Resource => {
                Some(self.scrape_lock.lock().await)
            }
            Page::Health
            | Page::HealthCheck(_)
            | Page::Pods
            | Page::Probes
            | Page::Slis
            | Page::ResetSlis => None,
        };
        match page {
            Page::Health => {
                let observe = |check, is_well| self.slis.observe(check, is_well);
                health(health::all_checks(query, &self.health_results(), observe))
            }
            Page::HealthCheck(check) => health(health::one_check(check, &self.health_results())),
            Page::Pods => Ok(response::json(pod_json::list(&self.view.pod_list()))),
            Page::Summary => {
                let only_cpu_and_memory = query.only_cpu_and_memory();
                if !only_cpu_and_memory {
                    self.measure_volumes().await;
                }
                let summary = self.statistics.summary(only_cpu_and_memory).await;
                let summary = summary.map_err(|error| {
                    tracing::warn!(%error, "failed to compute the statistics summary");
                    ErrorResponse::internal(format!("Internal Error: {error}"))
                })?;
                let json = serde_json::to_string(&summary);
                json.map(response::json).map_err(|error| ErrorResponse::internal(error.to_string()))
            }
            Page::Metrics => Ok(text(&self.kubelet_metrics().await)),
            Page::Cadvisor => Ok(text(&self.cadvisor().await)),
            Page::Probes => {
                let process = process().await;
                Ok(text(&kubelet::probes(&self.view.probe_counts(), &process)))
            }
            Page::Slis => {
                let mut metrics = self.slis.metrics();
                kubelet::add_process_start(&mut metrics, &process().await);
                Ok(text(&metrics))
            }
            Page::ResetSlis => {
                self.slis.reset();
                Ok(response::text("metrics reset\n"))
            }
            Page::Resource => {
                let summary = ok_or_log(self.statistics.summary(true).await);
                Ok(text(&resource::metrics(summary.as_ref())))
            }
        }
    }

    fn health_results(&self) -> health::Results {
        health::Results {
            sync_loop: self.view.health(),
            device_plugins: self.view.device_plugin_health(),
        }
    }

    async fn measure_volumes(&self) {
        let measuring = self.statistics.measure_volumes(|| {
            let volumes = |pod: &Pod| {
                self.cluster.as_ref().map(|cluster| cluster.volumes(pod)).unwrap_or_default()
            };
            let pods = self.view.pod_list().items.into_iter();
            pods.map(|pod| (volumes(&pod), pod)).map(|(volumes, pod)| (pod, volumes)).collect()
        });
        measuring.await;
    }

    async fn kubelet_metrics(&self) -> Metrics {
        self.measure_volumes().await;
        let mut fresh = LastLists::default();
        let lists = ok_or_log(self.cri.list_all(&mut fresh).await).flatten();
        let process = process().await;
        let (pods, measured) = (self.view.pod_list().items, self.view.measured());
        let mut metrics = kubelet::metrics(&KubeletInputs {
            node: self.node(),
            version: kube_node::VERSION,
            gates: &self.gates,
            lists: lists.as_ref(),
            pods: &pods,
            pod_starts: &self.starts.durations(),
            cgroup_version: cgroup_version(),
            shutdown: self.view.shutdown_times(),
            process: &process,
        });
        if let Some(lists) = lists {
            kubelet::add_logs(&mut metrics, &self.statistics.log_usage(lists).await);
        }
        self.http.add_to(&mut metrics);
        let operations = self.cri.operations();
        work::add_operations(&mut metrics, &operations);
        work::add_measured(&mut metrics, &measured);
        counts::add(&mut metrics, &measured);
        let provider_config = measured.provider_config.as_deref();
        kubelet::add_providers(&mut metrics, provider_config, &measured.provider_runs);
        counts::add_managers(&mut metrics, &self.view.manager_metrics());
        if let Some(measures) = self.view.claim_measures() {
            claims::add(&mut metrics, &measures);
        }
        let reports = Arc::clone(&self.view.reports().borrow());
        counts::add_workers(&mut metrics, &pods, &reports);
        resizes::add(&mut metrics, &measured, &reports);
        work::add_volumes(&mut metrics, &self.statistics.cluster_volumes());
        work::add_volume_durations(&mut metrics, &self.statistics.volume_durations());
        if let Some(plugins) = &self.plugins {
            work::add_plugins(&mut metrics, &plugins.borrow());
        }
        if let Some(calls) = self.statistics.driver_calls() {
            work::add_driver_calls(&mut metrics, &calls);
        }
        if let Some(cluster) = &self.cluster {
            work::add_write_delays(&mut metrics, &cluster.write_delays());
            work::add_startup(&mut metrics, &cluster.startup());
            work::add_requests(&mut metrics, cluster.server_host(), &cluster.requests());
            work::add_certificates(&mut metrics, cluster.certificates(), Timestamp::now());
            let ages = cluster.replaced_server_certificates();
            work::add_replaced_certificates(&mut metrics, ages.as_ref());
        }
        metrics
    }

    async fn cadvisor(&self) -> Metrics {
        let runtime = ok_or_log(self.runtime_metrics().await);
        let summary = match &runtime {
            Some(None) => self.statistics.summary(false).await,
            // The runtime's own metrics cover pods and containers, or collecting them failed.
            Some(Some(_)) | None => self.statistics.node_alone().await,
        };
        let summary = ok_or_log(summary);
        let is_complete = runtime.is_some() && summary.is_some();
        let load = self.statistics.summarizer.machine.load();
        let machine = MachineSize {
            processors: load.processors,
            memory: load.memory.total,
            swap: load.memory.swap_total,
            oom_kills: self.view.system_oom_kills(),
        };
        let image = |namespace: &str, pod: &str, container: &str| {
            let pod = self.view.pod(namespace, pod).and_then(|pod| pod.status);
            let statuses = pod.and_then(|status| status.container_statuses);
            let mut statuses = statuses.unwrap_or_default().into_iter();
            let status = statuses.find(|status| status.name == container);
            status.map(|status| status.image).unwrap_or_default()
        };
        let runtime = runtime.flatten();
        let mut metrics =
            cadvisor::metrics(&runtime, summary.as_ref(), is_complete, machine, image);
        cadvisor::add_disks(&mut metrics, &self.statistics.disks().await);
        metrics
    }

    /// The runtime's own metrics, if it has any.
    async fn runtime_metrics(&self) -> Result<RuntimeMetrics, CriError> {
        let answers = tokio::try_join!(self.cri.metric_descriptors(), self.cri.metrics());
        match answers {
            Ok(answers) => Ok(Some(answers).filter(|(descriptors, _)| !descriptors.is_empty())),
            Err(error) if error.code == Code::Unimplemented => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Logs an error of a scrape. The caller reports it in `scrape_error`.
fn ok_or_log<T>(answer: Result<T, CriError>) -> Option<T> {
    answer.inspect_err(|error| tracing::warn!(%error, "failed to collect metrics")).ok()
}

fn text(metrics: &Metrics) -> Response<Body> {
    response::with_media_type(MEDIA_TYPE, response::full_body(metrics.text()))
}

pub(crate) fn no_route(error: NoRoute) -> ErrorResponse {
    let status = match error {
        NoRoute::NotFound => StatusCode::NOT_FOUND,
        NoRoute::Method
        | NoRoute::NoDebugging
        | NoRoute::NoSystemLogs
        | NoRoute::NoProfiles
        | NoRoute::NoFlags => StatusCode::METHOD_NOT_ALLOWED,
    };
    ErrorResponse::new(status, error.to_string())
}

/// The resource usage of this process.
pub(crate) async fn process() -> Process {
    let read = || {
        let proc = Path::new("/proc/self");
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let descriptors = std::fs::read_dir(proc.join("fd")).map(Iterator::count);
        process::process(&Files {
            stat: &text(proc.join("stat")),
            status: &text(proc.join("status")),
            limits: &text(proc.join("limits")),
            open_fds: descriptors.ok(),
            boot: stats::boot(&text(PathBuf::from("/proc/stat"))),
        })
    };
    tasks::spawn_blocking(read).await.unwrap_or_default()
}

/// The machine's cgroup version.
fn cgroup_version() -> Option<u8> {
    let root = Path::new("/sys/fs/cgroup");
    let unified = root.join("cgroup.controllers").exists();
    root.exists().then_some(if unified { 2 } else { 1 })
}
