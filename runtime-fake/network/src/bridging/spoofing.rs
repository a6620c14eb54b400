//! Filters spoofed frames and rogue announcements: a frame enters a bridge only with its pod's own addresses, and interfaces
//! outside pods take no configuration from the network.
//!
//! A pod with NET_RAW, which is a default capability, may send any frame: ARP replies and neighbour advertisements that divert
//! other pods' traffic to itself, packets with another pod's IP address, and frames with another pod's hardware address, which
//! the bridge would learn. So each daemon has a table of nf_tables (family bridge) in its bridge's namespace: the ports of its
//! pods, and the addresses that each port may send from. It checks a frame at the pod's port only, not between bridges, and
//! ignores other daemons' ports. Frames to reserved group addresses pass no filter, so bridges do not learn from them
//! (`requests::no_learning_from_reserved_groups`).
//!
//! The table also redirects packets from pods to addresses outside their network (ClusterIPs) to the port that serves them: it
//! replaces the gateway's hardware address in the frame. So the host needs no route or address for them.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use crate::links;
use crate::netfilter::Nfnetlink;
use crate::netfilter::nft::{
    ACCEPT, BRIDGE, Batch, DROP, LINK_HEADER, META_IN_NAME, META_PROTOCOL, META_TRANSPORT,
    NETWORK_HEADER, PREROUTING, TRANSPORT_HEADER, compare, found, interface, load_payload, mapped,
    meta, payload, remove_of, replace_payload, verdict,
};
use crate::{Mac, NetError};

/// The customary priority of filters of bridges (`NF_BR_PRI_FILTER_BRIDGED`).
const FILTER: i32 = -200;

/// Ports of pods.
const PORTS: &str = "ports";
/// Port, hardware address and IPv4 address of each pod.
const V4: &str = "v4";
/// Port, hardware address and IPv6 address of each pod.
const V6: &str = "v6";

/// The hardware address of the port that serves an IPv4 address outside the network.
const SERVED: &str = "served";
/// The priority of the chain that redirects packets to that port: after the filter.
const LEADING: i32 = FILTER + 1;
/// The number of addresses in one transaction, which the size of a socket's buffer limits.
const AT_ONCE: usize = 256;

/// The positions of a key's parts, as numbers of 32-bit kernel registers. Register 1 begins at number 8; the port's name takes
/// the first 16 bytes.
const HARDWARE: u32 = 8 + 16 / 4;
const ADDRESS: u32 = HARDWARE + 8 / 4;

/// A pod as a port of a bridge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
}

/// The table of one daemon.
#[derive(Debug)]
pub(crate) struct SourceFilter {
    table: String,
    /// The bridge's namespace, if it is not the daemon's.
    namespace: Option<OwnedFd>,
    /// `None` if the kernel lacks nf_tables for bridges.
    nfnetlink: Mutex<Option<Nfnetlink>>,
}

impl SourceFilter {
    /// Makes the table, or replaces an earlier daemon's, with the ports of its pods and their addresses.
    pub(crate) fn open(
        bridge: &str,
        namespace: Option<BorrowedFd<'_>>,
        pods: &[(String, Mac, Vec<IpAddr>)],
    ) -> Self {
        let mut batch = table(bridge);
        for (name, mac, addresses) in pods {
            let port = Port { name, mac: *mac };
            batch.element(bridge, PORTS, &interface(name), true);
            elements(&mut batch, bridge, port, addresses, true);
        }
        let transaction = batch.end();
        let made = links::within(namespace, || {
            let mut nfnetlink = Nfnetlink::default();
            nfnetlink.transact(&transaction).map(|()| nfnetlink)
        });
        let nfnetlink = match made.and_then(|made| made) {
            Ok(nfnetlink) => Some(nfnetlink),
            Err(error) => {
                tracing::warn!(
                    bridge, %error,
                    "failed to filter frames of pods (nf_tables, family bridge): a pod can spoof another pod's addresses"
                );
                None
            }
        };
        let namespace = namespace.and_then(|namespace| namespace.try_clone_to_owned().ok());
        Self { table: bridge.to_owned(), namespace, nfnetlink: Mutex::new(nfnetlink) }
    }

    /// Allows a pod's port to send from its addresses only. Call it before the port exists.
    pub(crate) fn bind(&self, port: Port<'_>, addresses: &[IpAddr]) -> Result<(), NetError> {
        self.change(|batch| {
            batch.element(&self.table, PORTS, &interface(port.name), true);
            elements(batch, &self.table, port, addresses, true);
        })
        .map_err(NetError::Sources)
    }

    /// Allows a pod's port to send from further addresses.
    pub(crate) fn add_addresses(
        &self,
        port: Port<'_>,
        addresses: &[IpAddr],
    ) -> Result<(), NetError> {
        let outcome = self.change(|batch| elements(batch, &self.table, port, addresses, true));
        outcome.map_err(NetError::Sources)
    }

    /// Removes further addresses of a port.
    pub(crate) fn remove_addresses(&self, port: Port<'_>, addresses: &[IpAddr]) {
        released(self.change(|batch| elements(batch, &self.table, port, addresses, false)));
    }

    /// Redirects packets from pods to these addresses to a port, which may also send from them.
    pub(crate) fn redirect(&self, port: Port<'_>, addresses: &[Ipv4Addr]) -> Result<(), NetError> {
        if !self.is_there() {
            return Err(NetError::NoRedirection);
        }
        for some in addresses.chunks(AT_ONCE) {
            let outcome = self.change(|batch| {
                for address in some {
                    batch.entry(&self.table, SERVED, &address.octets(), &port.mac.0);
                    elements(batch, &self.table, port, &[IpAddr::V4(*address)], true);
                }
            });
            outcome.map_err(NetError::Sources)?;
        }
        Ok(())
    }

    /// Removes the redirection of packets to these addresses.
    pub(crate) fn unredirect(&self, port: Port<'_>, addresses: &[Ipv4Addr]) {
        for some in addresses.chunks(AT_ONCE) {
            released(self.change(|batch| {
                for address in some {
                    batch.element(&self.table, SERVED, &address.octets(), false);
                    elements(batch, &self.table, port, &[IpAddr::V4(*address)], false);
                }
            }));
        }
    }

    /// Whether the kernel has the table.
    fn is_there(&self) -> bool {
        self.nfnetlink.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Removes a port and its addresses. Call it after the port is deleted.
    pub(crate) fn release(&self, port: Port<'_>, addresses: &[IpAddr]) {
        released(self.change(|batch| {
            batch.element(&self.table, PORTS, &interface(port.name), false);
            elements(batch, &self.table, port, addresses, false);
        }));
    }

    /// Removes the table.
    pub(crate) fn close(self) {
        drop(self.transact(&remove_of(BRIDGE, &self.table)));
    }

    fn change(&self, change: impl FnOnce(&mut Batch)) -> io::Result<()> {
        let mut batch = Batch::of(BRIDGE);
        change(&mut batch);
        self.transact(&batch.end())
    }

    fn transact(&self, transaction: &[u8]) -> io::Result<()> {
        let mut nfnetlink = self.nfnetlink.lock().unwrap_or_else(PoisonError::into_inner);
        match nfnetlink.as_mut() {
            None => Ok(()),
            Some(nfnetlink) if nfnetlink.is_open() => nfnetlink.transact(transaction),
            // A socket stays in the namespace that it was opened in. After an error no socket is open, so a new one is opened in
            // that namespace.
            Some(nfnetlink) => {
                let namespace = self.namespace.as_ref().map(AsFd::as_fd);
                links::within(namespace, || nfnetlink.transact(transaction))?
            }
        }
    }
}

/// An element that cannot be removed allows no traffic, because its port no longer exists. ENOENT is not an error.
fn released(outcome: io::Result<()>) {
    if let Err(error) = outcome
        && error.raw_os_error() != Some(nix::libc::ENOENT)
    {
        tracing::debug!(%error, "failed to remove pod from frame filter");
    }
}

/// ◆ The elements of a port's addresses: to add or to remove.
fn elements(batch: &mut Batch, table: &str, port: Port<'_>, addresses: &[IpAddr], add: bool) {
    for address in addresses {
        let (set, octets) = match address {
            IpAddr::V4(address) => (V4, address.octets().to_vec()),
            IpAddr::V6(address) => (V6, address.octets().to_vec()),
        };
        let mut key = interface(port.name).to_vec();
        // Padded to whole registers.
        key.extend(port.mac.0.into_iter().chain([0, 0]).chain(octets));
        batch.element(table, set, &key, add);
    }
}

/// ◆ The table without pods: a transaction that the caller ends.
fn table(name: &str) -> Batch {
    /// `ETH_P_ARP`, `ETH_P_IP`, `ETH_P_IPV6`, in a frame's byte order.
    const ARP: [u8; 2] = [0x08, 0x06];
    const IPV4: [u8; 2] = [0x08, 0x00];
    const IPV6: [u8; 2] = [0x86, 0xdd];
    let mut batch = Batch::of(BRIDGE);
    batch.replaced_table(name);
    for (set, address) in [(V4, 4), (V6, 16)] {
        batch.set(name, set, 16 + 8 + address);
    }
    batch.set(name, PORTS, 16);
    batch.chain(name, "prerouting", "filter", PREROUTING, FILTER);
    // Loads port, hardware address and the address at `offset` of a header, and looks them up.
    let own = |set, header, offset, not| {
        let size = if set == V4 { 4 } else { 16 };
        [
            meta(META_IN_NAME),
            load_payload(HARDWARE, LINK_HEADER, 6, 6),
            load_payload(ADDRESS, header, offset, size),
            found(set, not),
        ]
        .concat()
    };
    let protocol = |protocol: [u8; 2]| [meta(META_PROTOCOL), compare(false, &protocol)].concat();
    let neighbour = |kind: u8| {
        const ICMPV6: u8 = 58;
        [
            protocol(IPV6),
            meta(META_TRANSPORT),
            compare(false, &[ICMPV6]),
            payload(TRANSPORT_HEADER, 0, 1),
            compare(false, &[kind]),
        ]
        .concat()
    };
    let rules = [
        // Frames from other ports than pods'.
        ([meta(META_IN_NAME), found(PORTS, true)].concat(), ACCEPT),
        // The sender's addresses in an ARP request or reply.
        ([protocol(ARP), own(V4, NETWORK_HEADER, 14, false)].concat(), ACCEPT),
        ([protocol(IPV4), own(V4, NETWORK_HEADER, 12, false)].concat(), ACCEPT),
        // Router advertisement and redirect (RFC 4861): there are no routers among pods.
        (neighbour(134), DROP),
        (neighbour(137), DROP),
        // A neighbour advertisement's target.
        ([neighbour(136), own(V6, TRANSPORT_HEADER, 8, true)].concat(), DROP),
        ([protocol(IPV6), own(V6, NETWORK_HEADER, 8, false)].concat(), ACCEPT),
        (Vec::new(), DROP),
    ];
    for (expressions, code) in rules {
        batch.rule(name, "prerouting", &[expressions, verdict(code)].concat());
    }
    batch.map(name, SERVED, 4, 6);
    batch.chain(name, "leading", "filter", PREROUTING, LEADING);
    let lead = [
        // Several daemons may serve the same address, each to its own pods.
        meta(META_IN_NAME),
        found(PORTS, false),
        protocol(IPV4),
        payload(NETWORK_HEADER, 16, 4),
        mapped(SERVED, 2),
        replace_payload(2, LINK_HEADER, 0, 6),
    ];
    batch.rule(name, "leading", &lead.concat());
    batch
}

// Announcements of pods: an interface outside pods takes no configuration from the pod network.
//
// A pod may send router advertisements and redirects. By default the kernel takes an address, routes and the default route from
// them, and so the host would send its own traffic to a pod (CVE-2020-10749). The settings are needed on bridges only, because
// the bridge receives the packets of its ports. Where the kernel can filter frames, most announcements are dropped before; these
// settings work on every kernel.

/// Settings of an interface (ip-sysctl of the kernel's documentation): family, name and value.
const SETTINGS: [(&str, &str, &str); 6] = [
    ("ipv6", "accept_ra", "0"),
    ("ipv6", "accept_redirects", "0"),
    ("ipv6", "autoconf", "0"),
    ("ipv4", "accept_redirects", "0"),
    // Replies to ARP requests for the bridge's own address only, not for addresses of the host's other interfaces.
    ("ipv4", "arp_ignore", "1"),
    // Accepts packets only from addresses that are routed through the bridge.
    ("ipv4", "rp_filter", "1"),
];

/// Makes interfaces in a namespace ignore announcements. Call it before the interfaces are up.
pub(crate) fn ignore_announcements(
    namespace: Option<BorrowedFd<'_>>,
    interfaces: &[String],
) -> Result<(), NetError> {
    let work = || interfaces.iter().for_each(|interface| ignore_announcements_here(interface));
    links::within(namespace, work).map_err(|source| NetError::Namespace {
        doing: "entering the bridge's network namespace",
        source,
    })
}

/// [`ignore_announcements`], for an interface in this thread's namespace.
pub(crate) fn ignore_announcements_here(interface: &str) {
    for (family, setting, value) in SETTINGS {
        let path = Path::new("/proc/sys/net").join(family).join("conf").join(interface);
        match fs::write(path.join(setting), value) {
            Ok(()) => {}
            // The kernel lacks that family.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                interface, setting, %error,
                "failed to ignore router advertisements of pods: they can change the host's addresses and routes"
            ),
        }
    }
}
