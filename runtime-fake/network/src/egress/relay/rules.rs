//! ◆ The packet rules of the relay, in the bridge's namespace.

use std::net::Ipv4Addr;

use super::super::program::DNS;
use crate::message::attribute;
use crate::netfilter::nft::{
    ACCEPT, Batch, DROP, IPV4, META_FAMILY, META_IN_NAME, META_MARK, META_TRANSPORT,
    NETWORK_HEADER, OUTPUT, PREROUTING, TRANSPORT_HEADER, compare, expression, immediate,
    interface, masked, meta, number, payload, subnet_mask, verdict,
};

/// The table. The kernel removes it when the socket that made it closes.
pub(crate) const TABLE: &str = "crib-egress";

/// The group of the packet log.
pub(super) const GROUP: u16 = 1;

/// The mark of a SYN whose host-side connection is established.
pub(super) const CONNECTED: u32 = 1;

/// Before connection tracking (-200), after reassembly of fragments (-400).
const RAW: i32 = -300;
const MANGLE: i32 = -150;

/// A transaction that makes the table: packets of pods that begin a connection or flow to the outside are logged and dropped;
/// packets reinjected with the mark [`CONNECTED`] reach the listener at `port` of the loopback interface.
pub(super) fn transaction(bridge: &str, subnets: &[(Ipv4Addr, u8)], port: u16) -> Vec<u8> {
    let mut batch = Batch::begin();
    batch.own_table(TABLE);
    batch.chain(TABLE, "pods", "filter", PREROUTING, RAW);
    batch.chain(TABLE, "connected", "filter", PREROUTING, MANGLE);
    batch.chain(TABLE, "own", "filter", OUTPUT, RAW);
    // Without connection tracking no rule translates addresses, and packets cost less.
    batch.rule(TABLE, "own", &expression("notrack", &[]));
    let mut pods = |parts: &[Vec<u8>]| batch.rule(TABLE, "pods", &parts.concat());
    let accept = || verdict(ACCEPT);
    let not_ipv4 = [meta(META_FAMILY), compare(true, &[IPV4]), accept()];
    pods(&not_ipv4);
    pods(&[meta(META_IN_NAME), compare(true, &interface(bridge)), accept()]);
    let local = subnets.iter().copied().chain([(DNS, 32)]);
    // Multicast and broadcast stay on the bridge.
    for (network, prefix_len) in local.chain([(Ipv4Addr::new(224, 0, 0, 0), 3)]) {
        pods(&[
            payload(NETWORK_HEADER, 16, 4),
            masked(&subnet_mask(4, prefix_len)),
            compare(false, &network.octets()),
            accept(),
        ]);
    }
    const SYN: u8 = 0x02;
    const FLAGS: u8 = 0x17;
    const ECHO_REQUEST: u8 = 8;
    let flags = [payload(TRANSPORT_HEADER, 13, 1), masked(&[FLAGS])].concat();
    let first = [flags, compare(false, &[SYN])].concat();
    let echo = [payload(TRANSPORT_HEADER, 0, 1), compare(false, &[ECHO_REQUEST])].concat();
    for (protocol, condition) in [(6, first), (17, Vec::new()), (1, echo)] {
        pods(&[
            meta(META_TRANSPORT),
            compare(false, &[protocol]),
            condition,
            expression("log", &[attribute(1, &GROUP.to_be_bytes())]),
            verdict(DROP),
        ]);
    }
    pods(&[expression("notrack", &[])]);
    let connected = [
        meta(META_FAMILY),
        compare(false, &[IPV4]),
        meta(META_IN_NAME),
        compare(false, &interface("lo")),
        meta(META_MARK),
        compare(false, &CONNECTED.to_ne_bytes()),
        meta(META_TRANSPORT),
        compare(false, &[6]),
        immediate(1, &Ipv4Addr::LOCALHOST.octets()),
        immediate(2, &port.to_be_bytes()),
        expression("tproxy", &[number(1, IPV4.into()), number(2, 1), number(3, 2)]),
        verdict(ACCEPT),
    ];
    batch.rule(TABLE, "connected", &connected.concat());
    batch.end()
}
