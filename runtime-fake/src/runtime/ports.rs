//! Binds host ports for a pod: the daemon creates the sockets in the host's network namespace, and the pod's
//! forwarder serves them. The bound socket alone reserves the port: two pods, or a pod and a program of the host,
//! cannot have the same one.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
};

use keeper::contract::plan::{Forward, HostPort, Transport};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt},
};

use crate::{id::SandboxId, launch::host_ports, sandbox::SandboxState, store::State};

/// The backlog of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why a host port is unavailable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    /// Another socket is bound to it.
    #[error("the host port {port} is taken by {holder}; choose another one, or end what has it")]
    Taken { port: HostPort, holder: String },
    /// The port is privileged, and this process may not bind it.
    #[error(
        "the host port {port} is below {first}, where only root may listen; choose another one, or allow it with the sysctl net.ipv4.ip_unprivileged_port_start"
    )]
    Privileged { port: HostPort, first: u16 },
    /// The address belongs to no interface of this host.
    #[error("the host port {port} is unavailable: this host has no such address")]
    NoAddress { port: HostPort },
    /// The kernel has no SCTP.
    #[error("the host port {port} is unavailable: this kernel does not have {}", port.transport)]
    NoTransport { port: HostPort },
    /// Anything else.
    #[error("failed to listen on the host port {port}")]
    Io { port: HostPort, source: io::Error },
}

/// Bound sockets, each with its destination.
#[derive(Debug, Default)]
pub(crate) struct HostPortSockets {
    pub(crate) sockets: Vec<OwnedFd>,
    pub(crate) forwards: Vec<Forward>,
}

/// Binds all of `ports`, or none. `state` is used to name the pod that has a port already.
pub(crate) fn claim(
    ports: &[HostPort],
    own: &SandboxId,
    state: &State,
) -> Result<HostPortSockets, PortError> {
    let mut sockets = HostPortSockets::default();
    for port in ports {
        // A kernel without IPv6 can bind all addresses with IPv4 alone.
        let addresses: &[IpAddr] = match port.host {
            Some(address) => &[address],
            None => &[IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
        };
        for (index, address) in addresses.iter().enumerate() {
            let socket = match take(port, *address) {
                Ok(socket) => socket,
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if index > 0 => continue,
                Err(error) => return Err(explain(port, error, own, state)),
            };
            sockets.sockets.push(socket);
            sockets.forwards.push(Forward {
                transport: port.transport,
                ipv6: address.is_ipv6(),
                port: port.pod_port,
            });
        }
    }
    Ok(sockets)
}

fn take(port: &HostPort, address: IpAddr) -> rustix::io::Result<OwnedFd> {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let (kind, protocol) = match port.transport {
        Transport::Tcp => (SocketType::STREAM, ipproto::TCP),
        Transport::Udp => (SocketType::DGRAM, ipproto::UDP),
        Transport::Sctp => (SocketType::STREAM, ipproto::SCTP),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Allows binding a port whose last connections are in TIME_WAIT. With UDP it would allow two sockets on one
    // port.
    if port.transport != Transport::Udp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(address, port.host_port))?;
    if port.transport != Transport::Udp {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

fn explain(port: &HostPort, error: Errno, own: &SandboxId, state: &State) -> PortError {
    let port = port.clone();
    match error {
        Errno::ADDRINUSE => PortError::Taken {
            holder: holder(&port, own, state).unwrap_or_else(|| "a program of the host".to_owned()),
            port,
        },
        Errno::ACCESS => PortError::Privileged {
            port,
            first: std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(1024),
        },
        Errno::ADDRNOTAVAIL => PortError::NoAddress { port },
        Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT | Errno::AFNOSUPPORT => {
            PortError::NoTransport { port }
        }
        other => PortError::Io { port, source: other.into() },
    }
}

/// Describes the pod that has `port`.
fn holder(port: &HostPort, own: &SandboxId, state: &State) -> Option<String> {
    let sandbox = state.sandboxes.values().find(|sandbox| {
        sandbox.id != *own
            && sandbox.state != SandboxState::NotReady
            && host_ports(&sandbox.config.port_mappings)
                .is_ok_and(|ports| ports.iter().any(|other| other.overlaps(port)))
    })?;
    let (name, namespace, ..) = sandbox.key();
    Some(format!("the pod {namespace}/{name} ({})", sandbox.id.short()))
}
