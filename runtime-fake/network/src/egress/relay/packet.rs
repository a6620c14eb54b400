//! ◆ Parses the IPv4 packets that the relay accepts from pods, and builds its answers (RFC 791, 792, 768, 9293).
//!
//! Checksums of packets of pods are not verified: they come from this host's kernel, which has not filled them in yet.

use std::net::{Ipv4Addr, SocketAddrV4};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The length of the header of every packet built here.
const HEADER: usize = 20;
const TTL: u8 = 64;
const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
/// The number of bytes after a packet's header that an ICMP error quotes.
const QUOTED: usize = 8;
/// The part of a packet that an error needs: the longest header and the quoted bytes after it.
pub(super) const QUOTE: usize = 60 + QUOTED;

/// A packet of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    /// The pod's address and port; the identifier of an echo request in place of the port.
    pub(super) source: SocketAddrV4,
    /// The destination; port 0 for an echo request.
    pub(super) destination: SocketAddrV4,
    pub(super) content: Content<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// The first packet of a TCP connection.
    Syn,
    /// The payload of a UDP datagram.
    Datagram(&'a [u8]),
    /// An echo request from its sequence number on.
    Echo(&'a [u8]),
}

impl<'a> Packet<'a> {
    /// Parses a whole packet. Returns `None` for packets that the relay does not answer: fragments, invalid headers, and
    /// addresses that are not a single host's.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, payload) = split(bytes)?;
        let (source, destination) = (address(header, 12)?, address(header, 16)?);
        let fragment = u16_at(header, 6)? & 0x3fff;
        if fragment != 0 || !is_host(source) || !is_host(destination) {
            return None;
        }
        let (ports, content) = match *header.get(9)? {
            TCP if payload.get(13)? & 0x17 == 0x02 && payload.len() >= HEADER => {
                ((u16_at(payload, 0)?, u16_at(payload, 2)?), Content::Syn)
            }
            UDP => {
                let length = usize::from(u16_at(payload, 4)?);
                let datagram = Content::Datagram(payload.get(8..length)?);
                ((u16_at(payload, 0)?, u16_at(payload, 2)?), datagram)
            }
            ICMP if payload.get(..2)? == [ECHO_REQUEST, 0] => {
                ((u16_at(payload, 4)?, 0), Content::Echo(payload.get(6..)?))
            }
            _ => return None,
        };
        Some(Self {
            source: SocketAddrV4::new(source, ports.0),
            destination: SocketAddrV4::new(destination, ports.1),
            content,
        })
    }
}

/// The header with its options, and the payload up to the packet's length.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = *bytes.first()?;
    let header = usize::from(first & 15) * 4;
    let length = usize::from(u16_at(bytes, 2)?);
    if first >> 4 != 4 || header < HEADER || length < header {
        return None;
    }
    bytes.get(..length)?.split_at_checked(header)
}

/// Whether the address can be one host's, and is not the loopback interface's.
fn is_host(address: Ipv4Addr) -> bool {
    !address.is_loopback()
        && !address.is_multicast()
        && !address.is_broadcast()
        && address.octets()[0] != 0
}

/// The packet of a TCP segment with its checksum filled in.
pub(super) fn with_tcp_checksum(packet: &[u8]) -> Option<Vec<u8>> {
    let (header, segment) = split(packet)?;
    let (source, destination) = (address(header, 12)?, address(header, 16)?);
    let mut segment = segment.to_vec();
    segment.get_mut(16..18)?.fill(0);
    let sum = transport_checksum(source, destination, TCP, &segment);
    segment.get_mut(16..18)?.copy_from_slice(&sum.to_be_bytes());
    Some([header, &segment].concat())
}

/// A UDP datagram.
pub(super) fn datagram(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap_or(u16::MAX);
    let mut message = [
        &from.port().to_be_bytes()[..],
        &to.port().to_be_bytes(),
        &length.to_be_bytes(),
        &[0, 0],
        payload,
    ]
    .concat();
    // A checksum of zero means no checksum.
    let sum = match transport_checksum(*from.ip(), *to.ip(), UDP, &message) {
        0 => u16::MAX,
        sum => sum,
    };
    message[6..8].copy_from_slice(&sum.to_be_bytes());
    packet(*from.ip(), *to.ip(), UDP, &message)
}

/// The request that a ping socket sends; the kernel fills in its own identifier and the checksum. `rest` begins with the
/// sequence number.
pub(super) fn echo_request(rest: &[u8]) -> Vec<u8> {
    [&[ECHO_REQUEST, 0, 0, 0, 0, 0], rest].concat()
}

/// The bytes after the identifier in an answer that a ping socket received.
pub(super) fn echoed(message: &[u8]) -> Option<&[u8]> {
    (message.get(..2)? == [ECHO_REPLY, 0]).then(|| message.get(6..))?
}

/// The answer to the echo request of a pod; the port of `to` is the identifier.
pub(super) fn echo_reply(from: Ipv4Addr, to: SocketAddrV4, rest: &[u8]) -> Vec<u8> {
    let head = [ECHO_REPLY, 0, 0, 0];
    icmp(from, *to.ip(), [&head[..], &to.port().to_be_bytes(), rest].concat())
}

/// The ICMP error for a packet of a pod, which may be cut after [`QUOTE`] bytes, with a code of "destination unreachable".
/// The kernel fills in the source.
pub(super) fn unreachable(code: u8, about: &[u8]) -> Option<Vec<u8>> {
    let header = usize::from(about.first()? & 15) * 4;
    let quoted = about.get(..header + QUOTED)?;
    let head = [UNREACHABLE, code, 0, 0, 0, 0, 0, 0];
    let to = address(about, 12)?;
    let message = [&head[..], quoted].concat();
    Some(icmp(Ipv4Addr::UNSPECIFIED, to, message))
}

fn icmp(from: Ipv4Addr, to: Ipv4Addr, mut message: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(from, to, ICMP, &message)
}

/// Builds a packet without the fields that the kernel fills in on a raw socket: identification, length and checksum (raw(7)).
fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + payload.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    [
        &[0x45, 0, high, low, 0, 0, 0, 0, TTL, protocol, 0, 0][..],
        &from.octets(),
        &to.octets(),
        payload,
    ]
    .concat()
}

fn transport_checksum(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, message: &[u8]) -> u16 {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    checksum(&[&from.octets(), &to.octets(), &[0, protocol, high, low], message])
}

/// The Internet checksum (RFC 1071) of parts, of which only the last may have an odd length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)))
        .sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded >> 16) + (folded & 0xffff)) as u16
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*pair))
}

fn address(header: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets = header.get(at..)?.first_chunk::<4>()?;
    Some(Ipv4Addr::from(*octets))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pod() -> SocketAddrV4 {
        "10.200.7.2:4000".parse().unwrap()
    }

    fn server() -> SocketAddrV4 {
        "192.0.2.7:53".parse().unwrap()
    }

    fn syn(flags: u8) -> Vec<u8> {
        let mut segment = vec![0x0f, 0xa0, 0, 53, 0, 0, 0, 1, 0, 0, 0, 0, 0x50];
        segment.extend([flags, 0xff, 0xff, 0xab, 0xcd, 0, 0]);
        packet(*pod().ip(), *server().ip(), TCP, &segment)
    }

    /// The sum over a packet with a correct checksum is zero.
    fn is_right(packet: &[u8], protocol: u8) -> bool {
        let (_, message) = split(packet).unwrap();
        let (from, to) = (address(packet, 12).unwrap(), address(packet, 16).unwrap());
        match protocol {
            ICMP => checksum(&[message]) == 0,
            _ => transport_checksum(from, to, protocol, message) == 0,
        }
    }

    #[rstest]
    #[case::syn(0x02, true)]
    #[case::syn_with_congestion_flags(0xc2, true)]
    #[case::answer(0x12, false)]
    #[case::reset(0x04, false)]
    #[case::data(0x10, false)]
    fn only_first_segment_of_connection_is_taken(#[case] flags: u8, #[case] expected: bool) {
        let bytes = syn(flags);
        let found = Packet::parse(&bytes);
        assert_eq!(found.is_some(), expected);
        assert!(found.is_none_or(|packet| packet.content == Content::Syn));
    }

    #[rstest]
    #[case::empty(b"")]
    #[case::odd(b"odd")]
    #[case::long(&[0xff; 1400])]
    fn datagram_is_read_as_it_was_written(#[case] payload: &[u8]) {
        let bytes = datagram(pod(), server(), payload);
        let expected =
            Packet { source: pod(), destination: server(), content: Content::Datagram(payload) };
        assert_eq!(Packet::parse(&bytes), Some(expected));
        assert!(is_right(&bytes, UDP));
    }

    #[rstest]
    #[case::version(0, 0x65)]
    #[case::short_header(0, 0x44)]
    #[case::length_beyond_end(3, 200)]
    #[case::fragment(6, 0x20)]
    #[case::fragment_offset(7, 1)]
    #[case::protocol(9, 132)]
    #[case::source_loopback(12, 127)]
    #[case::source_none(12, 0)]
    #[case::destination_multicast(16, 224)]
    #[case::destination_loopback(16, 127)]
    #[case::destination_none(16, 0)]
    #[case::udp_length_beyond_end(25, 200)]
    #[case::udp_length_below_header(25, 7)]
    fn other_packets_are_ignored(#[case] at: usize, #[case] byte: u8) {
        let mut bytes = datagram(pod(), server(), b"query");
        assert!(Packet::parse(&bytes).is_some());
        bytes[at] = byte;
        assert_eq!(Packet::parse(&bytes), None);
    }

    #[test]
    fn echo_reply_has_identifier_of_request() {
        let request = icmp(*pod().ip(), *server().ip(), vec![8, 0, 0, 0, 0x0f, 0xa0, 0, 1, b'x']);
        let found = Packet::parse(&request).unwrap();
        assert_eq!(found.content, Content::Echo(&[0, 1, b'x']));
        assert_eq!((found.source, found.destination.port()), (pod(), 0));
        let sent = echo_request(&[0, 1, b'x']);
        assert_eq!(sent, [8, 0, 0, 0, 0, 0, 0, 1, b'x']);
        let answer = [0, 0, 9, 9, 7, 7, 0, 1, b'x'];
        let reply = echo_reply(*server().ip(), pod(), echoed(&answer).unwrap());
        assert_eq!(reply[24..], [0x0f, 0xa0, 0, 1, b'x']);
        assert!(is_right(&reply, ICMP));
        assert_eq!(echoed(&sent), None);
    }

    #[test]
    fn unreachable_quotes_header_and_ports() {
        let about = datagram(pod(), server(), b"query");
        let error = unreachable(3, &about).unwrap();
        assert_eq!(error[20..22], [UNREACHABLE, 3]);
        assert_eq!(error[28..], about[..28]);
        assert_eq!(address(&error, 16), Some(*pod().ip()));
        assert!(is_right(&error, ICMP));
    }

    #[test]
    fn tcp_checksum_is_filled_in() {
        let bytes = with_tcp_checksum(&syn(2)).unwrap();
        assert!(is_right(&bytes, TCP));
        assert!(!is_right(&syn(2), TCP));
    }
}
