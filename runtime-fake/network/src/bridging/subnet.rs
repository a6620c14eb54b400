//! ◆ IPv4 subnets as values, and the choice of one that is not in use.

use std::net::Ipv4Addr;

use ipnet::{Ipv4Net, Ipv4Subnets};

/// The properties of a subnet that a bridge needs.
pub(crate) trait BridgeSubnet {
    /// The address type.
    type Address;
    /// The address of the bridge: the first one after the network address.
    fn gateway(&self) -> Self::Address;
}

impl BridgeSubnet for Ipv4Net {
    type Address = Ipv4Addr;

    fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network().to_bits().saturating_add(1))
    }
}

/// A range that subnets are taken from, and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// The whole range.
    pub subnet: Ipv4Net,
    /// The prefix length of a subnet taken from it.
    pub piece_len: u8,
}

impl Pool {
    /// The prefix length of its subnets; the range's own prefix length if the range is smaller.
    fn piece_len(self) -> u8 {
        self.piece_len.clamp(self.subnet.prefix_len(), 32)
    }

    /// The subnets, in order.
    pub(crate) fn pieces(self) -> Ipv4Subnets {
        let (first, last) = (self.subnet.network(), self.subnet.broadcast());
        Ipv4Subnets::new(first, last, self.piece_len())
    }

    /// Whether a subnet lies in this pool and is at least as large as the subnets taken from it.
    pub(crate) fn provides(self, subnet: Ipv4Net) -> bool {
        self.subnet.contains(&subnet) && subnet.prefix_len() <= self.piece_len()
    }
}

/// The number space of pods without IPv4 addresses, in the form of a subnet; never assigned to an interface.
pub(crate) const NUMBERS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 16);

/// Why a text is not an IPv4 subnet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// The text is not of the form `a.b.c.d/len`.
    #[error("{0:?} is not an IPv4 subnet; write one as 10.200.0.0/16")]
    Syntax(String),
    /// A prefix length above 32.
    #[error("an IPv4 prefix is at most 32 bits long, not {0}")]
    PrefixLength(u8),
    /// The address has bits outside the prefix.
    #[error("{given} has bits outside its prefix; did you mean {canonical}?")]
    HostBits {
        /// The subnet as given.
        given: Ipv4Net,
        /// The subnet without the extra bits.
        canonical: Ipv4Net,
    },
}

/// Parses a subnet given by its network address.
pub(crate) fn parse(text: &str) -> Result<Ipv4Net, SubnetError> {
    let syntax = || SubnetError::Syntax(text.to_owned());
    let (address, prefix_len) = text.split_once('/').ok_or_else(syntax)?;
    let address = address.parse().map_err(|_| syntax())?;
    let prefix_len = prefix_len.parse().map_err(|_| syntax())?;
    let given = Ipv4Net::new(address, prefix_len);
    let given = given.map_err(|_| SubnetError::PrefixLength(prefix_len))?;
    match given.trunc() {
        canonical if canonical == given => Ok(given),
        canonical => Err(SubnetError::HostBits { given, canonical }),
    }
}

/// Whether two subnets overlap: then one contains the other.
pub(crate) fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// The candidate subnets, best first: the subnets of `preferred` addresses, then every piece of every pool. None overlaps a
/// subnet in `taken`. Within a pool the order starts at the piece that `seed` selects and wraps around once, so that daemons that
/// start concurrently do not all try the same piece first. The iterator is lazy, because a pool may have very many pieces.
pub(crate) fn candidates<'a>(
    pools: &'a [Pool],
    preferred: &'a [Ipv4Addr],
    taken: &'a [Ipv4Net],
    seed: u32,
) -> impl Iterator<Item = Ipv4Net> + 'a {
    let preferred = preferred.iter().filter_map(move |address| {
        let pool = pools.iter().find(|pool| pool.subnet.contains(address))?;
        Some(Ipv4Net::new(*address, pool.piece_len()).ok()?.trunc())
    });
    let walk = pools.iter().flat_map(move |pool| {
        let start = seed as usize % pool.pieces().count();
        let after = pool.pieces().skip(start);
        after.chain(pool.pieces().take(start))
    });
    preferred.chain(walk).filter(move |piece| !taken.iter().any(|taken| overlap(*taken, *piece)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn pool(text: &str, piece_len: u8) -> Pool {
        let subnet = net(text);
        Pool { subnet, piece_len }
    }

    #[rstest]
    #[case("10.0.0.0/14", 20, "10.0.16.0/20", true)]
    #[case("10.0.0.0/14", 20, "10.0.0.0/16", true)]
    #[case("10.0.0.0/14", 20, "10.0.16.0/24", false)]
    #[case("10.0.0.0/14", 20, "10.0.0.0/8", false)]
    #[case("10.0.0.0/14", 20, "10.4.0.0/20", false)]
    #[case("10.0.0.0/28", 24, "10.0.0.0/28", true)]
    fn a_pool_provides_subnets_of_its_size(
        #[case] all: &str,
        #[case] piece_len: u8,
        #[case] subnet: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(pool(all, piece_len).provides(net(subnet)), expected);
    }

    #[rstest]
    #[case("10.200.0.0/16", Ok(()))]
    #[case("0.0.0.0/0", Ok(()))]
    #[case("10.1.2.3/32", Ok(()))]
    #[case("10.1.2.3", Err("is not an IPv4 subnet"))]
    #[case("10.1.2/24", Err("is not an IPv4 subnet"))]
    #[case("10.1.2.0/33", Err("at most 32 bits long, not 33"))]
    #[case("10.1.2.3/24", Err("did you mean 10.1.2.0/24?"))]
    fn subnets_are_read(#[case] text: &str, #[case] expected: Result<(), &str>) {
        match (parse(text), expected) {
            (Ok(subnet), Ok(())) => assert_eq!(subnet.to_string(), text),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[rstest]
    #[case("10.0.0.0/8", "10.200.3.0/24", true)]
    #[case("10.200.3.0/24", "10.200.0.0/14", true)]
    #[case("10.200.3.0/24", "10.200.4.0/24", false)]
    #[case("0.0.0.0/0", "192.168.0.0/16", true)]
    #[case("10.0.0.1/32", "10.0.0.1/32", true)]
    #[case("10.0.0.1/32", "10.0.0.2/32", false)]
    fn subnets_overlap_if_one_contains_the_other(
        #[case] a: &str,
        #[case] b: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(super::overlap(net(a), net(b)), expected);
        assert_eq!(super::overlap(net(b), net(a)), expected);
    }

    #[test]
    fn pieces_cover_the_pool() {
        let pieces: Vec<_> = pool("10.200.0.0/14", 24).pieces().collect();
        assert_eq!(pieces.len(), 1024);
        assert_eq!(pieces[0], net("10.200.0.0/24"));
        assert_eq!(pieces[1023], net("10.203.255.0/24"));
        assert_eq!(pool("10.0.0.0/28", 24).pieces().collect::<Vec<_>>(), [net("10.0.0.0/28")]);
    }

    #[test]
    fn candidates_start_at_seed_skip_taken_and_wrap() {
        let pools = [pool("10.0.0.0/22", 24), pool("192.168.0.0/23", 25)];
        let taken = [net("10.0.3.128/25")];
        assert_eq!(
            candidates(&pools, &[], &taken, 2).collect::<Vec<_>>(),
            [
                "10.0.2.0/24",
                "10.0.0.0/24",
                "10.0.1.0/24",
                "192.168.1.0/25",
                "192.168.1.128/25",
                "192.168.0.0/25",
                "192.168.0.128/25"
            ]
            .map(net)
        );
    }

    #[test]
    fn candidates_prefer_subnet_of_running_pods() {
        let pools = [pool("10.0.0.0/22", 24)];
        let pods = [Ipv4Addr::new(10, 0, 3, 9), Ipv4Addr::new(172, 16, 0, 1)];
        assert_eq!(candidates(&pools, &pods, &[], 0).next(), Some(net("10.0.3.0/24")));
        let taken = [net("10.0.3.0/26")];
        assert!(candidates(&pools, &pods, &taken, 0).all(|piece| piece != net("10.0.3.0/24")));
    }

    proptest! {
        #[test]
        fn candidates_are_in_a_pool_and_overlap_nothing_taken(
            taken in prop::collection::vec((any::<u32>(), 8u8..=32), 0..8),
            seed in any::<u32>(),
        ) {
            let pool = pool("10.0.0.0/12", 20);
            let taken: Vec<Ipv4Net> = taken
                .into_iter()
                .map(|(bits, len)| Ipv4Net::new(Ipv4Addr::from_bits(0x0a00_0000 | bits & 0x001f_ffff), len).unwrap().trunc())
                .collect();
            let found: Vec<Ipv4Net> = candidates(&[pool], &[], &taken, seed).collect();
            for piece in &found {
                prop_assert!(pool.subnet.contains(&piece.network()) && pool.subnet.contains(&piece.broadcast()));
                prop_assert!(taken.iter().all(|t| !super::overlap(*t, *piece)));
            }
            // No free piece is left out.
            let free = pool.pieces().filter(|p| taken.iter().all(|t| !super::overlap(*t, *p))).count();
            prop_assert_eq!(found.len(), free);
        }

        #[test]
        fn overlap_is_sharing_an_address(a in any::<u32>(), b in any::<u32>(), la in 0u8..=32, lb in 0u8..=32) {
            let x = Ipv4Net::new(Ipv4Addr::from_bits(a), la).unwrap().trunc();
            let y = Ipv4Net::new(Ipv4Addr::from_bits(b), lb).unwrap().trunc();
            let shares = x.network() <= y.broadcast() && y.network() <= x.broadcast();
            prop_assert_eq!(super::overlap(x, y), shares);
        }
    }
}
