//! The built-in bridge with its packet rules. Opening it is retried if it failed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use keeper::contract::plan::{HostPort, Transport};
use network::{
    Bridge, BridgeConfig, Egress, Lease, Nat, NetError, PodCidrs, PodNetns, PortRule,
    SubnetLockError, SubnetLocks, private_netns,
};

use super::{Connected, EgressMode, NetworkOptions, ReconfigureResult, ended, set_up};
use crate::{isolation::Isolation, runtime::Error, store::StateError};

/// The directory of subnet locks for daemons that share the host's network: only root can write there.
const SUBNET_LOCKS: &str = "/run/crib/subnets";

/// This program, for the egress process. No container can see that process.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The holder of the addresses of Services. It cannot be a sandbox's id, which has hexadecimal digits only.
const SERVICES: &str = "services";

/// Why pods on a host that does not forward packets reach no other hosts, with the remedy.
const NOT_FORWARDING: &str = "this host does not forward packets: sysctl -w net.ipv4.ip_forward=1";

/// Why pods of other nodes do not reach pods of a host that does not forward packets.
const NOT_REACHED: &str = "pods of other nodes do not reach pods of this one, because this host does not forward packets: sysctl -w net.ipv4.ip_forward=1";

/// Why other machines and nodes do not reach pods of an ordinary user's runtime.
const ROOTLESS: &str = "the runtime is an ordinary user's: its pods are in a network of their own, so that pods of other nodes do not reach them, nor they those, by addresses or through Services: run the runtime as root";

/// Why a bridge in a namespace of its own has no egress.
const NO_EGRESS: &str = "their network namespace cannot forward packets (see the log)";

/// The network of pods with addresses on the bridge.
pub(crate) struct Pods {
    state: RwLock<State>,
    /// A network namespace for the next pod: its creation takes half a millisecond.
    spare: Mutex<Option<PodNetns>>,
}

/// The bridge, or why it is not open.
enum State {
    Open(Box<Bridged>),
    /// Each call that needs the bridge retries.
    Failed(UnopenedBridge),
    /// The daemon is stopping.
    Closed,
}

/// The parameters of a bridge that failed to open.
struct UnopenedBridge {
    options: NetworkOptions,
    existing: Vec<Connected>,
    private: Option<OwnedFd>,
    reason: String,
}

/// A bridge, with its packet rules if it is in the host's network, otherwise with its egress, if it has one.
struct Bridged {
    bridge: Bridge,
    nat: Option<Nat>,
    egress: Option<Egress>,
}

impl State {
    fn open(options: NetworkOptions, existing: Vec<Connected>, private: Option<OwnedFd>) -> Self {
        match Bridged::open(&options, &existing, private.as_ref()) {
            Ok(bridged) => Self::Open(Box::new(bridged)),
            Err(error) => Self::Failed(UnopenedBridge {
                reason: crate::chain(&error),
                options,
                existing,
                private,
            }),
        }
    }
}

impl Pods {
    pub(super) fn open(
        options: NetworkOptions,
        existing: Vec<Connected>,
        private: Option<OwnedFd>,
    ) -> Self {
        let state = State::open(options, existing, private);
        if let State::Failed(failed) = &state {
            let reason = &failed.reason;
            tracing::warn!(reason, "no pod network: RunPodSandbox fails");
        }
        Self { state: RwLock::new(state), spare: Mutex::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retries opening a bridge that failed to open.
    fn try_again(&self) {
        let failed = matches!(*self.read(), State::Failed(_));
        if !failed {
            return;
        }
        let mut state = self.write();
        *state = match std::mem::replace(&mut *state, State::Closed) {
            State::Failed(failed) => {
                let UnopenedBridge { options, existing, private, .. } = failed;
                State::open(options, existing, private)
            }
            other @ (State::Open(_) | State::Closed) => other,
        };
        if let State::Open(bridged) = &*state {
            tracing::info!(bridge = bridged.bridge.name(), "pod network is ready");
        }
    }

    /// A new network namespace: the spare one, if there is one.
    pub(super) fn make_netns(&self) -> io::Result<PodNetns> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.map_or_else(PodNetns::make, Ok)
    }

    /// Makes a network namespace for the next pod, if there is no spare one.
    pub(super) fn make_spare_netns(&self) {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = spare().is_none();
        // The next pod reports a failure.
        if missing && let Ok(made) = PodNetns::make() {
            *spare() = Some(made);
        }
    }

    /// Attaches a pod and returns its addresses.
    pub(super) fn attach(
        &self,
        id: &str,
        ports: &[HostPort],
        netns: &PodNetns,
    ) -> Result<Vec<IpAddr>, Error> {
        self.try_again();
        let state = self.read();
        let Bridged { bridge, nat, .. } = match &*state {
            State::Open(bridged) => &**bridged,
            State::Failed(failed) => return Err(Error::NoNetwork(failed.reason.clone())),
            State::Closed => return Err(StateError::ShuttingDown.into()),
        };
        let ips = bridge.attach_pod(id, netns).map_err(set_up)?.ips;
        if netns.has_ended().map_err(crate::runtime::io("watch the pod's keeper"))? {
            return Err(ended());
        }
        if let Some(nat) = nat {
            nat.add(id, rules(ports, &ips));
        }
        Ok(ips)
    }

    /// Detaches a pod.
    pub(super) fn detach(&self, id: &str) -> Result<(), Error> {
        let failed = matches!(*self.read(), State::Failed(_));
        if failed && let State::Failed(failed) = &mut *self.write() {
            failed.existing.retain(|known| known.id != id);
        }
        let state = self.read();
        let State::Open(bridged) = &*state else {
            return Ok(());
        };
        let Bridged { bridge, nat, .. } = &**bridged;
        if let Some(nat) = nat {
            nat.remove(id);
        }
        bridge.detach(id).map_err(|source| Error::Net { what: "take down", source })
    }

    /// Attaches a network namespace for Services.
    pub(super) fn lease_services(&self, addresses: usize) -> Result<Lease, Error> {
        self.try_again();
        match &*self.read() {
            State::Open(bridged) => bridged.bridge.lease(SERVICES, addresses).map_err(set_up),
            State::Failed(failed) => Err(Error::NoNetwork(failed.reason.clone())),
            State::Closed => Err(StateError::ShuttingDown.into()),
        }
    }

    /// Adds addresses to the network namespace of Services.
    pub(super) fn extend_services(
        &self,
        lease: &mut Lease,
        addresses: usize,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        match &*self.read() {
            State::Open(bridged) => bridged.bridge.extend(lease, addresses).map_err(set_up),
            State::Failed(failed) => Err(Error::NoNetwork(failed.reason.clone())),
            State::Closed => Err(StateError::ShuttingDown.into()),
        }
    }

    /// Assigns addresses outside the pod network to the network namespace of Services.
    pub(super) fn serve_outside(
        &self,
        lease: &mut Lease,
        addresses: &BTreeSet<Ipv4Addr>,
    ) -> Result<(), Error> {
        match &*self.read() {
            State::Open(bridged) => bridged.bridge.serve(lease, addresses).map_err(set_up),
            State::Failed(failed) => Err(Error::NoNetwork(failed.reason.clone())),
            State::Closed => Err(StateError::ShuttingDown.into()),
        }
    }

    /// Why other machines do not reach pods by their addresses, if so.
    pub(super) fn not_reachable(&self) -> Option<(&'static str, String)> {
        match &*self.read() {
            State::Open(bridged) => match &bridged.nat {
                None => Some(("RootlessPodNetwork", ROOTLESS.to_owned())),
                Some(nat) if nat.is_applied() => None,
                Some(_) => Some(("HostDoesNotForward", NOT_REACHED.to_owned())),
            },
            State::Failed(_) | State::Closed => None,
        }
    }

    /// The result of a change of the subnets. If `services`, addresses of Services count like pods' addresses.
    pub(super) fn would_reconfigure(&self, cidrs: &PodCidrs, services: bool) -> ReconfigureResult {
        would_change(&self.read(), cidrs, services)
    }

    /// Detaches the network namespace of Services.
    pub(super) fn release_services(&self, lease: Lease) -> Result<(), Error> {
        let State::Open(bridged) = &*self.read() else {
            return Ok(());
        };
        let released = bridged.bridge.release(lease);
        released.map_err(|source| Error::Net { what: "take down", source })
    }

    /// Whether the bridge is certainly open.
    pub(super) fn is_open(&self) -> bool {
        let state = self.state.try_read();
        state.is_ok_and(|state| matches!(*state, State::Open(_)))
    }

    /// Why pods cannot be attached now, if so.
    pub(super) fn not_ready(&self) -> Option<String> {
        self.try_again();
        match &*self.read() {
            State::Failed(failed) => Some(failed.reason.clone()),
            State::Open(_) | State::Closed => None,
        }
    }

    /// Changes the subnets of new pods, if there are no pods.
    pub(super) fn reconfigure(&self, options: &NetworkOptions) -> Result<ReconfigureResult, Error> {
        let fail = |source| Error::Net { what: "move", source };
        let mut state = self.write();
        let outcome = would_change(&state, &options.cidrs, true);
        if outcome != ReconfigureResult::Yes {
            return Ok(outcome);
        }
        let now = match &*state {
            State::Closed => return Err(StateError::ShuttingDown.into()),
            State::Failed(failed) => {
                let new = Bridged::open(options, &[], failed.private.as_ref()).map_err(fail)?;
                *state = State::Open(Box::new(new));
                return Ok(ReconfigureResult::Yes);
            }
            State::Open(now) => now,
        };
        let before = now.options(options);
        let private = now.bridge.namespace().map(|fd| fd.try_clone_to_owned());
        let private = private
            .transpose()
            .map_err(crate::runtime::io("keep the bridge's network namespace"))?;
        if let State::Open(now) = std::mem::replace(&mut *state, State::Closed)
            && let Err(error) = now.close()
        {
            *state = State::open(before, Vec::new(), private);
            return Err(fail(error));
        }
        match Bridged::open(options, &[], private.as_ref()) {
            Ok(new) => {
                *state = State::Open(Box::new(new));
                Ok(ReconfigureResult::Yes)
            }
            Err(error) => {
                // Restore the previous bridge rather than leave no network.
                *state = State::open(before, Vec::new(), private);
                Err(fail(error))
            }
        }
    }

    /// The bridge's namespace, if it is not the host's.
    pub(super) fn pin(&self) -> Option<OwnedFd> {
        match &*self.read() {
            State::Open(bridged) => bridged.bridge.namespace()?.try_clone_to_owned().ok(),
            State::Failed(failed) => failed.private.as_ref()?.try_clone().ok(),
            State::Closed => None,
        }
    }

    /// The descriptor that a pod holds to keep the bridge's egress running.
    pub(super) fn hold_egress(&self) -> Option<OwnedFd> {
        let State::Open(bridged) = &*self.read() else {
            return None;
        };
        bridged.egress.as_ref()?.hold().ok()
    }

    /// The address of a bridge in the host's network: the host itself has it.
    pub(super) fn host_address(&self) -> Option<IpAddr> {
        match &*self.read() {
            State::Open(bridged) if bridged.nat.is_some() => Some(bridged.bridge.gateway()),
            State::Open(_) | State::Failed(_) | State::Closed => None,
        }
    }

    /// How pods reach other hosts; `None` without a bridge. A failed program is retried if `again`. Blocks.
    pub(super) fn egress_mode(&self, again: bool) -> Option<EgressMode> {
        let state = self.read();
        let State::Open(bridged) = &*state else {
            return None;
        };
        let Bridged { nat, egress, .. } = &**bridged;
        Some(match (nat, egress) {
            (Some(nat), _) if nat.is_applied() => EgressMode::Host,
            (Some(_), _) => EgressMode::None(NOT_FORWARDING.to_owned()),
            (None, Some(egress)) => match egress.program(Path::new(OWN_PROGRAM), again) {
                Ok(program) => EgressMode::Program(program),
                Err(error) => EgressMode::None(error.to_string()),
            },
            (None, None) => EgressMode::None(NO_EGRESS.to_owned()),
        })
    }

    /// Removes the bridge if no pod is attached. From now on, no pod can be attached: calls in progress are refused.
    pub(super) fn close(&self) {
        if let State::Open(bridged) = std::mem::replace(&mut *self.write(), State::Closed)
            && let Err(error) = bridged.close()
            && !matches!(error, NetError::StillAttached { .. })
        {
            tracing::warn!(error = crate::chain(&error), "failed to remove bridge");
        }
    }
}

/// The result of a change of the subnets of new pods.
fn would_change(state: &State, cidrs: &PodCidrs, services: bool) -> ReconfigureResult {
    let there = |cidrs: PodCidrs| ReconfigureResult::PodsAreThere(cidrs.texts().join(","));
    match state {
        State::Open(now) if now.bridge.cidrs() == *cidrs => ReconfigureResult::AsBefore,
        State::Open(now) => {
            let bridge = &now.bridge;
            let pods = if services { bridge.pods() } else { bridge.pods_beside(SERVICES) };
            if pods > 0 { there(bridge.cidrs()) } else { ReconfigureResult::Yes }
        }
        State::Failed(failed) if !failed.existing.is_empty() => there(failed.options.cidrs),
        State::Failed(_) | State::Closed => ReconfigureResult::Yes,
    }
}

impl Bridged {
    fn open(
        options: &NetworkOptions,
        existing: &[Connected],
        private: Option<&OwnedFd>,
    ) -> Result<Self, NetError> {
        let in_host = options.isolation == Isolation::Root;
        let namespace = match private {
            _ if in_host => None,
            Some(private) => Some(private.try_clone().map_err(|source| NetError::Namespace {
                doing: "keeping the bridge's network namespace",
                source,
            })?),
            None => Some(private_netns()?),
        };
        let config = BridgeConfig {
            namespace,
            subnet_locks: if in_host { subnet_locks()? } else { None },
            state_dir: in_host.then(|| options.state_dir.clone()),
            ..BridgeConfig::new(&options.name).with_cidrs(options.cidrs)
        };
        let private = config.namespace.as_ref().map(OwnedFd::try_clone);
        let private = private.transpose().ok().flatten();
        let first =
            existing.iter().filter_map(|pod| Some((pod.id.clone(), *pod.addresses.first()?)));
        let bridge = Bridge::open(config, &first.collect::<Vec<_>>())?;
        let nat = in_host.then(|| {
            let ports = existing
                .iter()
                .map(|pod| (pod.id.clone(), rules(&pod.ports, &pod.addresses)))
                .filter(|(_, rules)| !rules.is_empty());
            Nat::open(bridge.name(), &bridge.subnets(), ports.collect::<BTreeMap<_, _>>())
        });
        if nat.as_ref().is_some_and(|nat| !nat.is_applied()) {
            let reason = NOT_FORWARDING;
            tracing::warn!(reason, "pods cannot reach other hosts");
        }
        let egress = private.and_then(|netns| open_egress(&bridge, netns.as_fd(), options));
        Ok(Self { bridge, nat, egress })
    }

    /// The parameters of the current bridge.
    fn options(&self, like: &NetworkOptions) -> NetworkOptions {
        NetworkOptions { cidrs: self.bridge.cidrs(), ..like.clone() }
    }

    fn close(self) -> Result<(), NetError> {
        let closed = self.bridge.close();
        if let Some(egress) = self.egress {
            egress.close(closed.is_ok());
        }
        closed?;
        if let Some(nat) = self.nat {
            nat.close();
        }
        Ok(())
    }
}

/// Opens the egress of a private namespace for the IPv4 subnets of its bridge, if there are any.
fn open_egress(bridge: &Bridge, netns: BorrowedFd<'_>, options: &NetworkOptions) -> Option<Egress> {
    let mut subnets = bridge.subnets();
    subnets.retain(|(network, _)| network.is_ipv4());
    let opened = Egress::open(netns, &options.state_dir, bridge.name(), &subnets);
    match opened {
        Ok(egress) => Some(egress),
        Err(error) => {
            let error = crate::chain(&error);
            tracing::warn!(error, "no way out of the pods' network");
            None
        }
    }
}

/// The directory of subnet locks. A machine without it relies on addresses and routes to find subnets in use.
fn subnet_locks() -> Result<Option<SubnetLocks>, NetError> {
    match SubnetLocks::open(Path::new(SUBNET_LOCKS)) {
        Err(SubnetLockError::Io { source, .. })
            if matches!(
                source.kind(),
                io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::NotFound
                    | io::ErrorKind::PermissionDenied
            ) =>
        {
            tracing::warn!(
                directory = SUBNET_LOCKS,
                error = %source,
                "failed to lock subnets: a daemon that starts concurrently may choose the same subnet"
            );
            Ok(None)
        }
        opened => Ok(Some(opened?)),
    }
}

/// The packet rules for a pod's host ports: one for each of its addresses whose family matches the port's.
fn rules(ports: &[HostPort], addresses: &[IpAddr]) -> Vec<PortRule> {
    let mut rules = Vec::new();
    for port in ports {
        for address in addresses {
            // Packets for a loopback address never come from another machine.
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
