//! Ports of this machine for servers that do not choose one themselves.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// The ports that are given, first and count: below those that the kernel gives to programs that ask for any port
/// (`net.ipv4.ip_local_port_range`), and without the ports of kubelets and of Services.
const FIRST: u16 = 11_000;
const COUNT: u16 = 18_000;

/// A port that is free for TCP and UDP on all addresses; `None` if there is none. This process gets each port once, and a program that
/// asks for any port gets another, so that it is still free a moment later.
#[must_use]
pub fn free() -> Option<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that run at the same time begin at different ports.
    let begin = std::process::id().wrapping_mul(257) % u32::from(COUNT);
    let begin = u16::try_from(begin).unwrap_or_default();
    (0..COUNT).find_map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (begin + next) % COUNT;
        is_free(port).then_some(port)
    })
}

fn is_free(port: u16) -> bool {
    // Where there is IPv6, this one is for both.
    let tcp = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    tcp.is_ok() && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ports_differ_and_are_free() {
        let ports: Vec<u16> = (0..100).map(|_| free().unwrap()).collect();
        let mut distinct = ports.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 100);
        assert!(ports.iter().all(|port| (FIRST..FIRST + COUNT).contains(port)));
    }

    #[test]
    fn port_in_use_is_not_free() {
        let port = free().unwrap();
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let tcp = TcpListener::bind((address, port)).unwrap();
            assert!(!is_free(port));
            drop(tcp);
            let udp = UdpSocket::bind((address, port)).unwrap();
            assert!(!is_free(port));
            drop(udp);
        }
        assert!(is_free(port));
    }
}
