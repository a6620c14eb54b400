//! Serves the pod resources API: the exclusive resources of containers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/apis/podresources/server_v1.go and server_v1alpha1.go, pkg/kubelet/apis/grpc/ratelimit.go.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agent::AgentView;
use agent::managers::claims::{PreparedClaim, PreparedDevice};
use api::pod::{Pod, is_sidecar};
use cri::podresources as wire;
use cri::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use k8s_openapi::api::core::v1::Container;
use tokio::net::UnixListener;
use tokio::time::Instant;
use tonic::codegen::http;
use tonic::{Request, Response, Status};
use tower::ServiceExt as _;

use crate::NodeManagers;
use crate::counts::RequestKind;
use crate::cpu::set::CpuSet;
use crate::devices::inventory::NO_NODE;
use crate::memory::state::Block;
use crate::socket;

/// The directory of the socket, below the agent's, and its name.
const DIRECTORY: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";
/// The rate limit: the burst size, and the interval between further requests (100 per second).
const BURST: u32 = 10;
const PERIOD: Duration = Duration::from_millis(10);

/// Serves the API. Returns only if the socket cannot be bound.
pub(crate) async fn serve(managers: NodeManagers, agent: AgentView) {
    let directory = managers.0.root_dir.join(DIRECTORY);
    let listener = match bind(&directory) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "failed to serve pod resources");
            return;
        }
    };
    let lister = Lister { managers, agent, limiter: Limiter::new(Instant::now()) };
    let service = PodResourcesListerServer::new(lister).map_request(as_v1);
    socket::serve(listener, service).await;
}

/// Marks a request of v1alpha1.
#[derive(Clone, Copy)]
struct Older;

/// Maps List of v1alpha1 to v1, whose messages are a superset.
fn as_v1<B>(mut request: http::Request<B>) -> http::Request<B> {
    if request.uri().path() == "/v1alpha1.PodResourcesLister/List" {
        *request.uri_mut() = http::Uri::from_static("/v1.PodResourcesLister/List");
        request.extensions_mut().insert(Older);
    }
    request
}

/// Binds the socket, and replaces that of an earlier agent.
fn bind(directory: &Path) -> io::Result<UnixListener> {
    std::fs::create_dir_all(directory)?;
    let socket = directory.join(SOCKET);
    if socket.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(&socket)?;
    }
    UnixListener::bind(socket)
}

/// ◆ A token bucket.
#[derive(Debug)]
struct Bucket {
    left: Duration,
    since: Instant,
}

impl Bucket {
    /// Takes a token. Returns whether there was one.
    fn takes(&mut self, now: Instant) -> bool {
        let filled = self.left + now.saturating_duration_since(self.since);
        self.left = filled.min(PERIOD * BURST);
        self.since = now;
        match self.left.checked_sub(PERIOD) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

struct Limiter(Mutex<Bucket>);

impl Limiter {
    fn new(now: Instant) -> Self {
        Self(Mutex::new(Bucket { left: PERIOD * BURST, since: now }))
    }

    fn check(&self) -> Result<(), Status> {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match bucket.takes(Instant::now()) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("rejected by rate limit")),
        }
    }
}

struct Lister {
    managers: NodeManagers,
    agent: AgentView,
    limiter: Limiter,
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        request: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        self.limiter.check()?;
        let all = || self.agent.pod_list().items.into_iter().map(Pod::new);
        if request.extensions().get::<Older>().is_some() {
            self.managers.0.counts.older_list();
            let pod_resources = all().map(|pod| self.of_pod_v1alpha1(&pod)).collect();
            return Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }));
        }
        self.managers.0.counts.request(RequestKind::List);
        let pods: Vec<Pod> = if self.managers.0.lists_active_pods {
            self.agent.active_pods()
        } else {
            all().collect()
        };
        let pod_resources = pods.iter().map(|pod| self.of_pod(pod)).collect();
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        self.limiter.check()?;
        self.managers.0.counts.request(RequestKind::Allocatable);
        let mut devices = Vec::new();
        let healthy = self.managers.0.devices.as_ref().map(|devices| devices.allocatable());
        for (resource, of_resource) in healthy.into_iter().flatten() {
            for (id, device) in of_resource {
                let nodes: Vec<Option<i64>> = match device.nodes.as_slice() {
                    [] => vec![None],
                    nodes => nodes.iter().copied().map(Some).collect(),
                };
                devices.extend(nodes.into_iter().map(|node| of_device(&resource, &id, node)));
            }
        }
        let (cpus, memory) =
            (self.managers.0.cpus.allocatable(), self.managers.0.memory.allocatable());
        Ok(Response::new(wire::AllocatableResourcesResponse {
            devices,
            cpu_ids: numbers(&cpus),
            memory: memory.iter().map(of_block).collect(),
        }))
    }

    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        self.limiter.check()?;
        let wire::GetPodResourcesRequest { pod_name: name, pod_namespace: namespace } =
            request.into_inner();
        // A pod that has ended is not found, whatever List shows (pkg/kubelet/kubelet.go GetPodByName).
        let mut active = self.agent.active_pods().into_iter();
        let pod = active.find(|pod| (pod.namespace(), pod.name()) == (&*namespace, &*name));
        let pod = pod.ok_or_else(|| {
            Status::unknown(format!("pod {name} in namespace {namespace} not found"))
        });
        let pod = self.managers.0.counts.count(RequestKind::Get, pod)?;
        let pod_resources = Some(self.of_pod(&pod));
        Ok(Response::new(wire::GetPodResourcesResponse { pod_resources }))
    }
}

impl Lister {
    /// The resources of the pod's containers that run as long as the pod.
    fn of_pod(&self, pod: &Pod) -> wire::PodResources {
        let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init));
        let containers = sidecars.chain(pod.containers());
        wire::PodResources {
            name: pod.name().to_owned(),
            namespace: pod.namespace().to_owned(),
            containers: containers.map(|container| self.of_container(pod, container)).collect(),
        }
    }

    /// The resources of a pod in v1alpha1, which knows only devices, without their nodes, and no sidecars.
    fn of_pod_v1alpha1(&self, pod: &Pod) -> wire::PodResources {
        let container = |container: &Container| {
            let of_container = self.of_container(pod, container);
            let mut devices = of_container.devices;
            devices.iter_mut().for_each(|device| device.topology = None);
            wire::ContainerResources { name: of_container.name, devices, ..Default::default() }
        };
        wire::PodResources {
            name: pod.name().to_owned(),
            namespace: pod.namespace().to_owned(),
            containers: pod.containers().iter().map(container).collect(),
        }
    }

    fn of_container(&self, pod: &Pod, container: &Container) -> wire::ContainerResources {
        let (uid, name) = (pod.uid().as_str(), container.name.as_str());
        let devices = self.managers.0.devices.as_ref();
        let assigned = devices.map(|devices| devices.of_container(uid, name)).unwrap_or_default();
        let mut devices = Vec::new();
        for (resource, assigned) in assigned {
            for (node, ids) in &assigned.ids {
                let node = (*node != NO_NODE).then_some(*node);
                devices.extend(ids.iter().map(|id| of_device(&resource, id, node)));
            }
        }
        let memory = self.managers.0.memory.of_container(uid, name);
        wire::ContainerResources {
            name: name.to_owned(),
            devices,
            cpu_ids: numbers(&self.managers.0.cpus.exclusive(uid, name)),
            memory: memory.iter().map(of_block).collect(),
            dynamic_resources: self
                .agent
                .claims_of(pod, container)
                .into_iter()
                .map(of_claim)
                .collect(),
        }
    }
}

fn of_claim(claim: PreparedClaim) -> wire::DynamicResource {
    let named = |name| wire::CdiDevice { name };
    let of_device = |device: PreparedDevice| wire::ClaimResource {
        cdi_devices: device.cdi_devices.into_iter().map(named).collect(),
        driver_name: device.driver,
        pool_name: device.pool,
        device_name: device.device,
        share_id: device.share_id,
    };
    wire::DynamicResource {
        claim_name: claim.name,
        claim_namespace: claim.namespace,
        claim_resources: claim.devices.into_iter().map(of_device).collect(),
    }
}

fn numbers(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().filter_map(|cpu| i64::try_from(*cpu).ok()).collect()
}

fn of_block(block: &Block) -> wire::ContainerMemory {
    let nodes = block.nodes.iter().filter_map(|id| i64::try_from(*id).ok());
    let nodes = nodes.map(|id| wire::NumaNode { id }).collect();
    wire::ContainerMemory {
        memory_type: block.kind.clone(),
        size: block.size,
        topology: Some(wire::TopologyInfo { nodes }),
    }
}

/// A device on one of its NUMA nodes.
fn of_device(resource: &str, id: &str, node: Option<i64>) -> wire::ContainerDevices {
    let at = |node| wire::TopologyInfo { nodes: vec![wire::NumaNode { id: node }] };
    wire::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: node.map(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_limited_to_a_burst_and_a_rate() {
        let start = Instant::now();
        let mut bucket = Bucket { left: PERIOD * BURST, since: start };
        let taken = |bucket: &mut Bucket, after: u64| {
            let now = start + Duration::from_millis(after);
            (0..20).filter(|_| bucket.takes(now)).count()
        };
        assert_eq!(taken(&mut bucket, 0), 10);
        assert_eq!(taken(&mut bucket, 9), 0);
        assert_eq!(taken(&mut bucket, 35), 3);
        assert_eq!(taken(&mut bucket, 10_000), 10);
    }
}
