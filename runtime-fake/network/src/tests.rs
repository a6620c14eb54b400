//! Bridges and pods in namespaces that each test creates, observed through sockets and the kernel's own tables.
#![allow(clippy::unwrap_used)]

mod announced;
mod daemons;
mod measure;
mod pods;
mod relay;
mod room;
mod spoofed;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use crate::links;
use crate::links::link_query;
use crate::links::link_query::LinkFacts;
use crate::links::netlink::{Netlink, Request};
use crate::{Attachment, Bridge, BridgeConfig, NetError, Pool, SubnetLocks, private_netns};

const IN_USER_NAMESPACE: &str = "CRIB_TEST_IN_USER_NAMESPACE";

fn skip(test: &str, need: &str, reason: &str) {
    let mut errors = std::io::LineWriter::new(std::io::stderr());
    let _ = writeln!(errors, "skipped: {test}: needs {need}: {reason}");
}

/// Runs the body with a new namespace for a bridge. For an ordinary user the test re-executes itself as root of a user namespace,
/// because a multithreaded process cannot enter one; where that is not allowed, the test prints that it was skipped.
fn with_namespace(test: &str, body: impl FnOnce(OwnedFd)) {
    let skip = |reason: &str| skip(test, "NetworkNamespaces", reason);
    match private_netns() {
        Ok(namespace) => return body(namespace),
        Err(NetError::Namespace { source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied => {}
        Err(other) => panic!("{other:?}"),
    }
    if std::env::var_os(IN_USER_NAMESPACE).is_some() {
        return skip("no network namespace can be made, not even as root of a user namespace");
    }
    let entering = Command::new("unshare").args(["--user", "--map-root-user", "true"]).output();
    match entering {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            return skip(&format!("no user namespace can be made: {}", reason.trim()));
        }
        Err(error) => return skip(&format!("unshare can not be run: {error}")),
    }
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tests::{test}"), "--nocapture"])
        .env(IN_USER_NAMESPACE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    for line in errors.lines().filter(|line| line.starts_with("skipped: ")) {
        let _ = writeln!(std::io::LineWriter::new(std::io::stderr()), "{line}");
    }
}

fn config(name: &str, namespace: &OwnedFd) -> BridgeConfig {
    BridgeConfig { namespace: Some(namespace.try_clone().unwrap()), ..BridgeConfig::new(name) }
}

/// A pool whose subnets have this prefix length.
fn pool(subnet: &str, piece_len: u8) -> Vec<Pool> {
    let subnet = subnet.parse().unwrap();
    vec![Pool { subnet, piece_len }]
}

fn open(name: &str, namespace: &OwnedFd) -> Bridge {
    Bridge::open(config(name, namespace), &[]).unwrap()
}

fn inside<T: Send>(netns: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    links::within(Some(netns.as_fd()), work).unwrap()
}

fn links(netns: &OwnedFd) -> Vec<LinkFacts> {
    inside(netns, || link_query::links(&mut Netlink::open().unwrap()).unwrap())
}

fn link_names(netns: &OwnedFd) -> Vec<String> {
    links(netns).into_iter().map(|link| link.name).collect()
}

fn send(netns: &OwnedFd, requests: &[Request]) {
    inside(netns, || Netlink::open().unwrap().batch(requests).unwrap());
}

/// A pod: its namespace and its attachment.
struct Pod {
    id: String,
    netns: OwnedFd,
    got: Attachment,
}

impl Pod {
    fn attached(bridge: &Bridge, id: &str) -> Pod {
        let netns = links::make_namespace().unwrap();
        let got = bridge.attach(id, netns.as_fd()).unwrap();
        // Use a dump: unlike a query of one interface, it does not make the kernel update carrier state.
        let listed = links::within(bridge.namespace(), || {
            link_query::links(&mut Netlink::open().unwrap()).unwrap()
        });
        for link in listed.unwrap() {
            assert!(link.name != bridge.name() || link.operational, "{link:?}");
            assert!(link.name != got.host_interface || link.forwarding, "{link:?}");
        }
        Pod { id: id.to_owned(), netns, got }
    }

    fn record(&self) -> (String, IpAddr) {
        (self.id.clone(), self.got.ip)
    }
}

/// Sends a line over TCP from one namespace to an address in another and returns the peer address that the
/// listener saw.
fn talk(from: &OwnedFd, to: &OwnedFd, address: IpAddr) -> IpAddr {
    let listener = inside(to, || TcpListener::bind(SocketAddr::new(address, 0)).unwrap());
    let target = listener.local_addr().unwrap();
    let mut stream =
        inside(from, || TcpStream::connect_timeout(&target, Duration::from_secs(10)).unwrap());
    stream.write_all(b"hello, pod").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let (mut accepted, peer) = listener.accept().unwrap();
    let mut said = String::new();
    accepted.read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello, pod");
    peer.ip()
}
