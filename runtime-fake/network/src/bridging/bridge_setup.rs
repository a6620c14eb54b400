//! Takes over or creates the bridge of a daemon.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::bridging::bridge_config::{BridgeConfig, Ipv6};
use crate::bridging::names::seed;
use crate::bridging::orphans::Owner;
use crate::bridging::spoofing;
use crate::bridging::subnet::{self, BridgeSubnet as _};
use crate::bridging::subnet_lock::{SubnetLock, SubnetLocks};
use crate::bridging::subnet6;
use crate::links::link_query::{self, LinkFacts};
use crate::links::netlink::Netlink;
use crate::links::requests::{self, Link};
use crate::{Mac, NetError};

/// The bridge's link-local address.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The result of opening a bridge; every part belongs to the bridge's namespace.
pub(crate) struct Opened {
    pub(crate) netlink: Netlink,
    pub(crate) locks: Vec<SubnetLock>,
    pub(crate) subnet: Ipv4Net,
    pub(crate) ipv6: Option<Ipv6Net>,
    pub(crate) index: u32,
}

/// Takes over or creates the bridge; runs in the bridge's namespace.
pub(crate) fn open_here(
    name: &str,
    config: &BridgeConfig,
    existing: &[(String, IpAddr)],
) -> Result<Opened, NetError> {
    let mut netlink = Netlink::open()?;
    let bridge = link_query::link(&mut netlink, name)?;
    if bridge.as_ref().is_some_and(|link| !link.bridge) {
        return Err(NetError::NotABridge { name: name.to_owned() });
    }
    let mut locks = Vec::new();
    let subnet = if config.ipv4 {
        let (subnet, claim) = select_subnet(&mut netlink, name, bridge.as_ref(), config, existing)?;
        locks.extend(claim);
        subnet
    } else {
        subnet::NUMBERS
    };
    let ipv6 = select_ipv6_subnet(name, config)?.map(|(subnet, claim)| {
        locks.extend(claim);
        subnet
    });

    let mac = Mac::of(subnet.gateway());
    let index = match bridge {
        Some(bridge) => bridge.index,
        None => {
            netlink.batch(&[
                requests::create_bridge(name, mac),
                requests::no_ipv6_link_local(Link::Name(name)),
            ])?;
            let made = link_query::link(&mut netlink, name)?
                .ok_or_else(|| NetError::Vanished { name: name.to_owned() })?;
            made.index
        }
    };
    // An earlier daemon may have been killed between any two of these steps, so always run all of them.
    spoofing::ignore_announcements_here(name);
    netlink.batch(&[requests::no_learning_from_reserved_groups(Link::Index(index))])?;
    let mut steps = Vec::new();
    if config.ipv4 {
        steps.push(requests::add_address(index, subnet.gateway(), subnet));
    }
    if let Some(ipv6) = ipv6 {
        steps.push(requests::add_address6(index, ipv6.gateway(), ipv6.prefix_len()));
    }
    if ipv6.is_some() {
        // The kernel sends neighbour solicitations for forwarded packets from this address only.
        steps.push(requests::add_address6(index, LINK_LOCAL, 64));
    }
    for address in &mut steps {
        address.fine = &[nix::libc::EEXIST];
    }
    let locked = match ipv6 {
        Some(ipv6) if !config.ipv4 => ipv6.to_string(),
        _ => subnet.to_string(),
    };
    let state_dir = config.state_dir.as_deref();
    let owner = state_dir.and_then(|state_dir| Owner::own(locked, state_dir));
    if let Some(alias) = owner.and_then(|owner| owner.alias()) {
        steps.push(requests::alias(Link::Index(index), &alias));
    }
    steps.push(requests::up(Link::Index(index)));
    netlink.batch(&steps)?;
    Ok(Opened { netlink, locks, subnet, ipv6, index })
}

/// Locks a subnet. Returns `None` if another daemon holds it, and `Some(None)` in a namespace of the daemon's
/// own, where no lock is needed.
fn claim(
    locks: Option<&SubnetLocks>,
    subnet: impl Display,
) -> Result<Option<Option<SubnetLock>>, NetError> {
    let Some(locks) = locks else {
        return Ok(Some(None));
    };
    match locks.take(&subnet) {
        Ok(claim) => Ok(claim.map(Some)),
        Err(source) => Err(NetError::SubnetLock { subnet: subnet.to_string(), source }),
    }
}

/// Like [`claim`], but fails if another daemon holds the subnet.
fn claim_or_fail(
    name: &str,
    locks: Option<&SubnetLocks>,
    subnet: impl Display,
) -> Result<Option<SubnetLock>, NetError> {
    claim(locks, &subnet)?.ok_or_else(|| NetError::SubnetClaimed {
        name: name.to_owned(),
        subnet: subnet.to_string(),
    })
}

/// The IPv6 subnet and its lock. No other daemon has it: the subnet derived from the name is unique with near
/// certainty, and a configured one is the administrator's choice.
fn select_ipv6_subnet(
    name: &str,
    config: &BridgeConfig,
) -> Result<Option<(Ipv6Net, Option<SubnetLock>)>, NetError> {
    let subnet = match config.ipv6 {
        Ipv6::Never => return Ok(None),
        Ipv6::IfPossible if !kernel_has_ipv6() => return Ok(None),
        Ipv6::IfPossible => subnet6::unique_local(name),
        Ipv6::Subnet(subnet) => subnet,
    };
    let claim = claim_or_fail(name, config.subnet_locks.as_ref(), subnet)?;
    Ok(Some((subnet, claim)))
}

/// Whether interfaces made in this thread's network namespace can have IPv6 addresses.
fn kernel_has_ipv6() -> bool {
    ["all", "default"].iter().all(|interface| {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0")
    })
}

/// The subnet of the bridge and its lock: the bridge's current subnet, or else a free one.
fn select_subnet(
    netlink: &mut Netlink,
    name: &str,
    bridge: Option<&LinkFacts>,
    config: &BridgeConfig,
    existing: &[(String, IpAddr)],
) -> Result<(Ipv4Net, Option<SubnetLock>), NetError> {
    let locks = config.subnet_locks.as_ref();
    let ours = bridge.map(|bridge| bridge.index);
    let mut in_use = link_query::subnets(netlink)?;
    let had = in_use.iter().find(|used| used.address && used.index.is_some() && used.index == ours);
    if let (Some(had), Some(index)) = (had, ours) {
        let subnet = had.subnet;
        let claim = claim_or_fail(name, locks, subnet)?;
        let provided = config.pools.iter().any(|pool| pool.provides(subnet));
        if provided || !existing.is_empty() {
            return Ok((subnet, claim));
        }
        // The address comes from an earlier version or another configuration, and no pod has an address of its subnet.
        let gateway = subnet.gateway();
        netlink.batch(&[requests::delete_address(index, gateway, subnet.prefix_len())])?;
        in_use = link_query::subnets(netlink)?;
    }

    let taken: Vec<Ipv4Net> = in_use.iter().map(|used| used.subnet).collect();
    let preferred = existing.iter().filter_map(|(_, address)| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    let preferred: Vec<Ipv4Addr> = preferred.collect();
    for candidate in subnet::candidates(&config.pools, &preferred, &taken, seed(name)) {
        let Some(claim) = claim(locks, candidate)? else {
            continue;
        };
        // Check again: between the query and the lock another daemon may have created its bridge here and been killed.
        let still_free = !link_query::subnets(netlink)?
            .iter()
            .any(|used| subnet::overlap(used.subnet, candidate));
        if still_free {
            return Ok((candidate, claim));
        }
    }
    let pools: Vec<String> = config.pools.iter().map(|pool| pool.subnet.to_string()).collect();
    Err(NetError::NoSubnet { pools: pools.join(", ") })
}
