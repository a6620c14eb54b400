//! A subnet reserved against the other daemons of the same network namespace.
//!
//! The reservation is an abstract unix socket named after the subnet. Abstract names are per network namespace, as
//! subnets are; binding one is atomic; and the kernel lets go of it with the process that holds it, however that ends.

use std::fmt::Display;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Holds the subnet until dropped.
#[derive(Debug)]
pub(super) struct Claim {
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims the subnet in the calling thread's network namespace; `None` when another daemon holds it.
    pub(super) fn take(subnet: impl Display) -> io::Result<Option<Claim>> {
        let name = format!("crib/subnet/{subnet}");
        match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Ok(socket) => Ok(Some(Claim { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}
