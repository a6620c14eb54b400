//! ◆ Builds the route-netlink messages of a pod network.
//!
//! Every link created here has IPv6 link-local addressing off: an interface that solicits routers and probes for
//! duplicate addresses does needless work, and neighbours resolve each other by their assigned addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::Ipv4Net;

use crate::Mac;
use crate::links::netlink::{Query, Request};
use crate::message::{CREATE, EXCLUSIVE, attribute, nested, text};

// Of linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h and linux/if.h.
pub(super) const NEW_LINK: u16 = 16;
pub(super) const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
pub(super) const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
pub(super) const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;

/// Attributes of links.
pub(super) mod link {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const MTU: u16 = 4;
    pub(crate) const CONTROLLER: u16 = 10;
    pub(crate) const OPERATIONAL_STATE: u16 = 16;
    pub(crate) const INFO: u16 = 18;
    pub(crate) const ALIAS: u16 = 20;
    pub(crate) const FAMILIES: u16 = 26;
    pub(crate) const NAMESPACE: u16 = 28;
    pub(crate) const EXTENT: u16 = 29;
    /// In [`INFO`].
    pub(crate) const KIND: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const PORT_KIND: u16 = 4;
    pub(crate) const PORT_DATA: u16 = 5;
}

/// Attributes of addresses.
pub(super) mod address {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const LOCAL: u16 = 2;
    pub(crate) const BROADCAST: u16 = 4;
}

/// Attributes of routes.
pub(super) mod route {
    pub(crate) const DESTINATION: u16 = 1;
    pub(crate) const INTERFACE: u16 = 4;
    pub(crate) const GATEWAY: u16 = 5;
    pub(crate) const METRIC: u16 = 6;
}

const UP: u32 = 0x1;
const NO_ARP: u32 = 0x80;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Without the counters of links.
const SKIP_STATISTICS: u32 = 8;
/// The other end in the data of a veth pair.
const PEER: u16 = 1;
/// In the data of a bridge: its options as bits (`IFLA_BR_MULTI_BOOLOPT`), and one of them (linux/if_bridge.h,
/// `BR_BOOLOPT_NO_LL_LEARN`).
const BRIDGE_OPTIONS: u16 = 46;
const NO_LINK_LOCAL_LEARNING: u32 = 1;
/// The IPv6 address generation mode of a link, and its value for none (`IN6_ADDR_GEN_MODE_NONE`).
const ADDRESS_MODE: u16 = 8;
const MODE_NONE: u8 = 1;
/// An address's flag: no duplicate address detection.
const NO_DETECTION: u8 = 2;
const MAIN_TABLE: u8 = 254;
const STATIC: u8 = 4;
const TO_HOST: u8 = 254;
const TO_EVERYWHERE: u8 = 0;
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;

/// A link in a request: by name, or by index in the socket's namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Link<'a> {
    Name(&'a str),
    Index(u32),
}

impl Link<'_> {
    /// The link's header, with flags to set, and its name.
    fn with_flags(self, flags: u32) -> Vec<u8> {
        let index = match self {
            Link::Name(_) => 0,
            Link::Index(index) => index,
        };
        let mut bytes = vec![0; 4];
        for number in [index, flags, flags] {
            bytes.extend(number.to_ne_bytes());
        }
        if let Link::Name(name) = self {
            bytes.extend(text(link::NAME, name));
        }
        bytes
    }

    fn with(self, attributes: &[Vec<u8>]) -> Vec<u8> {
        [self.with_flags(0), attributes.concat()].concat()
    }
}

impl std::fmt::Display for Link<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Link::Name(name) => f.write_str(name),
            Link::Index(index) => write!(f, "number {index}"),
        }
    }
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_ne_bytes())
}

fn ip(kind: u16, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => attribute(kind, &address.octets()),
        IpAddr::V6(address) => attribute(kind, &address.octets()),
    }
}

/// Queries a link, or with index 0 all links, without their counters.
pub(crate) fn query(link: Link<'_>) -> Query {
    Query { kind: GET_LINK, payload: link.with(&[number(link::EXTENT, SKIP_STATISTICS)]) }
}

/// Queries all IPv4 addresses.
pub(crate) fn query_addresses() -> Query {
    Query { kind: GET_ADDRESS, payload: vec![IPV4, 0, 0, 0, 0, 0, 0, 0] }
}

/// Queries all IPv4 routes.
pub(crate) fn query_routes() -> Query {
    Query { kind: GET_ROUTE, payload: [vec![IPV4], vec![0; 11]].concat() }
}

/// Creates an object that must not exist yet.
fn create(doing: String, kind: u16, payload: Vec<u8>) -> Request {
    Request { doing, flags: CREATE | EXCLUSIVE, fine: &[], kind, payload }
}

fn change(doing: String, payload: Vec<u8>) -> Request {
    Request { doing, flags: 0, fine: &[], kind: SET_LINK, payload }
}

/// Creates a bridge, down. Its hardware address is fixed; otherwise the kernel would change it whenever a port is
/// added or removed.
pub(crate) fn create_bridge(name: &str, mac: Mac) -> Request {
    let payload = Link::Name(name)
        .with(&[attribute(link::ADDRESS, &mac.0), nested(link::INFO, &text(link::KIND, "bridge"))]);
    create(format!("creating the bridge {name}"), NEW_LINK, payload)
}

/// Makes a bridge ignore the sender of frames to the reserved group addresses 01:80:c2:00:00:0X (such as LLDP). The bridge takes
/// them in before its filters, and would otherwise learn that the sender's hardware address, which may be forged, is behind that
/// port. Linux before 5.0 ignores this request.
pub(crate) fn no_learning_from_reserved_groups(bridge: Link<'_>) -> Request {
    // `struct br_boolopt_multi`: the values, and the options to change.
    let options = [NO_LINK_LOCAL_LEARNING.to_ne_bytes(); 2].concat();
    let options = attribute(BRIDGE_OPTIONS, &options);
    let info = [text(link::KIND, "bridge"), nested(link::DATA, &options)].concat();
    Request {
        doing: format!("turning learning from reserved group addresses off on the bridge {bridge}"),
        flags: 0,
        fine: &[],
        // RTM_SETLINK does not change what is specific to a kind of link.
        kind: NEW_LINK,
        payload: bridge.with(&[nested(link::INFO, &info)]),
    }
}

/// Creates a veth pair: one end here, as a port of the bridge; the other directly in the pod's namespace, so that
/// it never appears here. Both are down.
pub(crate) fn create_veth(
    host_name: &str,
    bridge: u32,
    pod_name: &str,
    pod_mac: Mac,
    pod_netns: BorrowedFd<'_>,
    mtu: Option<u32>,
) -> Request {
    let peer = Link::Name(pod_name).with(&[
        attribute(link::ADDRESS, &pod_mac.0),
        attribute(link::NAMESPACE, &pod_netns.as_raw_fd().to_ne_bytes()),
    ]);
    let doing = format!("creating the interface pair {host_name} and the pod's {pod_name}");
    create_pair(doing, host_name, bridge, peer, mtu)
}

/// Creates a veth pair with both ends here; the first one is a port of the bridge. Both are down.
pub(crate) fn create_uplink(upper: &str, bridge: u32, lower: &str, mtu: Option<u32>) -> Request {
    let doing = format!("creating the interface pair {upper} and {lower}");
    create_pair(doing, upper, bridge, Link::Name(lower).with(&[]), mtu)
}

fn create_pair(
    doing: String,
    port: &str,
    bridge: u32,
    mut peer: Vec<u8>,
    mtu: Option<u32>,
) -> Request {
    let mtu = mtu.map(|mtu| number(link::MTU, mtu)).unwrap_or_default();
    peer.extend(&mtu);
    let info = [text(link::KIND, "veth"), nested(link::DATA, &nested(PEER, &peer))].concat();
    let payload =
        Link::Name(port).with(&[mtu, number(link::CONTROLLER, bridge), nested(link::INFO, &info)]);
    create(doing, NEW_LINK, payload)
}

/// Turns ARP off on a link: the kernel would answer on any link for the addresses of all of them.
pub(crate) fn no_arp(link: Link<'_>) -> Request {
    change(format!("turning ARP off on interface {link}"), link.with_flags(NO_ARP))
}

/// Turns IPv6 link-local addressing off; must come before the link goes up. A kernel without IPv6 returns
/// `EAFNOSUPPORT` or `EOPNOTSUPP`.
pub(crate) fn no_ipv6_link_local(link: Link<'_>) -> Request {
    let inet6 = nested(IPV6.into(), &attribute(ADDRESS_MODE, &[MODE_NONE]));
    let doing = format!("turning IPv6 autoconfiguration off on interface {link}");
    Request {
        fine: &[nix::libc::EAFNOSUPPORT, nix::libc::EOPNOTSUPP],
        ..change(doing, link.with(&[nested(link::FAMILIES, &inet6)]))
    }
}

/// Brings a link up.
pub(crate) fn up(link: Link<'_>) -> Request {
    change(format!("bringing interface {link} up"), link.with_flags(UP))
}

/// Gives a link an alias.
pub(crate) fn alias(link: Link<'_>, alias: &str) -> Request {
    let doing = format!("setting the alias of interface {link}");
    change(doing, link.with(&[text(link::ALIAS, alias)]))
}

/// Makes a link a port of the bridge.
pub(crate) fn enslave(link: Link<'_>, bridge: u32) -> Request {
    let doing = format!("making interface {link} a port of the bridge");
    change(doing, link.with(&[number(link::CONTROLLER, bridge)]))
}

/// Deletes a link, and with one end of a veth pair the other. A missing link is not an error.
pub(crate) fn delete(link: Link<'_>) -> Request {
    Request {
        doing: format!("deleting interface {link}"),
        flags: 0,
        fine: &[nix::libc::ENODEV],
        kind: DELETE_LINK,
        payload: link.with(&[]),
    }
}

fn address(family: u8, prefix_len: u8, flags: u8, index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let header = [family, prefix_len, flags, 0];
    [&header[..], &index.to_ne_bytes(), &attributes.concat()].concat()
}

/// Adds an address to a link; the prefix length makes the kernel route the subnet through the link.
pub(crate) fn add_address(index: u32, address: Ipv4Addr, subnet: Ipv4Net) -> Request {
    let prefix_len = subnet.prefix_len();
    let attributes = [
        attribute(address::LOCAL, &address.octets()),
        attribute(address::ADDRESS, &address.octets()),
        attribute(address::BROADCAST, &subnet.broadcast().octets()),
    ];
    create(
        format!("adding the address {address}/{prefix_len}"),
        NEW_ADDRESS,
        self::address(IPV4, prefix_len, 0, index, &attributes),
    )
}

/// Removes an address from a link.
pub(crate) fn delete_address(index: u32, address: Ipv4Addr, prefix_len: u8) -> Request {
    let local = attribute(address::LOCAL, &address.octets());
    Request {
        doing: format!("removing the address {address}/{prefix_len}"),
        flags: 0,
        fine: &[nix::libc::EADDRNOTAVAIL],
        kind: DELETE_ADDRESS,
        payload: self::address(IPV4, prefix_len, 0, index, &[local]),
    }
}

/// Adds an IPv6 address to a link, without duplicate address detection: no other host can have it.
pub(crate) fn add_address6(index: u32, address: Ipv6Addr, prefix_len: u8) -> Request {
    let own = attribute(address::ADDRESS, &address.octets());
    create(
        format!("adding the address {address}/{prefix_len}"),
        NEW_ADDRESS,
        self::address(IPV6, prefix_len, NO_DETECTION, index, &[own]),
    )
}

/// A default route in the main table.
fn default(family: u8, scope: u8, kind: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    let header = [family, 0, 0, 0, MAIN_TABLE, STATIC, scope, kind, 0, 0, 0, 0];
    [&header[..], &attributes.concat()].concat()
}

/// Adds a default route through the gateway.
pub(crate) fn default_route(index: u32, gateway: IpAddr) -> Request {
    let family = if gateway.is_ipv4() { IPV4 } else { IPV6 };
    let attributes = [ip(route::GATEWAY, gateway), number(route::INTERFACE, index)];
    create(
        format!("adding the default route through {gateway}"),
        NEW_ROUTE,
        default(family, TO_EVERYWHERE, UNICAST, &attributes),
    )
}

/// Adds a default route to this host itself: sockets here receive packets from pods to any address. With its high metric, every
/// other route takes precedence. `lo` is the loopback interface's index.
pub(crate) fn local_default_route(lo: u32) -> Request {
    let doing = "adding the default route to this host itself".to_owned();
    create(doing, NEW_ROUTE, local_default(lo))
}

/// Removes the route of [`local_default_route`]. A missing one is not an error.
pub(crate) fn delete_local_default_route(lo: u32) -> Request {
    Request {
        doing: "removing the default route to this host itself".to_owned(),
        flags: 0,
        fine: &[nix::libc::ESRCH],
        kind: DELETE_ROUTE,
        payload: local_default(lo),
    }
}

fn local_default(lo: u32) -> Vec<u8> {
    let attributes = [number(route::INTERFACE, lo), number(route::METRIC, 4096)];
    default(IPV4, TO_HOST, LOCAL, &attributes)
}
