//! ◆ IPv4 subnets as values, and the choice of one that nothing else uses.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 network in its canonical form: the address has no bit set outside the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subnet {
    network: u32,
    prefix_len: u8,
}

/// Where subnets are taken from, and how large they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// All of it.
    pub subnet: Subnet,
    /// The length of the prefix of a subnet of it.
    pub piece_len: u8,
}

impl Pool {
    /// The subnets.
    fn pieces(self) -> impl ExactSizeIterator<Item = Subnet> {
        self.subnet.pieces(self.piece_len)
    }

    /// Whether a subnet is of this pool, and no smaller than those that are taken from it.
    pub(super) fn provides(self, subnet: Subnet) -> bool {
        self.subnet.contains(subnet.network())
            && subnet.prefix_len() >= self.subnet.prefix_len()
            && subnet.prefix_len() <= self.piece_len.max(self.subnet.prefix_len())
    }
}

/// A text, or an address and prefix length, that is no IPv4 subnet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// The text is not of the form `a.b.c.d/len`.
    #[error("{0:?} is not an IPv4 subnet; write one as 10.200.0.0/16")]
    Syntax(String),
    /// A prefix length above 32.
    #[error("an IPv4 prefix is at most 32 bits long, not {0}")]
    PrefixLength(u8),
    /// The address has bits outside the prefix.
    #[error("{address}/{prefix_len} has bits outside its prefix; did you mean {canonical}?")]
    HostBits {
        /// The address as given.
        address: Ipv4Addr,
        /// The prefix length as given.
        prefix_len: u8,
        /// The subnet that contains the address.
        canonical: Subnet,
    },
}

impl Subnet {
    /// Numbers for pods that have no IPv4 address, in the form of one: never given to an interface.
    pub(super) const NUMBERS: Subnet = Subnet {
        network: 0,
        prefix_len: 16,
    };

    /// The subnet `network/prefix_len`; the address must be the first one of the subnet.
    pub fn new(network: Ipv4Addr, prefix_len: u8) -> Result<Subnet, SubnetError> {
        let canonical = Subnet::containing(network, prefix_len)?;
        if canonical.network() == network {
            Ok(canonical)
        } else {
            Err(SubnetError::HostBits {
                address: network,
                prefix_len,
                canonical,
            })
        }
    }

    /// The subnet of the given prefix length that `address` lies in.
    pub fn containing(address: Ipv4Addr, prefix_len: u8) -> Result<Subnet, SubnetError> {
        if prefix_len > 32 {
            return Err(SubnetError::PrefixLength(prefix_len));
        }
        Ok(Subnet {
            network: address.to_bits() & mask(prefix_len),
            prefix_len,
        })
    }

    /// The first address, which names the network.
    pub fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network)
    }

    /// The length of the prefix in bits, 0 to 32.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// The last address.
    pub fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network | !mask(self.prefix_len))
    }

    /// The address of the bridge: the first one after the network's own.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.saturating_add(1))
    }

    /// Whether the address lies in this subnet.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.prefix_len) == self.network
    }

    /// Whether the two subnets share an address.
    pub fn overlaps(self, other: Subnet) -> bool {
        let shorter = mask(self.prefix_len.min(other.prefix_len));
        self.network & shorter == other.network & shorter
    }

    /// This subnet cut into pieces of `piece_len` bits of prefix, in order; itself when it is no larger than that.
    pub fn pieces(self, piece_len: u8) -> impl ExactSizeIterator<Item = Subnet> {
        let prefix_len = piece_len.min(32).max(self.prefix_len);
        // The count of a /0 cut into /32 does not fit 32 bits; nobody's pool is that large, so it is cut short.
        let count = 1u32
            .checked_shl(u32::from(prefix_len - self.prefix_len))
            .unwrap_or(u32::MAX);
        let network = self.network;
        (0..count).map(move |i| Subnet {
            network: network + i.checked_shl(u32::from(32 - prefix_len)).unwrap_or(0),
            prefix_len,
        })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network(), self.prefix_len)
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Subnet, SubnetError> {
        let syntax = || SubnetError::Syntax(text.to_owned());
        let (address, prefix_len) = text.split_once('/').ok_or_else(syntax)?;
        Subnet::new(
            address.parse().map_err(|_| syntax())?,
            prefix_len.parse().map_err(|_| syntax())?,
        )
    }
}

fn mask(prefix_len: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix_len))
        .unwrap_or(0)
}

/// The subnets worth trying, best first: those of `preferred` addresses, then every piece of every pool, all of them
/// overlapping nothing in `taken`. Within a pool the walk begins at the piece `seed` points to and goes round once, so
/// that daemons that start together do not all try the same one first. Lazy, as a pool may have very many pieces.
pub(super) fn candidates<'a>(
    pools: &'a [Pool],
    preferred: &'a [Ipv4Addr],
    taken: &'a [Subnet],
    seed: u32,
) -> impl Iterator<Item = Subnet> + 'a {
    let preferred = preferred.iter().filter_map(move |address| {
        let pool = pools.iter().find(|pool| pool.subnet.contains(*address))?;
        Subnet::containing(*address, pool.piece_len.max(pool.subnet.prefix_len())).ok()
    });
    let walk = pools.iter().flat_map(move |pool| {
        let count = pool.pieces().len();
        let start = seed as usize % count.max(1);
        let after = pool.pieces().skip(start);
        after.chain(pool.pieces().take(start))
    });
    preferred
        .chain(walk)
        .filter(move |piece| !taken.iter().any(|taken| taken.overlaps(*piece)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn net(text: &str) -> Subnet {
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
        match (text.parse::<Subnet>(), expected) {
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
    fn overlap(#[case] a: &str, #[case] b: &str, #[case] expected: bool) {
        assert_eq!(net(a).overlaps(net(b)), expected);
        assert_eq!(net(b).overlaps(net(a)), expected);
    }

    #[test]
    fn pieces_cover_the_pool() {
        let pieces: Vec<_> = net("10.200.0.0/14").pieces(24).collect();
        assert_eq!(pieces.len(), 1024);
        assert_eq!(pieces[0], net("10.200.0.0/24"));
        assert_eq!(pieces[1023], net("10.203.255.0/24"));
        assert_eq!(
            net("10.0.0.0/28").pieces(24).collect::<Vec<_>>(),
            [net("10.0.0.0/28")]
        );
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
        assert_eq!(
            candidates(&pools, &pods, &[], 0).next(),
            Some(net("10.0.3.0/24"))
        );
        let taken = [net("10.0.3.0/26")];
        assert!(candidates(&pools, &pods, &taken, 0).all(|piece| piece != net("10.0.3.0/24")));
    }

    proptest! {
        #[test]
        fn candidates_are_in_a_pool_and_overlap_nothing_taken(
            taken in prop::collection::vec((any::<u32>(), 8u8..=32), 0..8),
            seed in any::<u32>(),
        ) {
            let pool = net("10.0.0.0/12");
            let taken: Vec<Subnet> = taken
                .into_iter()
                .map(|(bits, len)| Subnet::containing(Ipv4Addr::from_bits(0x0a00_0000 | bits & 0x001f_ffff), len).unwrap())
                .collect();
            let found: Vec<Subnet> = candidates(&[Pool { subnet: pool, piece_len: 20 }], &[], &taken, seed).collect();
            for piece in &found {
                prop_assert!(pool.contains(piece.network()) && pool.contains(piece.broadcast()));
                prop_assert!(taken.iter().all(|t| !t.overlaps(*piece)));
            }
            // Nothing that is free is left out.
            let free = pool.pieces(20).filter(|p| taken.iter().all(|t| !t.overlaps(*p))).count();
            prop_assert_eq!(found.len(), free);
        }

        #[test]
        fn overlap_is_sharing_an_address(a in any::<u32>(), b in any::<u32>(), la in 0u8..=32, lb in 0u8..=32) {
            let x = Subnet::containing(Ipv4Addr::from_bits(a), la).unwrap();
            let y = Subnet::containing(Ipv4Addr::from_bits(b), lb).unwrap();
            let shares = x.network() <= y.broadcast() && y.network() <= x.broadcast();
            prop_assert_eq!(x.overlaps(y), shares);
        }
    }
}
