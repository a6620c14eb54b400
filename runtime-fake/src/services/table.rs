//! ◆ The table of Services in the pod network: names, and ports with the pods behind them.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

/// The names and ports of all Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The domain of the names.
    pub(crate) zone: String,
    pub(crate) names: Vec<Name>,
    pub(crate) balancers: Vec<Balancer>,
}

/// The records of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Name {
    /// In lower case, without a final dot.
    pub(crate) name: String,
    pub(crate) addresses: Vec<Ipv4Addr>,
    pub(crate) alias: Option<String>,
    pub(crate) servers: Vec<(String, u16)>,
    pub(crate) pointer: Option<String>,
}

/// A port and its backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Balancer {
    pub(crate) frontend: Frontend,
    pub(crate) backends: Backends,
}

/// Where a balancer listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frontend {
    pub(crate) transport: Transport,
    /// An address of the pod network; `None`: all addresses of the host.
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) port: u16,
}

/// A transport protocol that is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// The ports of pods behind a balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Backends {
    pub(crate) list: Vec<SocketAddrV4>,
    /// The session affinity timeout: how long a client stays with one backend.
    pub(crate) affinity: Option<Duration>,
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        };
        match self.address {
            Some(address) => write!(f, "{transport} port {} of {address}", self.port),
            None => write!(f, "the host's {transport} port {}", self.port),
        }
    }
}
