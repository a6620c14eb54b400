//! Queries the links of a network namespace and the subnets in use there.

use std::net::IpAddr;

use ipnet::Ipv4Net;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    BridgePortState, InfoBridgePort, InfoKind, InfoPortData, LinkAttribute, LinkInfo, LinkMessage,
    State,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::links::netlink::{Netlink, NetlinkError};
use crate::links::requests;

/// The properties of a link that pod networks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkFacts {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// It is a bridge.
    pub(crate) bridge: bool,
    /// The index of the bridge it is a port of.
    pub(crate) controller: Option<u32>,
    /// It can carry frames: its operational state is up, or unknown for kinds that do not report it.
    pub(crate) operational: bool,
    /// It is a port in the forwarding state.
    pub(crate) forwarding: bool,
    /// Its alias (`ip link set alias`).
    pub(crate) alias: Option<String>,
}

impl LinkFacts {
    /// ◆ Reads the facts from the kernel's response.
    pub(crate) fn read(message: &LinkMessage) -> LinkFacts {
        let mut facts = LinkFacts {
            index: message.header.index,
            name: String::new(),
            bridge: false,
            controller: None,
            operational: false,
            forwarding: false,
            alias: None,
        };
        for attribute in &message.attributes {
            if let LinkAttribute::IfName(name) = attribute {
                facts.name.clone_from(name);
            } else if let LinkAttribute::IfAlias(alias) = attribute {
                facts.alias = Some(alias.clone());
            } else if let LinkAttribute::Controller(index) = attribute {
                facts.controller = Some(*index);
            } else if let LinkAttribute::OperState(state) = attribute {
                facts.operational = matches!(state, State::Up | State::Unknown);
            } else if let LinkAttribute::LinkInfo(infos) = attribute {
                for info in infos {
                    facts.bridge |= matches!(info, LinkInfo::Kind(InfoKind::Bridge));
                    facts.forwarding |= matches!(
                        info,
                        LinkInfo::PortData(InfoPortData::BridgePort(port))
                            if port.contains(&InfoBridgePort::State(BridgePortState::Forwarding))
                    );
                }
            }
        }
        facts
    }
}

/// An address of an interface or a route, and the subnet that it makes reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InUse {
    /// The interface, if known.
    pub(crate) index: Option<u32>,
    /// The subnet.
    pub(crate) subnet: Ipv4Net,
    /// The subnet comes from an address, not from a route.
    pub(crate) address: bool,
}

/// All IPv4 subnets in use: those of addresses, and those of routes in any table except default routes.
pub(crate) fn subnets(netlink: &mut Netlink) -> Result<Vec<InUse>, NetlinkError> {
    let mut query = AddressMessage::default();
    query.header.family = AddressFamily::Inet;
    let addresses = netlink.dump("listing addresses", &RouteNetlinkMessage::GetAddress(query))?;
    let mut query = RouteMessage::default();
    query.header.address_family = AddressFamily::Inet;
    let routes = netlink.dump("listing routes", &RouteNetlinkMessage::GetRoute(query))?;
    if addresses.unreadable + routes.unreadable > 0 {
        tracing::warn!(
            addresses = addresses.unreadable,
            routes = routes.unreadable,
            "some addresses or routes of this host are of an unknown kind; the pod subnet may overlap them"
        );
    }
    Ok(addresses.messages.iter().chain(&routes.messages).filter_map(in_use).collect())
}

/// ◆ The subnet of an address or a route.
fn in_use(message: &RouteNetlinkMessage) -> Option<InUse> {
    if let RouteNetlinkMessage::NewAddress(message) = message {
        // On a point-to-point link the prefix is the peer's; there `Address` differs from `Local`.
        let address = message.attributes.iter().find_map(|attribute| {
            if let AddressAttribute::Address(IpAddr::V4(address)) = attribute {
                Some(*address)
            } else {
                None
            }
        })?;
        Some(InUse {
            index: Some(message.header.index),
            subnet: Ipv4Net::new(address, message.header.prefix_len).ok()?.trunc(),
            address: true,
        })
    } else if let RouteNetlinkMessage::NewRoute(message) = message {
        let prefix_len = message.header.destination_prefix_length;
        let mut destination = None;
        let mut index = None;
        for attribute in &message.attributes {
            if let RouteAttribute::Destination(RouteAddress::Inet(address)) = attribute {
                destination = Some(*address);
            } else if let RouteAttribute::Oif(oif) = attribute {
                index = Some(*oif);
            }
        }
        (prefix_len > 0).then_some(())?;
        Some(InUse {
            index,
            subnet: Ipv4Net::new(destination?, prefix_len).ok()?.trunc(),
            address: false,
        })
    } else {
        None
    }
}

/// All links of the namespace.
pub(crate) fn links(netlink: &mut Netlink) -> Result<Vec<LinkFacts>, NetlinkError> {
    let query = RouteNetlinkMessage::GetLink(requests::query(requests::Link::Index(0)));
    let dump = netlink.dump("listing network interfaces", &query)?;
    let links = dump.messages.iter().filter_map(|message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            Some(LinkFacts::read(link))
        } else {
            None
        }
    });
    Ok(links.collect())
}

/// The link of that name.
pub(crate) fn link(netlink: &mut Netlink, name: &str) -> Result<Option<LinkFacts>, NetlinkError> {
    let answer = netlink.link(requests::query(requests::Link::Name(name)))?;
    Ok(answer.as_ref().map(LinkFacts::read))
}
