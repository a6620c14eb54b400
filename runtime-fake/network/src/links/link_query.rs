//! Queries the links of a network namespace and the subnets in use there.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::links::netlink::{Netlink, NetlinkError};
use crate::links::requests::{self, NEW_ADDRESS, NEW_LINK, NEW_ROUTE, address, link, route};
use crate::message::{as_text, as_u32, find};

/// States of links (`IF_OPER_UNKNOWN`, `IF_OPER_UP`).
const UNKNOWN: u8 = 0;
const UP: u8 = 6;
/// The state of a bridge's port in its data, and the forwarding state (linux/if_link.h, linux/if_bridge.h).
const PORT_STATE: u16 = 1;
const FORWARDING: u8 = 3;

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
    /// ◆ Reads the facts from the kernel's response; `None` for any other message.
    pub(crate) fn read(kind: u16, payload: &[u8]) -> Option<LinkFacts> {
        let (header, attributes) = payload.split_first_chunk::<16>()?;
        let [_, _, _, _, i0, i1, i2, i3, ..] = *header;
        let info = find(attributes, link::INFO).unwrap_or_default();
        let is_bridge_port =
            find(info, link::PORT_KIND).is_some_and(|kind| as_text(kind) == "bridge");
        let port = find(info, link::PORT_DATA).filter(|_| is_bridge_port).unwrap_or_default();
        let state = find(attributes, link::OPERATIONAL_STATE);
        (kind == NEW_LINK).then(|| LinkFacts {
            index: u32::from_ne_bytes([i0, i1, i2, i3]),
            name: find(attributes, link::NAME).map(as_text).unwrap_or_default(),
            bridge: find(info, link::KIND).is_some_and(|kind| as_text(kind) == "bridge"),
            controller: find(attributes, link::CONTROLLER).and_then(as_u32),
            operational: matches!(state, Some([UP | UNKNOWN, ..])),
            forwarding: matches!(find(port, PORT_STATE), Some([FORWARDING, ..])),
            alias: find(attributes, link::ALIAS).map(as_text),
        })
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

/// All IPv4 subnets in use: the subnets of addresses, and of routes in any table except default routes.
pub(crate) fn subnets(netlink: &mut Netlink) -> Result<Vec<InUse>, NetlinkError> {
    let mut subnets = netlink.dump("listing addresses", &requests::query_addresses(), in_use)?;
    subnets.extend(netlink.dump("listing routes", &requests::query_routes(), in_use)?);
    Ok(subnets)
}

/// ◆ The subnet of an address or a route.
fn in_use(kind: u16, payload: &[u8]) -> Option<InUse> {
    let ip = |value: &[u8]| value.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes));
    let subnet =
        |address: Ipv4Addr, prefix_len| Some(Ipv4Net::new(address, prefix_len).ok()?.trunc());
    match kind {
        NEW_ADDRESS => {
            let (header, attributes) = payload.split_first_chunk::<8>()?;
            let [_, prefix_len, _, _, index @ ..] = *header;
            // On a point-to-point link the prefix is the peer's; there the peer's address differs from the local one.
            let address = ip(find(attributes, address::ADDRESS)?)?;
            let index = Some(u32::from_ne_bytes(index));
            Some(InUse { index, subnet: subnet(address, prefix_len)?, address: true })
        }
        NEW_ROUTE => {
            let (header, attributes) = payload.split_first_chunk::<12>()?;
            let prefix_len = header[1];
            (prefix_len > 0).then_some(())?;
            let destination = ip(find(attributes, route::DESTINATION)?)?;
            let index = find(attributes, route::INTERFACE).and_then(as_u32);
            Some(InUse { index, subnet: subnet(destination, prefix_len)?, address: false })
        }
        _ => None,
    }
}

/// All links of the namespace.
pub(crate) fn links(netlink: &mut Netlink) -> Result<Vec<LinkFacts>, NetlinkError> {
    let all = requests::query(requests::Link::Index(0));
    netlink.dump("listing network interfaces", &all, LinkFacts::read)
}

/// The link of that name.
pub(crate) fn link(netlink: &mut Netlink, name: &str) -> Result<Option<LinkFacts>, NetlinkError> {
    netlink.find(&requests::query(requests::Link::Name(name)), LinkFacts::read)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::message::{attribute, nested, text};

    fn link_message(attributes: &[Vec<u8>]) -> Vec<u8> {
        let index = 7_u32.to_ne_bytes();
        [&[0; 4][..], &index, &[0; 8], &attributes.concat()].concat()
    }

    #[test]
    fn facts_of_a_forwarding_port() {
        let state = |state| nested(link::PORT_DATA, &attribute(PORT_STATE, &[state]));
        let port = |kind, data| {
            let info = [text(link::KIND, "veth"), text(link::PORT_KIND, kind), data].concat();
            link_message(&[
                text(link::NAME, "crv1"),
                attribute(link::CONTROLLER, &3_u32.to_ne_bytes()),
                attribute(link::OPERATIONAL_STATE, &[UP]),
                nested(link::INFO, &info),
            ])
        };
        let facts = LinkFacts::read(NEW_LINK, &port("bridge", state(FORWARDING))).unwrap();
        let expected = LinkFacts {
            index: 7,
            name: "crv1".to_owned(),
            bridge: false,
            controller: Some(3),
            operational: true,
            forwarding: true,
            alias: None,
        };
        assert_eq!(facts, expected);
        // A bridge port in the learning state, and a port of a bond.
        for other in [port("bridge", state(2)), port("bond", state(FORWARDING))] {
            assert!(!LinkFacts::read(NEW_LINK, &other).unwrap().forwarding);
        }
        assert_eq!(LinkFacts::read(requests::DELETE_LINK, &link_message(&[])), None);
        assert_eq!(LinkFacts::read(NEW_LINK, &[0; 15]), None);
    }

    #[test]
    fn default_routes_and_other_families_use_no_subnet() {
        let route = |prefix_len, destination: &[u8]| {
            let header = [2, prefix_len, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
            [&header[..], &attribute(route::DESTINATION, destination)].concat()
        };
        let found = in_use(NEW_ROUTE, &route(16, &[10, 1, 2, 3])).unwrap();
        assert_eq!((found.subnet.to_string(), found.index), ("10.1.0.0/16".to_owned(), None));
        assert_eq!(in_use(NEW_ROUTE, &route(0, &[0; 4])), None);
        assert_eq!(in_use(NEW_ROUTE, &route(33, &[10, 1, 2, 3])), None);
        assert_eq!(in_use(NEW_ROUTE, &route(8, &[10])), None);
        assert_eq!(in_use(NEW_LINK, &route(16, &[10, 1, 2, 3])), None);
    }
}
