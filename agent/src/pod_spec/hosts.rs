//! The pod's host name and hosts file.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go (GeneratePodHostNameAndDomain, managedHostsFileContent).

use std::fmt::Write as _;
use std::net::IpAddr;

use api::pod::Pod;

use crate::node::Features;

/// The maximum length of a host name for the kernel and DNS labels.
const MAX_HOSTNAME: usize = 63;

/// Returns the pod's host name, and its domain if it has one.
///
/// `spec.hostnameOverride` overrides `spec.hostname`, which overrides the pod's name.
pub fn hostname(pod: &Pod, cluster_domain: &str, features: Features) -> (String, Option<String>) {
    let spec = pod.spec();
    let name = spec.hostname_override.as_deref().filter(|_| features.hostname_override);
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        return (cut(name), None);
    }
    let name =
        spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or_else(|| pod.name());
    let domain = spec
        .subdomain
        .as_deref()
        .filter(|subdomain| !subdomain.is_empty())
        .map(|subdomain| format!("{subdomain}.{}.svc.{cluster_domain}", pod.namespace()));
    (cut(name), domain)
}

/// The sandbox's host name, which includes the domain with `setHostnameAsFQDN`.
pub fn sandbox_hostname(pod: &Pod, cluster_domain: &str, features: Features) -> String {
    match hostname(pod, cluster_domain, features) {
        (name, Some(domain)) if pod.spec().set_hostname_as_fqdn == Some(true) => {
            format!("{name}.{domain}")
        }
        (name, _) => name,
    }
}

fn cut(name: &str) -> String {
    if name.len() <= MAX_HOSTNAME {
        return name.to_owned();
    }
    let end = (0..=MAX_HOSTNAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
    name[..end].trim_end_matches(['-', '.']).to_owned()
}

/// The content of the pod's hosts file. `node_hosts` is the node's file, for pods with host network.
pub fn hosts_file(
    pod: &Pod,
    ips: &[String],
    cluster_domain: &str,
    node_hosts: &str,
    features: Features,
) -> String {
    let mut text = if pod.host_network() {
        format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}")
    } else {
        let mut text = String::from(
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        let (name, domain) = hostname(pod, cluster_domain, features);
        for ip in ips {
            let _ = match &domain {
                Some(domain) => writeln!(text, "{ip}\t{name}.{domain}\t{name}"),
                None => writeln!(text, "{ip}\t{name}"),
            };
        }
        text
    };
    let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
            let _ = writeln!(text, "{}\t{names}", alias.ip);
        }
    }
    text
}

/// A hosts file with names of the host, which a kubelet does not add. The pod's entries come first: they take precedence.
pub fn with_host_names(mut text: String, address: IpAddr, names: &[String]) -> String {
    let _ = writeln!(text, "\n# Entries added by crib.\n{address}\t{}", names.join("\t"));
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[rstest]
    #[case(true, "other", None)]
    #[case(false, "name", Some("sub.default.svc.local"))]
    fn hostname_override_needs_its_gate(
        #[case] is_on: bool,
        #[case] name: &str,
        #[case] domain: Option<&str>,
    ) {
        let spec = json!({
            "hostname": "name",
            "subdomain": "sub",
            "hostnameOverride": "other",
            "containers": [{"name": "app", "image": "i"}],
        });
        let features = Features { hostname_override: is_on, ..Features::default() };
        let seen = hostname(&fixtures::pod_of("u", "p", spec), "local", features);
        assert_eq!(seen, (name.to_owned(), domain.map(str::to_owned)));
    }
}
