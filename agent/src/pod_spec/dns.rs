//! The resolv.conf of a pod.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/network/dns/dns.go.

use std::io;
use std::path::Path;

use api::pod::Pod;
use file_tree::named_text;

use crate::node::Node;

/// The resolv.conf of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Name servers, at most 3.
    pub servers: Vec<String>,
    /// Search domains, at most 32.
    pub searches: Vec<String>,
    /// Options such as `ndots:5`.
    pub options: Vec<String>,
}

/// The largest resolv.conf of a node, in bytes (Kubernetes: `maxResolvConfLength`).
const MAX_RESOLV_CONF: u64 = 10 << 20;
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
const MAX_SEARCH_LENGTH: usize = 253;

/// A warning about a pod's DNS configuration: the event that a kubelet records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWarning {
    /// Whether it is about the node instead of the pod.
    pub of_node: bool,
    /// The event's reason.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
}

impl DnsWarning {
    fn forming(message: String) -> Self {
        Self { of_node: false, reason: "DNSConfigForming", message }
    }
}

/// A pod's DNS configuration, and warnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDns {
    /// The configuration of the sandbox.
    pub config: DnsConfig,
    /// Warnings for the pod's author.
    pub warnings: Vec<DnsWarning>,
}

/// Why a pod's DNS configuration cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    /// A `nameserver` line of the node's resolv.conf has no address.
    #[error("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")]
    NoServer,
}

enum Source {
    Cluster,
    Node,
    Nothing,
}

/// The DNS configuration of a pod on this node.
pub fn pod_dns(pod: &Pod, node: &Node) -> Result<PodDns, DnsError> {
    let mut warnings = Vec::new();
    // An invalid resolv.conf is an error even for pods that do not use it, as in the kubelet.
    if let Some(text) = &node.resolv_conf {
        parse_resolv_conf(text)?;
    }
    let mut dns = match source(pod, node, &mut warnings) {
        Source::Nothing => DnsConfig::default(),
        Source::Node => of_node(node)?,
        Source::Cluster => of_cluster(pod, node)?,
    };
    if let Some(own) = &pod.spec().dns_config {
        let further = |list: &mut Vec<String>, more: &Option<Vec<String>>| {
            list.extend(more.iter().flatten().cloned());
            deduplicate(list);
        };
        further(&mut dns.servers, &own.nameservers);
        further(&mut dns.searches, &own.searches);
        merge_options(
            &mut dns.options,
            own.options.iter().flatten().map(|option| {
                (
                    option.name.as_deref().unwrap_or_default(),
                    option.value.as_deref().unwrap_or_default(),
                )
            }),
        );
    }
    limit(&mut dns, &mut warnings);
    Ok(PodDns { config: dns, warnings })
}

/// Whether the policy of a pod chooses the cluster's name servers.
#[must_use]
pub fn uses_cluster_dns(pod: &Pod) -> bool {
    match policy(pod) {
        "None" | "Default" => false,
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !pod.host_network(),
        // Unknown policies are treated as ClusterFirst.
        _ => true,
    }
}

fn policy(pod: &Pod) -> &str {
    pod.spec().dns_policy.as_deref().unwrap_or("ClusterFirst")
}

fn source(pod: &Pod, node: &Node, warnings: &mut Vec<DnsWarning>) -> Source {
    if policy(pod) == "None" {
        return Source::Nothing;
    }
    if !uses_cluster_dns(pod) {
        return Source::Node;
    }
    if pod.host_network() && !node.host_reaches_cluster {
        return Source::Node;
    }
    if node.cluster_dns.is_empty() {
        if node.warn_of_missing_cluster_dns {
            warnings.extend(missing_cluster_dns(pod));
        }
        return Source::Node;
    }
    Source::Cluster
}

fn missing_cluster_dns(pod: &Pod) -> [DnsWarning; 2] {
    let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                   Falling back to \"Default\" policy.";
    let warning = |of_node, message| DnsWarning { of_node, reason: "MissingClusterDNS", message };
    [
        warning(true, message.to_owned()),
        warning(false, format!("pod: {:?}. {message}", pod.long_name())),
    ]
}

/// The node's own configuration; without a resolv.conf, loopback name servers, so that no name resolves.
fn of_node(node: &Node) -> Result<DnsConfig, DnsError> {
    match &node.resolv_conf {
        Some(text) => parse_resolv_conf(text),
        None => {
            let loopback = |ip: &String| if ip.contains(':') { "::1" } else { "127.0.0.1" };
            let mut servers: Vec<String> =
                node.ips.iter().map(|ip| loopback(ip).to_owned()).collect();
            if servers.is_empty() {
                servers.push("127.0.0.1".to_owned());
            }
            Ok(DnsConfig { servers, searches: vec![".".to_owned()], options: Vec::new() })
        }
    }
}

fn of_cluster(pod: &Pod, node: &Node) -> Result<DnsConfig, DnsError> {
    let host = match &node.resolv_conf {
        Some(text) => parse_resolv_conf(text)?,
        None => DnsConfig::default(),
    };
    let domain = &node.cluster_domain;
    let mut searches = host.searches;
    if !domain.is_empty() {
        let cluster =
            [format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.clone()];
        searches.splice(0..0, cluster);
        deduplicate(&mut searches);
    }
    Ok(DnsConfig {
        servers: node.cluster_dns.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
    })
}

/// Reads the node's resolv.conf.
pub(crate) fn read_resolv_conf(path: &Path) -> io::Result<String> {
    named_text::read_text_nonblocking(path, MAX_RESOLV_CONF)
}

/// Parses a resolv.conf. The last `search` line wins.
pub fn parse_resolv_conf(text: &str) -> Result<DnsConfig, DnsError> {
    let mut dns = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(keyword) = words.next() else {
            continue;
        };
        match keyword {
            "nameserver" => dns.servers.push(words.next().ok_or(DnsError::NoServer)?.to_owned()),
            "search" => {
                // The root domain adds nothing to the search list.
                dns.searches = words
                    .filter(|word| *word != ".")
                    .map(|word| word.strip_suffix('.').unwrap_or(word).to_owned())
                    .collect();
            }
            "options" => merge_options(
                &mut dns.options,
                words.map(|word| word.split_once(':').unwrap_or((word, ""))),
            ),
            _ => {}
        }
    }
    Ok(dns)
}

/// Adds options, replacing those with the same name.
fn merge_options<'a>(options: &mut Vec<String>, more: impl Iterator<Item = (&'a str, &'a str)>) {
    for (name, value) in more {
        options.retain(|option| option.split(':').next() != Some(name));
        options.push(if value.is_empty() { name.to_owned() } else { format!("{name}:{value}") });
    }
}

fn deduplicate(list: &mut Vec<String>) {
    let mut seen = compact::Set::new();
    list.retain(|item| seen.insert(item.clone()));
}

/// How the node's resolv.conf exceeds the limits of pods, with a kubelet's message. A cluster adds three domains.
pub(crate) fn limit_problem(path: &Path, text: &str, in_cluster: bool) -> Option<String> {
    let path = path.display();
    let searches = match parse_resolv_conf(text) {
        Ok(dns) => dns.searches,
        Err(error) => return Some(error.to_string()),
    };
    let most = if in_cluster { MAX_SEARCHES - 3 } else { MAX_SEARCHES };
    if searches.len() > most {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
        ));
    }
    if searches.iter().any(|search| search.len() > MAX_SEARCH_LENGTH) {
        return Some(format!(
            "Resolv.conf file \"{path}\" contains a search path which length is more than allowed {MAX_SEARCH_LENGTH} chars!"
        ));
    }
    (searches.join(" ").len() > MAX_SEARCH_CHARACTERS).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {MAX_SEARCH_CHARACTERS} chars!"
        )
    })
}

/// Removes entries beyond the resolver's limits, with a warning.
fn limit(dns: &mut DnsConfig, warnings: &mut Vec<DnsWarning>) {
    if dns.servers.len() > MAX_SERVERS {
        dns.servers.truncate(MAX_SERVERS);
        warnings.push(DnsWarning::forming(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            dns.servers.join(" ")
        )));
    }
    let mut exceeded = false;
    if dns.searches.len() > MAX_SEARCHES {
        dns.searches.truncate(MAX_SEARCHES);
        exceeded = true;
    }
    // Some resolvers abort if a domain is longer.
    let before = dns.searches.len();
    dns.searches.retain(|search| search.len() <= MAX_SEARCH_LENGTH);
    exceeded |= dns.searches.len() < before;
    while dns.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        dns.searches.pop();
        exceeded = true;
    }
    if exceeded {
        warnings.push(DnsWarning::forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            dns.searches.join(" ")
        )));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none("nameserver 192.0.2.1\n".to_owned(), None)]
    #[case::as_many_as_a_cluster_allows(search(29, 3), None)]
    #[case::too_many(
        search(30, 3),
        Some("Resolv.conf file '/r' contains search line consisting of more than 29 domains!")
    )]
    #[case::too_long_a_path(
        search(1, 254),
        Some(
            "Resolv.conf file \"/r\" contains a search path which length is more than allowed 253 chars!"
        )
    )]
    #[case::too_long_a_line(
        search(20, 200),
        Some(
            "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!"
        )
    )]
    fn resolv_conf_beyond_the_limits_is_reported(
        #[case] text: String,
        #[case] problem: Option<&str>,
    ) {
        assert_eq!(limit_problem(Path::new("/r"), &text, true).as_deref(), problem);
    }

    #[test]
    fn node_without_a_cluster_has_all_domains() {
        assert_eq!(limit_problem(Path::new("/r"), &search(32, 3), false), None);
        assert!(limit_problem(Path::new("/r"), &search(33, 3), false).is_some());
    }

    /// A resolv.conf with this many search domains of this length.
    fn search(count: usize, length: usize) -> String {
        format!("search {}\n", vec!["a".repeat(length); count].join(" "))
    }
}
