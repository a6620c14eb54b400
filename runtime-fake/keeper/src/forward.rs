//! The forwarder of a pod's host ports: a process beside the pod's containers, forked by the keeper.
//!
//! Its sockets listen in the host's network namespace, where the daemon made them; it lives in the pod's, and so
//! reaches the pod however that is connected, or not connected. It ends with the keeper. What it moves it does not
//! look at. The pod sees its own address as the client's: where a client's own address matters, the bridge's packet
//! rules take what comes from other machines past this process.

mod datagrams;
mod streams;

use std::{
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use crate::{
    failure::{Doing as _, Failure, FailureKind, Step},
    plan::{ForwardPlan, Transport},
    sys::{self, Fork},
};

/// Forks the forwarder; it ends with this process.
pub(crate) fn start(plan: &ForwardPlan, sockets: Vec<OwnedFd>) -> Step {
    if plan.sockets.len() != sockets.len() || plan.addresses.is_empty() {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "{} sockets came for {} host ports of a pod with {} addresses",
                sockets.len(),
                plan.sockets.len(),
                plan.addresses.len()
            ),
        ));
    }
    match sys::fork(0).doing("start the forwarder of the pod's host ports")? {
        Fork::Parent(_) => Ok(()),
        Fork::Child => {
            let result = run(plan, sockets);
            // Standard error is the sandbox's keeper.log.
            let text = match result {
                Ok(()) => "the forwarder of host ports ended\n".to_owned(),
                Err(error) => format!("the forwarder of host ports failed: {error}\n"),
            };
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            std::process::exit(1)
        }
    }
}

fn run(plan: &ForwardPlan, sockets: Vec<OwnedFd>) -> std::io::Result<()> {
    sys::die_with_parent()?;
    let _ = rustix::thread::set_name(c"crib-forward");
    // The keeper's ends of pipes and its sockets, its listening one too: they are to end with the keeper's own.
    let mut keep: Vec<i32> = sockets.iter().map(|socket| socket.as_raw_fd()).collect();
    sys::close_others(&mut keep);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    sys::reset_signals();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    tokio.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (socket, forward) in sockets.into_iter().zip(plan.sockets.iter().copied()) {
            let targets = targets(&plan.addresses, forward.ipv6);
            match forward.transport {
                Transport::Tcp | Transport::Sctp => {
                    let listener = std::net::TcpListener::from(socket);
                    listener.set_nonblocking(true)?;
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    tasks.spawn(streams::forward(listener, forward, targets));
                }
                Transport::Udp => {
                    let socket = std::net::UdpSocket::from(socket);
                    socket.set_nonblocking(true)?;
                    let socket = tokio::net::UdpSocket::from_std(socket)?;
                    tasks.spawn(datagrams::forward(socket, forward.port, targets));
                }
            }
        }
        // None of them ends by itself.
        while tasks.join_next().await.is_some() {}
        Ok(())
    })
}

/// The pod's addresses in the order in which they are tried: those of the client's family first.
fn targets(addresses: &[IpAddr], ipv6: bool) -> Vec<IpAddr> {
    let (same, other): (Vec<IpAddr>, Vec<IpAddr>) = addresses
        .iter()
        .copied()
        .partition(|address| address.is_ipv6() == ipv6);
    [same, other].concat()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_own_family_is_tried_first() {
        let addresses: Vec<IpAddr> = ["10.0.0.2", "fd00::2"].map(|a| a.parse().unwrap()).into();
        assert_eq!(targets(&addresses, false), addresses);
        assert_eq!(targets(&addresses, true), [addresses[1], addresses[0]]);
        assert_eq!(targets(&addresses[..1], true), addresses[..1]);
    }
}
