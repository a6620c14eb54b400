//! Flags of `crib agent` for the node: its address, its DNS, and the pods that it admits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use agent::local_node::allocatable::cpus;
use agent::local_node::kubelet_config::{KubeletConfiguration, count};
use agent::local_node::node_address;
use agent::{Config, SwapBehavior};
use clap::Args;
use crib_base::node::with_own_labels;
use k8s_openapi::api::core::v1::Taint;

use super::pairs;

/// The kubelet's default of maxPods.
const MAX_PODS: u32 = 110;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeArgs {
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// IP address of this node, or one per IP family, which pods see as status.hostIP [default: the local address that the node
    /// name resolves to, or else the source address of the default route]
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) node_ip: Vec<IpAddr>,
    /// DNS servers for pods with dnsPolicy ClusterFirst [default: none; these pods use the node's DNS servers]
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// Resolver configuration that pods inherit, or "" for none [default: /etc/resolv.conf]
    #[arg(long, value_name = "FILE")]
    resolv_conf: Option<PathBuf>,
    /// Maximum number of pods on the node [default: no limit; 110 with --adopt-node or --kubeconfig]
    #[arg(long, value_name = "N")]
    max_pods: Option<u32>,
    /// Labels of the node, matched by nodeSelector and node affinity [default: the labels that the kubelet sets, with
    /// --adopt-node or --kubeconfig; otherwise none, and every selector matches]
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pairs::pair)]
    pub(crate) node_labels: Vec<(String, String)>,
    /// Taints of the node, which pods must tolerate
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', value_parser = pairs::taint)]
    register_with_taints: Vec<Taint>,
    /// Unsafe sysctls that pods may set, in addition to the safe ones; a trailing * is a wildcard, as in kernel.msg*
    #[arg(long, value_name = "SYSCTL", value_delimiter = ',')]
    allowed_unsafe_sysctls: Vec<String>,
    /// Resources reserved for the system, which pods cannot request: cpu, memory, ephemeral-storage, pid
    #[arg(long, value_name = "RESOURCE=QUANTITY", value_delimiter = ',', value_parser = pairs::reservation)]
    system_reserved: Vec<(String, String)>,
    /// Resources reserved for the runtime and the agent, in the format of --system-reserved
    #[arg(long, value_name = "RESOURCE=QUANTITY", value_delimiter = ',', value_parser = pairs::reservation)]
    kube_reserved: Vec<(String, String)>,
}

impl NodeArgs {
    /// Applies the flags, or else the file. `config` must contain the node's name. `joins`: the agent joins a cluster.
    pub(super) fn apply(
        &self,
        file: &KubeletConfiguration,
        joins: bool,
        config: &mut Config,
    ) -> Result<(), String> {
        for address in &self.node_ip {
            node_address::check(*address).map_err(|error| format!("--node-ip: {error}"))?;
        }
        config.node_ips = match self.node_ip.as_slice() {
            [] => vec![node_address::of_node(&config.node_name).to_string()],
            [one] => vec![one.to_string()],
            [one, two] if one.is_ipv4() != two.is_ipv4() => vec![one.to_string(), two.to_string()],
            _ => return Err("--node-ip: give one address, or one of each family".to_owned()),
        };
        let servers = self.cluster_dns.iter().map(IpAddr::to_string).collect();
        config.cluster_dns = given(servers).or(file.cluster_dns.clone()).unwrap_or_default();
        if let Some(domain) = self.cluster_domain.clone().or(file.cluster_domain.clone()) {
            config.cluster_domain = domain;
        }
        let resolv_conf = file.resolv_conf.as_ref().map(PathBuf::from);
        if let Some(path) = self.resolv_conf.clone().or(resolv_conf) {
            config.resolv_conf = Some(path).filter(|path| !path.as_os_str().is_empty());
        }
        if let Some(swap) = &file.memory_swap {
            config.swap_behavior = match swap.swap_behavior.as_deref() {
                Some("LimitedSwap") => SwapBehavior::LimitedSwap,
                Some(_) | None => SwapBehavior::NoSwap,
            };
        }
        let rules = &mut config.admission;
        let as_kubelet = config.adopt_node || joins;
        let of_kubelet = as_kubelet.then_some(MAX_PODS);
        let most = self.max_pods.or(count(file.max_pods)).or(of_kubelet);
        let per_core = count(file.pods_per_core).filter(|per_core: &u32| *per_core > 0);
        let by_cores = per_core.map(|per_core| {
            let cores = u32::try_from(agent::online_cpus()).unwrap_or(u32::MAX);
            per_core.saturating_mul(cores)
        });
        rules.max_pods = most.into_iter().chain(by_cores).min();
        let labels = given(self.node_labels.clone()).map(|labels| pairs::map(&labels));
        let of_kubelet = as_kubelet.then(BTreeMap::new);
        rules.node_labels =
            labels.or(of_kubelet).map(|labels| with_own_labels(&config.node_name, labels));
        rules.taints = given(self.register_with_taints.clone())
            .or(file.register_with_taints.clone())
            .unwrap_or_default();
        rules.allowed_unsafe_sysctls = given(self.allowed_unsafe_sysctls.clone())
            .or(file.allowed_unsafe_sysctls.clone())
            .unwrap_or_default();
        rules.system_reserved =
            reserved(&self.system_reserved, file.system_reserved.as_ref(), "systemReserved")?;
        rules.kube_reserved =
            reserved(&self.kube_reserved, file.kube_reserved.as_ref(), "kubeReserved")?;
        // reservedSystemCPUs replaces the reserved amounts of CPU, as in a kubelet.
        if let Some(cpus) = file.reserved_system_cpus.as_deref().and_then(cpus) {
            rules.kube_reserved.remove("cpu");
            rules.system_reserved.insert("cpu".to_owned(), cpus.to_string());
        }
        Ok(())
    }
}

fn given<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn reserved(
    flag: &[(String, String)],
    file: Option<&BTreeMap<String, String>>,
    field: &str,
) -> Result<BTreeMap<String, String>, String> {
    if !flag.is_empty() {
        return Ok(pairs::map(flag));
    }
    let pairs = file.into_iter().flatten();
    let checked = pairs.map(|(name, amount)| pairs::reservation(&format!("{name}={amount}")));
    checked
        .collect::<Result<_, String>>()
        .map_err(|problem| format!("--config: {field}: {problem}"))
}
