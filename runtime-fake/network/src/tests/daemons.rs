//! Daemons that start, restart, are killed, and share a host.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use rstest::rstest;

use super::*;
use crate::Mac;
use crate::links::requests::{self, Link};

fn locks() -> (tempfile::TempDir, SubnetLocks) {
    let root = tempfile::tempdir().unwrap();
    let locks = SubnetLocks::open(&root.path().join("crib/subnets")).unwrap();
    (root, locks)
}

#[test]
fn a_restarted_daemon_takes_over_bridge_pods_and_addresses() {
    with_namespace("daemons::a_restarted_daemon_takes_over_bridge_pods_and_addresses", |host| {
        let before = open("crib0", &host);
        let (a, b) = (Pod::attached(&before, "a"), Pod::attached(&before, "b"));
        let unrecorded = Pod::attached(&before, "killed while being made");
        let subnet = before.subnet();
        // Dropping it is like killing the daemon: nothing is closed.
        drop(before);

        let after = Bridge::open(config("crib0", &host), &[a.record(), b.record()]).unwrap();
        assert_eq!(after.subnet(), subnet);
        assert_eq!(link_names(&unrecorded.netns), ["lo"]);
        assert_eq!(talk(&a.netns, &b.netns, b.got.ip), a.got.ip);
        let c = Pod::attached(&after, "c");
        assert!(c.got.ip != a.got.ip && c.got.ip != b.got.ip);
        assert_eq!(talk(&c.netns, &a.netns, a.got.ip), c.got.ip);

        for id in ["a", "b", "c"] {
            after.detach(id).unwrap();
        }
        after.close().unwrap();
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[test]
fn pods_whose_bridge_was_deleted_are_connected_again() {
    with_namespace("daemons::pods_whose_bridge_was_deleted_are_connected_again", |host| {
        let before = open("crib0", &host);
        let (a, b) = (Pod::attached(&before, "a"), Pod::attached(&before, "b"));
        drop(before);
        send(&host, &[requests::delete(Link::Name("crib0"))]);

        let after = Bridge::open(config("crib0", &host), &[a.record(), b.record()]).unwrap();
        assert_eq!(talk(&a.netns, &b.netns, b.got.ip), a.got.ip);
        assert_eq!(talk(&a.netns, &host, a.got.gateway), a.got.ip);
        assert!(after.subnet().contains(&match a.got.ip {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(ip) => panic!("{ip}"),
        }));
    });
}

#[test]
fn open_completes_bridge_without_address() {
    with_namespace("daemons::open_completes_bridge_without_address", |host| {
        let mac = Mac::of(Ipv4Addr::new(10, 200, 0, 1));
        send(&host, &[requests::create_bridge("crib0", mac)]);
        let bridge = open("crib0", &host);
        let pod = Pod::attached(&bridge, "a");
        assert_eq!(talk(&host, &pod.netns, pod.got.ip), pod.got.gateway);
    });
}

#[test]
fn daemons_that_start_together_have_disjoint_subnets() {
    with_namespace("daemons::daemons_that_start_together_have_disjoint_subnets", |host| {
        // Sixteen daemons and a pool of exactly sixteen subnets: each must find a free one.
        let all: Ipv4Net = "10.200.0.0/20".parse().unwrap();
        let (_root, locks) = locks();
        let open = |i: u32| {
            let config = BridgeConfig {
                pools: pool("10.200.0.0/20", 24),
                subnet_locks: Some(locks.clone()),
                ..config(&format!("crib{i}"), &host)
            };
            Bridge::open(config, &[])
        };
        let bridges: Vec<Bridge> = std::thread::scope(|scope| {
            let opening: Vec<_> = (0..16).map(|i| scope.spawn(move || open(i).unwrap())).collect();
            opening.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let subnets: BTreeSet<Ipv4Net> = bridges.iter().map(Bridge::subnet).collect();
        assert_eq!(subnets, all.subnets(24).unwrap().collect());
        let error = open(16).unwrap_err().to_string();
        assert!(error.starts_with("no subnet of 10.200.0.0/20 is free"), "{error}");

        for bridge in bridges {
            bridge.close().unwrap();
        }
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[test]
fn bridge_of_killed_daemon_keeps_its_subnet() {
    with_namespace("daemons::bridge_of_killed_daemon_keeps_its_subnet", |host| {
        let one = |name| BridgeConfig { pools: pool("10.200.0.0/24", 24), ..config(name, &host) };
        drop(Bridge::open(one("crib0"), &[]).unwrap());
        let error = Bridge::open(one("crib1"), &[]).unwrap_err();
        assert!(matches!(error, NetError::NoSubnet { .. }), "{error}");
        Bridge::open(one("crib0"), &[]).unwrap().close().unwrap();
        Bridge::open(one("crib1"), &[]).unwrap().close().unwrap();
    });
}

#[test]
fn subnet_avoids_addresses_and_routes_of_host() {
    with_namespace("daemons::subnet_avoids_addresses_and_routes_of_host", |host| {
        let mac = Mac::of(Ipv4Addr::LOCALHOST);
        send(&host, &[requests::create_bridge("other", mac)]);
        let other = links(&host).into_iter().find(|l| l.name == "other").unwrap();
        send(
            &host,
            &[
                requests::add_address(
                    other.index,
                    Ipv4Addr::new(10, 200, 0, 77),
                    "10.200.0.0/25".parse().unwrap(),
                ),
                requests::up(Link::Index(other.index)),
                requests::default_route(other.index, Ipv4Addr::new(10, 200, 0, 1).into()),
            ],
        );
        let config = BridgeConfig { pools: pool("10.200.0.0/23", 24), ..config("crib0", &host) };
        // The default route covers everything and must not count; the address covers half of the first subnet.
        let bridge = Bridge::open(config, &[]).unwrap();
        assert_eq!(bridge.subnet(), "10.200.1.0/24".parse().unwrap());
    });
}

#[test]
fn open_refuses_bridge_of_running_daemon() {
    with_namespace("daemons::open_refuses_bridge_of_running_daemon", |host| {
        let (_root, locks) = locks();
        let claimed =
            || BridgeConfig { subnet_locks: Some(locks.clone()), ..config("crib0", &host) };
        let bridge = Bridge::open(claimed(), &[]).unwrap();
        let pod = Pod::attached(&bridge, "a");
        let error = Bridge::open(claimed(), &[]).unwrap_err();
        assert!(matches!(error, NetError::SubnetClaimed { .. }), "{error}");
        assert_eq!(talk(&host, &pod.netns, pod.got.ip), pod.got.gateway);
    });
}

#[test]
fn open_refuses_interface_that_is_not_a_bridge() {
    with_namespace("daemons::open_refuses_interface_that_is_not_a_bridge", |host| {
        let error = Bridge::open(config("lo", &host), &[]).unwrap_err();
        assert!(matches!(error, NetError::NotABridge { .. }), "{error}");
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[rstest]
#[case("")]
#[case("sixteen-letters-")]
#[case("a/b")]
#[case("a b")]
#[case("..")]
fn open_rejects_invalid_bridge_name(#[case] name: &str) {
    let error = Bridge::open(BridgeConfig::new(name), &[]).unwrap_err();
    assert!(matches!(error, NetError::BridgeName { .. }), "{error}");
}
