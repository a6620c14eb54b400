//! More pods than one bridge has ports, and more than an earlier version's subnet had addresses.

use std::net::Ipv4Addr;

use super::*;
use crate::Ipv6;
use crate::bridging::subnet::BridgeSubnet as _;
use crate::links::requests::{self, Link};

/// A configuration with two pods on each bridge.
fn narrow(host: &OwnedFd) -> BridgeConfig {
    BridgeConfig { ports: 2, ipv6: Ipv6::IfPossible, ..config("crib0", host) }
}

fn attached(bridge: &Bridge, ids: &[&str]) -> Vec<Pod> {
    ids.iter().map(|id| Pod::attached(bridge, id)).collect()
}

fn bridges(host: &OwnedFd) -> Vec<String> {
    let all = links(host).into_iter().filter(|link| link.bridge);
    all.map(|link| link.name).collect()
}

/// Each pod reaches every other one at all addresses, and the host.
fn all_reach_all(pods: &[Pod], host: &OwnedFd) {
    for from in pods {
        for to in pods.iter().filter(|to| to.id != from.id) {
            for (address, own) in to.got.ips.iter().zip(&from.got.ips) {
                assert_eq!(talk(&from.netns, &to.netns, *address), *own);
            }
        }
        assert_eq!(talk(&from.netns, host, from.got.gateway), from.got.ip);
        assert_eq!(talk(host, &from.netns, from.got.ip), from.got.gateway);
    }
}

#[test]
fn pods_of_several_bridges_reach_each_other() {
    with_namespace("room::pods_of_several_bridges_reach_each_other", |host| {
        // The kernel may answer for an address on every interface; it must not do so here.
        inside(&host, || {
            std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
            std::fs::write("/proc/sys/net/ipv4/conf/default/rp_filter", "0").unwrap();
        });
        let bridge = Bridge::open(narrow(&host), &[]).unwrap();
        let pods = attached(&bridge, &["a", "b", "c", "d", "e"]);
        assert_eq!(bridges(&host), ["crib0", "crib0-1", "crib0-2"]);
        all_reach_all(&pods, &host);
        // A pod that resolves the gateway gets one answer only.
        let neighbours = inside(&pods[4].netns, || {
            std::fs::read_to_string("/proc/thread-self/net/arp").unwrap()
        });
        let gateway = bridge.subnet().gateway();
        let mac = crate::Mac::of(gateway).to_string();
        let entry = |line: &&str| line.starts_with(&format!("{gateway} "));
        let entry = neighbours.lines().find(entry).unwrap();
        assert!(entry.contains(&mac), "{entry}");

        for pod in &pods {
            bridge.detach(&pod.id).unwrap();
        }
        bridge.close().unwrap();
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[test]
fn a_restarted_daemon_finds_all_bridges() {
    with_namespace("room::a_restarted_daemon_finds_all_bridges", |host| {
        let before = Bridge::open(narrow(&host), &[]).unwrap();
        let mut pods = attached(&before, &["a", "b", "c", "d", "e", "f", "g"]);
        drop(before);
        // The daemon's record has no pod of the third bridge, and one of the second.
        pods.truncate(3);
        let records: Vec<_> = pods.iter().map(Pod::record).collect();
        let after = Bridge::open(narrow(&host), &records).unwrap();
        assert_eq!(bridges(&host), ["crib0", "crib0-1"]);
        pods.extend(attached(&after, &["h", "i"]));
        assert_eq!(bridges(&host), ["crib0", "crib0-1", "crib0-2"]);
        all_reach_all(&pods, &host);
    });
}

#[test]
fn pods_that_lost_their_bridge_are_connected_again() {
    with_namespace("room::pods_that_lost_their_bridge_are_connected_again", |host| {
        for lost in ["crib0", "crib0-1"] {
            let before = Bridge::open(narrow(&host), &[]).unwrap();
            let pods = attached(&before, &["a", "b", "c", "d"]);
            drop(before);
            send(&host, &[requests::delete(Link::Name(lost))]);
            let records: Vec<_> = pods.iter().map(Pod::record).collect();
            let after = Bridge::open(narrow(&host), &records).unwrap();
            all_reach_all(&pods, &host);
            for pod in &pods {
                after.detach(&pod.id).unwrap();
            }
            after.close().unwrap();
            assert_eq!(link_names(&host), ["lo"], "{lost}");
        }
    });
}

/// An earlier version used a /24.
#[test]
fn pods_of_a_narrow_subnet_keep_it_and_without_pods_it_gets_wider() {
    with_namespace(
        "room::pods_of_a_narrow_subnet_keep_it_and_without_pods_it_gets_wider",
        |host| {
            let earlier =
                BridgeConfig { pools: pool("10.200.7.0/24", 24), ..config("crib0", &host) };
            let before = Bridge::open(earlier, &[]).unwrap();
            let pod = Pod::attached(&before, "a");
            assert_eq!(pod.got.ip, Ipv4Addr::new(10, 200, 7, 2));
            drop(before);
            let after = Bridge::open(config("crib0", &host), &[pod.record()]).unwrap();
            assert_eq!(after.subnet().to_string(), "10.200.7.0/24");
            let second = Pod::attached(&after, "b");
            assert_eq!(talk(&pod.netns, &second.netns, second.got.ip), pod.got.ip);
            after.detach("a").unwrap();
            after.detach("b").unwrap();
            drop(after);
            let wide = Bridge::open(config("crib0", &host), &[]).unwrap();
            assert_eq!(wide.subnet().prefix_len(), 20);
            let pod = Pod::attached(&wide, "c");
            assert_eq!(talk(&host, &pod.netns, pod.got.ip), pod.got.gateway);
        },
    );
}
