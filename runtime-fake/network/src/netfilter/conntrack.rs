//! ◆ Netlink messages about conntrack entries (linux/netfilter/nfnetlink_conntrack.h).
//!
//! A UDP flow keeps its translation as long as packets arrive: the kernel does not apply changed rules to it. So entries that
//! lead to a removed pod must be flushed, or its clients would keep sending to its address.

use std::net::IpAddr;

use crate::message::{DUMP, REQUEST, find, nested};
use crate::netfilter::nft::message;

const SUBSYSTEM: u16 = 1;
const NEW: u16 = SUBSYSTEM << 8;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
/// Attributes of an entry: the tuples of the original direction and of the reply direction.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const UDP: u8 = 17;

/// Lists every entry of both families.
pub(crate) fn list() -> Vec<u8> {
    message(GET, REQUEST | DUMP, 0, 0, &[])
}

/// The message that deletes the UDP entry in a response to [`list`], if the entry leads to one of `pods`.
pub(crate) fn deletion(kind: u16, payload: &[u8], pods: &[IpAddr]) -> Option<Vec<u8>> {
    let (header, attributes) = payload.split_first_chunk::<4>()?;
    if kind != NEW {
        return None;
    }
    let reply = find(attributes, REPLY)?;
    let transport = find(find(reply, 2)?, 1)?;
    let from = find(reply, 1)?;
    let from = if let Some(source) = find(from, 1) {
        IpAddr::from(*source.first_chunk::<4>()?)
    } else {
        IpAddr::from(*find(from, 3)?.first_chunk::<16>()?)
    };
    if transport.first() != Some(&UDP) || !pods.contains(&from) {
        return None;
    }
    let original = nested(ORIGINAL, find(attributes, ORIGINAL)?);
    Some(message(DELETE, REQUEST, header[0], 0, &original))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::message::attribute;

    fn entry(transport: u8, source: &[u8]) -> Vec<u8> {
        let address = attribute(if source.len() == 4 { 1 } else { 3 }, source);
        let tuple = [nested(1, &address), nested(2, &attribute(1, &[transport]))].concat();
        let parts = [nested(ORIGINAL, &[1, 2, 3, 4]), nested(REPLY, &tuple)];
        [&[2, 0, 0, 0][..], &parts.concat()].concat()
    }

    #[test]
    fn conntrack_deletion_matches_entries_of_pod_only() {
        let pods: Vec<IpAddr> = ["10.0.0.2", "fd00::2"].map(|ip| ip.parse().unwrap()).into();
        let told = deletion(NEW, &entry(UDP, &[10, 0, 0, 2]), &pods).unwrap();
        assert!(told.ends_with(&nested(ORIGINAL, &[1, 2, 3, 4])));
        let IpAddr::V6(v6) = pods[1] else { panic!() };
        assert!(deletion(NEW, &entry(UDP, &v6.octets()), &pods).is_some());
        assert_eq!(deletion(NEW, &entry(UDP, &[10, 0, 0, 3]), &pods), None);
        assert_eq!(deletion(NEW, &entry(6, &[10, 0, 0, 2]), &pods), None);
        assert_eq!(deletion(GET, &entry(UDP, &[10, 0, 0, 2]), &pods), None);
        assert_eq!(deletion(NEW, &[2, 0, 0, 0, 9], &pods), None);
    }
}
