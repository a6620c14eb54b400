//! Announcements of a pod do not configure interfaces outside pods.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket, sockopt};

use super::{Pod, config, inside, send, skip, with_namespace};
use crate::bridging::bridge_config::{BridgeConfig, Ipv6};
use crate::links;
use crate::links::link_query;
use crate::links::netlink::Netlink;
use crate::links::requests::{self, Link};
use crate::netfilter::nat;
use crate::{Bridge, Mac};

/// All nodes of a link (RFC 4291, 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A router advertisement (RFC 4861, 4.2): the sender is the default router for half an hour, and hosts take addresses in
/// 2001:db8:1::/64. The kernel adds the checksum.
fn advertisement() -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    // A prefix (4.6.2) with the flags on-link and autonomous.
    message.extend([3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 0, 0x38, 0x40, 0, 0, 0, 0]);
    message.extend(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0).octets());
    message
}

/// Sends the advertisement through an interface of a namespace, from a link-local address.
fn advertise(from: &OwnedFd, interface: &str) {
    inside(from, || {
        let mut netlink = Netlink::open().unwrap();
        let index = link_query::link(&mut netlink, interface).unwrap().unwrap().index;
        let own = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xbad);
        let mut address = requests::add_address6(index, own, 64);
        address.fine = &[nix::libc::EEXIST];
        netlink.batch(&[address]).unwrap();
        let socket = socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)).unwrap();
        // Receivers ignore other hop limits, which could come from another link.
        sockopt::set_ipv6_multicast_hops(&socket, 255).unwrap();
        let to = SocketAddrV6::new(ALL_NODES, 0, 0, index);
        sendto(&socket, &advertisement(), SendFlags::empty(), &to).unwrap();
    });
}

/// A table of the kernel for a namespace: a file below `/proc/thread-self/net`.
fn table(of: &OwnedFd, file: &str) -> io::Result<String> {
    inside(of, || std::fs::read_to_string(format!("/proc/thread-self/net/{file}")))
}

/// The lines of the interface in a table that ends each line with its name.
fn lines(of: &OwnedFd, file: &str, interface: &str) -> Vec<String> {
    let table = table(of, file).unwrap();
    let of_it = table.lines().filter(|line| line.split_whitespace().last() == Some(interface));
    of_it.map(str::to_owned).collect()
}

/// Polls, because the kernel has no event for a counter.
fn wait(what: &str, done: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed().as_secs() < 30, "waited for {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Waits until an interface has received an advertisement.
fn wait_until_it_arrived(host: &OwnedFd, interface: &str) {
    wait("the advertisement to arrive", || {
        let counters = table(host, &format!("dev_snmp6/{interface}")).unwrap();
        counters.lines().any(|line| line.starts_with("Icmp6InType134"))
    });
}

/// The destinations and next hops of the routes through an interface.
fn routes(of: &OwnedFd, interface: &str) -> Vec<String> {
    let words = |line: String| line.split_whitespace().take(5).collect::<Vec<_>>().join(" ");
    lines(of, "ipv6_route", interface).into_iter().map(words).collect()
}

/// The prefix's address, in `if_inet6`.
fn took_address(host: &OwnedFd, interface: &str) -> bool {
    lines(host, "if_inet6", interface).iter().any(|line| line.starts_with("20010db80001"))
}

#[test]
fn router_advertisement_of_a_pod_configures_nothing_outside() {
    with_namespace("announced::router_advertisement_of_a_pod_configures_nothing_outside", |host| {
        // A pod on each of two bridges.
        let config = BridgeConfig { ports: 1, ipv6: Ipv6::IfPossible, ..config("crib0", &host) };
        let bridge = Bridge::open(config, &[]).unwrap();
        if bridge.subnets().len() < 2 {
            skip("announced", "Ipv6", "the kernel has none");
            return;
        }
        let (first, second) = (Pod::attached(&bridge, "a"), Pod::attached(&bridge, "b"));
        // Now without the filter, as on a kernel that lacks it.
        inside(&host, || nat::remove_tables("crib0"));
        let bridges = ["crib0", "crib0-1"];
        let before = bridges.map(|name| routes(&host, name));
        for pod in [&first, &second] {
            advertise(&pod.netns, "eth0");
        }
        for name in bridges {
            wait_until_it_arrived(&host, name);
        }
        // The same advertisement configures an interface with the kernel's own settings.
        let router = links::make_namespace().unwrap();
        let mac = |last| Mac([0x02, 0xcc, 0, 0, 0, last]);
        send(&host, &[requests::create_bridge("plain", mac(1)), requests::up(Link::Name("plain"))]);
        let plain = inside(&host, || {
            link_query::link(&mut Netlink::open().unwrap(), "plain").unwrap().unwrap().index
        });
        send(
            &host,
            &[
                requests::create_veth("port", plain, "eth0", mac(2), router.as_fd(), None),
                requests::up(Link::Name("port")),
            ],
        );
        send(&router, &[requests::up(Link::Name("eth0"))]);
        wait("the advertisement to be taken", || {
            advertise(&router, "eth0");
            took_address(&host, "plain")
        });
        for (name, before) in bridges.iter().zip(before) {
            assert!(!took_address(&host, name), "{name}");
            assert_eq!(routes(&host, name), before, "{name}");
        }
        drop((first, second));
    });
}
