//! Builds sandbox specifications.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_sandbox.go and kuberuntime_sandbox_linux.go.

use k8s_openapi::api::core::v1::{Container, ContainerPort};

use crate::dns::{self, DnsError};
use crate::pod::Pod;
use crate::spec::{
    Namespaces, Node, PortMapping, Protocol, SandboxSecurity, SandboxSpec, SecurityProfile,
    resources, security,
};
use crate::{hosts, labels};

/// The kernel's maximum length of a host name.
const MAX_FQDN: usize = 64;

/// Why a sandbox has no valid specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The DNS configuration is invalid.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// The node does not have this RuntimeClass.
    #[error("runtimeclass.node.k8s.io {name:?} not found")]
    RuntimeClass {
        /// The class.
        name: String,
    },
    /// The host name is longer than the kernel allows.
    #[error("failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long ({MAX_FQDN} characters is the max, {} characters requested)", .name.len())]
    Hostname {
        /// The name with its domain.
        name: String,
    },
    /// The pod requests a user namespace, which the agent does not support yet.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    UserNamespace,
}

/// Builds the sandbox of a pod, with warnings for its author. `attempt` is the number of earlier sandboxes.
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
    let hostname = hosts::sandbox_hostname(pod, &node.cluster_domain);
    if hostname.len() > MAX_FQDN {
        return Err(SandboxError::Hostname { name: hostname });
    }
    let sandbox = SandboxSpec {
        name: pod.name().to_owned(),
        namespace: pod.namespace().to_owned(),
        uid: pod.uid().to_string(),
        attempt,
        hostname: if pod.host_network() {
            String::new()
        } else {
            hostname
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

/// The ports of app containers and sidecars, published on the node or not.
fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    let sidecars = pod
        .init_containers()
        .iter()
        .filter(|init| crate::pod::is_sidecar(init));
    let of_container = |container: &Container| {
        let (mut mappings, mut unnamed): (Vec<PortMapping>, Vec<PortMapping>) = Default::default();
        for port in container.ports.iter().flatten() {
            let mapping = port_mapping(port);
            // Deduplicate unnamed ports.
            if port.name.as_deref().unwrap_or_default().is_empty() {
                if unnamed.contains(&mapping) {
                    continue;
                }
                unnamed.push(mapping.clone());
            }
            mappings.push(mapping);
        }
        mappings
    };
    pod.containers()
        .iter()
        .chain(sidecars)
        .flat_map(of_container)
        .collect()
}

fn port_mapping(port: &ContainerPort) -> PortMapping {
    PortMapping {
        protocol: match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(_) | None => Protocol::Tcp,
        },
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or_default(),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    }
}

fn sysctls(pod: &Pod) -> std::collections::BTreeMap<String, String> {
    let security = pod.spec().security_context.as_ref();
    let sysctls = security
        .into_iter()
        .flat_map(|security| security.sysctls.iter().flatten());
    sysctls
        .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
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
        // The sandbox's own process runs no user code, so it is always confined.
        seccomp: Some(SecurityProfile::RuntimeDefault),
        apparmor: None,
    }
}
