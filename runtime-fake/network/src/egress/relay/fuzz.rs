//! Fuzz target: packets of pods.

use fuzz_target::Target;

use super::packet::{self, Content, Packet};

pub(crate) const TARGETS: &[Target] = &[Target::new("pod_packet", pod_packet, pod_packets)];

/// A datagram that is parsed and written again is unchanged, and answers go to the pod's address.
fn pod_packet(data: &[u8]) {
    let Some(found) = Packet::parse(data) else {
        return;
    };
    let pod = found.source.ip().octets();
    if let Content::Datagram(payload) = found.content {
        let written = packet::datagram(found.source, found.destination, payload);
        assert_eq!(Packet::parse(&written), Some(found));
    }
    if let Content::Syn = found.content {
        let sent_back = packet::with_tcp_checksum(data).unwrap_or_default();
        assert_eq!(Packet::parse(&sent_back), Some(found));
    }
    let error = packet::unreachable(3, data).unwrap_or_default();
    assert_eq!(error.get(16..20), Some(&pod[..]));
}

fn pod_packets() -> Vec<Vec<u8>> {
    let (pod, server) = ([10, 200, 7, 2], [192, 0, 2, 7]);
    let packet = |protocol, payload: &[u8]| {
        let length = 20 + u8::try_from(payload.len()).unwrap_or(0);
        let head = [0x45, 0, 0, length, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        [&head[..], &pod, &server, payload].concat()
    };
    let syn = [15, 160, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 255, 255, 0, 0, 0, 0];
    vec![
        packet(6, &syn),
        packet(17, &[15, 160, 0, 53, 0, 10, 0, 0, b'h', b'i']),
        packet(1, &[8, 0, 0, 0, 15, 160, 0, 1, b'x']),
    ]
}
