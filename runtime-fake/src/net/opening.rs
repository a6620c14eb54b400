//! Taking over or making the bridge of a daemon, and putting its ports in order.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::bridge::BridgeConfig;
use super::claim::Claim;
use super::names::{host_interface, seed};
use super::netlink::{Netlink, NetlinkError};
use super::requests::{self, Link};
use super::survey::{self, LinkFacts};
use super::{Mac, NetError, Subnet, subnet};

/// What opening a bridge yields, all of it belonging to the bridge's namespace.
pub(super) struct Opened {
    pub(super) netlink: Netlink,
    pub(super) claim: Claim,
    pub(super) subnet: Subnet,
    pub(super) index: u32,
}

/// Takes over or makes the bridge; runs in the bridge's namespace.
pub(super) fn open_here(
    name: &str,
    config: &BridgeConfig,
    existing: &[(&str, Ipv4Addr)],
) -> Result<Opened, NetError> {
    let mut netlink = Netlink::open()?;
    let bridge = survey::link(&mut netlink, name)?;
    if bridge.as_ref().is_some_and(|link| !link.bridge) {
        return Err(NetError::NotABridge {
            name: name.to_owned(),
        });
    }
    let (subnet, claim) = settle_subnet(&mut netlink, name, bridge.as_ref(), config, existing)?;

    let mac = Mac::of(subnet.gateway());
    let index = match bridge {
        Some(bridge) => bridge.index,
        None => {
            netlink.batch(&[
                requests::create_bridge(name, mac),
                requests::no_ipv6_link_local(Link::Name(name)),
            ])?;
            let made = survey::link(&mut netlink, name)?.ok_or_else(|| NetError::Vanished {
                name: name.to_owned(),
            })?;
            made.index
        }
    };
    // An earlier daemon may have been killed between any two of these steps, so all of them are always taken.
    let mut address = requests::add_address(index, subnet.gateway(), subnet);
    address.fine = &[nix::libc::EEXIST];
    netlink.batch(&[address, requests::up(Link::Index(index))])?;
    Ok(Opened {
        netlink,
        claim,
        subnet,
        index,
    })
}

/// The subnet of the bridge and the claim to it: the one the bridge has, or else a free one.
fn settle_subnet(
    netlink: &mut Netlink,
    name: &str,
    bridge: Option<&LinkFacts>,
    config: &BridgeConfig,
    existing: &[(&str, Ipv4Addr)],
) -> Result<(Subnet, Claim), NetError> {
    let claim = |subnet| Claim::take(subnet).map_err(|source| NetError::Claim { subnet, source });
    let ours = bridge.map(|bridge| bridge.index);
    let in_use = survey::subnets(netlink)?;
    let had = in_use
        .iter()
        .find(|used| used.address && used.index.is_some() && used.index == ours);
    if let Some(had) = had {
        let subnet = had.subnet;
        return match claim(subnet)? {
            Some(claim) => Ok((subnet, claim)),
            None => Err(NetError::SubnetClaimed {
                name: name.to_owned(),
                subnet,
            }),
        };
    }

    let taken: Vec<Subnet> = in_use.iter().map(|used| used.subnet).collect();
    let preferred: Vec<Ipv4Addr> = existing.iter().map(|(_, address)| *address).collect();
    let candidates = subnet::candidates(
        &config.pools,
        config.subnet_prefix_len,
        &preferred,
        &taken,
        seed(name),
    );
    for candidate in candidates {
        let Some(claim) = claim(candidate)? else {
            continue;
        };
        // Between the look around and the claim another daemon may have made its bridge here and been killed.
        let still_free = !survey::subnets(netlink)?
            .iter()
            .any(|used| used.subnet.overlaps(candidate));
        if still_free {
            return Ok((candidate, claim));
        }
    }
    let pools: Vec<String> = config.pools.iter().map(Subnet::to_string).collect();
    Err(NetError::NoSubnet {
        pools: pools.join(", "),
    })
}

/// Removes ports that belong to no sandbox, and connects those of sandboxes that lost their bridge.
pub(super) fn reconcile_ports(
    netlink: &mut Netlink,
    name: &str,
    bridge: u32,
    existing: &[(String, IpAddr)],
) -> Result<(), NetlinkError> {
    let wanted = existing
        .iter()
        .map(|(sandbox, _)| host_interface(name, sandbox));
    let wanted: BTreeSet<String> = wanted.collect();
    let mut requests = Vec::new();
    for link in survey::links(netlink)? {
        let connected = link.controller == Some(bridge);
        if wanted.contains(&link.name) {
            if !connected {
                tracing::info!(
                    interface = link.name,
                    "connecting a pod to its bridge again"
                );
                requests.push(requests::enslave(Link::Index(link.index), bridge));
            }
        } else if connected {
            tracing::info!(
                interface = link.name,
                "removing an interface that belongs to no pod"
            );
            requests.push(requests::delete(Link::Index(link.index)));
        }
    }
    netlink.batch(&requests)
}
