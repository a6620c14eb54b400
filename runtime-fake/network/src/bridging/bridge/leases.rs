//! Service addresses on one attached network namespace: some in the pod network that no pod has, and some outside it to which
//! pods' packets are redirected.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, OwnedFd};

use ipnet::Ipv4Net;

use super::{Bridge, Netlink, Port, host_interface, link_query, requests, within};
use crate::links::netlink::Request;
use crate::{Mac, NetError, POD_INTERFACE, private_netns};

/// A network namespace on the bridge, attached like a pod, with further addresses. [`Bridge::release`] detaches it.
#[derive(Debug)]
pub struct Lease {
    /// The namespace.
    pub netns: OwnedFd,
    /// Its own address.
    pub address: Ipv4Addr,
    /// The further addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// The addresses outside the pod network.
    served: BTreeSet<Ipv4Addr>,
    holder: String,
}

impl Lease {
    fn further(&self, number: usize) -> String {
        format!("{}/{number}", self.holder)
    }
}

impl Bridge {
    /// Makes a network namespace, and attaches it with `further` addresses in addition to its own. They stay allocated until
    /// [`Bridge::release`]. On failure it removes what it created.
    pub fn lease(&self, holder: &str, further: usize) -> Result<Lease, NetError> {
        let netns = private_netns()?;
        let attached = self.attach(holder, netns.as_fd())?;
        let mut lease = Lease {
            netns,
            address: Ipv4Addr::UNSPECIFIED,
            addresses: Vec::new(),
            served: BTreeSet::new(),
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

    /// Assigns exactly these addresses outside the pod network to the namespace, and redirects pods' packets for them there. On
    /// failure it keeps the earlier addresses that are also in `wanted`.
    pub fn serve(&self, lease: &mut Lease, wanted: &BTreeSet<Ipv4Addr>) -> Result<(), NetError> {
        let gone: Vec<Ipv4Addr> = lease.served.difference(wanted).copied().collect();
        self.withdraw(lease, &gone)?;
        lease.served.retain(|address| wanted.contains(address));
        let new: Vec<Ipv4Addr> = wanted.difference(&lease.served).copied().collect();
        if let Some(address) = new.iter().find(|address| self.subnet.contains(*address)) {
            return Err(NetError::Inside { address: *address, subnet: self.subnet.to_string() });
        }
        let (name, mac) = self.port(lease);
        let added = addresses_of(lease, &new, |index, address| {
            let mut add = requests::add_address(index, address, Ipv4Net::from(address));
            add.fine = &[nix::libc::EEXIST];
            add
        });
        let led = added.and_then(|()| self.sources.redirect(Port { name: &name, mac }, &new));
        if let Err(error) = led {
            if let Err(cleanup) = self.withdraw(lease, &new) {
                tracing::warn!(
                    error = crate::chain(&cleanup),
                    "failed to remove addresses of Services"
                );
            }
            return Err(error);
        }
        lease.served.extend(new);
        Ok(())
    }

    fn withdraw(&self, lease: &Lease, gone: &[Ipv4Addr]) -> Result<(), NetError> {
        let (name, mac) = self.port(lease);
        self.sources.unredirect(Port { name: &name, mac }, gone);
        addresses_of(lease, gone, |index, address| requests::delete_address(index, address, 32))
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
        self.sources.add_addresses(Port { name: &name, mac }, &added.collect::<Vec<_>>())?;
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
        let (name, mac) = self.port(&lease);
        let served: Vec<Ipv4Addr> = std::mem::take(&mut lease.served).into_iter().collect();
        self.sources.unredirect(Port { name: &name, mac }, &served);
        let detached = self.detach(&lease.holder);
        self.free_further(&mut lease, 0);
        detached
    }

    /// Frees the further addresses from `first` on.
    fn free_further(&self, lease: &mut Lease, first: usize) {
        let (name, mac) = self.port(lease);
        let addresses = lease.addresses.iter().skip(first).map(|address| IpAddr::V4(*address));
        self.sources.remove_addresses(Port { name: &name, mac }, &addresses.collect::<Vec<_>>());
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

/// The number of addresses that one request changes.
const AT_ONCE: usize = 128;

/// Changes addresses of the namespace's interface.
fn addresses_of(
    lease: &Lease,
    addresses: &[Ipv4Addr],
    change: impl Fn(u32, Ipv4Addr) -> Request + Sync,
) -> Result<(), NetError> {
    if addresses.is_empty() {
        return Ok(());
    }
    within(Some(lease.netns.as_fd()), || {
        let mut netlink = Netlink::open()?;
        let link = link_query::link(&mut netlink, POD_INTERFACE)?;
        let index =
            link.ok_or_else(|| NetError::Vanished { name: POD_INTERFACE.to_owned() })?.index;
        for some in addresses.chunks(AT_ONCE) {
            let steps: Vec<_> = some.iter().map(|address| change(index, *address)).collect();
            netlink.batch(&steps)?;
        }
        Ok(())
    })?
}
