//! The network that pods are connected to.

use std::{
    collections::BTreeMap,
    fs::File,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};

use cri::v1::NamespaceMode;

use super::Error;
use crate::{
    id::SandboxId,
    isolation::Isolation,
    launch::{HostPort, Invalid, Transport},
    net::{
        Bridge, BridgeConfig, CniConfig, NetError, PodCidrs, PortRule,
        cni::{self, Cni, CniPod, Dns, Given, Wishes, annotations_fit},
        loopback_up,
        nat::Nat,
        private_netns,
    },
    sandbox::Sandbox,
};

/// What pods are connected to, or why to nothing.
pub(crate) enum Network {
    /// Pods get addresses on it.
    Bridge(Box<RwLock<Option<Bridged>>>),
    /// Plugins connect pods.
    Cni {
        /// They.
        cni: Cni,
        /// Where pods are to have their addresses, for plugins that take it.
        cidrs: PodCidrs,
    },
    /// Pods share the host's network, each with a loopback address of its own: there are no network namespaces.
    Host,
    /// Pods have a loopback interface only.
    Loopback {
        /// Why.
        reason: String,
    },
}

/// A bridge, with the host's packet rules for it where it is in the host's network.
pub(crate) struct Bridged {
    bridge: Bridge,
    nat: Option<Nat>,
}

/// How to open a network.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    pub(crate) isolation: Isolation,
    /// The bridge's name.
    pub(crate) name: String,
    /// Plugins instead of the bridge.
    pub(crate) cni: Option<CniConfig>,
    /// Where pods are to have their addresses.
    pub(crate) cidrs: PodCidrs,
}

/// A sandbox that is connected already.
#[derive(Debug, Clone)]
pub(crate) struct Connected {
    pub(crate) id: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<HostPort>,
}

/// A sandbox that is to be connected or disconnected.
pub(crate) struct Target {
    pub(crate) sandbox: Sandbox,
    /// Its directory.
    pub(crate) directory: PathBuf,
    pub(crate) ports: Vec<HostPort>,
}

/// What came of a new subnet for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Pods get addresses of it from now on.
    Yes,
    /// There are pods with addresses of the one before.
    PodsAreThere,
    /// Whatever gives pods their addresses is not to be told.
    NotOurs,
}

impl Network {
    /// Opens the network. `existing` are the sandboxes that are connected; `private` is the namespace of an earlier
    /// daemon's bridge.
    pub(crate) fn open(
        opening: &Opening,
        existing: &[Connected],
        private: Option<OwnedFd>,
    ) -> Self {
        let namespace = match opening.isolation {
            Isolation::Process => return Self::Host,
            Isolation::Root => Ok(None),
            Isolation::Rootless { .. } => private.map_or_else(private_netns, Ok).map(Some),
        };
        let opened = namespace.and_then(|namespace| match &opening.cni {
            Some(config) => Ok(Self::Cni {
                cni: Cni::new(config.clone(), namespace),
                cidrs: opening.cidrs,
            }),
            None => Bridged::open(opening, existing, namespace)
                .map(|bridged| Self::Bridge(Box::new(RwLock::new(Some(bridged))))),
        });
        opened.unwrap_or_else(|error| {
            let reason = crate::chain(&error);
            tracing::warn!(%reason, "no bridge: pods get a loopback interface only");
            Self::Loopback { reason }
        })
    }

    /// Connects the network namespace of process `pid`.
    pub(crate) fn attach(&self, target: &Target, pid: i32) -> Result<Given, Error> {
        let given = |addresses| Given {
            addresses,
            dns: None,
        };
        let fail = |source| Error::Net {
            what: "set up",
            source,
        };
        let namespace = || {
            File::open(format!("/proc/{pid}/ns/net"))
                .map_err(super::io("open the pod's network namespace"))
        };
        let id = &target.sandbox.id;
        match self {
            Self::Host => Ok(given(vec![own_loopback(id)])),
            Self::Loopback { .. } => {
                loopback_up(namespace()?.as_fd()).map_err(fail)?;
                Ok(given(vec![IpAddr::from([127, 0, 0, 1])]))
            }
            Self::Cni { cni, cidrs } => {
                annotations_fit(&target.sandbox.config.annotations).map_err(Invalid)?;
                loopback_up(namespace()?.as_fd()).map_err(fail)?;
                let pod = target.for_plugins(cidrs);
                let added = cni.add(&pod, &format!("/proc/{pid}/ns/net"));
                added.map_err(|source| Error::Cni {
                    what: "set up",
                    source,
                })
            }
            Self::Bridge(bridged) => {
                let bridged = bridged.read().unwrap_or_else(PoisonError::into_inner);
                // None only while the daemon ends.
                let Some(Bridged { bridge, nat }) = &*bridged else {
                    return Err(crate::store::Refused::ShuttingDown.into());
                };
                let ips = bridge
                    .attach(id.as_str(), namespace()?.as_fd())
                    .map_err(fail)?
                    .ips;
                if let Some(nat) = nat {
                    nat.add(id.as_str(), rules(&target.ports, &ips));
                }
                Ok(given(ips))
            }
        }
    }

    /// Disconnects a sandbox; it need not be connected. `namespace` is the pod's, if that is still there.
    pub(crate) fn detach(&self, target: &Target, namespace: Option<&OwnedFd>) -> Result<(), Error> {
        let id = target.sandbox.id.as_str();
        // The path: the keeper has ended, and its number may be another process's soon.
        let path =
            namespace.map(|fd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
        let undo = |cni: &Cni, cidrs: &PodCidrs| {
            let connected = !target.sandbox.addresses.is_empty() && own_network(&target.sandbox);
            cni.del(&target.for_plugins(cidrs), path.as_deref(), connected)
                .map_err(|source| Error::Cni {
                    what: "take down",
                    source,
                })
        };
        match self {
            Self::Cni { cni, cidrs } => return undo(cni, cidrs),
            // By a daemon that was told of plugins, as this one was not.
            Self::Bridge(_) | Self::Host | Self::Loopback { .. }
                if cni::connected(&target.directory) =>
            {
                undo(
                    &Cni::without_configuration(self.pin()),
                    &PodCidrs::default(),
                )?;
            }
            Self::Bridge(_) | Self::Host | Self::Loopback { .. } => {}
        }
        match self {
            Self::Bridge(bridged) => {
                let bridged = bridged.read().unwrap_or_else(PoisonError::into_inner);
                let Some(Bridged { bridge, nat }) = &*bridged else {
                    return Ok(());
                };
                if let Some(nat) = nat {
                    nat.remove(id);
                }
                bridge.detach(id).map_err(|source| Error::Net {
                    what: "take down",
                    source,
                })
            }
            Self::Cni { .. } | Self::Host | Self::Loopback { .. } => Ok(()),
        }
    }

    /// Why no pod could be connected now, if so.
    pub(crate) fn not_ready(&self) -> Option<String> {
        match self {
            Self::Cni { cni, .. } => cni.status().err().map(|error| crate::chain(&error)),
            Self::Bridge(_) | Self::Host | Self::Loopback { .. } => None,
        }
    }

    /// Whether the network namespace of the pod in `directory` is needed to disconnect it.
    pub(crate) fn wants_namespace(&self, directory: &Path) -> bool {
        matches!(self, Self::Cni { .. }) || cni::connected(directory)
    }

    /// Lets plugins forget every pod that is not among `valid`.
    pub(crate) fn clean_up(&self, valid: &[(Target, i32)]) {
        let Self::Cni { cni, .. } = self else {
            return;
        };
        let ids: Vec<String> = valid
            .iter()
            .map(|(target, _)| target.sandbox.id.to_string())
            .collect();
        if let Err(error) = cni.gc(&ids) {
            tracing::warn!(
                error = crate::chain(&error),
                "the CNI plugins did not clean up"
            );
        }
    }

    /// Lets plugins look at the pods that they connected, by the processes that hold their network namespaces.
    pub(crate) fn check(&self, pods: &[(Target, i32)]) {
        let Self::Cni { cni, cidrs } = self else {
            return;
        };
        for (target, pid) in pods
            .iter()
            .filter(|(target, _)| own_network(&target.sandbox))
        {
            let namespace = format!("/proc/{pid}/ns/net");
            let checked = cni.check(&target.for_plugins(cidrs), &namespace);
            // A pod that was stopped meanwhile is not connected, as it should be.
            let checked = checked.or_else(|error| match Path::new(&namespace).exists() {
                true => Err(error),
                false => Ok(()),
            });
            if let Err(error) = checked {
                tracing::warn!(
                    sandbox = target.sandbox.id.short(),
                    error = crate::chain(&error),
                    "a pod is not connected as it was"
                );
            }
        }
    }

    /// Gives pods addresses of other subnets from now on, where that is this runtime's to say and no pod is there.
    pub(crate) fn reconfigure(&self, opening: &Opening) -> Result<Moved, Error> {
        let Self::Bridge(bridged) = self else {
            return Ok(Moved::NotOurs);
        };
        let mut bridged = bridged.write().unwrap_or_else(PoisonError::into_inner);
        let Some(now) = bridged.take() else {
            return Err(crate::store::Refused::ShuttingDown.into());
        };
        if now.pods() > 0 {
            *bridged = Some(now);
            return Ok(Moved::PodsAreThere);
        }
        let fail = |source| Error::Net {
            what: "move",
            source,
        };
        let namespace = |now: &Bridged| {
            let namespace = now.bridge.namespace();
            namespace.map(|fd| fd.try_clone_to_owned()).transpose()
        };
        let (before, held) = (
            now.opening(opening),
            namespace(&now).map_err(super::io("keep the bridge's network namespace"))?,
        );
        let again = held.as_ref().and_then(|fd| fd.try_clone().ok());
        now.close().map_err(fail)?;
        match Bridged::open(opening, &[], held) {
            Ok(new) => {
                *bridged = Some(new);
                Ok(Moved::Yes)
            }
            Err(error) => {
                // As it was, rather than no network at all.
                *bridged = Bridged::open(&before, &[], again).ok();
                Err(fail(error))
            }
        }
    }

    /// A descriptor of the namespace that the bridge lives in, if that is not the host's: it ends with the last one.
    pub(crate) fn pin(&self) -> Option<OwnedFd> {
        match self {
            Self::Bridge(bridged) => {
                let bridged = bridged.read().unwrap_or_else(PoisonError::into_inner);
                let namespace = bridged.as_ref()?.bridge.namespace()?;
                namespace.try_clone_to_owned().ok()
            }
            Self::Cni { cni, .. } => cni.namespace()?.try_clone_to_owned().ok(),
            Self::Host | Self::Loopback { .. } => None,
        }
    }

    /// Takes the bridge away if no pod is connected.
    pub(crate) fn close(self) {
        if let Self::Bridge(bridged) = self
            && let Some(bridged) = bridged.into_inner().unwrap_or_else(PoisonError::into_inner)
            && let Err(error) = bridged.close()
            && !matches!(error, NetError::StillAttached { .. })
        {
            tracing::warn!(error = crate::chain(&error), "the bridge stays");
        }
    }
}

impl Bridged {
    fn open(
        opening: &Opening,
        existing: &[Connected],
        namespace: Option<OwnedFd>,
    ) -> Result<Self, NetError> {
        let in_host = namespace.is_none();
        let config = BridgeConfig {
            namespace,
            ..BridgeConfig::new(&opening.name).with_cidrs(opening.cidrs)
        };
        let first = existing
            .iter()
            .filter_map(|pod| Some((pod.id.clone(), *pod.addresses.first()?)));
        let bridge = Bridge::open(config, &first.collect::<Vec<_>>())?;
        let nat = in_host.then(|| {
            let ports = existing
                .iter()
                .map(|pod| (pod.id.clone(), rules(&pod.ports, &pod.addresses)))
                .filter(|(_, rules)| !rules.is_empty());
            Nat::open(
                bridge.name(),
                &bridge.subnets(),
                ports.collect::<BTreeMap<_, _>>(),
            )
        });
        Ok(Self { bridge, nat })
    }

    fn pods(&self) -> usize {
        self.bridge.pods()
    }

    /// How to open it as it is.
    fn opening(&self, like: &Opening) -> Opening {
        Opening {
            cidrs: self.bridge.cidrs(),
            ..like.clone()
        }
    }

    fn close(self) -> Result<(), NetError> {
        self.bridge.close()?;
        if let Some(nat) = self.nat {
            nat.close();
        }
        Ok(())
    }
}

impl Target {
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
            wishes: Wishes {
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

/// Whether the pod has a network of its own, where there are network namespaces.
fn own_network(sandbox: &Sandbox) -> bool {
    let linux = sandbox.config.linux.as_ref();
    let options = linux
        .and_then(|l| l.security_context.as_ref())
        .and_then(|c| c.namespace_options.as_ref());
    options.is_none_or(|options| options.network != i32::from(NamespaceMode::Node))
}

/// The packet rules for a pod's host ports: one for each of its addresses that has a family in common with the port.
fn rules(ports: &[HostPort], addresses: &[IpAddr]) -> Vec<PortRule> {
    let mut rules = Vec::new();
    for port in ports {
        for address in addresses {
            // What comes to a loopback address never comes from elsewhere.
            if port
                .host
                .is_some_and(|host| host.is_ipv4() != address.is_ipv4() || host.is_loopback())
            {
                continue;
            }
            rules.push(PortRule {
                transport: match port.transport {
                    Transport::Tcp => 6,
                    Transport::Udp => 17,
                    Transport::Sctp => 132,
                },
                host: port.host,
                host_port: port.host_port,
                pod: *address,
                pod_port: port.pod_port,
            });
        }
    }
    rules
}

/// An address of 127.0.0.0/8 for a sandbox, made of its random id: never 127.0.x.x, where the host's own services are.
fn own_loopback(id: &SandboxId) -> IpAddr {
    let number = u32::from_str_radix(id.as_str().get(..6).unwrap_or_default(), 16).unwrap_or(1);
    let [_, a, b, c] = number.to_be_bytes();
    IpAddr::from([127, a.max(1), b, c.clamp(1, 254)])
}
