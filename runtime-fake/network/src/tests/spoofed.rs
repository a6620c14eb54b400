//! Spoofed frames: no frame with another pod's address enters a bridge.

use std::io::{BufRead as _, BufReader, Lines};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::{CapabilitySet, CapabilitySets};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::{Pod, config, inside, open, send, skip, talk, with_namespace};

use crate::bridging::bridge_config::{BridgeConfig, Ipv6};
use crate::bridging::spoofing::{Port, SourceFilter};
use crate::bridging::subnet::BridgeSubnet as _;
use crate::links::link_query;
use crate::links::netlink::Netlink;
use crate::links::requests;
use crate::netfilter::nat;
use crate::{Bridge, Mac};

const BROADCAST: Mac = Mac([0xff; 6]);
/// The length of every frame. The kernel trims a packet to the length in its header.
const LENGTH: u8 = 91;
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);

/// A kind of frame, and its sender's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// An ARP message of this operation, from an address.
    Arp(u8, Ipv4Addr),
    /// [`Frame::Arp`] with a tag of an 802.1Q network.
    Tagged(Ipv4Addr),
    /// A packet from an address.
    V4(Ipv4Addr),
    /// A packet from an address.
    V6(Ipv6Addr),
    /// A message of ICMPv6 of this type from an address, about another one.
    Icmp(u8, Ipv6Addr, Ipv6Addr),
    /// Neither ARP nor IP.
    Other,
    /// To the reserved group address 01:80:c2:00:00 with this last byte.
    Reserved(u8),
}

impl Frame {
    /// The frame from a hardware address; its last byte is a number to recognise it by.
    fn bytes(self, from: Mac, number: u8) -> Vec<u8> {
        let ipv6 = |next, from: Ipv6Addr, body: &[u8]| {
            let mut packet = vec![0x60, 0, 0, 0, 0, LENGTH - 14 - 40, next, 255];
            packet.extend(from.octets());
            // All nodes (RFC 4291, 2.7.1).
            packet.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
            [&packet, body].concat()
        };
        let arp = |operation, address: Ipv4Addr| {
            let mut message = vec![0, 1, 8, 0, 6, 4, 0, operation];
            message.extend(from.0.into_iter().chain(address.octets()));
            message.extend(BROADCAST.0.into_iter().chain(address.octets()));
            message
        };
        let (kind, payload) = match self {
            Self::Arp(operation, address) => (0x0806u16, arp(operation, address)),
            Self::Tagged(address) => (0x8100, [vec![0, 7, 8, 6], arp(2, address)].concat()),
            Self::V4(address) => {
                let mut packet = vec![0x45, 0, 0, LENGTH - 14, 0, 0, 0, 0, 64, 253, 0, 0];
                packet.extend(address.octets().into_iter().chain([255; 4]));
                let sum = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
                let sum = sum.sum::<u32>();
                let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                (0x0800, packet)
            }
            Self::V6(address) => (0x86dd, ipv6(253, address, &[])),
            Self::Icmp(kind, address, about) => {
                let message = [&[kind, 0, 0, 0, 0xa0, 0, 0, 0][..], &about.octets()].concat();
                (0x86dd, ipv6(58, address, &message))
            }
            Self::Other => (0x88b5, vec![]),
            Self::Reserved(_) => (0x88cc, vec![]),
        };
        let mut to = BROADCAST.0;
        if let Self::Reserved(last) = self {
            to = [0x01, 0x80, 0xc2, 0, 0, last];
        }
        let mut frame = [&to[..], &from.0, &kind.to_be_bytes(), &payload].concat();
        frame.resize(LENGTH.into(), 0);
        frame[usize::from(LENGTH) - 1] = number;
        frame
    }
}

/// Perl with a packet socket S on an interface of this thread's namespace.
fn perl(interface: &str, script: &str) -> Command {
    // AF_PACKET, SOCK_RAW, ETH_P_ALL; SIOCGIFINDEX; sockaddr_ll.
    let open = "$| = 1; socket(S, 17, 3, 768) or die $!;
        my $r = pack('a40', shift); ioctl(S, 0x8933, $r) or die $!;
        bind(S, pack('SnlSCCa8', 17, 3, unpack('x16l', $r), 0, 0, 0, '')) or die $!;";
    let mut command = Command::new("perl");
    command.args(["-e", &format!("{open} {script}"), interface]);
    command
}

/// The frames that arrive at an interface.
struct Arriving {
    listener: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Arriving {
    /// Listens for the frames of [`Frame::bytes`].
    fn at(netns: &OwnedFd, interface: &str) -> Self {
        let script = "print qq(0\\n); while (defined recv(S, $_, 2000, 0)) {
            print ord(substr($_, 90)), qq(\\n) if length == 91 }";
        let mut listener =
            inside(netns, || perl(interface, script).stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(listener.stdout.take().unwrap()).lines();
        let mut arriving = Self { listener, lines };
        assert_eq!(arriving.until(0), [0]);
        arriving
    }

    /// The numbers of the frames up to this one.
    fn until(&mut self, last: u8) -> Vec<u8> {
        let mut seen = Vec::new();
        while seen.last() != Some(&last) {
            seen.push(self.lines.next().expect("the listener ended").unwrap().parse().unwrap());
        }
        seen
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let _ = self.listener.kill();
        let _ = self.listener.wait();
    }
}

/// Sends frames through an interface.
fn send_frames(netns: &OwnedFd, interface: &str, frames: &[Vec<u8>]) {
    let hex = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let hex: Vec<String> = frames.iter().map(hex).collect();
    let script = "for (@ARGV) { send(S, pack('H*', $_), 0) or die $! }";
    let sent = inside(netns, || perl(interface, script).args(hex).status().unwrap());
    assert!(sent.success(), "{sent}");
}

/// A pod's addresses.
fn addresses(pod: &Pod) -> (Mac, Ipv4Addr, Ipv6Addr) {
    match pod.got.ips[..] {
        [IpAddr::V4(v4), IpAddr::V6(v6)] => (pod.got.mac, v4, v6),
        ref other => panic!("{other:?}"),
    }
}

/// The frames from one pod that arrive at another pod and at the host.
fn arrived(
    host: &OwnedFd,
    from: &Pod,
    to: &Pod,
    frames: &[(Frame, Mac)],
) -> [Vec<(Frame, Mac)>; 2] {
    let mut listeners = [Arriving::at(&to.netns, "eth0"), Arriving::at(host, "crib0")];
    let IpAddr::V4(address) = from.got.ip else { panic!("{:?}", from.got.ip) };
    let own = from.got.mac;
    let last = 1 + frames.len() as u8;
    let all = frames.iter().copied().chain([(Frame::Arp(1, address), own)]);
    let bytes = (1..).zip(all).map(|(number, (frame, from))| frame.bytes(from, number));
    send_frames(&from.netns, "eth0", &bytes.collect::<Vec<_>>());
    listeners.each_mut().map(|listener| {
        let mut seen = listener.until(last);
        seen.pop();
        seen.into_iter().map(|number| frames[usize::from(number) - 1]).collect()
    })
}

#[test]
fn pod_sends_from_its_own_addresses_only() {
    with_namespace("spoofed::pod_sends_from_its_own_addresses_only", |host| {
        // A pod on each of two bridges.
        let config = || BridgeConfig { ports: 1, ipv6: Ipv6::IfPossible, ..config("crib0", &host) };
        let bridge = Bridge::open(config(), &[]).unwrap();
        if bridge.subnets().len() < 2 {
            skip("spoofed", "Ipv6", "the kernel has none");
            return;
        }
        // A request that the kernel refuses, here the removal of an unknown port, leaves the filter usable.
        let unknown = Port { name: "crvunknown", mac: BROADCAST };
        bridge.sources.release(unknown, &[IpAddr::V4(OUTSIDE)]);
        let (first, second) = (Pod::attached(&bridge, "a"), Pod::attached(&bridge, "b"));
        let (mac, v4, v6) = addresses(&first);
        let (other_mac, other4, other6) = addresses(&second);
        let (gateway4, gateway6) =
            (bridge.subnet().gateway(), bridge.cidrs().v6.unwrap().gateway());
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let genuine = [
            (Frame::Arp(1, v4), mac),
            (Frame::Arp(2, v4), mac),
            (Frame::V4(v4), mac),
            (Frame::V6(v6), mac),
            (Frame::Icmp(135, v6, other6), mac),
            (Frame::Icmp(136, v6, v6), mac),
        ];
        let mut forged: Vec<_> = genuine.map(|(frame, _)| (frame, other_mac)).into();
        forged.extend(genuine.map(|(frame, _)| (frame, Mac::of(gateway4))));
        let own = [
            Frame::Arp(1, other4),
            Frame::Arp(2, other4),
            Frame::Arp(1, gateway4),
            Frame::Arp(2, gateway4),
            Frame::Tagged(other4),
            Frame::V4(other4),
            Frame::V4(gateway4),
            Frame::V4(OUTSIDE),
            Frame::V6(other6),
            Frame::V6(gateway6),
            Frame::V6(link_local),
            Frame::Icmp(136, v6, other6),
            Frame::Icmp(136, v6, gateway6),
            Frame::Icmp(136, other6, other6),
            // Router advertisement and redirect.
            Frame::Icmp(134, v6, v6),
            Frame::Icmp(137, v6, v6),
            Frame::Other,
        ];
        forged.extend(own.map(|frame| (frame, mac)));
        let check = || {
            assert_eq!(arrived(&host, &first, &second, &forged), [[], []]);
            let all = genuine.to_vec();
            assert_eq!(arrived(&host, &first, &second, &genuine), [all.clone(), all]);
            for ip in [IpAddr::V4(other4), IpAddr::V6(other6)] {
                talk(&first.netns, &second.netns, ip);
                talk(&host, &second.netns, ip);
            }
        };
        check();
        // The next daemon takes the pods over.
        drop(bridge);
        let bridge = Bridge::open(config(), &[first.record(), second.record()]).unwrap();
        check();
        for pod in [&first, &second] {
            bridge.detach(&pod.id).unwrap();
        }
        bridge.close().unwrap();
    });
}

/// A bridge takes frames to reserved group addresses in before its filters. If it learned from them, it would send another pod's
/// frames, or the gateway's, to the pod that forged the sender's hardware address.
#[test]
fn frames_to_reserved_groups_divert_no_frames_of_others() {
    with_namespace("spoofed::frames_to_reserved_groups_divert_no_frames_of_others", |host| {
        // An earlier version made it, without the option.
        let mac = Mac([0x02, 0xcc, 0, 0, 0, 1]);
        send(&host, &[requests::create_bridge("crib0", mac)]);
        // Two pods on each of two bridges.
        let config = BridgeConfig { ports: 2, ..config("crib0", &host) };
        let bridge = Bridge::open(config, &[]).unwrap();
        let pods = ["a", "b", "c", "d"].map(|id| Pod::attached(&bridge, id));
        let [first, second, third, fourth] = &pods;
        let gateway = bridge.subnet().gateway();
        // On the first bridge the host sends to a pod, on the second one a pod to the gateway.
        let IpAddr::V4(address) = fourth.got.ip else { panic!("{:?}", fourth.got.ip) };
        let to_pod = (&host, "crib0", Frame::V4(gateway), mac);
        let to_host = (&fourth.netns, "eth0", Frame::V4(address), fourth.got.mac);
        for (forger, victim, forged, sender, receiver) in [
            (first, second, second.got.mac, to_pod, (&second.netns, "eth0")),
            (third, fourth, mac, to_host, (&host, "crib0")),
        ] {
            // The bridges know where both ends are.
            talk(&host, &victim.netns, victim.got.ip);
            // LLDP, and one more group.
            let frames = [0x0e, 0x03].map(|last| (Frame::Reserved(last), forged));
            assert_eq!(arrived(&host, forger, victim, &frames), [[], []]);
            let mut listeners =
                [Arriving::at(&forger.netns, "eth0"), Arriving::at(receiver.0, receiver.1)];
            let (from, interface, frame, own) = sender;
            let mut single = frame.bytes(own, 1);
            single[..6].copy_from_slice(&forged.0);
            send_frames(from, interface, &[single, frame.bytes(own, 2)]);
            let seen = listeners.each_mut().map(|listener| listener.until(2));
            assert_eq!(seen, [vec![2], vec![1, 2]]);
        }
        for pod in &pods {
            bridge.detach(&pod.id).unwrap();
        }
        bridge.close().unwrap();
    });
}

/// Without a filter of frames, the kernel still checks the source addresses of packets.
#[test]
fn host_takes_packets_from_addresses_of_pods_only() {
    with_namespace("spoofed::host_takes_packets_from_addresses_of_pods_only", |host| {
        let bridge = open("crib0", &host);
        let pod = Pod::attached(&bridge, "a");
        inside(&host, || nat::remove_tables("crib0"));
        inside(&pod.netns, || {
            let mut netlink = Netlink::open().unwrap();
            let index = link_query::link(&mut netlink, "eth0").unwrap().unwrap().index;
            netlink.batch(&[requests::add_address(index, OUTSIDE, OUTSIDE.into())]).unwrap();
        });
        let gateway = bridge.subnet().gateway();
        let listener = inside(&host, || UdpSocket::bind((gateway, 0)).unwrap());
        listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        for from in [IpAddr::V4(OUTSIDE), pod.got.ip] {
            let sender = inside(&pod.netns, || UdpSocket::bind((from, 0)).unwrap());
            sender.send_to(b"hello", listener.local_addr().unwrap()).unwrap();
        }
        assert_eq!(listener.recv_from(&mut [0; 5]).unwrap().1.ip(), pod.got.ip);
        // ARP requests for the host's other addresses.
        let answers =
            inside(&host, || std::fs::read_to_string("/proc/sys/net/ipv4/conf/crib0/arp_ignore"));
        assert_eq!(answers.unwrap(), "1\n");
    });
}

/// Collects the warnings of a thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A thread that may not use nf_tables simulates a kernel without them. Pods still run.
#[test]
fn kernel_without_filter_of_frames_is_named_in_a_warning() {
    let warnings = Warnings::default();
    let bound = std::thread::scope(|scope| {
        let without_rights = scope.spawn(|| {
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, none).unwrap();
            tracing::subscriber::with_default(warnings.clone(), || {
                let filter = SourceFilter::open("crib0", None, &[]);
                filter.bind(Port { name: "crv0", mac: BROADCAST }, &[IpAddr::V4(OUTSIDE)])
            })
        });
        without_rights.join().unwrap()
    });
    bound.unwrap();
    let said = warnings.0.lock().unwrap();
    assert!(said.len() == 1 && said[0].starts_with("failed to filter frames of pods"), "{said:?}");
}
