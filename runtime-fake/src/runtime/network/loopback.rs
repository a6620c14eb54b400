//! Assigns loopback addresses to pods that share the host's network: each pod gets an address that no other process on the host
//! uses.

mod addresses;

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr},
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::Connected;
use crate::{id::SandboxId, runtime::Error};
use addresses::{candidates, in_use};

/// Limit on candidate addresses. Nearly all of 16 million are free.
const TRIES: usize = 64;

/// The addresses of this daemon's pods.
#[derive(Debug, Default)]
pub(crate) struct Loopbacks {
    by_sandbox: Mutex<BTreeMap<String, Ipv4Addr>>,
}

impl Loopbacks {
    /// `existing` pods keep their addresses.
    pub(super) fn of(existing: Vec<Connected>) -> Self {
        let addresses = existing.into_iter().filter_map(|pod| {
            let address = pod.addresses.into_iter().find_map(|address| match address {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            });
            Some((pod.id, address?))
        });
        Self { by_sandbox: Mutex::new(addresses.collect()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Ipv4Addr>> {
        self.by_sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an address for the sandbox. The descriptor locks it against other daemons of this host, of any user;
    /// the pod's keeper holds it, so that the lock lasts as long as the pod.
    pub(super) fn reserve(&self, id: &SandboxId) -> Result<OwnedFd, Error> {
        let fail = crate::runtime::io("find a loopback address for the pod");
        let bound = bound_addresses();
        let mut given = self.lock();
        for address in candidates(id.as_str()).take(TRIES) {
            if bound.contains(&address) || given.values().any(|other| *other == address) {
                continue;
            }
            if let Some(claim) = claim(address).map_err(&fail)? {
                given.insert(id.to_string(), address);
                return Ok(claim);
            }
        }
        Err(Error::NoNetwork(format!(
            "none of {TRIES} loopback addresses that were tried for the pod is free"
        )))
    }

    pub(super) fn address_of(&self, id: &SandboxId) -> Option<IpAddr> {
        self.lock().get(id.as_str()).copied().map(IpAddr::V4)
    }

    pub(super) fn free(&self, id: &SandboxId) {
        self.lock().remove(id.as_str());
    }
}

/// Addresses that sockets of this host are bound to.
fn bound_addresses() -> Vec<Ipv4Addr> {
    let tables = ["tcp", "tcp6", "udp", "udp6"].iter();
    let texts = tables.map(|table| fs::read_to_string(format!("/proc/net/{table}")));
    texts.flatten().flat_map(|text| in_use(&text).collect::<Vec<_>>()).collect()
}

/// Binds an abstract socket name, which only one process can have; `None` if another one has it.
fn claim(address: Ipv4Addr) -> io::Result<Option<OwnedFd>> {
    let name = SocketAddr::from_abstract_name(format!("crib/loopback/{address}"))?;
    match UnixDatagram::bind_addr(&name) {
        Ok(socket) => Ok(Some(socket.into())),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn address(loopbacks: &Loopbacks, id: &SandboxId) -> Ipv4Addr {
        match loopbacks.address_of(id) {
            Some(IpAddr::V4(address)) => address,
            other => panic!("{other:?}"),
        }
    }

    /// IDs with the same first digits, from which the first candidate is derived.
    fn like(id: &SandboxId, last: char) -> SandboxId {
        let mut text = id.to_string();
        text.pop();
        text.push(last);
        serde_json::from_value(text.into()).unwrap()
    }

    #[test]
    fn loopback_address_of_pod_is_not_reused() {
        let first = SandboxId::random();
        let (loopbacks, others) = (Loopbacks::default(), Loopbacks::default());
        let claim = loopbacks.reserve(&first).unwrap();
        let taken = address(&loopbacks, &first);
        // Neither this daemon, nor another one, nor the next one assigns it.
        let second = like(&first, '0');
        let _second = loopbacks.reserve(&second).unwrap();
        assert_ne!(address(&loopbacks, &second), taken);
        let third = like(&first, '1');
        let _third = others.reserve(&third).unwrap();
        assert_ne!(address(&others, &third), taken);
        drop(claim);
        let next = Loopbacks::of(vec![Connected {
            id: first.to_string(),
            addresses: vec![IpAddr::V4(taken)],
            ports: Vec::new(),
        }]);
        let fourth = like(&first, '2');
        let _fourth = next.reserve(&fourth).unwrap();
        assert_ne!(address(&next, &fourth), taken);
        next.free(&first);
        let fifth = like(&first, '3');
        let _fifth = next.reserve(&fifth).unwrap();
        assert_eq!(address(&next, &fifth), taken);
    }

    #[test]
    fn loopback_address_with_bound_socket_is_not_assigned() {
        let id = SandboxId::random();
        let loopbacks = Loopbacks::default();
        let wanted = candidates(id.as_str()).next().unwrap();
        let _bound = UdpSocket::bind((wanted, 0)).unwrap();
        let _claim = loopbacks.reserve(&id).unwrap();
        assert_ne!(address(&loopbacks, &id), wanted);
    }
}
