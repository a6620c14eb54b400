//! Reads the addresses of a pod with an unreadable record from `/proc`, through its network namespace.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The scope of addresses reachable from elsewhere (linux/ipv6.h, IFA_GLOBAL; the fourth column of if_inet6).
const GLOBAL: &str = "00";

/// The addresses of the network namespace of process `pid`, without loopback and link-local ones, IPv4 first.
pub(super) fn of(pid: i32) -> Vec<IpAddr> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    let v4 = v4(&read("fib_trie").unwrap_or_default());
    let v6 = v6(&read("if_inet6").unwrap_or_default());
    let v4 = v4.into_iter().map(IpAddr::V4);
    v4.chain(v6.into_iter().map(IpAddr::V6)).collect()
}

/// Parses `fib_trie`: a line with an address, followed by one that marks it as the host's own.
fn v4(table: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last
            && !address.is_loopback()
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Parses `if_inet6`: address, index, prefix length, scope, flags, name.
fn v6(table: &str) -> Vec<Ipv6Addr> {
    let read = |line: &str| {
        let mut columns = line.split_whitespace();
        let address = u128::from_str_radix(columns.next()?, 16).ok()?;
        (columns.nth(2)? == GLOBAL).then(|| Ipv6Addr::from(address))
    };
    table.lines().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_parsed() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.200.3.0\n        /24 link UNICAST\nLocal:\n        |-- 10.200.3.7\n           /32 host LOCAL\n           |-- 10.200.3.255\n              /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(v4(table), [Ipv4Addr::new(10, 200, 3, 7)]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nfd00000000000000000000000000000a 02 40 00 80     eth0\nfe800000000000000000000000000001 02 40 20 80     eth0\n";
        assert_eq!(v6(table), ["fd00::a".parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED)]);
        assert_eq!(of(-1), Vec::<IpAddr>::new());
    }
}
