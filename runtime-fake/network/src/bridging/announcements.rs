//! What pods announce: an interface outside pods takes no configuration from the network that they are on.
//!
//! A pod may send router advertisements and redirects. By default the kernel takes an address, routes and the default route from
//! them, and so the host would send its own traffic to a pod (CVE-2020-10749). Only bridges take part: what arrives at a port
//! is the bridge's. Where the kernel can filter what pods send (`spoofing`) little of this arrives; this holds everywhere.

use std::{fs, io, os::fd::BorrowedFd, path::Path};

use crate::NetError;
use crate::links::namespace;

/// Settings of an interface (ip-sysctl of the kernel's documentation): family, name and value.
const SETTINGS: [(&str, &str, &str); 6] = [
    ("ipv6", "accept_ra", "0"),
    ("ipv6", "accept_redirects", "0"),
    ("ipv6", "autoconf", "0"),
    ("ipv4", "accept_redirects", "0"),
    // Answers for the bridge's own address, and not for those of the host's other interfaces.
    ("ipv4", "arp_ignore", "1"),
    // Takes packets from addresses that are reached through the bridge, and no others.
    ("ipv4", "rp_filter", "1"),
];

/// Has interfaces in a namespace ignore what is announced to them. Call it before they are up.
pub(crate) fn ignore(
    namespace: Option<BorrowedFd<'_>>,
    interfaces: &[String],
) -> Result<(), NetError> {
    let work = || interfaces.iter().for_each(|interface| ignore_here(interface));
    namespace::within(namespace, work).map_err(|source| NetError::Namespace {
        doing: "entering the bridge's network namespace",
        source,
    })
}

/// [`ignore`], for an interface in this thread's namespace.
pub(crate) fn ignore_here(interface: &str) {
    for (family, setting, value) in SETTINGS {
        let path = Path::new("/proc/sys/net").join(family).join("conf").join(interface);
        match fs::write(path.join(setting), value) {
            Ok(()) => {}
            // A kernel without that family.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                interface, setting, %error,
                "failed to have the host ignore what pods announce: they can change its addresses and routes"
            ),
        }
    }
}
