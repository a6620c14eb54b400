//! The network of pods: the built-in bridge, CNI plugins, or the host's network.

mod bridged;
mod loopback;
pub(crate) mod pod_range;

use std::{
    collections::BTreeSet,
    fmt, io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use cri::v1::NamespaceMode;
use keeper::contract::plan::HostPort;
use network::{
    EGRESS_DNS, EGRESS_HOST, EgressProgram, Lease, PodCidrs, PodNetns,
    cni::{self, Cni, CniConfig, CniPod, CniRequest, CniResult, Dns, annotations_fit},
    loopback_up, private_netns,
};

use super::Error;
use crate::{id::SandboxId, isolation::Isolation, launch::Invalid, sandbox::Sandbox};
use bridged::Pods;
use loopback::Loopbacks;

/// The network of pods, or why it is unavailable.
pub(crate) enum Network {
    /// Pods have addresses on the built-in bridge.
    Bridge(Box<Pods>),
    /// CNI plugins attach pods.
    Cni {
        /// The plugins.
        cni: Cni,
        /// The subnets for pods, for plugins that accept them.
        cidrs: PodCidrs,
    },
    /// Pods share the host's network, each with its own loopback address: there are no network namespaces.
    Host(Loopbacks),
    /// No network namespace is available for plugins to work in.
    Nowhere {
        /// The reason.
        reason: String,
    },
}

/// The parameters for opening a network.
#[derive(Debug, Clone)]
pub(crate) struct NetworkOptions {
    pub(crate) isolation: Isolation,
    /// The bridge's name.
    pub(crate) name: String,
    /// The daemon's state directory.
    pub(crate) state_dir: PathBuf,
    /// CNI plugins, instead of the bridge.
    pub(crate) cni: Option<CniConfig>,
    /// The subnets for pods.
    pub(crate) cidrs: PodCidrs,
}

/// Why pods on the host's network have no addresses of their own.
const NO_POD_NETWORK: &str = "pods share the network of this machine, each with a loopback address: other machines do not reach them, and pods do not reach ClusterIPs";

/// A sandbox that is attached already.
#[derive(Debug, Clone)]
pub(crate) struct Connected {
    pub(crate) id: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<HostPort>,
}

/// A sandbox to attach or detach.
pub(crate) struct AttachedSandbox {
    pub(crate) sandbox: Sandbox,
    /// Its directory.
    pub(crate) directory: PathBuf,
    pub(crate) ports: Vec<HostPort>,
}

/// How pods on the bridge reach other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EgressMode {
    /// The host forwards their packets.
    Host,
    /// A program or crib's relay copies their packets.
    Program(EgressProgram),
    /// They reach only the host and each other, for this reason.
    None(String),
}

impl EgressMode {
    /// The address of the pods' DNS server, if the program provides one.
    pub(crate) fn dns(&self) -> Option<IpAddr> {
        match self {
            Self::Program(_) => Some(EGRESS_DNS.into()),
            Self::Host | Self::None(_) => None,
        }
    }

    /// The address at which pods reach the loopback interface of the host, if there is one.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        match self {
            Self::Program(_) => Some(EGRESS_HOST.into()),
            Self::Host | Self::None(_) => None,
        }
    }

    /// The name of the program, `host`, or `none`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Program(program) => program.name(),
            Self::None(_) => "none",
        }
    }
}

impl fmt::Display for EgressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("pods reach other hosts through this one"),
            Self::Program(program) => {
                write!(f, "pods reach other hosts through {}", program.name())
            }
            Self::None(reason) => write!(f, "pods cannot reach other hosts: {reason}"),
        }
    }
}

/// The outcome of a new pod subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReconfigureResult {
    /// The subnet has changed: new pods get addresses in it.
    Yes,
    /// The subnet was in use already.
    AsBefore,
    /// Unchanged, because existing pods have addresses in the previous subnets, which are these.
    PodsAreThere(String),
    /// CNI plugins or the host assign addresses: the subnet is not configurable here.
    NotOurs,
}

impl Network {
    /// Opens the network. `existing` are the attached sandboxes; `private` is the namespace of an earlier daemon's
    /// bridge.
    pub(crate) fn open(
        options: &NetworkOptions,
        existing: Vec<Connected>,
        private: Option<OwnedFd>,
    ) -> Self {
        let namespace = match options.isolation {
            Isolation::Process => return Self::Host(Loopbacks::of(existing)),
            _ if options.cni.is_none() => {
                return Self::Bridge(Box::new(Pods::open(options.clone(), existing, private)));
            }
            Isolation::Root => Ok(None),
            Isolation::Rootless { .. } => private.map_or_else(private_netns, Ok).map(Some),
        };
        match (namespace, &options.cni) {
            (Ok(namespace), Some(config)) => {
                Self::Cni { cni: Cni::new(config.clone(), namespace), cidrs: options.cidrs }
            }
            (Ok(_), None) => Self::Nowhere { reason: "no plugins are configured".to_owned() },
            (Err(error), _) => {
                let reason = crate::chain(&error);
                tracing::warn!(reason, "no pod network: RunPodSandbox fails");
                Self::Nowhere { reason }
            }
        }
    }

    /// The descriptors that a sandbox's keeper holds for its network as long as the pod runs. They are created before the keeper
    /// sets up the pod.
    pub(crate) fn hold(&self, id: &SandboxId) -> Result<Vec<OwnedFd>, Error> {
        match self {
            Self::Host(loopbacks) => Ok(vec![loopbacks.reserve(id)?]),
            Self::Bridge(pods) => Ok(self.pin().into_iter().chain(pods.hold_egress()).collect()),
            Self::Cni { .. } | Self::Nowhere { .. } => Ok(self.pin().into_iter().collect()),
        }
    }

    /// How pods on the bridge reach other hosts; `None` if the bridge does not connect them. A failed program is retried if
    /// `again`. Blocks while the program starts.
    pub(crate) fn egress_mode(&self, again: bool) -> Option<EgressMode> {
        match self {
            Self::Bridge(pods) => pods.egress_mode(again),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => None,
        }
    }

    /// The host's address in the pods' network, if the host has one there.
    pub(crate) fn host_address(&self) -> Option<IpAddr> {
        match self {
            Self::Bridge(pods) => pods.host_address(),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => None,
        }
    }

    /// Whether pods are attached while their keepers start: only the bridge's attachments can be undone by the
    /// runtime itself.
    pub(crate) fn connects_early(&self) -> bool {
        matches!(self, Self::Bridge(_))
    }

    /// A network namespace for a pod that is attached early.
    pub(crate) fn make_netns(&self) -> io::Result<PodNetns> {
        match self {
            Self::Bridge(pods) => pods.make_netns(),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => PodNetns::make(),
        }
    }

    /// Prepares the network namespace of the next pod.
    pub(crate) fn prepare(&self) {
        if let Self::Bridge(pods) = self {
            pods.make_spare_netns();
        }
    }

    /// Attaches the network namespace of a pod. Without namespaces `netns` is `None`.
    pub(crate) fn attach(
        &self,
        target: &AttachedSandbox,
        netns: Option<&PodNetns>,
    ) -> Result<CniResult, Error> {
        let given = |addresses| CniResult { addresses, dns: None };
        let id = &target.sandbox.id;
        if let Self::Host(loopbacks) = self {
            return Ok(given(loopbacks.address_of(id).into_iter().collect()));
        }
        let netns = netns.ok_or_else(ended)?;
        match self {
            Self::Host(_) => Ok(given(Vec::new())),
            Self::Nowhere { reason } => Err(Error::NoNetwork(reason.clone())),
            Self::Cni { cni, cidrs } => {
                annotations_fit(&target.sandbox.config.annotations).map_err(Invalid)?;
                loopback_up(netns.as_fd()).map_err(set_up)?;
                let added = cni.add(&target.for_plugins(cidrs), netns);
                added.map_err(|source| Error::Cni { what: "set up", source })
            }
            Self::Bridge(pods) => {
                let ips = pods.attach(id.as_str(), &target.ports, netns)?;
                Ok(given(ips))
            }
        }
    }

    /// Detaches a sandbox, which need not be attached. `netns` is the pod's, if it still exists.
    pub(crate) fn detach(
        &self,
        target: &AttachedSandbox,
        netns: Option<&PodNetns>,
    ) -> Result<(), Error> {
        let id = &target.sandbox.id;
        let undo = |cni: &Cni, cidrs: &PodCidrs| {
            let connected = !target.sandbox.addresses.is_empty() && own_network(&target.sandbox);
            cni.del(&target.for_plugins(cidrs), netns, connected)
                .map_err(|source| Error::Cni { what: "take down", source })
        };
        match self {
            Self::Cni { cni, cidrs } => return undo(cni, cidrs),
            // An earlier daemon with CNI plugins attached it; this one is not configured with plugins.
            Self::Bridge(_) | Self::Host(_) | Self::Nowhere { .. }
                if cni::connected(&target.directory) =>
            {
                undo(&Cni::without_configuration(self.pin()), &PodCidrs::default())?;
            }
            Self::Bridge(_) | Self::Host(_) | Self::Nowhere { .. } => {}
        }
        match self {
            Self::Bridge(pods) => pods.detach(id.as_str()),
            Self::Host(loopbacks) => {
                loopbacks.free(id);
                Ok(())
            }
            Self::Cni { .. } | Self::Nowhere { .. } => Ok(()),
        }
    }

    /// Whether pods can be attached, as far as is known without blocking.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Bridge(pods) => pods.is_open(),
            Self::Host(_) => true,
            Self::Cni { .. } | Self::Nowhere { .. } => false,
        }
    }

    /// Why pods cannot be attached now, if so.
    pub(crate) fn not_ready(&self) -> Option<String> {
        match self {
            Self::Cni { cni, .. } => cni.status().err().map(|error| crate::chain(&error)),
            Self::Bridge(pods) => pods.not_ready(),
            Self::Nowhere { reason } => Some(reason.clone()),
            Self::Host(_) => None,
        }
    }

    /// Whether detaching the pod in `directory` needs its network namespace.
    pub(crate) fn needs_namespace(&self, directory: &Path) -> bool {
        matches!(self, Self::Cni { .. }) || cni::connected(directory)
    }

    /// Makes plugins release every pod whose ID is not in `valid`.
    pub(crate) fn clean_up(&self, valid: &[String]) {
        let Self::Cni { cni, .. } = self else {
            return;
        };
        if let Err(error) = cni.gc(valid) {
            tracing::warn!(error = crate::chain(&error), "CNI garbage collection failed");
        }
    }

    /// Makes plugins check the pods that they attached. `open` opens the network namespace of the pod in a directory.
    pub(crate) fn check(
        &self,
        pods: &[AttachedSandbox],
        open: impl Fn(&Path) -> io::Result<Option<PodNetns>>,
    ) {
        let Self::Cni { cni, cidrs } = self else {
            return;
        };
        for target in pods.iter().filter(|target| own_network(&target.sandbox)) {
            let checked = match open(&target.directory) {
                Ok(Some(netns)) => {
                    let checked = cni.check(&target.for_plugins(cidrs), &netns);
                    let checked = checked.map_err(|error| crate::chain(&error));
                    // The pod was stopped meanwhile, so it is correctly not attached.
                    checked.or_else(|error| match netns.has_ended() {
                        Ok(true) => Ok(()),
                        Ok(false) | Err(_) => Err(error),
                    })
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = checked {
                tracing::warn!(
                    sandbox = target.sandbox.id.short(),
                    error,
                    "pod network check failed"
                );
            }
        }
    }

    /// The result that [`Network::reconfigure`] would have if Services had no addresses.
    pub(crate) fn would_reconfigure(&self, cidrs: &PodCidrs) -> ReconfigureResult {
        match self {
            Self::Bridge(pods) => pods.would_reconfigure(cidrs, false),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => ReconfigureResult::NotOurs,
        }
    }

    /// Changes the subnets of new pods, if this runtime assigns addresses and there are no pods.
    pub(crate) fn reconfigure(&self, options: &NetworkOptions) -> Result<ReconfigureResult, Error> {
        match self {
            Self::Bridge(pods) => pods.reconfigure(options),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => {
                Ok(ReconfigureResult::NotOurs)
            }
        }
    }

    /// Attaches a network namespace with this many further addresses to the bridge, for Services.
    pub(crate) fn lease_services(&self, addresses: usize) -> Result<Lease, Error> {
        let unable =
            |reason: &str| Err(Error::Unable(format!("Services are not served: {reason}")));
        match self {
            Self::Bridge(pods) => pods.lease_services(addresses),
            Self::Cni { .. } => unable("CNI plugins connect the pods"),
            Self::Host(_) => unable("pods share the host's network (isolation `process`)"),
            Self::Nowhere { reason } => unable(reason),
        }
    }

    /// Adds this many addresses to the network namespace of Services, and returns them; on failure, none.
    pub(crate) fn extend_services(
        &self,
        lease: &mut Lease,
        addresses: usize,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        match self {
            Self::Bridge(pods) => pods.extend_services(lease, addresses),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => Ok(Vec::new()),
        }
    }

    /// Assigns exactly these addresses outside the pod network to the network namespace of Services.
    pub(crate) fn serve_outside(
        &self,
        lease: &mut Lease,
        addresses: &BTreeSet<Ipv4Addr>,
    ) -> Result<(), Error> {
        match self {
            Self::Bridge(pods) => pods.serve_outside(lease, addresses),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => Ok(()),
        }
    }

    /// Why other machines do not reach pods by their addresses, if so: a reason in one word, and a message.
    pub(crate) fn not_reachable(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Bridge(pods) => pods.not_reachable(),
            Self::Host(_) => Some(("NoPodNetwork", NO_POD_NETWORK.to_owned())),
            Self::Cni { .. } | Self::Nowhere { .. } => None,
        }
    }

    /// Detaches the network namespace of Services.
    pub(crate) fn release_services(&self, lease: Lease) -> Result<(), Error> {
        match self {
            Self::Bridge(pods) => pods.release_services(lease),
            Self::Cni { .. } | Self::Host(_) | Self::Nowhere { .. } => Ok(()),
        }
    }

    /// A descriptor of the bridge's namespace, if it is not the host's: the namespace ends when the last descriptor closes.
    pub(crate) fn pin(&self) -> Option<OwnedFd> {
        match self {
            Self::Bridge(pods) => pods.pin(),
            Self::Cni { cni, .. } => cni.namespace()?.try_clone_to_owned().ok(),
            Self::Host(_) | Self::Nowhere { .. } => None,
        }
    }

    /// Removes the bridge if no pod is attached. From now on, no pod can be attached.
    pub(crate) fn close(&self) {
        if let Self::Bridge(pods) = self {
            pods.close();
        }
    }
}

fn set_up(source: network::NetError) -> Error {
    Error::Net { what: "set up", source }
}

fn ended() -> Error {
    Error::Unable("the pod's keeper ended while the pod's network was being set up".to_owned())
}

impl AttachedSandbox {
    fn for_plugins(&self, cidrs: &PodCidrs) -> CniPod {
        let sandbox = &self.sandbox;
        let (name, namespace, uid, _) = sandbox.key();
        let ports = self.ports.iter();
        CniPod {
            id: sandbox.id.to_string(),
            directory: self.directory.clone(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            request: CniRequest {
                ports: ports
                    .map(|p| (p.transport.to_string(), p.host, p.host_port, p.pod_port))
                    .collect(),
                annotations: sandbox.config.annotations.clone(),
                dns: sandbox.config.dns_config.as_ref().map(|dns| Dns {
                    servers: dns.servers.clone(),
                    searches: dns.searches.clone(),
                    options: dns.options.clone(),
                }),
                ranges: cidrs.texts(),
            },
        }
    }
}

/// Whether the pod has its own network, if there are network namespaces.
fn own_network(sandbox: &Sandbox) -> bool {
    let linux = sandbox.config.linux.as_ref();
    let options =
        linux.and_then(|l| l.security_context.as_ref()).and_then(|c| c.namespace_options.as_ref());
    options.is_none_or(|options| options.network != i32::from(NamespaceMode::Node))
}
