//! A pod's network: what a pod reaches, and that detaching leaves nothing behind.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::*;
use crate::links::deletion::Deletions;
use crate::links::requests::{self, Link};
use crate::{IpamError, Mac};

#[test]
fn two_pods_reach_each_other_and_close_removes_everything() {
    with_namespace("pods::two_pods_reach_each_other_and_close_removes_everything", |host| {
        let bridge = open("crib0", &host);
        let a = Pod::attached(&bridge, "a");
        let b = Pod::attached(&bridge, "b");
        assert_ne!(a.got.ip, b.got.ip);

        // The listener sees the sender's own address: nothing translates it.
        assert_eq!(talk(&a.netns, &b.netns, b.got.ip), a.got.ip);
        assert_eq!(talk(&b.netns, &a.netns, a.got.ip), b.got.ip);
        assert_eq!(talk(&host, &a.netns, a.got.ip), a.got.gateway);
        assert_eq!(talk(&a.netns, &host, a.got.gateway), a.got.ip);
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(talk(&a.netns, &a.netns, localhost), localhost);

        bridge.detach("a").unwrap();
        assert_eq!(link_names(&a.netns), ["lo"]);
        assert_eq!(link_names(&host), ["lo", "crib0", &b.got.host_interface]);
        bridge.detach("b").unwrap();
        bridge.close().unwrap();
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[test]
fn a_pod_sees_its_address_its_route_and_no_link_local_address() {
    with_namespace("pods::a_pod_sees_its_address_its_route_and_no_link_local_address", |host| {
        let bridge = open("crib0", &host);
        let pod = Pod::attached(&bridge, "a");
        let read = |file: &str| {
            let path = format!("/proc/thread-self/net/{file}");
            inside(&pod.netns, || std::fs::read_to_string(path).unwrap())
        };

        // The default entry of the routing table: destination 0, the gateway in host byte order.
        let IpAddr::V4(gateway) = pod.got.gateway else { panic!("{:?}", pod.got) };
        let gateway = format!("{:08X}", u32::from_ne_bytes(gateway.octets()));
        let routes = read("route");
        let default = routes
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields.get(1) == Some(&"00000000"))
            .unwrap();
        assert_eq!(default[..3], ["eth0", "00000000", &gateway]);

        let in_use =
            inside(&pod.netns, || link_query::subnets(&mut Netlink::open().unwrap()).unwrap());
        let eth0 = links(&pod.netns).into_iter().find(|l| l.name == "eth0").unwrap();
        let mut of_eth0 = in_use.iter().filter(|u| u.address && u.index == Some(eth0.index));
        assert_eq!(of_eth0.next().unwrap().subnet, bridge.subnet());
        assert_eq!(of_eth0.next(), None);

        for netns in [&pod.netns, &host] {
            let addresses = inside(netns, || {
                std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default()
            });
            assert!(addresses.lines().all(|line| line.ends_with(" lo")), "{addresses}");
        }
    });
}

#[test]
fn fifty_pods_at_once_have_fifty_addresses() {
    with_namespace("pods::fifty_pods_at_once_have_fifty_addresses", |host| {
        let bridge = open("crib0", &host);
        let pods: Vec<Pod> = std::thread::scope(|scope| {
            let bridge = &bridge;
            let attaching: Vec<_> = (0..50)
                .map(|i| scope.spawn(move || Pod::attached(bridge, &format!("pod-{i}"))))
                .collect();
            attaching.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let addresses: BTreeSet<IpAddr> = pods.iter().map(|pod| pod.got.ip).collect();
        assert_eq!(addresses.len(), 50);
        assert_eq!(talk(&pods[0].netns, &pods[49].netns, pods[49].got.ip), pods[0].got.ip);

        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| bridge.detach(&pod.id).unwrap());
            }
        });
        for pod in &pods {
            assert_eq!(link_names(&pod.netns), ["lo"]);
        }
        assert_eq!(link_names(&host), ["lo", "crib0"]);
        bridge.close().unwrap();
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[test]
fn detaching_works_when_there_is_nothing_left_to_detach() {
    with_namespace("pods::detaching_works_when_there_is_nothing_left_to_detach", |host| {
        let bridge = open("crib0", &host);
        bridge.detach("never attached").unwrap();
        let pod = Pod::attached(&bridge, "a");
        // Without users the namespace ends, at a time that the kernel chooses.
        drop(pod);
        bridge.detach("a").unwrap();
        assert_eq!(link_names(&host), ["lo", "crib0"]);
        bridge.detach("a").unwrap();
        bridge.close().unwrap();
    });
}

#[test]
fn a_failed_attach_leaves_nothing_and_keeps_no_address() {
    with_namespace("pods::a_failed_attach_leaves_nothing_and_keeps_no_address", |host| {
        let bridge = open("crib0", &host);
        let occupied = links::make_namespace().unwrap();
        let mac = Mac::of(Ipv4Addr::LOCALHOST);
        send(&occupied, &[requests::create_bridge("eth0", mac)]);
        let error = bridge.attach("a", occupied.as_fd()).unwrap_err();
        assert!(matches!(error, NetError::Netlink(_)), "{error}");
        assert_eq!(link_names(&host), ["lo", "crib0"]);

        let no_netns = std::fs::File::open("/proc/self/status").unwrap();
        bridge.attach("b", no_netns.as_fd()).unwrap_err();
        assert_eq!(link_names(&host), ["lo", "crib0"]);
        // Fails if an address is still allocated.
        bridge.close().unwrap();
    });
}

#[test]
fn a_sandbox_is_attached_once_and_a_bridge_with_pods_stays() {
    with_namespace("pods::a_sandbox_is_attached_once_and_a_bridge_with_pods_stays", |host| {
        let bridge = open("crib0", &host);
        let (a, b) = (Pod::attached(&bridge, "a"), Pod::attached(&bridge, "b"));
        let again = bridge.attach("a", a.netns.as_fd()).unwrap_err();
        assert!(matches!(again, NetError::Address(IpamError::AlreadyHeld { .. })), "{again}");
        assert_eq!(talk(&a.netns, &b.netns, b.got.ip), a.got.ip);

        let refused = bridge.close().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the bridge crib0 still has 2 pods attached; detach them first"
        );
        assert_eq!(talk(&a.netns, &b.netns, b.got.ip), a.got.ip);
    });
}

#[test]
fn attach_fails_when_subnet_is_full() {
    with_namespace("pods::attach_fails_when_subnet_is_full", |host| {
        let config = BridgeConfig { pools: pool("10.200.0.0/30", 30), ..config("crib0", &host) };
        let bridge = Bridge::open(config, &[]).unwrap();
        let _only = Pod::attached(&bridge, "a");
        let netns = links::make_namespace().unwrap();
        let error = bridge.attach("b", netns.as_fd()).unwrap_err();
        assert!(
            error.to_string().starts_with("all 1 addresses of 10.200.0.0/30 are held"),
            "{error}"
        );
        assert_eq!(link_names(&netns), ["lo"]);
        bridge.detach("a").unwrap();
        bridge.attach("b", netns.as_fd()).unwrap();
    });
}

#[test]
fn link_watch_reports_changes_until_deadline() {
    with_namespace("pods::link_watch_reports_changes_until_deadline", |host| {
        let mut watch = inside(&host, || Netlink::open_watch().unwrap());
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!watch.wait_for_change(soon()).unwrap());
        let mac = Mac::of(Ipv4Addr::LOCALHOST);
        send(&host, &[requests::create_bridge("other", mac)]);
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(watch.wait_for_change(deadline).unwrap());
    });
}

#[test]
fn delete_reports_refusal_and_ignores_missing_interface() {
    with_namespace("pods::delete_reports_refusal_and_ignores_missing_interface", |host| {
        let deletions = Deletions::default();
        let delete = |name| {
            let netlink = inside(&host, || Netlink::open().unwrap());
            deletions.delete(netlink, requests::delete(Link::Name(name)))
        };
        // The loopback interface cannot be deleted.
        assert_eq!(delete("lo").unwrap_err().to_string(), "deleting interface lo");
        delete("never there").unwrap();
        let mac = Mac::of(Ipv4Addr::LOCALHOST);
        send(&host, &[requests::create_bridge("other", mac)]);
        delete("other").unwrap();
        assert_eq!(link_names(&host), ["lo"]);
        deletions.finish();
    });
}

#[test]
fn a_sandbox_is_attached_again_as_soon_as_it_was_detached() {
    with_namespace("pods::a_sandbox_is_attached_again_as_soon_as_it_was_detached", |host| {
        let bridge = open("crib0", &host);
        let mut pod = Pod::attached(&bridge, "a");
        for _ in 0..20 {
            bridge.detach("a").unwrap();
            let before = pod.got.ip;
            pod.got = bridge.attach("a", pod.netns.as_fd()).unwrap();
            assert_ne!(pod.got.ip, before);
            assert_eq!(talk(&host, &pod.netns, pod.got.ip), pod.got.gateway);
        }
        assert_eq!(links(&host).len(), 3);
    });
}

#[test]
fn bridge_without_own_namespace_is_in_daemon_namespace() {
    with_namespace("pods::bridge_without_own_namespace_is_in_daemon_namespace", |host| {
        inside(&host, || {
            let bridge = Bridge::open(BridgeConfig::new("crib0"), &[]).unwrap();
            let pod = Pod::attached(&bridge, "a");
            assert_eq!(link_names(&host), ["lo", "crib0", &pod.got.host_interface]);
            assert_eq!(talk(&host, &pod.netns, pod.got.ip), pod.got.gateway);
            bridge.detach("a").unwrap();
            bridge.close().unwrap();
        });
        assert_eq!(link_names(&host), ["lo"]);
    });
}

#[test]
fn a_private_namespace_has_its_loopback_up() {
    with_namespace("pods::a_private_namespace_has_its_loopback_up", |host| {
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(talk(&host, &host, localhost), localhost);
    });
}
