//! Free ports of this machine, for servers that cannot choose one themselves.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port and the number of ports: below the kernel's range of ephemeral ports (`net.ipv4.ip_local_port_range`), and
/// without the ports of kubelets and of Services.
const FIRST: u16 = 11_000;
const COUNT: u16 = 18_000;

/// A port that is free for TCP and UDP on all addresses; `None` if there is none. This process gets each port once, and programs
/// that bind to port 0 get others, so the port remains free for a while.
#[must_use]
pub fn free() -> Option<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Concurrent processes start at different ports.
    let begin = std::process::id().wrapping_mul(257) % u32::from(COUNT);
    let begin = u16::try_from(begin).unwrap_or_default();
    (0..COUNT).find_map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (begin + next) % COUNT;
        is_free(port).then_some(port)
    })
}

fn is_free(port: u16) -> bool {
    // With IPv6, this listener covers both families.
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
