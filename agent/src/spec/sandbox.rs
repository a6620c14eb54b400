//! Pod → sandbox to make.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_sandbox.go and kuberuntime_sandbox_linux.go.

use crate::dns::{self, DnsError};
use crate::pod::Pod;
use crate::spec::{
    Namespaces, Node, PortMapping, Protocol, SandboxSecurity, SandboxSpec, SecurityProfile,
    resources, security,
};
use crate::{hosts, labels};

/// Why no sandbox can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// No DNS.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// A RuntimeClass that the node does not know.
    #[error("runtimeclass.node.k8s.io {name:?} not found")]
    RuntimeClass {
        /// The class.
        name: String,
    },
    /// A user namespace, which the agent cannot set up yet.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    UserNamespace,
}

/// The sandbox of a pod, and warnings for its author. `attempt` is the number of earlier sandboxes.
pub fn sandbox(
    pod: &Pod,
    attempt: u32,
    node: &Node,
) -> Result<(SandboxSpec, Vec<String>), SandboxError> {
    let spec = pod.spec();
    if spec.host_users == Some(false) {
        return Err(SandboxError::UserNamespace);
    }
    let runtime_handler =
        match spec.runtime_class_name.as_deref() {
            None | Some("") => String::new(),
            Some(name) => node.runtime_classes.get(name).cloned().ok_or_else(|| {
                SandboxError::RuntimeClass {
                    name: name.to_owned(),
                }
            })?,
        };
    let dns = dns::pod_dns(pod, node)?;
    let sandbox = SandboxSpec {
        name: pod.name().to_owned(),
        namespace: pod.namespace().to_owned(),
        uid: pod.uid().to_string(),
        attempt,
        hostname: if pod.host_network() {
            String::new()
        } else {
            hosts::sandbox_hostname(pod, &node.cluster_domain)
        },
        log_directory: node.pod_log_dir(pod),
        dns: dns.config,
        port_mappings: port_mappings(pod),
        labels: labels::of_sandbox(pod),
        annotations: pod
            .annotations()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        cgroup_parent: String::new(),
        sysctls: sysctls(pod),
        overhead: resources::overhead(pod, node),
        resources: resources::of_sandbox(pod, node),
        security: sandbox_security(pod),
        runtime_handler,
    };
    Ok((sandbox, dns.warnings))
}

/// The ports of app containers and sidecars; in the node's network there is nothing to map.
fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    if pod.host_network() {
        return Vec::new();
    }
    let sidecars = pod
        .init_containers()
        .iter()
        .filter(|init| crate::pod::is_sidecar(init));
    let ports = pod
        .containers()
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    ports
        .filter(|port| port.host_port.is_some_and(|port| port > 0))
        .map(|port| PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                Some(_) | None => Protocol::Tcp,
            },
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn sysctls(pod: &Pod) -> std::collections::BTreeMap<String, String> {
    let security = pod.spec().security_context.as_ref();
    let sysctls = security
        .into_iter()
        .flat_map(|security| security.sysctls.iter().flatten());
    sysctls
        .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone()))
        .collect()
}

fn sandbox_security(pod: &Pod) -> SandboxSecurity {
    let namespaces: Namespaces = security::namespaces(pod, None);
    let own = pod.spec().security_context.clone().unwrap_or_default();
    let privileged = pod
        .init_containers()
        .iter()
        .chain(pod.containers())
        .filter_map(|container| container.security_context.as_ref())
        .any(|security| security.privileged == Some(true));
    SandboxSecurity {
        namespaces,
        run_as_user: own.run_as_user,
        run_as_group: own.run_as_group,
        supplemental_groups: security::supplemental_groups(&own),
        strict_supplemental_groups: security::strict_groups(&own),
        privileged,
        selinux: own.se_linux_options.as_ref().map(security::selinux),
        // The sandbox's own process runs nobody's code: always confined.
        seccomp: Some(SecurityProfile::RuntimeDefault),
        apparmor: None,
    }
}
