//! ◆ IPv6 subnets as values. The addresses in one are numbered as those of the pods' IPv4 subnet are.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::names::digest;
use super::subnet::{Subnet, SubnetError};

/// An IPv6 network in its canonical form: the address has no bit set outside the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet6 {
    network: u128,
    prefix_len: u8,
}

impl Subnet6 {
    /// The subnet of the daemon whose bridge has this name: a unique local one (RFC 4193), whose random part is made of
    /// the name, so that it is the same after a restart.
    pub(super) fn of(bridge: &str) -> Subnet6 {
        let random = digest(bridge).into_iter().take(5);
        let global = random.fold(0u128, |bits, byte| bits << 8 | u128::from(byte));
        Subnet6 {
            network: 0xfd << 120 | global << 80,
            prefix_len: 64,
        }
    }

    /// The first address, which names the network.
    pub fn network(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.network)
    }

    /// The length of the prefix in bits.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// The address of the bridge: the first one after the network's own.
    pub fn gateway(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.network + 1)
    }

    /// The address with a number. Numbers are below 2³², and prefixes no longer than what leaves room for them.
    pub(super) fn address(self, number: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.network | u128::from(number))
    }

    /// The number of an address, if it is one of this subnet's.
    pub(super) fn number(self, address: Ipv6Addr) -> Option<u32> {
        u32::try_from(address.to_bits() ^ self.network).ok()
    }
}

impl fmt::Display for Subnet6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network(), self.prefix_len)
    }
}

/// Where pods are to have their addresses: one subnet of either family, or of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodCidrs {
    /// The IPv4 one.
    pub v4: Option<Subnet>,
    /// The IPv6 one.
    pub v6: Option<Subnet6>,
}

impl PodCidrs {
    /// Nothing is said: subnets are chosen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// As texts.
    pub fn texts(&self) -> Vec<String> {
        let v4 = self.v4.iter().map(ToString::to_string);
        v4.chain(self.v6.iter().map(ToString::to_string)).collect()
    }
}

/// A text that says not where pods are to have their addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// No subnet.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// No subnet of either family.
    #[error("{0:?} is not a subnet; write one as 10.200.0.0/16 or fd00:10:200::/64")]
    Syntax(String),
    /// No room for pods, or too much of it.
    #[error(
        "the subnet {subnet} has a prefix of {prefix_len} bits; {least} to {most} are possible"
    )]
    Size {
        /// The subnet.
        subnet: String,
        /// The length of its prefix.
        prefix_len: u8,
        /// The shortest possible.
        least: u8,
        /// The longest possible.
        most: u8,
    },
    /// Bits outside the prefix.
    #[error("{given} has bits outside its prefix; did you mean {canonical}?")]
    HostBits {
        /// As it was given.
        given: String,
        /// What it may mean.
        canonical: Subnet6,
    },
    /// Addresses that no pod can have.
    #[error(
        "the subnet {subnet} has {what}, which no pod can have; take one such as 10.200.0.0/16 or fd00:10:200::/64"
    )]
    Special {
        /// The subnet.
        subnet: String,
        /// What they are for.
        what: &'static str,
    },
    /// Two of one family.
    #[error("{0} are two subnets of one family; give one of each at most")]
    Two(String),
}

/// What is not for hosts (RFC 6890, and RFC 4291 for IPv6): address, length of the prefix, and what it is.
const SPECIAL: [(IpAddr, u8, &str); 8] = [
    (v4(0), 8, "addresses of \"this network\" (0.0.0.0/8)"),
    (v4(127), 8, "loopback addresses (127.0.0.0/8)"),
    (
        IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)),
        16,
        "link-local addresses (169.254.0.0/16)",
    ),
    (v4(224), 4, "multicast addresses (224.0.0.0/4)"),
    (v4(240), 4, "reserved addresses (240.0.0.0/4)"),
    (v6(0), 8, "reserved addresses (::/8)"),
    (v6(0xfe80), 10, "link-local addresses (fe80::/10)"),
    (v6(0xff00), 8, "multicast addresses (ff00::/8)"),
];

const fn v4(first: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(first, 0, 0, 0))
}

const fn v6(first: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0))
}

/// What addresses a subnet has that no pod can have.
fn special(network: IpAddr, prefix_len: u8) -> Option<&'static str> {
    // The first bits of both, as far as both prefixes go.
    let same = |other: IpAddr, len: u8| match (network, other) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(len.min(prefix_len))
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(len.min(prefix_len))
        }
        _ => false,
    };
    let mut known = SPECIAL.iter();
    known.find_map(|(other, len, what)| same(*other, *len).then_some(*what))
}

impl FromStr for PodCidrs {
    type Err = CidrError;

    /// One subnet, or two of different families with a comma between them, as Kubernetes writes them.
    fn from_str(text: &str) -> Result<PodCidrs, CidrError> {
        let mut cidrs = PodCidrs::default();
        for part in text.split(',').map(str::trim) {
            let syntax = || CidrError::Syntax(part.to_owned());
            let (address, prefix_len) = part.split_once('/').ok_or_else(syntax)?;
            let prefix_len: u8 = prefix_len.parse().map_err(|_| syntax())?;
            let size = |least, most| {
                let fits = (least..=most).contains(&prefix_len);
                fits.then_some(()).ok_or_else(|| CidrError::Size {
                    subnet: part.to_owned(),
                    prefix_len,
                    least,
                    most,
                })
            };
            let address = address.parse().map_err(|_| syntax())?;
            if let Some(what) = special(address, prefix_len) {
                return Err(CidrError::Special {
                    subnet: part.to_owned(),
                    what,
                });
            }
            let again = match address {
                IpAddr::V4(address) => {
                    size(8, 30)?;
                    let subnet = Subnet::new(address, prefix_len)?;
                    cidrs.v4.replace(subnet).is_some()
                }
                IpAddr::V6(address) => {
                    size(16, 112)?;
                    let mask = u128::MAX << (128 - u32::from(prefix_len));
                    let canonical = Subnet6 {
                        network: address.to_bits() & mask,
                        prefix_len,
                    };
                    if canonical.network() != address {
                        return Err(CidrError::HostBits {
                            given: part.to_owned(),
                            canonical,
                        });
                    }
                    cidrs.v6.replace(canonical).is_some()
                }
            };
            if again {
                return Err(CidrError::Two(text.to_owned()));
            }
        }
        Ok(cidrs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn ipv6_subnet_is_unique_local() {
        let (one, two) = (Subnet6::of("crib1"), Subnet6::of("crib2"));
        assert_eq!(one, Subnet6::of("crib1"));
        assert_ne!(one, two);
        assert_eq!((one.network().octets()[0], one.prefix_len()), (0xfd, 64));
        assert_eq!(one.number(one.gateway()), Some(1));
        assert_eq!(one.number(one.address(7)), Some(7));
        assert_eq!(one.number(two.address(7)), None);
    }

    #[rstest]
    #[case("10.1.0.0/16", "10.1.0.0/16")]
    #[case("fd00:1::/64", "fd00:1::/64")]
    #[case("fd00:1::/112,10.1.0.0/24", "10.1.0.0/24,fd00:1::/112")]
    fn subnets(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(
            text.parse::<PodCidrs>().unwrap().texts().join(","),
            expected
        );
    }

    #[rstest]
    #[case("10.1.0.0", "is not a subnet")]
    #[case("", "is not a subnet")]
    #[case("10.1.0.1/16", "did you mean 10.1.0.0/16?")]
    #[case("fd00::1/64", "did you mean fd00::/64?")]
    #[case("10.1.0.0/31", "8 to 30 are possible")]
    #[case("fd00::/120", "16 to 112 are possible")]
    #[case("10.1.0.0/16,10.2.0.0/16", "two subnets of one family")]
    #[case("0.0.0.0/8", "\"this network\"")]
    #[case("127.0.0.0/8", "loopback")]
    #[case("127.77.0.0/16", "loopback")]
    #[case("169.254.7.0/24", "link-local")]
    #[case("169.0.0.0/8", "link-local")]
    #[case("224.0.0.0/24", "multicast")]
    #[case("255.255.255.0/24", "reserved")]
    #[case("::1/128", "reserved addresses (::/8)")]
    #[case("::ffff:10.0.0.0/112", "reserved addresses (::/8)")]
    #[case("fe80::/64", "link-local")]
    #[case("ff00::/8", "multicast")]
    #[case("10.1.0.0/16,ff02::/64", "ff02::/64 has multicast")]
    fn what_is_none(#[case] text: &str, #[case] part: &str) {
        let error = text.parse::<PodCidrs>().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
