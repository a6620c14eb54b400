//! Candidate loopback addresses for sandboxes, and addresses in use ◆

use std::net::Ipv4Addr;

/// 127.1.0.1 to 127.255.255.254: never 127.0.x.x, which the host's own services use, nor addresses that end in 0
/// or 255.
const COUNT: u64 = 255 * 256 * 254;
/// A prime that does not divide their number, so that the sequence covers all of them.
const STEP: u64 = 7_368_787;

/// Addresses for a sandbox, best first: the first one is derived from its random ID.
pub(super) fn candidates(id: &str) -> impl Iterator<Item = Ipv4Addr> {
    let digits = id.get(..6).unwrap_or_default();
    let first = u64::from_str_radix(digits, 16).unwrap_or_default();
    (0..COUNT).map(move |turn| {
        let number = (first + turn * STEP) % COUNT;
        let part = |number: u64| u8::try_from(number).unwrap_or_default();
        Ipv4Addr::new(
            127,
            part(number / (256 * 254) + 1),
            part(number / 254 % 256),
            part(number % 254 + 1),
        )
    })
}

/// Parses the local addresses of `/proc/net/tcp` and its likes: hexadecimal numbers in host byte order.
pub(super) fn in_use(table: &str) -> impl Iterator<Item = Ipv4Addr> {
    table.lines().skip(1).filter_map(|line| {
        let local = line.split_whitespace().nth(1)?;
        let (address, _) = local.split_once(':')?;
        // For an IPv4-mapped IPv6 address, the last four bytes.
        let digits = match address.len() {
            8 => address,
            32 => address.strip_prefix("0000000000000000FFFF0000")?,
            _ => return None,
        };
        let number = u32::from_str_radix(digits, 16).ok()?;
        Some(Ipv4Addr::from(number.to_ne_bytes()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("000000ff", "127.1.0.1")]
    #[case("0000fd", "127.1.0.254")]
    #[case("0000fe", "127.1.1.1")]
    #[case("fd01ff", "127.255.255.254")]
    #[case("fd0200", "127.1.0.1")]
    #[case("ffffff", "127.4.4.8")]
    #[case("", "127.1.0.1")]
    fn first_candidate_derives_from_sandbox_id(#[case] id: &str, #[case] expected: Ipv4Addr) {
        assert_eq!(candidates(id).next(), Some(expected));
    }

    #[test]
    fn candidates_differ_and_exclude_host_addresses() {
        let all: Vec<Ipv4Addr> = candidates("abcdef").take(100_000).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let fit = |address: &Ipv4Addr| {
            let [a, b, _, d] = address.octets();
            a == 127 && b > 0 && (1..=254).contains(&d)
        };
        assert!(all.iter().all(fit));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn bound_addresses_are_parsed() {
        let table = "  sl  local_address rem_address   st
   0: 0100007F:1F90 00000000:0000 0A
   1: 0203017F:0050 0100007F:1234 01
   2: 0000000000000000FFFF00000807067F:0050 00000000000000000000000000000000:0000 0A
   3: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A
   4: garbage
";
        let expected = ["127.0.0.1", "127.1.3.2", "127.6.7.8"];
        let read: Vec<String> = in_use(table).map(|a| a.to_string()).collect();
        assert_eq!(read, expected);
    }
}
