//! Host ports and their targets.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// A host port, and the pod's port that it is forwarded to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// The protocol on both sides.
    pub transport: Transport,
    /// The host's address; none means all of them, of both families.
    pub host: Option<IpAddr>,
    /// The port on the host.
    pub host_port: u16,
    /// The pod's port.
    pub pod_port: u16,
}

impl HostPort {
    /// Whether the two cannot be bound at the same time.
    pub fn overlaps(&self, other: &Self) -> bool {
        let same_address = match (self.host, other.host) {
            (None, _) | (_, None) => true,
            (Some(one), Some(two)) => {
                one == two
                    || (one.is_ipv4() == two.is_ipv4()
                        && (one.is_unspecified() || two.is_unspecified()))
            }
        };
        self.transport == other.transport && self.host_port == other.host_port && same_address
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            None => write!(f, "{}/{}", self.host_port, self.transport),
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}/{}", self.host_port, self.transport),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}/{}", self.host_port, self.transport),
        }
    }
}

/// The targets of the forwarder's sockets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForwardPlan {
    /// One for each socket, in order.
    pub sockets: Vec<Forward>,
    /// The pod's addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
}

/// The target of one socket.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Forward {
    /// The protocol on both sides.
    pub transport: Transport,
    /// Whether the socket is an IPv6 one.
    pub ipv6: bool,
    /// The port of the pod.
    pub port: u16,
}
