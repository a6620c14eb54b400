//! The node's own address, which pods see as `status.hostIP`.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodestatus/setters.go (NodeAddress without a cloud provider): the name of the node if it is
//! an address, else an address of this machine that the name resolves to, else that of the default route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// Why an address cannot be the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeAddressError {
    /// Other machines cannot reach it, or it is multicast or unspecified.
    #[error(
        "{0} is a loopback, link-local, multicast or unspecified address: set an address of this machine"
    )]
    Kind(IpAddr),
    /// No network interface has this address.
    #[error("{0} is on no network interface of this machine")]
    NotHere(IpAddr),
    /// The machine has no usable address.
    #[error(
        "the node's name resolves to no address of this machine, which has no default route either: set an address of this machine"
    )]
    NotFound,
}

/// The address of the node of this name, determined as by a kubelet. Resolves the name, which may block as long as the resolver.
#[must_use]
pub fn of_node(name: &str) -> IpAddr {
    of_name(name).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The addresses of the node of this name, determined as by a kubelet for each status: the `given` ones, if they are still
/// addresses of this machine, else that of the name. May block as long as the resolver.
///
/// # Errors
///
/// If the machine has no such address.
pub fn look_up(name: &str, given: &[IpAddr]) -> Result<Vec<IpAddr>, NodeAddressError> {
    if given.is_empty() {
        return of_name(name).map(|address| vec![address]).ok_or(NodeAddressError::NotFound);
    }
    given.iter().try_for_each(|address| check(*address))?;
    Ok(given.to_vec())
}

fn of_name(name: &str) -> Option<IpAddr> {
    if let Ok(address) = name.parse() {
        return Some(address);
    }
    let found = (name, 0).to_socket_addrs().into_iter().flatten();
    let own = found.map(|found| found.ip()).filter(|address| check(*address).is_ok());
    preferred(own).or_else(routed)
}

/// The source address of this machine's packets on the default route; 127.0.0.1 without a default route, where a kubelet has no
/// address and its pods get none.
#[must_use]
pub fn of_default_route() -> IpAddr {
    routed().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn routed() -> Option<IpAddr> {
    // Addresses for documentation, RFC 5737 and RFC 3849: only the routing table is queried, nothing is sent.
    let anywhere: [IpAddr; 2] =
        [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    anywhere.into_iter().filter_map(source_for).find(|address| check_kind(*address).is_ok())
}

/// Checks an address that a user sets (`--node-ip`).
///
/// # Errors
///
/// If it is not an address of this machine that others can reach.
pub fn check(address: IpAddr) -> Result<(), NodeAddressError> {
    check_kind(address)?;
    UdpSocket::bind((address, 0)).map(|_| ()).map_err(|_| NodeAddressError::NotHere(address))
}

fn check_kind(address: IpAddr) -> Result<(), NodeAddressError> {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Err(NodeAddressError::Kind(address));
    }
    Ok(())
}

/// IPv4 before IPv6, else the first.
fn preferred(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = addresses.collect();
    let v4 = addresses.iter().find(|address| address.is_ipv4());
    v4.or_else(|| addresses.first()).copied()
}

/// The source address of a packet to `target`.
fn source_for(target: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(target, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    #[test]
    fn name_that_is_an_address_is_the_address() {
        assert_eq!(of_node("203.0.113.9"), ip("203.0.113.9"));
        assert_eq!(of_node("fd00::9"), ip("fd00::9"));
    }

    #[test]
    fn lookup_returns_only_addresses_of_the_machine() {
        let loopback = ip("127.0.0.1");
        assert_eq!(look_up("203.0.113.9", &[]), Ok(vec![ip("203.0.113.9")]));
        assert_eq!(look_up("n", &[loopback]), Err(NodeAddressError::Kind(loopback)));
        let gone = ip("203.0.113.9");
        assert_eq!(look_up("n", &[gone]), Err(NodeAddressError::NotHere(gone)));
        let routed = routed();
        if let Some(own) = routed {
            assert_eq!(look_up("n", &[own]), Ok(vec![own]));
        }
        let named = routed.map(|own| vec![own]).ok_or(NodeAddressError::NotFound);
        assert_eq!(look_up("localhost", &[]), named);
    }

    #[test]
    fn loopback_name_resolves_to_the_default_route_address() {
        assert_eq!(of_node("localhost"), of_default_route());
    }

    #[rstest]
    #[case("127.0.0.1")]
    #[case("::1")]
    #[case("169.254.0.1")]
    #[case("fe80::1")]
    #[case("224.0.0.1")]
    #[case("0.0.0.0")]
    fn address_that_others_cannot_reach_is_refused(#[case] address: &str) {
        let address = ip(address);
        assert_eq!(check(address), Err(NodeAddressError::Kind(address)));
    }

    #[test]
    fn address_of_another_machine_is_refused() {
        let address = ip("203.0.113.9");
        assert_eq!(check(address), Err(NodeAddressError::NotHere(address)));
    }

    #[test]
    fn first_ipv4_address_is_preferred() {
        let of = |texts: &[&str]| preferred(texts.iter().map(|text| ip(text)));
        assert_eq!(of(&["fd00::1", "10.0.0.1", "10.0.0.2"]), Some(ip("10.0.0.1")));
        assert_eq!(of(&["fd00::1", "fd00::2"]), Some(ip("fd00::1")));
        assert_eq!(of(&[]), None);
    }
}
