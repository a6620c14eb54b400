//! ◆ The route-netlink messages a pod network is made of.
//!
//! Every link made here has its IPv6 link-local address turned off: an interface that solicits routers and probes for
//! duplicates is busy for nothing, and neighbours find each other by the addresses that they are given.

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

use super::Mac;
use super::netlink::Request;

/// How a link is named in a request: by name, or by index in the namespace of the socket.
#[derive(Debug, Clone, Copy)]
pub(super) enum Link<'a> {
    Name(&'a str),
    Index(u32),
}

impl Link<'_> {
    fn message(self) -> LinkMessage {
        let mut message = LinkMessage::default();
        match self {
            Link::Name(name) => message
                .attributes
                .push(LinkAttribute::IfName(name.to_owned())),
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

/// Asks for a link without its counters.
pub(super) fn query(link: Link<'_>) -> LinkMessage {
    let mut message = link.message();
    message
        .attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// Makes something that must not be there yet.
fn create(doing: String, message: RouteNetlinkMessage) -> Request {
    Request {
        doing,
        flags: NLM_F_CREATE | NLM_F_EXCL,
        fine: &[],
        message,
    }
}

fn change(doing: String, message: LinkMessage) -> Request {
    Request {
        doing,
        flags: 0,
        fine: &[],
        message: RouteNetlinkMessage::SetLink(message),
    }
}

/// Sets a flag of a link.
fn set_flag(doing: String, link: Link<'_>, flag: LinkFlags) -> Request {
    let mut message = link.message();
    message.header.flags = flag;
    message.header.change_mask = flag;
    change(doing, message)
}

/// Makes a bridge, still down. Its hardware address is fixed, or it would change with every pod that comes or goes.
pub(super) fn create_bridge(name: &str, mac: Mac) -> Request {
    let mut message = Link::Name(name).message();
    message.attributes.extend([
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
    ]);
    create(
        format!("creating the bridge {name}"),
        RouteNetlinkMessage::NewLink(message),
    )
}

/// Makes a pair of connected interfaces: one here, a port of the bridge; one at once inside the pod's namespace, so it
/// is never seen here. Both are still down.
pub(super) fn create_veth(
    host_name: &str,
    bridge: u32,
    pod_name: &str,
    pod_mac: Mac,
    pod_netns: BorrowedFd<'_>,
) -> Request {
    let mut peer = Link::Name(pod_name).message();
    peer.attributes.extend([
        LinkAttribute::Address(pod_mac.0.to_vec()),
        LinkAttribute::NetNsFd(pod_netns.as_raw_fd()),
    ]);
    let doing = format!("creating the interface pair {host_name} and the pod's {pod_name}");
    create_pair(doing, host_name, bridge, peer)
}

/// Makes a pair of connected interfaces, both here; the first one is a port of the bridge. Both are still down.
pub(super) fn create_uplink(upper: &str, bridge: u32, lower: &str) -> Request {
    let doing = format!("creating the interface pair {upper} and {lower}");
    create_pair(doing, upper, bridge, Link::Name(lower).message())
}

fn create_pair(doing: String, port: &str, bridge: u32, peer: LinkMessage) -> Request {
    let mut message = Link::Name(port).message();
    message.attributes.extend([
        LinkAttribute::Controller(bridge),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ]);
    create(doing, RouteNetlinkMessage::NewLink(message))
}

/// Lets a link answer no questions for neighbours: the kernel answers on every link for the addresses of all of them.
pub(super) fn no_arp(link: Link<'_>) -> Request {
    let doing = format!("turning ARP off on interface {link}");
    set_flag(doing, link, LinkFlags::Noarp)
}

/// Turns the link-local IPv6 address off; must come before the link goes up. A kernel without IPv6 has nothing to turn
/// off and says so with `EAFNOSUPPORT` or `EOPNOTSUPP`.
pub(super) fn no_ipv6_link_local(link: Link<'_>) -> Request {
    let mut message = link.message();
    message
        .attributes
        .push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
            vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)],
        )]));
    Request {
        doing: format!("turning IPv6 autoconfiguration off on interface {link}"),
        flags: 0,
        fine: &[nix::libc::EAFNOSUPPORT, nix::libc::EOPNOTSUPP],
        message: RouteNetlinkMessage::SetLink(message),
    }
}

/// Brings a link up.
pub(super) fn up(link: Link<'_>) -> Request {
    let doing = format!("bringing interface {link} up");
    set_flag(doing, link, LinkFlags::Up)
}

/// Makes a link a port of the bridge.
pub(super) fn enslave(link: Link<'_>, bridge: u32) -> Request {
    let mut message = link.message();
    message.attributes.push(LinkAttribute::Controller(bridge));
    change(
        format!("making interface {link} a port of the bridge"),
        message,
    )
}

/// Deletes a link, and with one end of a pair the other; a link that is gone is fine.
pub(super) fn delete(link: Link<'_>) -> Request {
    Request {
        doing: format!("deleting interface {link}"),
        flags: 0,
        fine: &[nix::libc::ENODEV],
        message: RouteNetlinkMessage::DelLink(link.message()),
    }
}

/// Gives a link an address; that the rest of the subnet is reached through this link follows from the prefix length.
pub(super) fn add_address(index: u32, address: Ipv4Addr, subnet: Ipv4Net) -> Request {
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

/// Takes an address from a link.
pub(super) fn delete_address(index: u32, address: Ipv4Addr, prefix_len: u8) -> Request {
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

/// Gives a link an IPv6 address, which is used at once: nobody else can have it, so that nobody has to be asked.
pub(super) fn add_address6(index: u32, address: Ipv6Addr, prefix_len: u8) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.prefix_len = prefix_len;
    message.header.index = index;
    message.header.flags = AddressHeaderFlags::Nodad;
    message
        .attributes
        .push(AddressAttribute::Address(IpAddr::V6(address)));
    create(
        format!("adding the address {address}/{prefix_len}"),
        RouteNetlinkMessage::NewAddress(message),
    )
}

/// Sends everything that has no better route to the gateway.
pub(super) fn default_route(index: u32, gateway: IpAddr) -> Request {
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
    message
        .attributes
        .extend([RouteAttribute::Gateway(via), RouteAttribute::Oif(index)]);
    create(
        format!("adding the default route through {gateway}"),
        RouteNetlinkMessage::NewRoute(message),
    )
}
