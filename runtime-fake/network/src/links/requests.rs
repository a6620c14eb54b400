//! ◆ Builds the route-netlink messages of a pod network.
//!
//! Every link created here has IPv6 link-local addressing off: an interface that solicits routers and probes for
//! duplicate addresses does needless work, and neighbours resolve each other by their assigned addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::Ipv4Net;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::Mac;
use crate::links::netlink::Request;

/// A link in a request: by name, or by index in the socket's namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Link<'a> {
    Name(&'a str),
    Index(u32),
}

impl Link<'_> {
    fn message(self) -> LinkMessage {
        let mut message = LinkMessage::default();
        match self {
            Link::Name(name) => message.attributes.push(LinkAttribute::IfName(name.to_owned())),
            Link::Index(index) => message.header.index = index,
        }
        message
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

/// Queries a link without its counters.
pub(crate) fn query(link: Link<'_>) -> LinkMessage {
    let mut message = link.message();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// Creates an object that must not exist yet.
fn create(doing: String, message: RouteNetlinkMessage) -> Request {
    Request { doing, flags: NLM_F_CREATE | NLM_F_EXCL, fine: &[], message }
}

fn change(doing: String, message: LinkMessage) -> Request {
    Request { doing, flags: 0, fine: &[], message: RouteNetlinkMessage::SetLink(message) }
}

/// Sets a flag of a link.
fn set_flag(doing: String, link: Link<'_>, flag: LinkFlags) -> Request {
    let mut message = link.message();
    message.header.flags = flag;
    message.header.change_mask = flag;
    change(doing, message)
}

/// Creates a bridge, down. Its hardware address is fixed; otherwise the kernel would change it whenever a port is
/// added or removed.
pub(crate) fn create_bridge(name: &str, mac: Mac) -> Request {
    let mut message = Link::Name(name).message();
    message.attributes.extend([
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
    ]);
    create(format!("creating the bridge {name}"), RouteNetlinkMessage::NewLink(message))
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
    let mut peer = Link::Name(pod_name).message();
    peer.attributes.extend([
        LinkAttribute::Address(pod_mac.0.to_vec()),
        LinkAttribute::NetNsFd(pod_netns.as_raw_fd()),
    ]);
    let doing = format!("creating the interface pair {host_name} and the pod's {pod_name}");
    create_pair(doing, host_name, bridge, peer, mtu)
}

/// Creates a veth pair with both ends here; the first one is a port of the bridge. Both are down.
pub(crate) fn create_uplink(upper: &str, bridge: u32, lower: &str, mtu: Option<u32>) -> Request {
    let doing = format!("creating the interface pair {upper} and {lower}");
    create_pair(doing, upper, bridge, Link::Name(lower).message(), mtu)
}

fn create_pair(
    doing: String,
    port: &str,
    bridge: u32,
    mut peer: LinkMessage,
    mtu: Option<u32>,
) -> Request {
    let mut message = Link::Name(port).message();
    for end in [&mut message, &mut peer] {
        end.attributes.extend(mtu.map(LinkAttribute::Mtu));
    }
    message.attributes.extend([
        LinkAttribute::Controller(bridge),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ]);
    create(doing, RouteNetlinkMessage::NewLink(message))
}

/// Turns ARP off on a link: the kernel would answer on any link for the addresses of all of them.
pub(crate) fn no_arp(link: Link<'_>) -> Request {
    let doing = format!("turning ARP off on interface {link}");
    set_flag(doing, link, LinkFlags::Noarp)
}

/// Turns IPv6 link-local addressing off; must come before the link goes up. A kernel without IPv6 returns
/// `EAFNOSUPPORT` or `EOPNOTSUPP`.
pub(crate) fn no_ipv6_link_local(link: Link<'_>) -> Request {
    let mut message = link.message();
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![
        AfSpecInet6::AddrGenMode(In6AddrGenMode::None),
    ])]));
    Request {
        doing: format!("turning IPv6 autoconfiguration off on interface {link}"),
        flags: 0,
        fine: &[nix::libc::EAFNOSUPPORT, nix::libc::EOPNOTSUPP],
        message: RouteNetlinkMessage::SetLink(message),
    }
}

/// Brings a link up.
pub(crate) fn up(link: Link<'_>) -> Request {
    let doing = format!("bringing interface {link} up");
    set_flag(doing, link, LinkFlags::Up)
}

/// Gives a link an alias.
pub(crate) fn alias(link: Link<'_>, alias: String) -> Request {
    let doing = format!("setting the alias of interface {link}");
    let mut message = link.message();
    message.attributes.push(LinkAttribute::IfAlias(alias));
    change(doing, message)
}

/// Makes a link a port of the bridge.
pub(crate) fn enslave(link: Link<'_>, bridge: u32) -> Request {
    let mut message = link.message();
    message.attributes.push(LinkAttribute::Controller(bridge));
    change(format!("making interface {link} a port of the bridge"), message)
}

/// Deletes a link, and with one end of a veth pair the other. A missing link is not an error.
pub(crate) fn delete(link: Link<'_>) -> Request {
    Request {
        doing: format!("deleting interface {link}"),
        flags: 0,
        fine: &[nix::libc::ENODEV],
        message: RouteNetlinkMessage::DelLink(link.message()),
    }
}

/// Adds an address to a link; the prefix length makes the kernel route the subnet through the link.
pub(crate) fn add_address(index: u32, address: Ipv4Addr, subnet: Ipv4Net) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = subnet.prefix_len();
    message.header.index = index;
    message.attributes.extend([
        AddressAttribute::Local(IpAddr::V4(address)),
        AddressAttribute::Address(IpAddr::V4(address)),
        AddressAttribute::Broadcast(subnet.broadcast()),
    ]);
    create(
        format!("adding the address {address}/{}", subnet.prefix_len()),
        RouteNetlinkMessage::NewAddress(message),
    )
}

/// Removes an address from a link.
pub(crate) fn delete_address(index: u32, address: Ipv4Addr, prefix_len: u8) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = prefix_len;
    message.header.index = index;
    let address = IpAddr::V4(address);
    message.attributes.push(AddressAttribute::Local(address));
    Request {
        doing: format!("removing the address {address}/{prefix_len}"),
        flags: 0,
        fine: &[nix::libc::EADDRNOTAVAIL],
        message: RouteNetlinkMessage::DelAddress(message),
    }
}

/// Adds an IPv6 address to a link, without duplicate address detection: no other host can have it.
pub(crate) fn add_address6(index: u32, address: Ipv6Addr, prefix_len: u8) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.prefix_len = prefix_len;
    message.header.index = index;
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes.push(AddressAttribute::Address(IpAddr::V6(address)));
    create(
        format!("adding the address {address}/{prefix_len}"),
        RouteNetlinkMessage::NewAddress(message),
    )
}

/// Adds a default route through the gateway.
pub(crate) fn default_route(index: u32, gateway: IpAddr) -> Request {
    let (family, via) = match gateway {
        IpAddr::V4(gateway) => (AddressFamily::Inet, RouteAddress::Inet(gateway)),
        IpAddr::V6(gateway) => (AddressFamily::Inet6, RouteAddress::Inet6(gateway)),
    };
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes.extend([RouteAttribute::Gateway(via), RouteAttribute::Oif(index)]);
    create(
        format!("adding the default route through {gateway}"),
        RouteNetlinkMessage::NewRoute(message),
    )
}

/// Adds a default route to this host itself: sockets here receive what pods send to any address. The high metric leaves
/// every other route before it. `lo` is the loopback interface's index.
pub(crate) fn local_default_route(lo: u32) -> Request {
    let doing = "adding the default route to this host itself".to_owned();
    create(doing, RouteNetlinkMessage::NewRoute(local_default(lo)))
}

/// Removes the route of [`local_default_route`]. A missing one is not an error.
pub(crate) fn delete_local_default_route(lo: u32) -> Request {
    Request {
        doing: "removing the default route to this host itself".to_owned(),
        flags: 0,
        fine: &[nix::libc::ESRCH],
        message: RouteNetlinkMessage::DelRoute(local_default(lo)),
    }
}

fn local_default(lo: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: AddressFamily::Inet,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Host,
        kind: RouteType::Local,
        ..RouteHeader::default()
    };
    let metric = RouteAttribute::Priority(4096);
    message.attributes.extend([RouteAttribute::Oif(lo), metric]);
    message
}
