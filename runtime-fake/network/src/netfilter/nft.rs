//! ◆ Builds the nf_tables messages of one daemon's packet rules: one transaction that replaces the table.
//!
//! They use the kernel's own interface (linux/netfilter/nf_tables.h) over nfnetlink, so that no program has to be
//! installed. Numbers are big-endian; netlink headers and attributes are in host byte order.

use std::net::IpAddr;

use crate::message::{self, CREATE, DUMP, REQUEST, attribute, find, nested, text};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const NEW_SET: u16 = SUBSYSTEM << 8 | 9;
const NEW_ELEMENT: u16 = SUBSYSTEM << 8 | 12;
const DELETE_ELEMENT: u16 = SUBSYSTEM << 8 | 14;

const APPEND: u16 = 0x800;

/// The family of a table: IPv4 and IPv6.
const INET: u8 = 1;
/// The family of a table: frames on bridges.
pub(crate) const BRIDGE: u8 = 7;
pub(crate) const IPV4: u8 = 2;
const IPV6: u8 = 10;

pub(crate) const PREROUTING: u32 = 0;
const FORWARD: u32 = 2;
pub(crate) const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
pub(crate) const DROP: u32 = 0;
pub(crate) const ACCEPT: u32 = 1;
/// The customary priorities of destination and source translation.
const DESTINATION_NAT: i32 = -100;
const SOURCE_NAT: i32 = 100;

pub(crate) const META_PROTOCOL: u32 = 1;
pub(crate) const META_MARK: u32 = 3;
pub(crate) const META_IN_NAME: u32 = 6;
const META_OUT_NAME: u32 = 7;
pub(crate) const META_FAMILY: u32 = 15;
pub(crate) const META_TRANSPORT: u32 = 16;
pub(crate) const LINK_HEADER: u32 = 0;
pub(crate) const NETWORK_HEADER: u32 = 1;
pub(crate) const TRANSPORT_HEADER: u32 = 2;
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 2;
/// `RTN_LOCAL`, in the byte order of a register.
const LOCAL: u32 = 2;

/// A subnet of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PodSubnet {
    pub(crate) network: IpAddr,
    pub(crate) prefix_len: u8,
}

/// Redirects a host port to a port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRule {
    /// The IP protocol number: 6, 17 or 132.
    pub transport: u8,
    /// The host's address; `None` is every address of the pod's family.
    pub host: Option<IpAddr>,
    /// The host's port.
    pub host_port: u16,
    /// The pod's address.
    pub pod: IpAddr,
    /// The pod's port.
    pub pod_port: u16,
}

/// The rules of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The name of the bridge and of the table.
    pub(crate) bridge: String,
    /// The subnets whose traffic to other hosts is masqueraded.
    pub(crate) subnets: Vec<PodSubnet>,
    /// The redirected host ports.
    pub(crate) ports: Vec<PortRule>,
}

/// A transaction that replaces the table with `rules`.
pub(crate) fn replace(rules: &Rules) -> Vec<u8> {
    let table = &rules.bridge;
    let mut batch = Batch::begin();
    batch.replaced_table(table);
    batch.chain(table, "prerouting", "nat", PREROUTING, DESTINATION_NAT);
    batch.chain(table, "postrouting", "nat", POSTROUTING, SOURCE_NAT);
    for port in &rules.ports {
        batch.rule(table, "prerouting", &port_expressions(table, port));
    }
    for subnet in &rules.subnets {
        batch.rule(table, "postrouting", &masquerade_expressions(table, *subnet));
    }
    batch.end()
}

/// A transaction that removes the table.
pub(crate) fn remove(table: &str) -> Vec<u8> {
    remove_of(INET, table)
}

/// A transaction that removes the table of a family.
pub(crate) fn remove_of(family: u8, table: &str) -> Vec<u8> {
    let mut batch = Batch::of(family);
    // Create it first: deleting a missing table fails.
    batch.table(NEW_TABLE, table);
    batch.table(DELETE_TABLE, table);
    batch.end()
}

/// Lists every table of every family.
pub(crate) fn list() -> Vec<u8> {
    message(GET_TABLE, REQUEST | DUMP, 0, 0, &[])
}

/// The name in a response to [`list`]: the message without its netlink header.
pub(crate) fn table_name(kind: u16, payload: &[u8]) -> Option<String> {
    if kind != NEW_TABLE {
        return None;
    }
    let value = find(payload.get(4..)?, 1)?;
    let text = value.strip_suffix(&[0]).unwrap_or(value);
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Lists every chain of every family.
pub(crate) fn list_chains() -> Vec<u8> {
    message(GET_CHAIN, REQUEST | DUMP, 0, 0, &[])
}

/// Whether a chain in a response to [`list_chains`] drops forwarded packets by default: of IPv4, of IPv6.
pub(crate) fn drops(kind: u16, payload: &[u8]) -> Option<(bool, bool)> {
    let (header, attributes) = payload.split_first_chunk::<4>()?;
    if kind != NEW_CHAIN {
        return None;
    }
    let value = |attributes, kind| {
        let bytes = find(attributes, kind)?.first_chunk::<4>()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let hook = value(find(attributes, 4)?, 1)?;
    if hook != FORWARD || value(attributes, 5)? != DROP {
        return None;
    }
    Some((matches!(header[0], INET | IPV4), matches!(header[0], INET | IPV6)))
}

/// The rule for traffic from other machines to a host port. The forwarder serves the host itself and the pods: a connection from
/// the host may have a source address that is meaningless elsewhere (127.0.0.1), and the answer to a pod's connection would
/// bypass the host.
fn port_expressions(bridge: &str, rule: &PortRule) -> Vec<u8> {
    let (family, address) = family(rule.pod);
    let (offset, length) = if family == IPV4 { (16, 4) } else { (24, 16) };
    let mut all = [
        meta(META_IN_NAME),
        compare(true, &interface("lo")),
        meta(META_IN_NAME),
        compare(true, &interface(bridge)),
        meta(META_FAMILY),
        compare(false, &[family]),
    ]
    .concat();
    match rule.host.filter(|host| !host.is_unspecified()) {
        Some(host) => {
            all.extend(payload(NETWORK_HEADER, offset, length));
            all.extend(compare(false, &self::family(host).1));
        }
        None => {
            all.extend(expression(
                "fib",
                &[number(1, 1), number(2, FIB_ADDRESS_TYPE), number(3, FIB_DESTINATION)],
            ));
            all.extend(compare(false, &LOCAL.to_ne_bytes()));
        }
    }
    all.extend(meta(META_TRANSPORT));
    all.extend(compare(false, &[rule.transport]));
    all.extend(payload(TRANSPORT_HEADER, 2, 2));
    all.extend(compare(false, &rule.host_port.to_be_bytes()));
    all.extend(immediate(1, &address));
    all.extend(immediate(2, &rule.pod_port.to_be_bytes()));
    // Destination translation, to the address in register 1 and the port in register 2.
    all.extend(expression(
        "nat",
        &[number(1, 1), number(2, family.into()), number(3, 1), number(5, 2)],
    ));
    all
}

fn masquerade_expressions(bridge: &str, subnet: PodSubnet) -> Vec<u8> {
    let (family, network) = family(subnet.network);
    let (offset, length) = if family == IPV4 { (12, 4) } else { (8, 16) };
    [
        meta(META_OUT_NAME),
        compare(true, &interface(bridge)),
        meta(META_FAMILY),
        compare(false, &[family]),
        payload(NETWORK_HEADER, offset, length),
        masked(&subnet_mask(network.len(), subnet.prefix_len)),
        compare(false, &network),
        expression("masq", &[]),
    ]
    .concat()
}

/// The mask of a prefix in an address of `length` bytes.
pub(crate) fn subnet_mask(length: usize, prefix_len: u8) -> Vec<u8> {
    let byte = |byte| {
        let bits = usize::from(prefix_len).saturating_sub(byte * 8);
        u8::MAX.checked_shl(8 - bits.min(8) as u32).unwrap_or(0)
    };
    (0..length).map(byte).collect()
}

fn family(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (IPV4, address.octets().to_vec()),
        IpAddr::V6(address) => (IPV6, address.octets().to_vec()),
    }
}

/// The name, padded as the kernel compares it.
pub(crate) fn interface(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    for (to, from) in padded.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    padded
}

/// Loads packet metadata into register 1.
pub(crate) fn meta(key: u32) -> Vec<u8> {
    load_meta(1, key)
}

/// Loads packet metadata into a register.
pub(crate) fn load_meta(register: u32, key: u32) -> Vec<u8> {
    expression("meta", &[number(1, register), number(2, key)])
}

/// Loads a part of the packet into register 1.
pub(crate) fn payload(header: u32, offset: u32, length: u32) -> Vec<u8> {
    load_payload(1, header, offset, length)
}

/// Loads a part of the packet into a register.
pub(crate) fn load_payload(register: u32, header: u32, offset: u32, length: u32) -> Vec<u8> {
    let place = [number(2, header), number(3, offset), number(4, length)].concat();
    expression("payload", &[number(1, register), place])
}

/// Continues only if a set has, or with `not` has not, the key that begins in register 1.
pub(crate) fn found(set: &str, not: bool) -> Vec<u8> {
    expression("lookup", &[text(1, set), number(2, 1), number(5, not.into())])
}

/// Continues only if a map has the key in register 1, and loads its value into a register.
pub(crate) fn mapped(map: &str, register: u32) -> Vec<u8> {
    expression("lookup", &[text(1, map), number(2, 1), number(3, register)])
}

/// Replaces a part of the packet by a register's value.
pub(crate) fn replace_payload(register: u32, header: u32, offset: u32, length: u32) -> Vec<u8> {
    let place = [number(2, header), number(3, offset), number(4, length)].concat();
    expression("payload", &[number(5, register), place])
}

/// Continues only if register 1 is, or with `not` is not, `value`.
pub(crate) fn compare(not: bool, value: &[u8]) -> Vec<u8> {
    expression("cmp", &[number(1, 1), number(2, not.into()), nested(3, &attribute(1, value))])
}

/// Keeps only the bits of the mask in register 1.
pub(crate) fn masked(mask: &[u8]) -> Vec<u8> {
    let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
    expression(
        "bitwise",
        &[
            number(1, 1),
            number(2, 1),
            number(3, length),
            nested(4, &attribute(1, mask)),
            nested(5, &attribute(1, &vec![0; mask.len()])),
        ],
    )
}

/// Ends the evaluation of the chain with [`ACCEPT`] or [`DROP`].
pub(crate) fn verdict(code: u32) -> Vec<u8> {
    let data = nested(2, &nested(2, &number(1, code)));
    expression("immediate", &[number(1, 0), data])
}

pub(crate) fn immediate(register: u32, value: &[u8]) -> Vec<u8> {
    expression("immediate", &[number(1, register), nested(2, &attribute(1, value))])
}

pub(crate) fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    let parts = [text(1, name), nested(2, &data.concat())].concat();
    nested(1, &parts)
}

pub(crate) fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

/// A message of nfnetlink. Its sequence number is 0, because the socket receives no other transaction's responses.
pub(crate) fn message(
    kind: u16,
    flags: u16,
    family: u8,
    resource: u16,
    attributes: &[u8],
) -> Vec<u8> {
    let [high, low] = resource.to_be_bytes();
    message::message(kind, flags, 0, &[&[family, 0, high, low], attributes].concat())
}

/// A transaction: the kernel applies all of it or nothing.
pub(crate) struct Batch {
    messages: Vec<u8>,
    family: u8,
}

impl Batch {
    pub(crate) fn begin() -> Self {
        Self::of(INET)
    }

    /// A transaction for tables of a family.
    pub(crate) fn of(family: u8) -> Self {
        Self { messages: message(BATCH_BEGIN, REQUEST, 0, SUBSYSTEM, &[]), family }
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.messages.extend(message(BATCH_END, REQUEST, 0, SUBSYSTEM, &[]));
        self.messages
    }

    fn add(&mut self, kind: u16, flags: u16, attributes: &[Vec<u8>]) {
        let flags = REQUEST | flags;
        self.messages.extend(message(kind, flags, self.family, 0, &attributes.concat()));
    }

    /// Creates a table, and replaces an existing one.
    pub(crate) fn replaced_table(&mut self, name: &str) {
        self.table(NEW_TABLE, name);
        self.table(DELETE_TABLE, name);
        self.table(NEW_TABLE, name);
    }

    /// Creates a set of keys of `key_length` bytes, with room for any number.
    pub(crate) fn set(&mut self, table: &str, name: &str, key_length: usize) {
        let length = u32::try_from(key_length).unwrap_or(u32::MAX);
        // The kernel requires a key type and a number of the set in this transaction; their values do not matter here.
        let attributes = [
            text(1, table),
            text(2, name),
            number(3, 0),
            number(4, 0),
            number(5, length),
            number(10, 1),
        ];
        self.add(NEW_SET, CREATE, &attributes);
    }

    /// Creates a map of keys to values, of the given lengths in bytes, with room for any number.
    pub(crate) fn map(&mut self, table: &str, name: &str, key_length: u32, value_length: u32) {
        /// `NFT_SET_MAP`.
        const MAP: u32 = 8;
        let attributes = [
            text(1, table),
            text(2, name),
            number(3, MAP),
            number(4, 0),
            number(5, key_length),
            number(6, 0),
            number(7, value_length),
            number(10, 2),
        ];
        self.add(NEW_SET, CREATE, &attributes);
    }

    /// Adds a key with a value to a map.
    pub(crate) fn entry(&mut self, table: &str, map: &str, key: &[u8], value: &[u8]) {
        let parts = [nested(1, &attribute(1, key)), nested(2, &attribute(1, value))].concat();
        let entry = nested(1, &parts);
        self.add(NEW_ELEMENT, CREATE, &[text(1, table), text(2, map), nested(3, &entry)]);
    }

    /// Adds a key to a set, or removes it from a set or a map.
    pub(crate) fn element(&mut self, table: &str, set: &str, key: &[u8], put: bool) {
        let element = nested(1, &nested(1, &attribute(1, key)));
        let (kind, flags) = if put { (NEW_ELEMENT, CREATE) } else { (DELETE_ELEMENT, 0) };
        self.add(kind, flags, &[text(1, table), text(2, set), nested(3, &element)]);
    }

    fn table(&mut self, kind: u16, name: &str) {
        let create = if kind == NEW_TABLE { CREATE } else { 0 };
        self.add(kind, create, &[text(1, name)]);
    }

    /// Creates a table that the kernel removes with the transaction's socket (`NFT_TABLE_F_OWNER`, Linux 5.12).
    pub(crate) fn own_table(&mut self, name: &str) {
        const OWNER: u32 = 2;
        self.add(NEW_TABLE, CREATE, &[text(1, name), number(2, OWNER)]);
    }

    pub(crate) fn chain(&mut self, table: &str, name: &str, kind: &str, hook: u32, priority: i32) {
        let hook = [number(1, hook), attribute(2, &priority.to_be_bytes())].concat();
        let attributes = [text(1, table), text(3, name), nested(4, &hook), text(7, kind)];
        self.add(NEW_CHAIN, CREATE, &attributes);
    }

    pub(crate) fn rule(&mut self, table: &str, chain: &str, expressions: &[u8]) {
        let attributes = [text(1, table), text(2, chain), nested(4, expressions)];
        self.add(NEW_RULE, CREATE | APPEND, &attributes);
    }
}

#[cfg(test)]
mod tests;
