//! **network**: pod networks. A bridge per daemon, and for each pod a pair of interfaces, an address and a default route.
//!
//! ```text
//! bridge's namespace                                pod's namespace
//!   crib1a2b3c4d  10.200.7.1/24  (bridge)             lo    up
//!     └─ crv0123456789ab  (port) ──────────────────── eth0  10.200.7.2/24, default via 10.200.7.1
//! ```
//!
//! The bridge lives in the current network namespace (root) or in a private one (rootless). Daemons on one host share
//! nothing: each has its own bridge, and subnets it chose and claimed for itself: of IPv4, and of IPv6 where the kernel has
//! it. All calls block; a daemon makes them on a thread where blocking is allowed. `nat` has the packet rules for what
//! leaves the host, and `cni` the networks that other programs make instead of all this.
//!
//! Reading order: `subnet` ◆, `ipam` ◆, `segments` ◆ and `names` ◆ decide, `link_query` observes, `requests` ◆ builds what
//! `netlink` sends, `bridge_setup`, `further` and `bridge` walk it; `subnet_lock`, `namespace`, `pod_netns` and `deletion`
//! are the tools beside.
//!
//! This package knows no CRI type, sandbox record or process of a pod: it is given names, descriptors and addresses.

mod bridge;
mod bridge_config;
mod bridge_setup;
pub mod cni;
mod conntrack;
mod deletion;
mod further;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod ipam;
mod link_query;
mod names;
mod namespace;
mod nat;
mod netlink;
mod nft;
mod pod_netns;
mod requests;
mod segments;
mod subnet;
mod subnet6;
mod subnet_lock;
#[cfg(test)]
mod tests;

pub use bridge::Bridge;
pub use bridge_config::{BridgeConfig, Ipv6};
use ipam::Ipam;
pub use ipam::IpamError;
pub use nat::{Nat, tables};
pub use netlink::NetlinkError;
pub use nft::PortRule;
pub use pod_netns::{PodNetns, has_ended};
pub use subnet::{Pool, SubnetError};
pub use subnet_lock::{SubnetLockError, SubnetLocks};
pub use subnet6::{CidrError, PodCidrs};

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink::Netlink;

/// The name of a pod's interface, as every container network plugin names it.
pub const POD_INTERFACE: &str = "eth0";

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The hardware address of the interface that has an IPv4 address: locally administered (bit 1 of the first byte)
    /// and made of the address, so that neighbours that remember it from an earlier pod remember it rightly.
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

/// What a pod got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's first address: the IPv4 one, if it has one.
    pub ip: IpAddr,
    /// All of its addresses.
    pub ips: Vec<IpAddr>,
    /// The bridge's first address, which is the pod's default gateway.
    pub gateway: IpAddr,
    /// The name of the other end of the pod's interface, in the bridge's namespace.
    pub host_interface: String,
    /// The hardware address of the pod's interface.
    pub mac: Mac,
}

/// Why a pod network could not be made, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A thread could not be started, or not enter or make a network namespace.
    #[error("{doing}")]
    Namespace {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The bridge's name is not one the kernel takes.
    #[error("{name:?} can not name a bridge; use 1 to 12 characters without '/', ':' and spaces")]
    BridgeName {
        /// The name.
        name: String,
    },
    /// There is an interface of the bridge's name that is no bridge.
    #[error("the network interface {name} exists and is no bridge; remove or rename it")]
    NotABridge {
        /// The name.
        name: String,
    },
    /// The subnet of the existing bridge is claimed by a process that is not this one.
    #[error(
        "the subnet {subnet} of the bridge {name} is in use by another daemon; stop that daemon or use another state directory"
    )]
    SubnetClaimed {
        /// The bridge.
        name: String,
        /// Its subnet.
        subnet: String,
    },
    /// No claim could be made.
    #[error("failed to claim the subnet {subnet}")]
    SubnetLock {
        /// The subnet.
        subnet: String,
        /// Why it failed.
        source: SubnetLockError,
    },
    /// There is no place for claims.
    #[error("failed to claim subnets")]
    SubnetLocks(#[from] SubnetLockError),
    /// Every address is held.
    #[error(
        "all {capacity} addresses of {subnets} are held by pods; remove a pod, or configure a larger subnet (--pod-cidr)"
    )]
    Full {
        /// The subnets that pods have addresses of.
        subnets: String,
        /// For how many pods.
        capacity: u32,
    },
    /// Every port of every bridge is taken.
    #[error("all {capacity} ports of the bridge {name} are taken by pods; remove a pod")]
    NoPorts {
        /// The bridge.
        name: String,
        /// How many there are.
        capacity: usize,
    },
    /// Everything in the pools is taken.
    #[error(
        "no subnet of {pools} is free: each overlaps an address or a route of this host or is claimed by another daemon; configure another pool"
    )]
    NoSubnet {
        /// The pools, as text.
        pools: String,
    },
    /// No address was to be had.
    #[error(transparent)]
    Address(#[from] IpamError),
    /// An interface that was there a moment ago has gone.
    #[error(
        "the network interface {name} disappeared while it was being set up; is something else removing it?"
    )]
    Vanished {
        /// The name.
        name: String,
    },
    /// The kernel did not begin to pass frames in time.
    #[error("the interface {name} does not carry traffic {waited_ms} ms after it was brought up")]
    NotForwarding {
        /// The name.
        name: String,
        /// How long was waited, in milliseconds.
        waited_ms: u128,
    },
    /// Attaching failed, and so did removing what was half made.
    #[error("{}; then removing the half-made interface failed", chain(attach))]
    Cleanup {
        /// What failed first.
        attach: Box<NetError>,
        /// What failed then.
        #[source]
        cleanup: Box<NetError>,
    },
    /// The bridge can not go while pods are attached.
    #[error("the bridge {name} still has {pods} pods attached; detach them first")]
    StillAttached {
        /// The bridge.
        name: String,
        /// How many pods.
        pods: usize,
    },
}

/// An error with its causes, for an error that is printed beside another one and so is no source of it.
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

/// Brings the loopback interface of a network namespace up, and with it 127.0.0.1 and `::1`.
pub fn loopback_up(netns: BorrowedFd<'_>) -> Result<(), NetError> {
    namespace::within(Some(netns), || {
        Netlink::open()?.batch(&[requests::up(requests::Link::Name("lo"))])
    })
    .map_err(|source| NetError::Namespace {
        doing: "entering a network namespace to bring its loopback interface up",
        source,
    })??;
    Ok(())
}

/// Makes a fresh network namespace, with its loopback interface up. It lives as long as the descriptor, or a process
/// or a duplicate of the descriptor in another process.
pub fn private_netns() -> Result<OwnedFd, NetError> {
    let netns = namespace::make().map_err(|source| NetError::Namespace {
        doing: "making a network namespace",
        source,
    })?;
    loopback_up(netns.as_fd())?;
    Ok(netns)
}
