//! The bridge of one daemon: opened or taken over, pods attached and detached, closed.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::{Ipv4Net, Ipv6Net};

use super::bridge_config::BridgeConfig;
use super::bridge_setup::open_here;
use super::deletion::Deletions;
use super::further::{self, Bridges};
use super::link_query;
use super::names::{further_bridge, host_interface, uplink};
use super::netlink::Netlink;
use super::requests::{self, Link};
use super::segments::Segment;
use super::subnet::BridgeSubnet as _;
use super::subnet_lock::SubnetLock;
use super::{
    Attachment, Ipam, IpamError, Mac, NetError, POD_INTERFACE, PodCidrs, namespace, subnet6,
};

/// How long an interface may take to begin to carry traffic. The kernel does it within a few milliseconds.
const FORWARDING_WITHIN: Duration = Duration::from_secs(5);

/// How many sockets are kept for later; a burst of pods opens more, and closes them again.
const IDLE_SOCKETS: usize = 4;

/// A bridge and its subnet, held for the life of the daemon. Calls may be made from several threads at once, except
/// for two about the same sandbox; the threads must be in the network namespace the bridge was opened from. Dropping
/// it leaves bridge and pods as they are, for the next daemon to take over; [`Bridge::close`] removes the bridge.
#[derive(Debug)]
pub struct Bridge {
    name: String,
    index: u32,
    namespace: Option<OwnedFd>,
    /// The IPv4 subnet; where pods have no IPv4 addresses, it only numbers them.
    subnet: Ipv4Net,
    ipv4: bool,
    ipv6: Option<Ipv6Net>,
    ipam: Mutex<Ipam>,
    /// This one, and those that are connected with it.
    bridges: Mutex<Bridges>,
    /// Sockets of the bridge's namespace that nobody uses now. Every call takes one, so none waits for another's.
    idle: Mutex<Vec<Netlink>>,
    deletions: Deletions,
    _claims: Vec<SubnetLock>,
}

impl Bridge {
    /// Makes the bridge, or takes over the one of an earlier daemon by its name. `existing` are the sandboxes that
    /// daemon recorded, with their addresses: they keep them, and lost ports of theirs are connected again. Ports of
    /// the bridge that belong to no existing sandbox are leftovers and are removed.
    pub fn open(config: BridgeConfig, existing: &[(String, IpAddr)]) -> Result<Bridge, NetError> {
        let name = config.name_hint.clone();
        let fits = (1..=12).contains(&name.len())
            && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0')
            && name != "."
            && name != "..";
        if !fits {
            return Err(NetError::BridgeName { name });
        }
        let namespace = config.namespace.as_ref().map(AsFd::as_fd);
        let mut opened = within(namespace, || open_here(&name, &config, existing))??;
        let addresses = existing.iter().filter_map(|(sandbox, address)| {
            let number = match address {
                IpAddr::V4(address) => return Some((sandbox.as_str(), *address)),
                IpAddr::V6(address) => subnet6::number(opened.ipv6?, *address)?,
            };
            let bits = opened.subnet.network().to_bits().checked_add(number)?;
            Some((sandbox.as_str(), Ipv4Addr::from_bits(bits)))
        });
        let addresses: Vec<(&str, Ipv4Addr)> = addresses.collect();

        let numbers = opened.ipv6.map_or(u8::MAX, |ipv6| 128 - ipv6.prefix_len());
        let mut ipam = Ipam::with_numbers(opened.subnet, numbers);
        for (sandbox, address) in addresses {
            // A pod of another subnet has lost its network and can not get in the way of a new one.
            if let Err(error) = ipam.restore(sandbox, address) {
                tracing::warn!(sandbox, %error, "failed to restore the address of a pod");
            }
        }
        let (netlink, index) = (&mut opened.netlink, opened.index);
        let bridges = further::reconcile(netlink, &name, index, existing, config.ports)?;
        Ok(Bridge {
            index: opened.index,
            subnet: opened.subnet,
            ipv4: config.ipv4,
            ipv6: opened.ipv6,
            ipam: Mutex::new(ipam),
            bridges: Mutex::new(bridges),
            idle: Mutex::new(vec![opened.netlink]),
            deletions: Deletions::default(),
            _claims: opened.claims,
            namespace: config.namespace,
            name,
        })
    }

    /// The name of the bridge.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The subnet the pods are in.
    pub fn subnet(&self) -> Ipv4Net {
        self.subnet
    }

    /// The subnets that pods have addresses of, IPv4 first.
    pub fn subnets(&self) -> Vec<(IpAddr, u8)> {
        let v4 = (IpAddr::V4(self.subnet.network()), self.subnet.prefix_len());
        let v6 = self
            .ipv6
            .map(|v6| (IpAddr::V6(v6.network()), v6.prefix_len()));
        self.ipv4.then_some(v4).into_iter().chain(v6).collect()
    }

    /// How many pods are connected.
    pub fn pods(&self) -> usize {
        self.ipam().held()
    }

    /// The subnets, as they could be asked for.
    pub fn cidrs(&self) -> PodCidrs {
        PodCidrs {
            v4: self.ipv4.then_some(self.subnet),
            v6: self.ipv6,
        }
    }

    /// The namespace the bridge lives in; `None` is the one the daemon itself is in.
    pub fn namespace(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(AsFd::as_fd)
    }

    /// Connects a pod: `eth0` with an address and a default route, and the loopback interface, all up and able to
    /// carry traffic when this returns. What is half made when something fails is removed.
    pub fn attach(
        &self,
        sandbox_id: &str,
        pod_netns: BorrowedFd<'_>,
    ) -> Result<Attachment, NetError> {
        let address = self
            .ipam()
            .allocate(sandbox_id)
            .map_err(|error| self.no_address(error))?;
        let host_interface = host_interface(&self.name, sandbox_id);
        match self.connect(sandbox_id, &host_interface, address, pod_netns) {
            Ok(()) => Ok(Attachment {
                ip: self
                    .addresses(address)
                    .first()
                    .map_or(IpAddr::V4(address), |(ip, _)| *ip),
                ips: self.addresses(address).iter().map(|(ip, _)| *ip).collect(),
                gateway: match self.ipv6 {
                    Some(ipv6) if !self.ipv4 => IpAddr::V6(ipv6.gateway()),
                    Some(_) | None => IpAddr::V4(self.subnet.gateway()),
                },
                host_interface,
                mac: Mac::of(address),
            }),
            Err(attach) => match self.detach(sandbox_id) {
                Ok(()) => Err(attach),
                Err(cleanup) => Err(NetError::Cleanup {
                    attach: Box::new(attach),
                    cleanup: Box::new(cleanup),
                }),
            },
        }
    }

    /// Disconnects a pod: its interface is gone and its address free when this returns. Nothing to do is fine: a
    /// sandbox that was never attached, or whose network namespace has ended. On an error the address stays taken.
    pub fn detach(&self, sandbox_id: &str) -> Result<(), NetError> {
        let host_interface = host_interface(&self.name, sandbox_id);
        self.deletions.delete(
            self.netlink()?,
            requests::delete(Link::Name(&host_interface)),
        )?;
        self.bridges().segments.remove(sandbox_id);
        self.ipam().free(sandbox_id);
        Ok(())
    }

    /// Deletes the bridge and gives the subnet back; when this returns the kernel is done with every earlier detach,
    /// too. Refused while a pod is attached: then everything stays as it is, for the next daemon to take over.
    pub fn close(self) -> Result<(), NetError> {
        let pods = self.ipam().held();
        if pods > 0 {
            return Err(NetError::StillAttached {
                name: self.name,
                pods,
            });
        }
        let further: Vec<Segment> = self.bridges().indexes.keys().copied().collect();
        for segment in further.into_iter().filter(|segment| *segment > 0) {
            self.with_netlink(|netlink| further::remove(netlink, &self.name, segment))?;
        }
        self.deletions
            .delete(self.netlink()?, requests::delete(Link::Index(self.index)))?;
        self.deletions.finish();
        Ok(())
    }

    /// Names the subnets, which the numbers of addresses alone do not.
    fn no_address(&self, error: IpamError) -> NetError {
        if let IpamError::Exhausted { capacity, .. } = error {
            let subnets = self.cidrs().texts().join(", ");
            return NetError::Full { subnets, capacity };
        }
        error.into()
    }

    /// The bridge that the sandbox becomes a port of: its name and its interface's number.
    fn bridge_for(&self, sandbox_id: &str) -> Result<(String, u32), NetError> {
        let name_of = |segment| match segment {
            0 => self.name.clone(),
            segment => further_bridge(&self.name, segment),
        };
        let make = |segment| {
            let index = self
                .with_netlink(|netlink| further::make(netlink, &self.name, self.index, segment))?;
            let (upper, lower) = uplink(&self.name, segment);
            self.wait_until_it_forwards(&upper, &self.name)?;
            self.wait_until_it_forwards(&lower, &name_of(segment))?;
            Ok(index)
        };
        // Others wait until it is there.
        let placed = self.bridges().place(sandbox_id, &self.name, make)?;
        Ok((name_of(placed.0), placed.1))
    }

    fn connect(
        &self,
        sandbox_id: &str,
        host_interface: &str,
        address: Ipv4Addr,
        pod_netns: BorrowedFd<'_>,
    ) -> Result<(), NetError> {
        let (bridge, index) = self.bridge_for(sandbox_id)?;
        let host = Link::Name(host_interface);
        // The pod's end goes up last: an end that goes up while the other is up carries traffic at once.
        self.with_netlink(|netlink| {
            netlink.batch(&[
                requests::create_veth(
                    host_interface,
                    index,
                    POD_INTERFACE,
                    Mac::of(address),
                    pod_netns,
                ),
                requests::no_ipv6_link_local(host),
                requests::up(host),
            ])
        })?;
        within(Some(pod_netns), || self.configure_pod(address))??;
        self.wait_until_it_forwards(host_interface, &bridge)
    }

    /// Sets the pod's end up; runs in the pod's namespace.
    fn configure_pod(&self, address: Ipv4Addr) -> Result<(), NetError> {
        let mut netlink = Netlink::open()?;
        let eth =
            link_query::link(&mut netlink, POD_INTERFACE)?.ok_or_else(|| NetError::Vanished {
                name: POD_INTERFACE.to_owned(),
            })?;
        let mut steps = vec![
            requests::up(Link::Name("lo")),
            requests::no_ipv6_link_local(Link::Index(eth.index)),
        ];
        let addresses = self.addresses(address);
        steps.extend(addresses.iter().map(|(address, prefix_len)| match address {
            IpAddr::V4(address) => requests::add_address(eth.index, *address, self.subnet),
            IpAddr::V6(address) => requests::add_address6(eth.index, *address, *prefix_len),
        }));
        steps.push(requests::up(Link::Index(eth.index)));
        steps.extend(addresses.iter().map(|(address, _)| {
            let gateway = match (address, self.ipv6) {
                (IpAddr::V6(_), Some(ipv6)) => IpAddr::V6(ipv6.gateway()),
                (IpAddr::V4(_), _) | (IpAddr::V6(_), None) => IpAddr::V4(self.subnet.gateway()),
            };
            requests::default_route(eth.index, gateway)
        }));
        Ok(netlink.batch(&steps)?)
    }

    /// The addresses of the pod with this one, or with its number, and the lengths of their prefixes.
    fn addresses(&self, address: Ipv4Addr) -> Vec<(IpAddr, u8)> {
        // Addresses are only ever of the subnet.
        let number = address.to_bits() ^ self.subnet.network().to_bits();
        let v4 = self
            .ipv4
            .then_some((IpAddr::V4(address), self.subnet.prefix_len()));
        let v6 = self
            .ipv6
            .map(|v6| (IpAddr::V6(subnet6::address(v6, number)), v6.prefix_len()));
        v4.into_iter().chain(v6).collect()
    }

    /// The kernel opens a bridge's port, and the bridge itself with its first port, a little after the carrier is
    /// there. Since Linux 6.8 asking for the link makes that happen; before, it is waited for. A frame sent earlier
    /// would be lost, and a lost first question for a neighbour costs its sender a second.
    fn wait_until_it_forwards(&self, port: &str, bridge: &str) -> Result<(), NetError> {
        let ready = |netlink: &mut Netlink| -> Result<bool, NetError> {
            let vanished = |name: &str| NetError::Vanished {
                name: name.to_owned(),
            };
            let port = link_query::link(netlink, port)?.ok_or_else(|| vanished(port))?;
            let bridge = link_query::link(netlink, bridge)?.ok_or_else(|| vanished(bridge))?;
            Ok(port.forwarding && bridge.operational)
        };
        if self.with_netlink(ready)? {
            return Ok(());
        }
        let began = Instant::now();
        let mut watch = within(self.namespace(), Netlink::open_watch)??;
        loop {
            // Asking again only after the watch is open leaves no gap for a change to fall into.
            if self.with_netlink(ready)? {
                return Ok(());
            }
            if !watch.wait_for_change(began + FORWARDING_WITHIN)? {
                return Err(NetError::NotForwarding {
                    name: port.to_owned(),
                    waited_ms: began.elapsed().as_millis(),
                });
            }
        }
    }

    fn bridges(&self) -> MutexGuard<'_, Bridges> {
        self.bridges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ipam(&self) -> MutexGuard<'_, Ipam> {
        self.ipam.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket of the bridge's namespace: an idle one, or else a new one.
    fn netlink(&self) -> Result<Netlink, NetError> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match idle {
            Some(netlink) => Ok(netlink),
            None => Ok(within(self.namespace(), Netlink::open)??),
        }
    }

    /// Lends a socket of the bridge's namespace. One that failed may have unread answers and is not used again.
    fn with_netlink<T, E>(
        &self,
        work: impl FnOnce(&mut Netlink) -> Result<T, E>,
    ) -> Result<T, NetError>
    where
        NetError: From<E>,
    {
        let mut netlink = self.netlink()?;
        let result = work(&mut netlink)?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_SOCKETS {
            idle.push(netlink);
        }
        Ok(result)
    }
}

fn within<T: Send>(
    namespace: Option<BorrowedFd<'_>>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetError> {
    namespace::within(namespace, work).map_err(|source| NetError::Namespace {
        doing: "entering a network namespace",
        source,
    })
}
