//! Addresses of the pod network that are no pod's own: those of Services, on one attached network namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, OwnedFd};

use ipnet::Ipv4Net;

use super::{Bridge, Netlink, Port, host_interface, link_query, requests, within};
use crate::{Mac, NetError, POD_INTERFACE, private_netns};

/// A network namespace on the bridge, attached as a pod is, with further addresses. [`Bridge::release`] detaches it.
#[derive(Debug)]
pub struct Lease {
    /// The namespace.
    pub netns: OwnedFd,
    /// Its own address.
    pub address: Ipv4Addr,
    /// The further ones.
    pub addresses: Vec<Ipv4Addr>,
    holder: String,
}

impl Lease {
    fn further(&self, number: usize) -> String {
        format!("{}/{number}", self.holder)
    }
}

impl Bridge {
    /// Makes a network namespace, and attaches it with `further` addresses beside its own. No pod gets one of them before
    /// [`Bridge::release`]. On failure it removes what it created.
    pub fn lease(&self, holder: &str, further: usize) -> Result<Lease, NetError> {
        let netns = private_netns()?;
        let attached = self.attach(holder, netns.as_fd())?;
        let mut lease = Lease {
            netns,
            address: Ipv4Addr::UNSPECIFIED,
            addresses: Vec::new(),
            holder: holder.to_owned(),
        };
        let own = attached.ips.iter().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        });
        let leased = match own {
            Some(own) => {
                lease.address = own;
                self.lease_further(&mut lease, further)
            }
            None => Err(NetError::NoIpv4),
        };
        match leased {
            Ok(()) => Ok(lease),
            Err(error) => match self.release(lease) {
                Ok(()) => Err(error),
                Err(cleanup) => {
                    Err(NetError::Cleanup { attach: Box::new(error), cleanup: Box::new(cleanup) })
                }
            },
        }
    }

    /// Adds `further` addresses to a lease, and returns them; on failure, none.
    pub fn extend(&self, lease: &mut Lease, further: usize) -> Result<Vec<Ipv4Addr>, NetError> {
        let before = lease.addresses.len();
        let leased = self.lease_further(lease, further);
        if leased.is_err() {
            self.free_further(lease, before);
        }
        leased.map(|()| lease.addresses.iter().skip(before).copied().collect())
    }

    fn lease_further(&self, lease: &mut Lease, further: usize) -> Result<(), NetError> {
        let before = lease.addresses.len();
        for number in before..before + further {
            let allocated = self.ipam().allocate(&lease.further(number));
            let address = allocated.map_err(|error| self.no_address(error))?;
            lease.addresses.push(address);
        }
        let (name, mac) = self.port(lease);
        let added = lease.addresses.iter().skip(before).map(|address| IpAddr::V4(*address));
        self.sources.extend(Port { name: &name, mac }, &added.collect::<Vec<_>>())?;
        within(Some(lease.netns.as_fd()), || {
            let mut netlink = Netlink::open()?;
            let link = link_query::link(&mut netlink, POD_INTERFACE)?;
            let index =
                link.ok_or_else(|| NetError::Vanished { name: POD_INTERFACE.to_owned() })?.index;
            let single = |address: &Ipv4Addr| Ipv4Net::from(*address);
            let addresses = lease.addresses.iter().skip(before);
            let steps: Vec<_> = addresses
                .map(|address| requests::add_address(index, *address, single(address)))
                .collect();
            if !steps.is_empty() {
                netlink.batch(&steps)?;
            }
            Ok(())
        })?
    }

    /// Detaches the namespace and frees the addresses.
    pub fn release(&self, mut lease: Lease) -> Result<(), NetError> {
        let detached = self.detach(&lease.holder);
        self.free_further(&mut lease, 0);
        detached
    }

    /// Frees the further addresses from `first` on.
    fn free_further(&self, lease: &mut Lease, first: usize) {
        let (name, mac) = self.port(lease);
        let addresses = lease.addresses.iter().skip(first).map(|address| IpAddr::V4(*address));
        self.sources.shorten(Port { name: &name, mac }, &addresses.collect::<Vec<_>>());
        for number in first..lease.addresses.len() {
            self.ipam().free(&lease.further(number));
        }
        lease.addresses.truncate(first);
    }

    /// The lease's port: its name and hardware address.
    fn port(&self, lease: &Lease) -> (String, Mac) {
        (host_interface(&self.name, &lease.holder), Mac::of(lease.address))
    }
}
