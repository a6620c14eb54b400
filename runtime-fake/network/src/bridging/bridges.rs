//! Secondary bridges, for pods beyond the first bridge's ports: creates, finds and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::Mac;
use crate::NetError;
use crate::bridging::names::{digest, host_interface, secondary_bridge, uplink};
use crate::bridging::segments::{Segment, Segments};
use crate::bridging::spoofing;
use crate::links::link_query::{self, LinkFacts};
use crate::links::netlink::{Netlink, NetlinkError};
use crate::links::requests::{self, Link};

/// The bridges of one daemon, and the pods that are their ports.
#[derive(Debug)]
pub(crate) struct Bridges {
    pub(crate) segments: Segments,
    /// The interface index of each bridge; the first bridge has segment 0.
    pub(crate) indexes: BTreeMap<Segment, u32>,
}

/// The bridge that secondary ones are connected to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrimaryBridge<'a> {
    pub(crate) name: &'a str,
    pub(crate) index: u32,
    /// Its namespace, if it is not the daemon's.
    pub(crate) namespace: Option<BorrowedFd<'a>>,
    pub(crate) mtu: Option<u32>,
}

/// Creates a bridge connected to the first one and returns its interface index.
pub(crate) fn make(
    netlink: &mut Netlink,
    first: PrimaryBridge<'_>,
    segment: Segment,
) -> Result<u32, NetError> {
    remove(netlink, first.name, segment)?;
    let name = secondary_bridge(first.name, segment);
    let (upper, lower) = uplink(first.name, segment);
    netlink.batch(&[
        requests::create_bridge(&name, own_mac(&name)),
        requests::no_ipv6_link_local(Link::Name(&name)),
        // With ARP on, it would answer for the first bridge's addresses with its own hardware address.
        requests::no_arp(Link::Name(&name)),
        requests::no_learning_from_reserved_groups(Link::Name(&name)),
        requests::create_uplink(&upper, first.index, &lower, first.mtu),
        requests::no_ipv6_link_local(Link::Name(&upper)),
        requests::no_ipv6_link_local(Link::Name(&lower)),
    ])?;
    let made = link_query::link(netlink, &name)?;
    let made = made.ok_or_else(|| NetError::Vanished { name: name.clone() })?;
    spoofing::ignore_announcements(first.namespace, &[name])?;
    netlink.batch(&[
        requests::enslave(Link::Name(&lower), made.index),
        requests::up(Link::Index(made.index)),
        requests::up(Link::Name(&lower)),
        requests::up(Link::Name(&upper)),
    ])?;
    Ok(made.index)
}

/// Removes a secondary bridge, or the parts of it that exist.
pub(crate) fn remove(
    netlink: &mut Netlink,
    first: &str,
    segment: Segment,
) -> Result<(), NetlinkError> {
    netlink.batch(&[
        requests::delete(Link::Name(&uplink(first, segment).0)),
        requests::delete(Link::Name(&secondary_bridge(first, segment))),
    ])
}

/// A locally administered hardware address derived from a name; no pod has it.
fn own_mac(name: &str) -> Mac {
    let mut mac = [0x02, 0xcc, 0, 0, 0, 0];
    for (byte, random) in mac.iter_mut().skip(2).zip(digest(name)) {
        *byte = random;
    }
    Mac(mac)
}

/// Finds the bridges of an earlier daemon and their ports. Removes ports that belong to no sandbox and bridges without pods, and
/// reattaches sandboxes without a bridge.
pub(crate) fn reconcile(
    netlink: &mut Netlink,
    at: PrimaryBridge<'_>,
    links: &[LinkFacts],
    existing: &[(String, IpAddr)],
    ports: usize,
) -> Result<Bridges, NetError> {
    let first = at.name;
    let by_name: BTreeMap<&str, &LinkFacts> = links.iter().map(|l| (l.name.as_str(), l)).collect();
    let index_of = |name: &str| by_name.get(name).filter(|link| link.bridge).map(|l| l.index);
    let mut segments = Segments::new(ports);
    let mut indexes = BTreeMap::from([(0, at.index)]);
    let secondary = segments.numbers().skip(1);
    indexes.extend(secondary.filter_map(|n| Some((n, index_of(&secondary_bridge(first, n))?))));
    let segment_of = |link: &LinkFacts| {
        let mut all = indexes.iter();
        all.find_map(|(segment, index)| (link.controller == Some(*index)).then_some(*segment))
    };

    let wanted: BTreeMap<String, &str> = existing
        .iter()
        .map(|(sandbox, _)| (host_interface(first, sandbox), sandbox.as_str()))
        .collect();
    let uplinks: BTreeSet<String> =
        indexes.keys().flat_map(|segment| <[String; 2]>::from(uplink(first, *segment))).collect();
    let (mut requests, mut lost) = (Vec::new(), Vec::new());
    for link in links {
        match (wanted.get(&link.name), segment_of(link)) {
            (Some(sandbox), Some(segment)) => segments.put(sandbox, segment),
            (Some(sandbox), None) => lost.push((*sandbox, link)),
            (None, Some(_)) if !uplinks.contains(&link.name) => {
                tracing::info!(
                    interface = link.name,
                    "removing an interface that belongs to no pod"
                );
                requests.push(requests::delete(Link::Index(link.index)));
            }
            (None, _) => {}
        }
    }
    netlink.batch(&requests)?;

    let unused: Vec<Segment> = indexes.keys().copied().filter(|n| *n > 0).collect();
    for segment in unused {
        let (upper, lower) = uplink(first, segment);
        let connected = |name: &str, to| {
            let link = by_name.get(name);
            link.is_some_and(|link| link.controller == indexes.get(&to).copied())
        };
        if segments.count(segment) == 0 {
            remove(netlink, first, segment)?;
        } else if connected(&upper, 0) && connected(&lower, segment) {
            continue;
        } else {
            // Its pods are attached to a new bridge.
            remove(netlink, first, segment)?;
            for link in links {
                if let Some(sandbox) = wanted.get(&link.name)
                    && link.controller == indexes.get(&segment).copied()
                {
                    segments.remove(sandbox);
                    lost.push((*sandbox, link));
                }
            }
        }
        indexes.remove(&segment);
    }
    // An earlier version did not do that.
    let kept = indexes.keys().filter(|segment| **segment > 0);
    let kept: Vec<String> = kept.map(|segment| secondary_bridge(first, *segment)).collect();
    spoofing::ignore_announcements(at.namespace, &kept)?;
    let kept = kept.iter().map(|name| requests::no_learning_from_reserved_groups(Link::Name(name)));
    netlink.batch(&kept.collect::<Vec<_>>())?;
    let mut bridges = Bridges { segments, indexes };
    for (sandbox, link) in lost {
        tracing::info!(interface = link.name, "connecting a pod to its bridge again");
        let (_, bridge) = bridges.place(sandbox, first, |segment| make(netlink, at, segment))?;
        netlink.batch(&[requests::enslave(Link::Index(link.index), bridge)])?;
    }
    Ok(bridges)
}

impl Bridges {
    /// The bridge that a sandbox becomes a port of: its segment and interface index. If the bridge does not exist, `make` creates
    /// it.
    pub(crate) fn place(
        &mut self,
        sandbox: &str,
        first: &str,
        make: impl FnOnce(Segment) -> Result<u32, NetError>,
    ) -> Result<(Segment, u32), NetError> {
        let segment = self.segments.place(sandbox).ok_or_else(|| NetError::NoPorts {
            name: first.to_owned(),
            capacity: self.segments.capacity(),
        })?;
        let index = match self.indexes.get(&segment) {
            Some(index) => *index,
            None => {
                let index = make(segment)?;
                self.indexes.insert(segment, index);
                index
            }
        };
        Ok((segment, index))
    }
}
