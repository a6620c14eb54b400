//! **network**: pod networks. Each daemon has a bridge; each pod has a veth pair, an address and a default route.
//!
//! ```text
//! bridge's namespace                                pod's namespace
//!   crib1a2b3c4d  10.200.7.1/24  (bridge)             lo    up
//!     └─ crv0123456789ab  (port) ──────────────────── eth0  10.200.7.2/24, default via 10.200.7.1
//! ```
//!
//! The bridge lives in the current network namespace (root) or in a private one (rootless), of which every keeper holds a
//! descriptor, so that it outlives the daemon. Daemons on one host share nothing: each has its own bridge, and its own locked
//! subnets: IPv4, and IPv6 if the kernel has it. All calls block; a daemon makes them on a thread that may block.
//!
//! | module | contents |
//! |---|---|
//! | `bridging` | bridges, subnets, addresses, ports of pods, spoofing; `bridge::leases`: addresses of Services; `orphans`: bridges of killed daemons |
//! | `links` | interfaces and network namespaces, through netlink |
//! | `netfilter` | packet rules: `nat` decides, `nft` ◆ builds the messages, `netfilter` sends them; conntrack |
//! | `egress` | egress of a private namespace: `relay` is crib's own, `program` ◆ has pasta and slirp4netns, `dns` the DNS server |
//! | [`cni`] | the networks that CNI plugins set up instead |
//!
//! Reading order: in `bridging` `subnet` ◆, `ipam` ◆, `segments` ◆ and `names` ◆ decide, `link_query` observes, `requests` ◆
//! builds the messages that `netlink` sends, `bridge_setup`, `spoofing`, `bridges` and `bridge` execute; `subnet_lock`,
//! `pod_netns`, `slots`, `join`, `resolver` and `deletion` are leaf modules.
//!
//! `egress` is a process, `crib __egress`, the first of a process namespace, so that its program never outlives it. It ends when
//! the last write end of its FIFO closes: the daemon and every keeper hold one. Pods share its sockets and queries by the rule of
//! the package `shares`, through `slots`; `join` copies without memory of its own. docs/design.md has the sizes of the pools.
//!
//! # Invariants
//! - A process id alone never identifies a pod's network namespace: a pidfd confirms that the id still belonged to its keeper.
//! - The daemon's own network namespace is never given to a CNI plugin.
//! - No name or file that another user could create decides whether pods have a network.
//! - The socket for packet rules stays open: closing it waits until the kernel has freed the last transaction, about 10 ms.
//!
//! This package uses no CRI type, sandbox record or pod process: its callers pass names, descriptors and addresses.

pub mod cni;
mod egress;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod join;
mod links;
mod message;
mod netfilter;
pub mod resolver;
mod slots;

mod bridging {
    //! The bridge of a runtime: its subnets and addresses, the ports of pods, and the frames that pods may send through them.

    pub(crate) mod bridge;
    pub(crate) mod bridge_config;
    pub(crate) mod bridge_setup;
    pub(crate) mod bridges;
    pub(crate) mod ipam;
    pub(crate) mod names;
    pub(crate) mod orphans;
    pub(crate) mod segments;
    pub(crate) mod spoofing;
    pub(crate) mod subnet;
    pub(crate) mod subnet6;
    pub(crate) mod subnet_lock;
}

#[cfg(test)]
mod tests;

pub use bridging::bridge::{Bridge, Lease};
pub use bridging::bridge_config::{BridgeConfig, Ipv6};
use bridging::ipam::Ipam;
pub use bridging::ipam::IpamError;
pub use bridging::subnet::{Pool, SubnetError};
pub use bridging::subnet_lock::{SubnetLockError, SubnetLocks};
pub use bridging::subnet6::{CidrError, PodCidrs};
pub use egress::{
    COMMAND as EGRESS_COMMAND, DNS as EGRESS_DNS, Egress, EgressError, HOST as EGRESS_HOST,
    Program as EgressProgram, serve_egress,
};
pub use join::join;
pub use links::netlink::NetlinkError;
pub use links::pod_netns::{PodNetns, has_ended};
pub use netfilter::nat::{Nat, tables};
pub use netfilter::nft::PortRule;
pub use slots::{Slot, Slots};

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use links::netlink::Netlink;

/// The name of a pod's interface; every CNI plugin uses the same.
pub const POD_INTERFACE: &str = "eth0";

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The hardware address for the interface with this IPv4 address: locally administered (bit 1 of the first byte)
    /// and derived from the address, so that a neighbour entry of an earlier pod stays valid.
    pub fn of(address: Ipv4Addr) -> Mac {
        let [a, b, c, d] = address.octets();
        Mac([0x02, 0xcb, a, b, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The network of an attached pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's primary address: the IPv4 one, if it has one.
    pub ip: IpAddr,
    /// All of its addresses.
    pub ips: Vec<IpAddr>,
    /// The bridge's address of the primary family, which is the pod's default gateway.
    pub gateway: IpAddr,
    /// The name of the host end of the pod's veth pair, in the bridge's namespace.
    pub host_interface: String,
    /// The hardware address of the pod's interface.
    pub mac: Mac,
}

/// Why a pod network operation failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A thread could not be started, or could not enter or create a network namespace.
    #[error("{doing}")]
    Namespace {
        /// The operation that failed.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The kernel does not accept the bridge's name.
    #[error(
        "{name:?} is not a valid bridge name; use 1 to 12 characters without '/', ':' and spaces"
    )]
    BridgeName {
        /// The name.
        name: String,
    },
    /// An interface has the bridge's name and is not a bridge.
    #[error("the network interface {name} exists and is not a bridge; remove or rename it")]
    NotABridge {
        /// The name.
        name: String,
    },
    /// Another process holds the lock of the existing bridge's subnet.
    #[error(
        "the subnet {subnet} of the bridge {name} is in use by another daemon; stop that daemon or use another state directory"
    )]
    SubnetClaimed {
        /// The bridge.
        name: String,
        /// Its subnet.
        subnet: String,
    },
    /// A subnet could not be locked.
    #[error("failed to lock the subnet {subnet}")]
    SubnetLock {
        /// The subnet.
        subnet: String,
        /// The cause.
        source: SubnetLockError,
    },
    /// The directory of locks is unusable.
    #[error("failed to lock subnets")]
    SubnetLocks(#[from] SubnetLockError),
    /// Every address is allocated.
    #[error(
        "all {capacity} addresses of {subnets} are held by pods; remove a pod, or configure a larger subnet (--pod-cidr)"
    )]
    Full {
        /// The subnets of the pods.
        subnets: String,
        /// The number of pods that they have room for.
        capacity: u32,
    },
    /// Every port of every bridge is taken.
    #[error("all {capacity} ports of the bridge {name} are in use by pods; remove a pod")]
    NoPorts {
        /// The bridge.
        name: String,
        /// The number of ports.
        capacity: usize,
    },
    /// Every subnet of the pools is in use.
    #[error(
        "no subnet of {pools} is free: each overlaps an address or route of this host, or is in use by another daemon; configure another pool"
    )]
    NoSubnet {
        /// The pools, as text.
        pools: String,
    },
    /// No address could be allocated.
    #[error(transparent)]
    Address(#[from] IpamError),
    /// An interface disappeared during setup.
    #[error(
        "the network interface {name} was removed during setup; check for another network manager"
    )]
    Vanished {
        /// The name.
        name: String,
    },
    /// The interface did not reach the forwarding state in time.
    #[error("the interface {name} does not carry traffic {waited_ms} ms after it was brought up")]
    NotForwarding {
        /// The name.
        name: String,
        /// The time waited, in milliseconds.
        waited_ms: u128,
    },
    /// The kernel did not add a pod's addresses to the filter of pods' frames.
    #[error("failed to restrict the pod to its own source addresses")]
    Sources(#[source] io::Error),
    /// The kernel cannot redirect packets for addresses outside the network to a port.
    #[error(
        "pods do not reach addresses outside their network, such as ClusterIPs: the kernel has no nf_tables of family bridge"
    )]
    NoRedirection,
    /// An address to serve is one that a pod can have.
    #[error(
        "{address} is an address of the pods' network {subnet}: choose another range of pods' addresses or of ClusterIPs"
    )]
    Inside {
        /// The address.
        address: Ipv4Addr,
        /// The network.
        subnet: String,
    },
    /// Services have IPv4 addresses only.
    #[error("Services need IPv4 addresses, and pods have none here (--pod-cidr)")]
    NoIpv4,
    /// Attaching failed, and so did removing what it had created.
    #[error("{}; failed to remove the incomplete interface", chain(attach))]
    Cleanup {
        /// The first failure.
        attach: Box<NetError>,
        /// The failure of the cleanup.
        #[source]
        cleanup: Box<NetError>,
    },
    /// The bridge cannot be closed while pods are attached.
    #[error("the bridge {name} still has {pods} pods attached; detach them first")]
    StillAttached {
        /// The bridge.
        name: String,
        /// The number of attached pods.
        pods: usize,
    },
}

/// Formats an error with its causes, for an error that is printed next to another one and is not its source.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Brings the loopback interface of a network namespace up, with 127.0.0.1 and `::1`.
pub fn loopback_up(netns: BorrowedFd<'_>) -> Result<(), NetError> {
    links::within(Some(netns), || {
        Netlink::open()?.batch(&[links::requests::up(links::requests::Link::Name("lo"))])
    })
    .map_err(|source| NetError::Namespace {
        doing: "entering a network namespace to bring its loopback interface up",
        source,
    })??;
    Ok(())
}

/// Creates a network namespace with its loopback interface up. It exists as long as the descriptor or a duplicate of it is open,
/// or a process is in it.
pub fn private_netns() -> Result<OwnedFd, NetError> {
    let netns = links::make_namespace()
        .map_err(|source| NetError::Namespace { doing: "making a network namespace", source })?;
    loopback_up(netns.as_fd())?;
    Ok(netns)
}
