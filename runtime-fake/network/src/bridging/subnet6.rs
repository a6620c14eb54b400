//! ◆ IPv6 subnets as values. Pods have the same host numbers in them as in the IPv4 subnet.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::bridging::names::digest;
use crate::bridging::subnet::{self, BridgeSubnet, SubnetError};

/// The subnet of the daemon whose bridge has this name: a unique local address range (RFC 4193), whose global ID is derived from
/// the name, so that it survives a restart.
pub(crate) fn unique_local(bridge: &str) -> Ipv6Net {
    let random = digest(bridge).into_iter().take(5);
    let global = random.fold(0u128, |bits, byte| bits << 8 | u128::from(byte));
    Ipv6Net::new_assert(Ipv6Addr::from_bits(0xfd << 120 | global << 80), 64)
}

/// The address with a host number. Numbers are below 2³², and every accepted prefix leaves room for them.
pub(crate) fn address(subnet: Ipv6Net, number: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(subnet.network().to_bits() | u128::from(number))
}

/// The host number of an address, if it is in this subnet.
pub(crate) fn number(subnet: Ipv6Net, address: Ipv6Addr) -> Option<u32> {
    u32::try_from(address.to_bits() ^ subnet.network().to_bits()).ok()
}

impl BridgeSubnet for Ipv6Net {
    type Address = Ipv6Addr;

    fn gateway(&self) -> Ipv6Addr {
        address(*self, 1)
    }
}

/// The subnets of the pods' addresses: one of either family, or one of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodCidrs {
    /// The IPv4 subnet.
    pub v4: Option<Ipv4Net>,
    /// The IPv6 subnet.
    pub v6: Option<Ipv6Net>,
}

impl PodCidrs {
    /// Whether no subnet is given; the daemon then chooses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// The subnets as strings.
    pub fn texts(&self) -> Vec<String> {
        let v4 = self.v4.iter().map(ToString::to_string);
        v4.chain(self.v6.iter().map(ToString::to_string)).collect()
    }
}

/// Why a text is not a list of pod subnets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// Not a subnet.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// A subnet of neither family.
    #[error("{0:?} is not a subnet; write one as 10.200.0.0/16 or fd00:10:200::/64")]
    Syntax(String),
    /// The subnet is too small or too large.
    #[error(
        "the subnet {subnet} has a prefix of {prefix_len} bits; {least} to {most} are possible"
    )]
    Size {
        /// The subnet.
        subnet: String,
        /// Its prefix length.
        prefix_len: u8,
        /// The shortest allowed prefix.
        least: u8,
        /// The longest allowed prefix.
        most: u8,
    },
    /// The address has bits outside the prefix.
    #[error("{given} has bits outside its prefix; did you mean {canonical}?")]
    HostBits {
        /// The subnet as given.
        given: String,
        /// The subnet without the extra bits.
        canonical: Ipv6Net,
    },
    /// The subnet contains addresses that no pod can have.
    #[error(
        "the subnet {subnet} has {what}, which no pod can have; take one such as 10.200.0.0/16 or fd00:10:200::/64"
    )]
    Special {
        /// The subnet.
        subnet: String,
        /// The purpose of those addresses.
        what: String,
    },
    /// Two subnets of one family.
    #[error("{0} are two subnets of one family; give one of each at most")]
    Two(String),
}

/// Address ranges that are not for hosts (RFC 6890, and RFC 4291 for IPv6).
const SPECIAL: [(&str, &str); 8] = [
    ("0.0.0.0/8", "addresses of \"this network\""),
    ("127.0.0.0/8", "loopback addresses"),
    ("169.254.0.0/16", "link-local addresses"),
    ("224.0.0.0/4", "multicast addresses"),
    ("240.0.0.0/4", "reserved addresses"),
    ("::/8", "reserved addresses"),
    ("fe80::/10", "link-local addresses"),
    ("ff00::/8", "multicast addresses"),
];

/// Describes the special range that a subnet overlaps.
fn special(subnet: IpNet) -> Option<String> {
    SPECIAL.iter().find_map(|(text, what)| {
        let known: IpNet = text.parse().ok()?;
        let shared = known.contains(&subnet) || subnet.contains(&known);
        shared.then(|| format!("{what} ({text})"))
    })
}

impl FromStr for PodCidrs {
    type Err = CidrError;

    /// Parses one subnet, or two of different families separated by a comma, as Kubernetes writes them.
    fn from_str(text: &str) -> Result<PodCidrs, CidrError> {
        let mut cidrs = PodCidrs::default();
        for part in text.split(',').map(str::trim) {
            let syntax = || CidrError::Syntax(part.to_owned());
            let (address, prefix_len) = part.split_once('/').ok_or_else(syntax)?;
            let address: IpAddr = address.parse().map_err(|_| syntax())?;
            let prefix_len: u8 = prefix_len.parse().map_err(|_| syntax())?;
            let given = IpNet::new(address, prefix_len).ok();
            if let Some(what) = given.and_then(special) {
                return Err(CidrError::Special { subnet: part.to_owned(), what });
            }
            let (least, most) = if address.is_ipv4() { (8, 30) } else { (16, 112) };
            let again = match given.filter(|_| (least..=most).contains(&prefix_len)) {
                None => {
                    return Err(CidrError::Size {
                        subnet: part.to_owned(),
                        prefix_len,
                        least,
                        most,
                    });
                }
                Some(IpNet::V4(_)) => cidrs.v4.replace(subnet::parse(part)?).is_some(),
                Some(IpNet::V6(given)) if given != given.trunc() => {
                    return Err(CidrError::HostBits {
                        given: part.to_owned(),
                        canonical: given.trunc(),
                    });
                }
                Some(IpNet::V6(given)) => cidrs.v6.replace(given).is_some(),
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
        let (one, two) = (unique_local("crib1"), unique_local("crib2"));
        assert_eq!(one, unique_local("crib1"));
        assert_ne!(one, two);
        assert_eq!((one.network().octets()[0], one.prefix_len()), (0xfd, 64));
        assert_eq!(number(one, one.gateway()), Some(1));
        assert_eq!(number(one, address(one, 7)), Some(7));
        assert_eq!(number(one, address(two, 7)), None);
    }

    #[rstest]
    #[case("10.1.0.0/16", "10.1.0.0/16")]
    #[case("fd00:1::/64", "fd00:1::/64")]
    #[case("fd00:1::/112,10.1.0.0/24", "10.1.0.0/24,fd00:1::/112")]
    fn pod_cidrs_are_parsed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<PodCidrs>().unwrap().texts().join(","), expected);
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
    fn invalid_pod_cidrs_are_rejected(#[case] text: &str, #[case] part: &str) {
        let error = text.parse::<PodCidrs>().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
