//! The configuration of a daemon's bridge.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::bridging::segments::PORTS;
use crate::bridging::subnet_lock::SubnetLocks;
use crate::{PodCidrs, Pool};

/// The configuration of a bridge.
#[derive(Debug)]
pub struct BridgeConfig {
    /// The name of the bridge, 1 to 12 characters. A restarted daemon finds the bridge by the same name.
    pub name_hint: String,
    /// The pools that the subnet is taken from, in order of preference.
    pub pools: Vec<Pool>,
    /// The network namespace of the bridge; `None` is the current one.
    pub namespace: Option<OwnedFd>,
    /// Locks for the subnets; `None` in a namespace where no other daemon has a bridge.
    pub subnet_locks: Option<SubnetLocks>,
    /// The state directory of the daemon: once it no longer exists, another daemon removes the bridge.
    pub state_dir: Option<PathBuf>,
    /// The number of pods that are ports of one bridge before a further bridge is connected to it.
    pub ports: usize,
    /// Pods have IPv4 addresses. If false, `pools` is unused.
    pub ipv4: bool,
    /// Pods have IPv6 addresses.
    pub ipv6: Ipv6,
}

/// Whether pods have IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// Pods have no IPv6 addresses.
    Never,
    /// Pods have IPv6 addresses if the kernel has IPv6, in a subnet derived from the bridge's name.
    IfPossible,
    /// Pods have IPv6 addresses in this subnet.
    Subnet(Ipv6Net),
}

impl BridgeConfig {
    /// The default pools: 10.200.0.0/14, then 198.18.0.0/15 (RFC 2544, reserved for benchmarks), for hosts that route all of
    /// 10.0.0.0/8 elsewhere. No widespread tool takes its addresses from either. The first 48 daemons of a host have room for
    /// 4093 pods each, and some hundreds more daemons have room for fewer.
    pub fn new(name_hint: impl Into<String>) -> BridgeConfig {
        let pool = |a, b, len, piece_len| Pool {
            subnet: Ipv4Net::new_assert(Ipv4Addr::new(a, b, 0, 0), len),
            piece_len,
        };
        let pools = [
            pool(10, 200, 15, 20),
            pool(198, 18, 16, 20),
            pool(10, 202, 16, 22),
            pool(10, 203, 16, 24),
            pool(198, 19, 16, 24),
        ];
        BridgeConfig {
            name_hint: name_hint.into(),
            pools: pools.into(),
            subnet_locks: None,
            state_dir: None,
            ports: PORTS,
            namespace: None,
            ipv4: true,
            ipv6: Ipv6::Never,
        }
    }

    /// The same configuration with addresses in `cidrs`. If `cidrs` is empty, pods have both families, in subnets
    /// chosen by the daemon.
    #[must_use]
    pub fn with_cidrs(mut self, cidrs: PodCidrs) -> BridgeConfig {
        self.ipv4 = cidrs.v4.is_some() || cidrs.v6.is_none();
        self.ipv6 = match cidrs.v6 {
            Some(subnet) => Ipv6::Subnet(subnet),
            None if cidrs.is_empty() => Ipv6::IfPossible,
            None => Ipv6::Never,
        };
        if let Some(subnet) = cidrs.v4 {
            let piece_len = subnet.prefix_len();
            self.pools = vec![Pool { subnet, piece_len }];
        }
        self
    }
}
