//! Measures attaching and detaching: times are printed, not asserted.
//! Run `cargo test -p network -- --nocapture measure`.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rstest::rstest;

use super::{Bridge, BridgeConfig, Pod, config, links, talk, with_namespace};
use crate::Ipv6;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[rstest]
#[case::of_one_family("case_1_of_one_family", Ipv6::Never)]
#[case::of_both("case_2_of_both", Ipv6::IfPossible)]
fn attach_and_detach(#[case] name: &str, #[case] ipv6: Ipv6) {
    // The test's full name, because for an ordinary user it re-executes itself in a user namespace.
    with_namespace(&format!("measure::attach_and_detach::{name}"), |host| {
        let opening = Instant::now();
        let config = BridgeConfig { ipv6, ..config("crib0", &host) };
        let bridge = Bridge::open(config, &[]).unwrap();
        let opening = opening.elapsed();
        let (mut making, mut attaching, mut first_word, mut detaching) =
            (vec![], vec![], vec![], vec![]);
        let peer = Pod::attached(&bridge, "peer");
        for i in 0..60 {
            let id = format!("pod-{i}");
            let timed = |times: &mut Vec<Duration>, work: &mut dyn FnMut()| {
                let began = Instant::now();
                work();
                times.push(began.elapsed());
            };
            let mut netns = None;
            timed(&mut making, &mut || netns = Some(links::make_namespace().unwrap()));
            let netns = netns.unwrap();
            let mut got = None;
            timed(&mut attaching, &mut || got = Some(bridge.attach(&id, netns.as_fd()).unwrap()));
            let ip = got.unwrap().ip;
            timed(&mut first_word, &mut || {
                talk(&peer.netns, &netns, ip);
            });
            timed(&mut detaching, &mut || bridge.detach(&id).unwrap());
        }

        let ids: Vec<String> = (0..50).map(|i| format!("burst-{i}")).collect();
        let pods: Vec<_> = ids.iter().map(|_| links::make_namespace().unwrap()).collect();
        let burst = Instant::now();
        std::thread::scope(|scope| {
            for (id, netns) in ids.iter().zip(&pods) {
                scope.spawn(|| bridge.attach(id, netns.as_fd()).unwrap());
            }
        });
        let attached = burst.elapsed();
        std::thread::scope(|scope| {
            for id in &ids {
                scope.spawn(|| bridge.detach(id).unwrap());
            }
        });
        let detached = burst.elapsed() - attached;
        let closing = Instant::now();
        bridge.detach("peer").unwrap();
        bridge.close().unwrap();
        eprintln!(
            "{ipv6:?}: open {opening:?}, close {:?}; p50 of 60: make netns {:?}, attach {:?}, first connection {:?}, detach {:?}; 50 in parallel: attach {:?}, detach {:?}",
            closing.elapsed(),
            median(making),
            median(attaching),
            median(first_word),
            median(detaching),
            attached,
            detached,
        );
    });
}
