//! ◆ Which sysctls a pod may set.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/sysctl. The kernels that crib supports (5.12 and newer) namespace all safe sysctls.

use api::pod::Pod;

use super::Rejection;

/// Sysctls that affect no other pod.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

pub(super) fn check(pod: &Pod, allowed_unsafe: &[String]) -> Result<(), Rejection> {
    let context = pod.spec().security_context.as_ref();
    let sysctls = context.and_then(|context| context.sysctls.as_ref());
    for sysctl in sysctls.into_iter().flatten() {
        check_one(pod, &sysctl.name, allowed_unsafe)
            .map_err(|why| Rejection::new("SysctlForbidden", format!("forbidden sysctl: {why}")))?;
    }
    Ok(())
}

fn check_one(pod: &Pod, name: &str, allowed_unsafe: &[String]) -> Result<(), String> {
    let name = with_dots(name);
    let listed =
        SAFE.contains(&name.as_str()) || allowed_unsafe.iter().any(|rule| allows(rule, &name));
    if !listed {
        return Err(format!("{name:?} not allowlisted"));
    }
    let shared = match namespace(&name) {
        Some("Net") => pod.host_network(),
        Some("IPC") => pod.spec().host_ipc == Some(true),
        _ => false,
    };
    match namespace(&name).filter(|_| shared) {
        Some(namespace) => Err(format!("{name:?} not allowed with host {namespace} enabled")),
        None => Ok(()),
    }
}

fn allows(rule: &str, name: &str) -> bool {
    let rule = with_dots(rule);
    match rule.split_once('*') {
        Some((prefix, _)) => name.starts_with(prefix),
        None => rule == name,
    }
}

/// The kernel namespace that a sysctl belongs to, if it has one.
fn namespace(name: &str) -> Option<&'static str> {
    let is_ipc = name.starts_with("fs.mqueue.")
        || matches!(name, "kernel.sem")
        || name.starts_with("kernel.shm")
        || name.starts_with("kernel.msg");
    if name.starts_with("net.") { Some("Net") } else { is_ipc.then_some("IPC") }
}

/// Normalizes a sysctl's name, which may be written with slashes: if the first separator is a slash, slashes and dots change
/// places.
fn with_dots(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        Some(_) | None => name.to_owned(),
    }
}
