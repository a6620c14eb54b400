//! ◆ Builds sandbox specifications.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_sandbox.go and kuberuntime_sandbox_linux.go.

use std::collections::BTreeMap;

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, ContainerPort};

use crate::labels;
use crate::node::UnknownRuntimeClass;
use crate::pod_spec::dns::{self, DnsError, DnsWarning};
use crate::pod_spec::hosts;
use crate::pod_spec::spec::namespaces::{self, NamespaceError};
use crate::pod_spec::spec::security::{self, GroupsPolicyError};
use crate::pod_spec::spec::{
    Node, PodGrants, PortMapping, Protocol, SandboxSecurity, SandboxSpec, SecurityProfile, cgroup,
    memory, resources,
};

/// The kernel's maximum length of a host name.
const MAX_FQDN: usize = 64;

/// Why a sandbox has no valid specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The DNS configuration is invalid.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// The node does not have this RuntimeClass.
    #[error(transparent)]
    RuntimeClass(#[from] UnknownRuntimeClass),
    /// The host name is longer than the kernel allows.
    #[error("failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long ({MAX_FQDN} characters is the max, {} characters requested)", .name.len())]
    Hostname {
        /// The name with its domain.
        name: String,
    },
    /// The pod cannot have its namespaces.
    #[error(transparent)]
    Namespaces(#[from] NamespaceError),
    /// The policy for supplemental groups does not exist.
    #[error(transparent)]
    Groups(#[from] GroupsPolicyError),
}

/// Builds the sandbox of a pod, with warnings for its author. `attempt` is the number of earlier sandboxes.
pub fn sandbox(
    pod: &Pod,
    attempt: u32,
    grants: &PodGrants,
    node: &Node,
) -> Result<(SandboxSpec, Vec<DnsWarning>), SandboxError> {
    let dns = dns::pod_dns(pod, node)?;
    let mut hostname = String::new();
    if !pod.host_network() {
        hostname = hosts::sandbox_hostname(pod, &node.cluster_domain, node.features);
        if hostname.len() > MAX_FQDN {
            return Err(SandboxError::Hostname { name: hostname });
        }
    }
    let security = sandbox_security(pod, grants, node)?;
    let sandbox = SandboxSpec {
        name: pod.name().to_owned(),
        namespace: pod.namespace().to_owned(),
        uid: pod.uid().to_string(),
        attempt,
        hostname,
        log_directory: node.pod_log_dir(pod),
        dns: dns.config,
        port_mappings: port_mappings(pod),
        labels: sandbox_labels(pod, node),
        annotations: annotations(pod),
        cgroup_parent: cgroup::pod_path(pod, node).unwrap_or_default(),
        sysctls: sysctls(pod),
        overhead: resources::overhead(pod, node),
        resources: resources::of_sandbox(pod, node),
        security,
        runtime_handler: node.runtime_handler(pod.spec().runtime_class_name.as_deref())?,
    };
    Ok((sandbox, dns.warnings))
}

/// The annotations that request something of crib's runtime. Only the agent sets them, so that a volume in memory has a limit.
const OF_AGENT: [&str; 3] =
    [memory::ANNOTATION, cgroup::LIMITS_ANNOTATION, cgroup::CLASS_ANNOTATION];

/// The pod's annotations, without those that only the agent sets.
fn annotations(pod: &Pod) -> BTreeMap<String, String> {
    let of_author = pod.annotations().filter(|(key, _)| !OF_AGENT.contains(key));
    of_author.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The pod's labels and, if it is set, the agent's.
fn sandbox_labels(pod: &Pod, node: &Node) -> BTreeMap<String, String> {
    let mut labels = labels::of_sandbox(pod);
    if let Some(id) = &node.agent_id {
        labels.insert(labels::AGENT.to_owned(), id.clone());
    }
    labels
}

/// The ports of app containers and sidecars, including those that are not published on the node.
fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    let sidecars = pod.init_containers().iter().filter(|init| api::pod::is_sidecar(init));
    let of_container = |container: &Container| {
        // Of equal names, or of equal mappings without a name, only the first is used.
        let mut seen: Vec<(Option<String>, PortMapping)> = Vec::new();
        for port in container.ports.iter().flatten() {
            let name = port.name.clone().filter(|name| !name.is_empty());
            let mapping = port_mapping(port);
            let taken = seen.iter().any(|(other, before)| match (&name, other) {
                (Some(name), Some(other)) => name == other,
                (None, None) => mapping == *before,
                (Some(_), None) | (None, Some(_)) => false,
            });
            if !taken {
                seen.push((name, mapping));
            }
        }
        seen.into_iter().map(|(_, mapping)| mapping)
    };
    pod.containers().iter().chain(sidecars).flat_map(of_container).collect()
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

fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let security = pod.spec().security_context.as_ref();
    let sysctls = security.into_iter().flat_map(|security| security.sysctls.iter().flatten());
    sysctls.map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect()
}

fn sandbox_security(
    pod: &Pod,
    grants: &PodGrants,
    node: &Node,
) -> Result<SandboxSecurity, SandboxError> {
    let namespaces = namespaces::of_pod(pod, node, grants.user_namespace.as_ref())?;
    let own = pod.spec().security_context.clone().unwrap_or_default();
    let mut groups: Vec<i64> = own.fs_group.into_iter().collect();
    groups.extend(&grants.supplemental_groups);
    groups.extend(own.supplemental_groups.iter().flatten());
    // A runtime creates privileged containers, which may be ephemeral ones, only in such a sandbox.
    let privileged = pod
        .all_containers()
        .filter_map(|(_, container)| container.security_context.as_ref())
        .any(|security| security.privileged == Some(true));
    Ok(SandboxSecurity {
        namespaces,
        run_as_user: own.run_as_user,
        run_as_group: own.run_as_group,
        supplemental_groups: groups,
        strict_supplemental_groups: security::strict_groups(&own)?,
        privileged,
        selinux: own.se_linux_options.as_ref().map(security::selinux),
        // The sandbox's own process runs no user code, so it is always confined.
        seccomp: Some(SecurityProfile::RuntimeDefault),
        apparmor: None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[test]
    fn author_of_a_pod_sets_no_annotation_of_the_agent() {
        let given = json!({
            "crib.local/memory-volumes": "[{\"path\": \"/v\", \"size\": 1099511627776}]",
            "crib.local/pod-limits": "memory",
            "crib.local/qos-class": "BestEffort",
            "crib.local/behave": "exit-1",
            "example.com/owner": "jane",
        });
        let metadata = json!({"name": "p", "annotations": given});
        let pod = fixtures::pod(json!({"metadata": metadata, "spec": {"containers": []}}));
        let kept: Vec<String> = annotations(&pod).into_keys().collect();
        assert_eq!(kept, ["crib.local/behave", "example.com/owner"]);
    }

    #[rstest]
    #[case::init("initContainers", true)]
    #[case::app("containers", true)]
    #[case::ephemeral("ephemeralContainers", true)]
    #[case::none("none", false)]
    fn sandbox_is_privileged_if_a_container_is(#[case] list: &str, #[case] expected: bool) {
        let container = |own: &str| {
            let privileged = json!({"privileged": own == list});
            json!([{"name": own.to_lowercase(), "securityContext": privileged}])
        };
        let spec = json!({
            "initContainers": container("initContainers"),
            "containers": container("containers"),
            "ephemeralContainers": container("ephemeralContainers"),
        });
        let pod = fixtures::pod_of("u", "p", spec);
        let node = Node::new("n", "/r", "/l");
        let (sandbox, _) = sandbox(&pod, 0, &PodGrants::default(), &node).unwrap();
        assert_eq!(sandbox.security.privileged, expected);
    }
}
