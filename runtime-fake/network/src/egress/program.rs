//! ◆ The programs that connect a network namespace to the host's network without privileges, with their arguments; crib itself is
//! one.

use std::net::Ipv4Addr;

/// The address at which pods reach the host's loopback interface: the gateway that both programs translate to 127.0.0.1.
/// Link-local addresses are not routed, so it hides no other host.
pub const HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 2);

/// The address of the pods' DNS server: the address of the program's interface in the namespace, if it makes one. slirp4netns
/// always uses address 100 of its subnet; the others accept any.
pub const DNS: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 100);

/// The prefix length of the subnet of both addresses.
const PREFIX_LEN: u8 = 24;

/// The largest MTU that both programs accept: they copy one packet at a time, so large packets are faster.
pub(crate) const MTU: u32 = 65520;

/// A program that connects a network namespace to the host's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// pasta, of the package passt.
    Pasta,
    /// slirp4netns.
    Slirp4netns,
    /// crib's own process, which needs neither a program nor `/dev/net/tun`.
    Crib,
}

impl Program {
    /// Every program, fastest first; the fastest also loses no data of a stream.
    pub(super) const ALL: [Self; 3] = [Self::Crib, Self::Pasta, Self::Slirp4netns];

    /// The program's name. The interface of an installed program has the same name, by which a new daemon finds the running one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns",
            Self::Crib => "crib",
        }
    }

    /// The program of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|program| program.name() == name)
    }

    /// The arguments that make an installed program connect the namespace at the path `netns`, in the foreground.
    pub(super) fn arguments(self, netns: &str) -> Vec<String> {
        let mut arguments: Vec<String> = Vec::new();
        let mut add =
            |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        match self {
            Self::Pasta => {
                add(&["--foreground", "--quiet", "--ipv4-only", "--config-net"]);
                add(&["--netns-only", "--no-netns-quit", "--netns", netns]);
                add(&["--ns-ifname", self.name(), "--mtu", &MTU.to_string()]);
                add(&["--address", &DNS.to_string()]);
                add(&["--netmask", &PREFIX_LEN.to_string()]);
                add(&["--gateway", &HOST.to_string()]);
                // The keepers forward host ports.
                add(&["--tcp-ports", "none", "--udp-ports", "none"]);
                add(&["--tcp-ns", "none", "--udp-ns", "none"]);
                add(&["--no-dhcp", "--no-dhcpv6", "--no-ndp", "--no-ra"]);
            }
            Self::Slirp4netns => {
                let [a, b, c, _] = HOST.octets();
                let subnet = format!("{}/{PREFIX_LEN}", Ipv4Addr::new(a, b, c, 0));
                add(&["--configure", &format!("--mtu={MTU}")]);
                add(&[&format!("--cidr={subnet}"), "--netns-type=path"]);
                add(&["--enable-sandbox", "--enable-seccomp", netns, self.name()]);
            }
            Self::Crib => {}
        }
        arguments
    }
}

/// Whether a table of routes (`/proc/net/route`) has a default route through the program's interface.
pub(super) fn has_default_route(table: &str, program: Program) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(program.name()) && fields.next() == Some("00000000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit_the_kernel_and_name_their_program() {
        for program in Program::ALL {
            assert!(program.name().len() <= 15);
            assert_eq!(Program::named(program.name()), Some(program));
        }
        assert_eq!(Program::named("eth0"), None);
    }

    #[test]
    fn default_route_is_that_of_the_interface() {
        let table =
            "Iface\tDestination\tGateway\nslirp4netns\t00004DA9\t0\npasta\t00000000\t024DFEA9\n";
        assert!(has_default_route(table, Program::Pasta));
        assert!(!has_default_route(table, Program::Slirp4netns));
        assert!(!has_default_route("", Program::Pasta));
    }
}
