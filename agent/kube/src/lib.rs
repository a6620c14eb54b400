//! Makes the agent a node of a cluster, as the kubelet does: it keeps the node object and its lease up to date, runs the pods
//! that are bound to the node, and writes their statuses back.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | kubeconfigs, requests, and reflectors (list and watch) |
//! | `certificates`, [`der`] ◆ | the cluster-signed certificates of client and server: bootstrap and rotation |
//! | `node` | registration, status (◆ `status`, `declared`), own `addresses` and lease of the node, the ranges of its pods' addresses (`pod_cidr`), and what pods lack (`limits`) |
//! | `pods` | the pods of the node, and the objects that they refer to (`followed` ◆); `writer` patches statuses and deletes what has ended, `due` ◆ decides what, `status_json` ◆ makes the patch; `mirror_writer` shows static pods, `mirror` ◆ decides which |
//! | `services` | the cluster's Services and EndpointSlices, whose table a service network serves, where kube-proxy does not |
//! | `volumes` | the cluster for CSI drivers: the objects that they need, and what the node publishes about them (`node::csi_node` ◆) |
//! | `resource_claims` | the cluster for DRA drivers |
//! | `view` | a read-only view for the node's server |
//! | `tokens`, `events` | service accounts and their tokens; events of pods and of the node |
//!
//! The agent does not depend on this package: [`ClusterNode`] implements [`agent::cluster::Cluster`].
//!
//! # Invariants
//! - An unreachable API server ends no pod: the last known state applies until the server reports another.
//! - The agent never writes a status to, or deletes, another pod of the same name: uids are preconditions.
//! - The agent replaces only its own lease and CSINode as a whole. It patches all other objects, so that other clients' fields
//!   remain.
//!
//! # Tasks
//!
//! | task | owns | input | output |
//! |---|---|---|---|
//! | the agent's reader of `ApiPods` | the pods at the server | list and watch | changes of pods, known pods (watch) |
//! | CSINode | nothing | the node | the node's CSINode, which later registrations of drivers change |
//! | heartbeat | the time of the last report | facts of agent, runtime and machine | the node and its status, events of the agent |
//! | lease | the last lease | time | the lease |
//! | rotation, one for each certificate | the time of renewal | time | requests, files, the client's identity, the end of the node |
//! | writer | the last written status of each pod | reports, known pods | patches of statuses, deletions |
//! | mirror writer | the back-off of each mirror pod | static pods, known pods, the node | mirror pods |
//! | objects, and one task for each object | the node, and the objects that pods refer to | registered pods, reads, list and watch | the agent's object store, the set of known objects (watch) |
//! | pod CIDRs | the ranges that the runtime accepted | the node | UpdateRuntimeConfig |
//! | services | Services and EndpointSlices | list and watch | tables for the service network |
//! | events | the names of written events | events of the agent | events |

mod certificates;
mod chance;
pub mod client;
pub mod der;
mod events;
mod node;
mod pods;
mod resource_claims;
mod services;
mod time;
mod tokens;
mod view;
mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::cluster::{Cluster, IssuedToken, Outputs, PodWatch, TokenRequest};
use agent::local_node::kubelet_config::Gates;
use agent::objects::{ObjectKind, ObjectMap, ObjectStore};
use agent::services::ServiceNetwork;
use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ServiceAccount, Taint};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use certificates::bootstrap::{Bootstrap, BootstrapError, is_valid};
use certificates::rotation::{Rotation, Rotations};
pub use certificates::store::server_certificate;
use client::{ApiClient, Rate};
use csi::VolumeCluster;
use dra::ClaimCluster;
use events::Events;
use node::addresses::NodeAddresses;
use node::facts::{NodeFacts, Registration};
pub use node::limits::NodeLimits;
use node::machine::boot_time;
use node::pod_cidr::{self, SentPodCidrs};
use node::startup::NodeStartup;
pub use node::startup::StartupDurations;
pub use node::status::VERSION;
use node::volumes_in_use::VolumesInUse;
use node::{heartbeat, lease};
use pods::KnownPods;
use pods::mirror_writer::{MirrorInputs, MirrorWriter};
use pods::objects::{Objects, Registry};
use pods::source::ApiPods;
use pods::writer::{WriteDelays, Writer};
use resource_claims::ClusterClaims;
pub use services::ServiceProxy;
use services::Services;
pub use view::{CertificateState, ClusterView, ClusterVolume, VolumeLocation};
use volumes::ClusterVolumes;

/// The settings of the node's registration and status.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The initial taints of a new node.
    pub taints: Vec<Taint>,
    /// Its own addresses at the start, the primary one first. Each status looks them up again.
    pub addresses: Vec<String>,
    /// The port of its server; `None` without a server.
    pub server_port: Option<u16>,
    /// The certificates to request from the cluster.
    pub certificates: Certificates,
    /// The cloud provider's ID of the machine.
    pub provider_id: Option<String>,
    /// Whether a cloud controller sets the node's addresses and removes its initial taint.
    pub external_cloud: bool,
    /// Whether only that controller knows the addresses: until it sets them, the node has none but its name.
    pub awaits_addresses: bool,
    /// Whether the agent creates the node's object if it is missing.
    pub registers: bool,
    /// The frequency and content of status updates.
    pub status: StatusSettings,
    /// The node addresses given on the command line, also for the cloud controller; empty: the addresses of the node's name.
    pub provided_addresses: Vec<String>,
    /// The rate limit of event requests; `None`: no limit.
    pub event_rate: Option<Rate>,
    /// The feature gates, from which the declared features follow.
    pub gates: Gates,
    /// The interval between syncs of a pod without a cause (`syncFrequency`). The agent stops the watch of an object that no
    /// container has read for five intervals.
    pub resync_period: Duration,
}

/// The frequency and content of status updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusSettings {
    /// The interval between computations of the status (`nodeStatusUpdateFrequency`).
    pub period: Duration,
    /// The interval between reports of an unchanged status (`nodeStatusReportFrequency`).
    pub report_period: Duration,
    /// The duration of the lease (`nodeLeaseDurationSeconds`).
    pub lease: Duration,
    /// The maximum number of images in the status (`nodeStatusMaxImages`).
    pub max_images: usize,
}

impl Default for StatusSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(10),
            report_period: Duration::from_secs(300),
            lease: Duration::from_secs(40),
            max_images: 50,
        }
    }
}

/// The certificates to request from the cluster.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The directory of the certificate files.
    pub directory: PathBuf,
    /// Whether the client certificate is rotated before it expires.
    pub client: bool,
    /// The names and addresses of the serving certificate; `None`: no serving certificate is requested.
    pub server: Option<Vec<String>>,
}

/// The agent's connection to a cluster.
pub struct ClusterNode {
    client: ApiClient,
    settings: NodeSettings,
    known: watch::Sender<Arc<KnownPods>>,
    /// Follows the objects that pods refer to; taken by [`Cluster::record`].
    objects: Mutex<Option<Objects>>,
    registry: Registry,
    store: Arc<ObjectStore>,
    sent_cidrs: SentPodCidrs,
    limits: NodeLimits,
    in_use: VolumesInUse,
    services: Option<(ServiceProxy, Arc<dyn ServiceNetwork>)>,
    bootstrap: Option<Bootstrap>,
    /// The rotations of the client certificate and of the serving certificate.
    rotations: [Rotations; 2],
    delays: WriteDelays,
    startup: NodeStartup,
}

impl ClusterNode {
    /// Creates a node with these settings at the API server of `client`. Its object store has `others` and the objects that its
    /// pods refer to. No request is sent yet.
    #[must_use]
    pub fn new(client: ApiClient, settings: NodeSettings, others: ObjectMap) -> Self {
        let mut first = others.clone();
        first.set_services_unread();
        let store = Arc::new(ObjectStore::new(first));
        let objects = Objects::new(
            client.clone(),
            &settings.name,
            Arc::clone(&store),
            others,
            settings.resync_period,
        );
        Self {
            client,
            settings,
            known: watch::Sender::default(),
            registry: objects.registry(),
            objects: Mutex::new(Some(objects)),
            store,
            sent_cidrs: SentPodCidrs::default(),
            limits: NodeLimits::default(),
            in_use: VolumesInUse::default(),
            services: None,
            bootstrap: None,
            rotations: Default::default(),
            delays: WriteDelays::default(),
            startup: NodeStartup::new(boot_time(Path::new("/")), Timestamp::now()),
        }
    }

    /// Makes the node serve the cluster's Services through a network.
    #[must_use]
    pub fn with_services(self, proxy: ServiceProxy, network: Arc<dyn ServiceNetwork>) -> Self {
        Self { services: Some((proxy, network)), ..self }
    }

    /// The sink for limitations of pods.
    #[must_use]
    pub fn limits(&self) -> NodeLimits {
        self.limits.clone()
    }

    /// Makes the node request its client certificate first.
    #[must_use]
    pub fn with_bootstrap(self, bootstrap: Option<Bootstrap>) -> Self {
        Self { bootstrap, ..self }
    }

    /// A read-only view of the node's cluster.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        let Certificates { directory, client, server } = &self.settings.certificates;
        let [client_rotations, server_rotations] = &self.rotations;
        ClusterView {
            client: self.client.clone(),
            known: self.known.subscribe(),
            store: Arc::clone(&self.store),
            delays: self.delays.clone(),
            startup: self.startup.clone(),
            client_rotations: client.then(|| client_rotations.clone()),
            server: server.as_ref().map(|_| (directory.clone(), server_rotations.clone())),
        }
    }

    /// The cluster, as CSI drivers need it.
    #[must_use]
    pub fn volumes(&self) -> Arc<dyn VolumeCluster> {
        Arc::new(self.cluster_volumes())
    }

    /// The cluster, as DRA drivers need it.
    #[must_use]
    pub fn claims(&self) -> Arc<dyn ClaimCluster> {
        Arc::new(ClusterClaims::new(self.client.clone(), &self.settings.name))
    }

    fn cluster_volumes(&self) -> ClusterVolumes {
        ClusterVolumes::new(self.client.clone(), &self.settings.name, self.in_use.clone())
    }
}

#[async_trait]
impl Cluster for ClusterNode {
    fn name(&self) -> String {
        format!("API server {}", self.client.server())
    }

    fn objects(&self) -> Arc<ObjectStore> {
        Arc::clone(&self.store)
    }

    fn watch_pods(&self) -> Option<Box<dyn PodWatch>> {
        let (client, known) = (self.client.clone(), self.known.clone());
        Some(Box::new(ApiPods::new(client, &self.settings.name, known)))
    }

    async fn register(&self, pods: &[Pod]) {
        self.registry.register(pods, self.sent_cidrs.subscribe()).await;
    }

    async fn sync_objects(
        &self,
        namespace: &str,
        objects: &[(ObjectKind, String)],
    ) -> Result<(), String> {
        self.registry.sync(namespace, objects).await
    }

    fn unregister(&self, uid: &PodUid) {
        self.registry.unregister(uid);
    }

    fn issues_tokens(&self) -> bool {
        true
    }

    async fn issue_token(&self, request: &TokenRequest) -> Result<IssuedToken, String> {
        tokens::issue(&self.client, request).await
    }

    async fn service_account(&self, ns: &str, name: &str) -> Result<ServiceAccount, String> {
        tokens::service_account(&self.client, ns, name).await
    }

    /// Static pods run while the node requests its certificate. Returns the reason if the node has no valid certificate.
    async fn record(&self, agent: Outputs) -> String {
        if let Some(bootstrap) = &self.bootstrap
            && let Err(error) = bootstrap.run(&self.client).await
        {
            return format!("--bootstrap-kubeconfig: {}", error_chain(&error));
        }
        let Outputs { view, events: of_agent, cri } = agent;
        let NodeSettings { name, addresses, server_port, certificates, status, .. } =
            self.settings.clone();
        let csi_node = Arc::new(self.cluster_volumes()).make_csi_node();
        let registration = Registration {
            name: name.clone(),
            labels: self.settings.labels.clone(),
            taints: self.settings.taints.clone(),
            provider_id: self.settings.provider_id.clone(),
            external_cloud: self.settings.external_cloud,
            awaits_addresses: self.settings.awaits_addresses,
            registers: self.settings.registers,
            provided_addresses: self.settings.provided_addresses.clone(),
        };
        // The timeout is the interval until the next heartbeat, and heartbeats bypass the rate limit.
        let heartbeats =
            self.client.with_rate(Rate::UNLIMITED).with_timeout(status.period.min(status.lease));
        let event_rate = self.settings.event_rate.unwrap_or(Rate::UNLIMITED);
        let events = Events::new(self.client.with_rate(event_rate), &name, self.known.subscribe());
        let node = NodeFacts {
            registration,
            addresses: NodeAddresses::new(&name, &self.settings.provided_addresses, addresses),
            server_port,
            max_images: status.max_images,
            gates: self.settings.gates.clone(),
            view: view.clone(),
            cri: Arc::clone(&cri),
            limits: self.limits.watch(),
            volumes_in_use: self.in_use.watch(),
            startup: self.startup.clone(),
        };
        let services = self.services.clone().filter(|(proxy, _)| *proxy != ServiceProxy::Off);
        let services = services.map(|(proxy, network)| Services {
            client: self.client.clone(),
            node: name.clone(),
            proxy,
            network,
            store: Arc::clone(&self.store),
            limits: self.limits.clone(),
        });
        let (store, sent_cidrs) = (Arc::clone(&self.store), self.sent_cidrs.clone());
        let ranges = pod_cidr::run(store, cri, sent_cidrs, self.limits.clone());
        let mirrors = MirrorWriter::new(self.client.clone(), &name);
        let mirrored = MirrorInputs {
            view: view.clone(),
            reports: view.reports(),
            known: self.known.subscribe(),
            store: Arc::clone(&self.store),
        };
        let Certificates { directory, client: client_rotation, server: server_rotation } =
            certificates;
        let [client_rotations, server_rotations] = self.rotations.clone();
        let client = || self.client.clone();
        let client_rotation = client_rotation
            .then(|| Rotation::for_client(client(), &name, &directory, client_rotations));
        let server_rotation = server_rotation.map(|names| {
            Rotation::for_server(client(), &name, names, &directory, server_rotations)
        });
        let writer = Writer::new(self.client.clone(), self.delays.clone());
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut tasks = JoinSet::new();
        tasks.spawn(tasks::boxed(heartbeat::run(
            heartbeats.clone(),
            node,
            status,
            self.in_use.clone(),
            self.registry.own_node(),
        )));
        tasks.spawn(tasks::boxed(csi_node));
        tasks.spawn(tasks::boxed(lease::run(heartbeats, name, status.lease)));
        tasks.spawn(tasks::boxed(ranges));
        if let Some(services) = services {
            tasks.spawn(tasks::boxed(services.run(self.known.subscribe())));
        }
        tasks.spawn(tasks::boxed(writer.run(view.reports(), self.known.subscribe())));
        if let Some(rotation) = server_rotation {
            // It returns only for the client's role, so this future never completes.
            tasks.spawn(tasks::boxed(async move { drop(rotation.run().await) }));
        }
        tasks.spawn(tasks::boxed(mirrors.run(mirrored)));
        if let Some(objects) = objects {
            tasks.spawn(tasks::boxed(objects.run()));
        }
        tasks.spawn(tasks::boxed(events.run(of_agent)));
        let expired = async {
            match client_rotation {
                Some(rotation) => rotation.run().await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            while let Some(ended) = tasks.join_next().await {
                tasks::output(ended);
            }
        };
        tokio::select! {
            why = expired => why,
            () = ended => std::future::pending().await,
        }
    }
}

/// The error and its causes as one text.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    let words = std::iter::once(error).chain(causes).map(ToString::to_string);
    words.collect::<Vec<_>>().join(": ")
}
