//! The bridge of one daemon: creates it or takes it over, attaches and detaches pods, and closes it.

mod leases;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::bridging::bridge_config::BridgeConfig;
use crate::bridging::bridge_setup::open_here;
use crate::bridging::bridges::{self, Bridges, PrimaryBridge};
use crate::bridging::names::{host_interface, secondary_bridge, uplink};
use crate::bridging::orphans;
use crate::bridging::segments::Segment;
use crate::bridging::spoofing::{Port, SourceFilter};
use crate::bridging::subnet::BridgeSubnet as _;
use crate::bridging::subnet_lock::SubnetLock;
use crate::bridging::subnet6;
use crate::egress::MTU;
use crate::links;
use crate::links::deletion::Deletions;
use crate::links::link_query;
use crate::links::netlink::Netlink;
use crate::links::requests::{self, Link};
use crate::{Attachment, Ipam, IpamError, Mac, NetError, POD_INTERFACE, PodCidrs, PodNetns};

pub use leases::Lease;

/// How long an interface may take to reach the forwarding state. The kernel needs a few milliseconds.
const FORWARDING_WITHIN: Duration = Duration::from_secs(5);

/// The number of idle sockets kept. A burst of pods opens more and closes them again.
const IDLE_SOCKETS: usize = 4;

/// A bridge and its subnet, held for the life of the daemon. Several threads may call it concurrently, but not for the same
/// sandbox; the threads must be in the network namespace that the bridge was opened from. Dropping it leaves the bridge and the
/// pods as they are, for the next daemon to take over; [`Bridge::close`] removes the bridge.
#[derive(Debug)]
pub struct Bridge {
    name: String,
    index: u32,
    namespace: Option<OwnedFd>,
    /// The IPv4 subnet. If pods have no IPv4 addresses, it only numbers them.
    subnet: Ipv4Net,
    ipv4: bool,
    ipv6: Option<Ipv6Net>,
    ipam: Mutex<Ipam>,
    /// This bridge and the secondary bridges connected to it.
    bridges: Mutex<Bridges>,
    /// Idle sockets in the bridge's namespace. Every call takes one, so that no call waits for another's.
    idle: Mutex<Vec<Netlink>>,
    deletions: Deletions,
    pub(crate) sources: SourceFilter,
    _locks: Vec<SubnetLock>,
}

/// The MTU of pods on a bridge in a namespace, if it is not the kernel's: in a private namespace a program copies their packets
/// one by one, which is faster with large packets.
fn mtu_in(namespace: Option<&OwnedFd>) -> Option<u32> {
    namespace.map(|_| MTU)
}

impl Bridge {
    /// Creates the bridge, or takes over an earlier daemon's bridge of that name. `existing` are the sandboxes that the earlier
    /// daemon recorded, with their addresses. They keep their addresses, and missing ports are attached again. Ports of the
    /// bridge that belong to no existing sandbox are orphans and are removed.
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
        let numbered = existing.iter().filter_map(|(sandbox, address)| {
            let number = match address {
                IpAddr::V4(address) => return Some((sandbox.as_str(), *address)),
                IpAddr::V6(address) => subnet6::number(opened.ipv6?, *address)?,
            };
            let bits = opened.subnet.network().to_bits().checked_add(number)?;
            Some((sandbox.as_str(), Ipv4Addr::from_bits(bits)))
        });
        let numbered: Vec<(&str, Ipv4Addr)> = numbered.collect();

        let numbers = opened.ipv6.map_or(u8::MAX, |ipv6| 128 - ipv6.prefix_len());
        let mut ipam = Ipam::with_numbers(opened.subnet, numbers);
        for (sandbox, address) in numbered {
            // A pod of another subnet has no network any more and cannot conflict with a new one.
            if let Err(error) = ipam.restore(sandbox, address) {
                tracing::warn!(sandbox, %error, "failed to restore the address of a pod");
            }
        }
        let (netlink, index) = (&mut opened.netlink, opened.index);
        let links = link_query::links(netlink)?;
        if let Some(locks) = &config.subnet_locks {
            orphans::remove(netlink, locks, &links)?;
        }
        let mtu = mtu_in(config.namespace.as_ref());
        let first = PrimaryBridge { name: &name, index, namespace, mtu };
        let bridges = bridges::reconcile(netlink, first, &links, existing, config.ports)?;
        let of = |number| addresses(opened.subnet, config.ipv4, opened.ipv6, number);
        let pods = existing.iter().filter_map(|(sandbox, _)| {
            let address = ipam.address_of(sandbox)?;
            let addresses = of(address).into_iter().map(|(address, _)| address).collect();
            Some((host_interface(&name, sandbox), Mac::of(address), addresses))
        });
        let sources = SourceFilter::open(&name, namespace, &pods.collect::<Vec<_>>());
        Ok(Bridge {
            sources,
            index: opened.index,
            subnet: opened.subnet,
            ipv4: config.ipv4,
            ipv6: opened.ipv6,
            ipam: Mutex::new(ipam),
            bridges: Mutex::new(bridges),
            idle: Mutex::new(vec![opened.netlink]),
            deletions: Deletions::default(),
            _locks: opened.locks,
            namespace: config.namespace,
            name,
        })
    }

    /// The name of the bridge.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The subnet of the pods.
    pub fn subnet(&self) -> Ipv4Net {
        self.subnet
    }

    /// The bridge's address, which is the pods' default gateway.
    pub fn gateway(&self) -> IpAddr {
        match self.ipv6 {
            Some(ipv6) if !self.ipv4 => IpAddr::V6(ipv6.gateway()),
            Some(_) | None => IpAddr::V4(self.subnet.gateway()),
        }
    }

    /// The subnets that pods have addresses in, IPv4 first.
    pub fn subnets(&self) -> Vec<(IpAddr, u8)> {
        let v4 = (IpAddr::V4(self.subnet.network()), self.subnet.prefix_len());
        let v6 = self.ipv6.map(|v6| (IpAddr::V6(v6.network()), v6.prefix_len()));
        self.ipv4.then_some(v4).into_iter().chain(v6).collect()
    }

    /// The number of attached pods.
    pub fn pods(&self) -> usize {
        self.ipam().held()
    }

    /// The number of attached pods, without the addresses of a lease's holder.
    pub fn pods_beside(&self, holder: &str) -> usize {
        let is_lease = |name: &str| {
            let rest = name.strip_prefix(holder);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.ipam().holders().filter(|name| !is_lease(name)).count()
    }

    /// The subnets, in the form of the option `--pod-cidr`.
    pub fn cidrs(&self) -> PodCidrs {
        PodCidrs { v4: self.ipv4.then_some(self.subnet), v6: self.ipv6 }
    }

    /// See [`mtu_in`].
    fn mtu(&self) -> Option<u32> {
        mtu_in(self.namespace.as_ref())
    }

    /// The namespace of the bridge; `None` is the daemon's own.
    pub fn namespace(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(AsFd::as_fd)
    }

    /// Attaches a pod: `eth0` with an address and a default route, and the loopback interface. All are up and
    /// forwarding when this returns. On failure it removes what it created.
    pub fn attach(
        &self,
        sandbox_id: &str,
        pod_netns: BorrowedFd<'_>,
    ) -> Result<Attachment, NetError> {
        self.attach_with(sandbox_id, pod_netns, None)
    }

    /// [`Bridge::attach`] of a network namespace created for the pod.
    pub fn attach_pod(&self, sandbox_id: &str, pod: &PodNetns) -> Result<Attachment, NetError> {
        self.attach_with(sandbox_id, pod.as_fd(), pod.netlink())
    }

    /// Attaches a pod; `inside` is a socket in its namespace, if one is open already.
    fn attach_with(
        &self,
        sandbox_id: &str,
        pod_netns: BorrowedFd<'_>,
        inside: Option<Netlink>,
    ) -> Result<Attachment, NetError> {
        let address = self.ipam().allocate(sandbox_id).map_err(|error| self.no_address(error))?;
        let host_interface = host_interface(&self.name, sandbox_id);
        match self.connect(sandbox_id, &host_interface, address, pod_netns, inside) {
            Ok(()) => Ok(Attachment {
                ip: self.addresses(address).first().copied().unwrap_or(IpAddr::V4(address)),
                ips: self.addresses(address),
                gateway: self.gateway(),
                host_interface,
                mac: Mac::of(address),
            }),
            Err(attach) => match self.detach(sandbox_id) {
                Ok(()) => Err(attach),
                Err(cleanup) => {
                    Err(NetError::Cleanup { attach: Box::new(attach), cleanup: Box::new(cleanup) })
                }
            },
        }
    }

    /// Detaches a pod: its interface no longer exists and its address is free when this returns. Idempotent: a sandbox that was
    /// never attached, or whose network namespace has ended, is not an error. On an error the address stays allocated.
    pub fn detach(&self, sandbox_id: &str) -> Result<(), NetError> {
        let host_interface = host_interface(&self.name, sandbox_id);
        self.deletions.delete(self.netlink()?, requests::delete(Link::Name(&host_interface)))?;
        self.bridges().segments.remove(sandbox_id);
        let address = self.ipam().address_of(sandbox_id);
        if let Some(address) = address {
            let port = Port { name: &host_interface, mac: Mac::of(address) };
            self.sources.release(port, &self.addresses(address));
        }
        self.ipam().free(sandbox_id);
        Ok(())
    }

    /// Deletes the bridge and releases the subnet. When this returns, the kernel has also completed every earlier detach. Refused
    /// while a pod is attached: then nothing is changed, and the next daemon takes the bridge over.
    pub fn close(self) -> Result<(), NetError> {
        let pods = self.ipam().held();
        if pods > 0 {
            return Err(NetError::StillAttached { name: self.name, pods });
        }
        let secondary: Vec<Segment> = self.bridges().indexes.keys().copied().collect();
        for segment in secondary.into_iter().filter(|segment| *segment > 0) {
            self.with_netlink(|netlink| bridges::remove(netlink, &self.name, segment))?;
        }
        self.deletions.delete(self.netlink()?, requests::delete(Link::Index(self.index)))?;
        self.deletions.finish();
        self.sources.close();
        Ok(())
    }

    /// Adds the subnets, which IPAM does not know, to the error.
    fn no_address(&self, error: IpamError) -> NetError {
        if let IpamError::Exhausted { capacity, .. } = error {
            let subnets = self.cidrs().texts().join(", ");
            return NetError::Full { subnets, capacity };
        }
        error.into()
    }

    /// The bridge that the sandbox becomes a port of: its name and interface index.
    fn bridge_for(&self, sandbox_id: &str) -> Result<(String, u32), NetError> {
        let name_of = |segment| match segment {
            0 => self.name.clone(),
            segment => secondary_bridge(&self.name, segment),
        };
        let make = |segment| {
            let first = PrimaryBridge {
                name: &self.name,
                index: self.index,
                namespace: self.namespace(),
                mtu: self.mtu(),
            };
            let index = self.with_netlink(|netlink| bridges::make(netlink, first, segment))?;
            let (upper, lower) = uplink(&self.name, segment);
            self.wait_until_it_forwards(&upper, &self.name)?;
            self.wait_until_it_forwards(&lower, &name_of(segment))?;
            Ok(index)
        };
        // Concurrent calls wait on the lock until the bridge exists.
        let placed = self.bridges().place(sandbox_id, &self.name, make)?;
        Ok((name_of(placed.0), placed.1))
    }

    fn connect(
        &self,
        sandbox_id: &str,
        host_interface: &str,
        address: Ipv4Addr,
        pod_netns: BorrowedFd<'_>,
        inside: Option<Netlink>,
    ) -> Result<(), NetError> {
        let (bridge, index) = self.bridge_for(sandbox_id)?;
        let host = Link::Name(host_interface);
        let port = Port { name: host_interface, mac: Mac::of(address) };
        self.sources.bind(port, &self.addresses(address))?;
        // Bring the pod's end up last: when an end comes up while the other is up, it has carrier immediately.
        self.with_netlink(|netlink| {
            netlink.batch(&[
                requests::create_veth(
                    host_interface,
                    index,
                    POD_INTERFACE,
                    Mac::of(address),
                    pod_netns,
                    self.mtu(),
                ),
                requests::no_ipv6_link_local(host),
                requests::up(host),
            ])
        })?;
        match inside {
            Some(mut netlink) => self.configure_pod(&mut netlink, address)?,
            None => {
                within(Some(pod_netns), || self.configure_pod(&mut Netlink::open()?, address))??
            }
        }
        self.wait_until_it_forwards(host_interface, &bridge)
    }

    /// Brings the pod's end up, through a socket in the pod's namespace.
    fn configure_pod(&self, netlink: &mut Netlink, address: Ipv4Addr) -> Result<(), NetError> {
        let eth = link_query::link(netlink, POD_INTERFACE)?
            .ok_or_else(|| NetError::Vanished { name: POD_INTERFACE.to_owned() })?;
        let mut steps = vec![
            requests::up(Link::Name("lo")),
            requests::no_ipv6_link_local(Link::Index(eth.index)),
        ];
        let addresses = addresses(self.subnet, self.ipv4, self.ipv6, address);
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

    /// The addresses of the pod whose IPv4 address, or number, is `address`.
    fn addresses(&self, address: Ipv4Addr) -> Vec<IpAddr> {
        let addresses = addresses(self.subnet, self.ipv4, self.ipv6, address);
        addresses.into_iter().map(|(address, _)| address).collect()
    }

    /// Waits until the port forwards. The kernel sets a bridge's port, and with the first port the bridge itself, to
    /// forwarding shortly after the carrier is up. Since Linux 6.8 querying the link triggers this; before, it takes
    /// a wait. A frame sent earlier would be lost, and a lost first neighbour solicitation costs the sender a second.
    fn wait_until_it_forwards(&self, port: &str, bridge: &str) -> Result<(), NetError> {
        let ready = |netlink: &mut Netlink| -> Result<bool, NetError> {
            let vanished = |name: &str| NetError::Vanished { name: name.to_owned() };
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
            // Query again after the watch is open, so that no change is missed in between.
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

    /// A socket in the bridge's namespace: an idle one, or else a new one.
    fn netlink(&self) -> Result<Netlink, NetError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(netlink) => Ok(netlink),
            None => Ok(within(self.namespace(), Netlink::open)??),
        }
    }

    /// Runs `work` with a socket in the bridge's namespace. A socket that failed may have unread responses and is not
    /// reused.
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

/// The addresses of the pod whose IPv4 address, or number, is `address`, with their prefix lengths.
fn addresses(
    subnet: Ipv4Net,
    ipv4: bool,
    ipv6: Option<Ipv6Net>,
    address: Ipv4Addr,
) -> Vec<(IpAddr, u8)> {
    // IPAM only allocates addresses in the subnet.
    let number = address.to_bits() ^ subnet.network().to_bits();
    let v4 = ipv4.then_some((IpAddr::V4(address), subnet.prefix_len()));
    let v6 = ipv6.map(|v6| (IpAddr::V6(subnet6::address(v6, number)), v6.prefix_len()));
    v4.into_iter().chain(v6).collect()
}

fn within<T: Send>(
    namespace: Option<BorrowedFd<'_>>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetError> {
    links::within(namespace, work)
        .map_err(|source| NetError::Namespace { doing: "entering a network namespace", source })
}
