//! Makes the agent a node of a cluster, as a kubelet does: the node and its lease are kept at the API server, the pods that are bound
//! to it are run, and their statuses are written back.
//!
//! | room | what |
//! |---|---|
//! | [`client`] | kubeconfigs, requests, and collections that are followed (list and watch) |
//! | `certificates`, [`der`] ◆ | the certificates that the cluster signs: the client's first one, the server's, and those that replace them |
//! | `node` | registration, status (◆ `status`, `declared`), own `addresses` and lease of the node, the ranges of its pods' addresses (`pod_cidr`), and what pods lack (`limits`) |
//! | `pods` | the pods of the node, and the objects that they refer to (`followed` ◆); `writer` patches statuses and deletes what has ended, `due` ◆ decides what, `status_json` ◆ makes the patch; `mirror_writer` shows static pods, `mirror` ◆ decides which |
//! | `services` | the cluster's Services and EndpointSlices, whose table a service network serves, where kube-proxy does not |
//! | `volumes` | what drivers of volumes need of the cluster, and what it sees of them (`node::csi_node` ◆) |
//! | `resource_claims` | what drivers of dynamic resource allocation need of the cluster |
//! | `view` | what the node's server may know of all that |
//! | `tokens`, `events` | service accounts and their tokens; events of pods and of the node |
//!
//! The agent knows nothing of this package: [`ClusterNode`] is its [`agent::cluster::Cluster`].
//!
//! # Invariants
//! - Nothing that runs is ended because the API server is away: what is known stays until the server says otherwise.
//! - No status of a pod is written to another pod of its name, and none is deleted (uids are preconditions).
//! - No object at the server is replaced as a whole but the node's own lease: what others wrote stays.
//!
//! # Tasks
//!
//! | task | owns | input | output |
//! |---|---|---|---|
//! | the agent's reader of `ApiPods` | the pods at the server | list and watch | changes of pods, known pods (watch) |
//! | CSINode | nothing | the node | the CSINode of the node, which drivers that register change |
//! | heartbeat | when the status was sent last | facts of agent, runtime and machine | the node and its status |
//! | lease | the lease as it was last | time | the lease |
//! | rotation, one for each certificate | when it is replaced | time | requests of certificates, files, the client, the end of the node |
//! | writer | what was written of each pod | reports, known pods | patches of statuses, deletions |
//! | mirror writer | when each mirror pod was written | static pods, known pods, the node | mirror pods |
//! | objects, and one task for each | the node, and what pods refer to | registered pods, reads, list and watch | the agent's object store, which objects are known (watch) |
//! | ranges of addresses | which the runtime took | the node | UpdateRuntimeConfig |
//! | services | Services and EndpointSlices | list and watch | tables for the service network |
//! | events | the names of written events | events of agent and heartbeat | events |

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
use tokio::sync::{mpsc, watch};
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
use node::pod_cidr::{self, ToldRanges};
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
pub use view::{CertificateState, ClusterView, ClusterVolume, VolumePlace};
use volumes::ClusterVolumes;

/// What a node is registered as.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The taints of a node that is registered for the first time.
    pub taints: Vec<Taint>,
    /// Its own addresses at the start, the primary one first. They are looked up again for each status.
    pub addresses: Vec<String>,
    /// The port of its server; `None`: it has none.
    pub server_port: Option<u16>,
    /// Which certificates the cluster is asked for.
    pub certificates: Certificates,
    /// The cloud provider's id of the machine.
    pub provider_id: Option<String>,
    /// Whether a cloud's controller sets the node's addresses, and takes its first taint.
    pub external_cloud: bool,
    /// Whether the agent creates the node's object, if there is none.
    pub registers: bool,
    /// How often the node gives a sign of life.
    pub status: StatusSettings,
    /// Node addresses given on the command line, also for the cloud controller; empty: the name is looked up.
    pub provided_addresses: Vec<String>,
    /// How many requests it sends for events.
    pub event_rate: Option<Rate>,
    /// The feature gates, which decide what the node declares.
    pub gates: Gates,
    /// How often a pod is looked at without a cause (`syncFrequency`). An object that no container has read for five such periods is
    /// not watched.
    pub resync_period: Duration,
}

/// How often the node gives a sign of life, and how much it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusSettings {
    /// How often the status is computed (`nodeStatusUpdateFrequency`).
    pub period: Duration,
    /// How often a status is sent that has not changed (`nodeStatusReportFrequency`).
    pub report_period: Duration,
    /// How long the lease is good for (`nodeLeaseDurationSeconds`).
    pub lease: Duration,
    /// How many images it has (`nodeStatusMaxImages`).
    pub most_images: usize,
}

impl Default for StatusSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(10),
            report_period: Duration::from_secs(300),
            lease: Duration::from_secs(40),
            most_images: 50,
        }
    }
}

/// Which certificates of a node its cluster is asked for.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// Where they are kept.
    pub directory: PathBuf,
    /// Whether the client certificate is rotated before it expires.
    pub client: bool,
    /// The names and addresses of the server, if it is to have one.
    pub server: Option<Vec<String>>,
}

/// A node's place in a cluster.
pub struct ClusterNode {
    client: ApiClient,
    settings: NodeSettings,
    known: watch::Sender<Arc<KnownPods>>,
    /// Follows what pods refer to; taken by [`Cluster::record`].
    objects: Mutex<Option<Objects>>,
    registry: Registry,
    store: Arc<ObjectStore>,
    told: ToldRanges,
    limits: NodeLimits,
    in_use: VolumesInUse,
    services: Option<(ServiceProxy, Arc<dyn ServiceNetwork>)>,
    bootstrap: Option<Bootstrap>,
    /// Of the client's certificate, and of the server's.
    rotations: [Rotations; 2],
    delays: WriteDelays,
    startup: NodeStartup,
}

impl ClusterNode {
    /// A node with these settings at the API server of `client`. Its objects are `others`, and what its pods refer to. Nothing is sent
    /// yet.
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
            told: ToldRanges::default(),
            limits: NodeLimits::default(),
            in_use: VolumesInUse::default(),
            services: None,
            bootstrap: None,
            rotations: Default::default(),
            delays: WriteDelays::default(),
            startup: NodeStartup::new(boot_time(Path::new("/")), Timestamp::now()),
        }
    }

    /// Serves the cluster's Services through a network.
    #[must_use]
    pub fn with_services(self, proxy: ServiceProxy, network: Arc<dyn ServiceNetwork>) -> Self {
        Self { services: Some((proxy, network)), ..self }
    }

    /// Where others report limitations of pods.
    #[must_use]
    pub fn limits(&self) -> NodeLimits {
        self.limits.clone()
    }

    /// The same node, which has yet to get the certificate of its client.
    #[must_use]
    pub fn with_bootstrap(self, bootstrap: Option<Bootstrap>) -> Self {
        Self { bootstrap, ..self }
    }

    /// What others may know of the cluster.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        let Certificates { directory, client, server } = &self.settings.certificates;
        let [of_client, of_server] = &self.rotations;
        ClusterView {
            client: self.client.clone(),
            known: self.known.subscribe(),
            store: Arc::clone(&self.store),
            delays: self.delays.clone(),
            startup: self.startup.clone(),
            client_rotations: client.then(|| of_client.clone()),
            server: server.as_ref().map(|_| (directory.clone(), of_server.clone())),
        }
    }

    /// What drivers of volumes need of the cluster.
    #[must_use]
    pub fn volumes(&self) -> Arc<dyn VolumeCluster> {
        Arc::new(self.cluster_volumes())
    }

    /// What drivers of dynamic resource allocation need of the cluster.
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
        self.registry.register(pods, self.told.subscribe()).await;
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

    async fn issue_token(&self, wanted: &TokenRequest) -> Result<IssuedToken, String> {
        tokens::issue(&self.client, wanted).await
    }

    async fn service_account(&self, ns: &str, name: &str) -> Result<ServiceAccount, String> {
        tokens::service_account(&self.client, ns, name).await
    }

    /// Static pods of the agent run while the node gets its certificate; without a valid one the agent cannot be a node.
    async fn record(&self, agent: Outputs) -> String {
        if let Some(bootstrap) = &self.bootstrap
            && let Err(error) = bootstrap.run(&self.client).await
        {
            return format!("--bootstrap-kubeconfig: {}", in_words(&error));
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
            registers: self.settings.registers,
            provided_addresses: self.settings.provided_addresses.clone(),
        };
        // The next sign of life is due then, and waits for no other request.
        let heartbeats =
            self.client.with_rate(Rate::UNLIMITED).with_limit(status.period.min(status.lease));
        let (node_events, of_node) = mpsc::unbounded_channel();
        let event_rate = self.settings.event_rate.unwrap_or(Rate::UNLIMITED);
        let events = Events::new(self.client.with_rate(event_rate), &name, self.known.subscribe());
        let node = NodeFacts {
            registration,
            addresses: NodeAddresses::new(&name, &self.settings.provided_addresses, addresses),
            server_port,
            most_images: status.most_images,
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
        let (store, told) = (Arc::clone(&self.store), self.told.clone());
        let ranges = pod_cidr::run(store, cri, told, self.limits.clone());
        let mirrors = MirrorWriter::new(self.client.clone(), &name);
        let mirrored = MirrorInputs {
            view: view.clone(),
            reports: view.reports(),
            known: self.known.subscribe(),
            store: Arc::clone(&self.store),
        };
        let Certificates { directory, client: of_client, server: of_server } = certificates;
        let [client_rotations, server_rotations] = self.rotations.clone();
        let client = || self.client.clone();
        let of_client =
            of_client.then(|| Rotation::of_client(client(), &name, &directory, client_rotations));
        let of_server = of_server
            .map(|names| Rotation::of_server(client(), &name, names, &directory, server_rotations));
        let writer = Writer::new(self.client.clone(), self.delays.clone());
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut tasks = JoinSet::new();
        tasks.spawn(tasks::boxed(heartbeat::run(
            heartbeats.clone(),
            node,
            status,
            self.in_use.clone(),
            self.registry.own_node(),
            node_events,
        )));
        tasks.spawn(tasks::boxed(csi_node));
        tasks.spawn(tasks::boxed(lease::run(heartbeats, name, status.lease)));
        tasks.spawn(tasks::boxed(ranges));
        if let Some(services) = services {
            tasks.spawn(tasks::boxed(services.run(self.known.subscribe())));
        }
        tasks.spawn(tasks::boxed(writer.run(view.reports(), self.known.subscribe())));
        if let Some(rotation) = of_server {
            // It never returns.
            tasks.spawn(tasks::boxed(async move { drop(rotation.run().await) }));
        }
        tasks.spawn(tasks::boxed(mirrors.run(mirrored)));
        if let Some(objects) = objects {
            tasks.spawn(tasks::boxed(objects.run()));
        }
        tasks.spawn(tasks::boxed(events.run(of_agent, of_node)));
        let expired = async {
            match of_client {
                Some(rotation) => rotation.run().await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            while let Some(ended) = tasks.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(%error, "a task of the node ended");
                }
            }
        };
        tokio::select! {
            why = expired => why,
            () = ended => std::future::pending().await,
        }
    }
}

/// An error with its causes.
fn in_words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    let words = std::iter::once(error).chain(causes).map(ToString::to_string);
    words.collect::<Vec<_>>().join(": ")
}
