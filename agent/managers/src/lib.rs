//! What containers of a node get for themselves: devices, which plugins offer.
//!
//! | room | what |
//! |---|---|
//! | `devices` | devices: `inventory` ◆ decides who gets which, `registration` and `plugin` speak with plugins, `checkpoint` remembers |
//! | `topology` ◆ | memory nodes: what each kind of resource would like, and what a container gets |
//! | `allocation` | gives a pod what it asks for, one pod after the other, in a kubelet's order |
//! | `pod_resources` | tells monitoring agents what containers have |
//! | `checksum` ◆ | a kubelet's checksums, so that its files are read, and it reads these |
//!
//! # Invariants
//! - Nothing is given to two containers at the same time, also when the agent is killed: what is given is in a file before the pod is
//!   taken.
//! - What an earlier agent or a kubelet gave stays given as long as its pod is there.

mod allocation;
mod checksum;
mod devices;
mod files;
mod pod_resources;
mod topology;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent::AgentView;
use agent::cri::Cri;
use agent::managers::{Active, Allocation, DeviceResources, Managers};
use agent::observed::ContainerId;
use agent::pod_spec::spec::Assigned;
use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Container;
use tokio::net::UnixListener;
use tokio::sync::Mutex as Turn;
use tokio::task::JoinSet;

use devices::manager::{DeviceManager, Prepared};
use devices::registration;
use topology::hint::Hint;
use topology::merge::{Nodes, Policy};

/// The directory of the sockets of device plugins, below the agent's.
const DEVICE_PLUGINS: &str = "device-plugins";

/// How managers give out what there is.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The agent's directory.
    pub root_dir: PathBuf,
}

/// A node's managers. Clones are the same.
#[derive(Clone)]
pub struct NodeManagers(Arc<Inner>);

struct Inner {
    cri: Arc<dyn Cri>,
    root_dir: PathBuf,
    devices: Option<Arc<DeviceManager>>,
    topology: Topology,
    /// The memory nodes that were chosen for containers, by uid of the pod.
    chosen: Mutex<BTreeMap<String, BTreeMap<String, Hint>>>,
    /// Whose turn it is to allocate.
    turn: Turn<()>,
    /// Sockets that are to be served.
    listener: Mutex<Option<UnixListener>>,
}

/// How memory nodes are chosen.
#[derive(Clone, Debug, Default)]
struct Topology {
    policy: Policy,
    /// Whether they are chosen for a pod as a whole.
    for_pods: bool,
    nodes: Nodes,
}

impl NodeManagers {
    /// Managers that know what an earlier agent has given to containers. The sockets are served by [`NodeManagers::serve`].
    #[must_use]
    pub fn open(settings: Settings, cri: Arc<dyn Cri>) -> Self {
        let Settings { root_dir } = settings;
        let topology = Topology::default();
        let directory = root_dir.join(DEVICE_PLUGINS);
        let opened = DeviceManager::open(&directory, topology.nodes.ids.clone())
            .and_then(|manager| Ok((manager, registration::bind(&directory)?)));
        let (devices, listener) = match opened {
            Ok((manager, listener)) => (Some(Arc::new(manager)), Some(listener)),
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "no device plugin can register");
                (None, None)
            }
        };
        Self(Arc::new(Inner {
            cri,
            root_dir,
            devices,
            topology,
            chosen: Mutex::default(),
            turn: Turn::default(),
            listener: Mutex::new(listener),
        }))
    }

    /// Serves device plugins, and those that ask what the agent's containers have. Never returns; to be called once.
    pub async fn serve(&self, agent: AgentView) {
        let mut tasks = JoinSet::new();
        let listener = self.0.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((devices, listener)) = self.0.devices.clone().zip(listener) {
            tasks.spawn(registration::serve(devices, listener));
        }
        tasks.spawn(pod_resources::serve(self.clone(), agent));
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the managers panicked");
            }
        }
        std::future::pending().await
    }

    fn chosen(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, Hint>>> {
        self.0.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Managers for NodeManagers {
    fn concerns(&self, pod: &Pod) -> bool {
        self.0.topology.policy != Policy::None
            || self.0.devices.as_ref().is_some_and(|devices| devices.concerns(pod))
    }

    fn allocate(&self, pod: &Pod, active: Active) -> Allocation {
        let (managers, pod) = (self.clone(), pod.clone());
        Box::pin(async move { managers.allocate_pod(&pod, active).await })
    }

    async fn prepare(&self, pod: &Pod, container: &Container) -> Result<Assigned, String> {
        let mut assigned = Assigned::default();
        if let Some(devices) = &self.0.devices {
            let uid = pod.uid().as_str();
            let usage = match devices.prepare(uid, container).await? {
                Prepared::Usage(usage) => usage,
                Prepared::NeedsDevices => {
                    let _turn = self.0.turn.lock().await;
                    let nodes = self.chosen_for(uid, &container.name).nodes;
                    devices.allocate(pod, container, nodes, false).await?;
                    devices.usage(uid, &container.name)
                }
            };
            assigned.devices = usage.devices;
            assigned.cdi_devices = usage.cdi_devices;
            assigned.mounts = usage.mounts;
            assigned.envs = usage.envs.into_iter().collect();
            assigned.annotations = usage.annotations;
        }
        Ok(assigned)
    }

    fn created(&self, _: &Pod, _: &str, _: &ContainerId) {}

    fn release(&self, pod: &PodUid) {
        let is_other = |uid: &str| uid != pod.as_str();
        self.keep(&is_other);
    }

    fn forbids_resize(&self, _: &Pod, _: &Pod) -> Option<String> {
        None
    }

    fn devices(&self) -> DeviceResources {
        self.0.devices.as_ref().map(|devices| devices.resources()).unwrap_or_default()
    }

    async fn devices_changed(&self) {
        match &self.0.devices {
            Some(devices) => devices.changed().await,
            None => std::future::pending().await,
        }
    }
}
