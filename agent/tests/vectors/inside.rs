//! The inside of a container: variable expansion, environment, hosts file, DNS.

use std::collections::BTreeMap;

use agent::spec::Node;
use agent::{dns, env, hosts};
use serde_json::{Map, Value, json};

use crate::support::{self, Case};

#[test]
fn variable_expansion_matches_kubernetes() {
    support::check("var-expansion", |case| {
        let vars = &case.input["vars"];
        let ours = env::expand(support::text(&case.input["input"]), |name| {
            vars.get(name).and_then(Value::as_str)
        });
        support::same(
            "output",
            &json!(ours),
            &json!(support::text(&case.expected["output"])),
        )
    });
}

#[test]
fn container_environment_matches_kubernetes() {
    // ConfigMaps, Secrets and services need an API server, which crib does not have.
    let needs_server = |case: &Case| {
        let pod = support::pod(&case.input["pod"]);
        let (_, container) = pod
            .container(support::text(&case.input["container"]))
            .unwrap();
        let sources = container
            .env
            .iter()
            .flatten()
            .filter_map(|variable| variable.value_from.as_ref());
        let by_key = sources.into_iter().any(|source| {
            source.config_map_key_ref.is_some()
                || source.secret_key_ref.is_some()
                || source.file_key_ref.is_some()
        });
        by_key
            || container
                .env_from
                .as_ref()
                .is_some_and(|from| !from.is_empty())
            || !support::list(&case.input["services"]).is_empty()
    };
    support::check_within(
        "container-env",
        |case| !needs_server(case),
        |case| {
            let pod = support::pod(&case.input["pod"]);
            let (_, container) = pod
                .container(support::text(&case.input["container"]))
                .unwrap();
            let node = node(&case.input["node"]);
            match env::environment(
                &pod,
                container,
                &support::texts(&case.input["podIPs"]),
                &node,
            ) {
                Ok(ours) => {
                    let ours: Map<String, Value> = ours
                        .into_iter()
                        .map(|(name, value)| (name, json!(value)))
                        .collect();
                    support::same("env", &Value::Object(ours), &case.expected["env"])
                }
                Err(error) if case.expected.get("error").is_some() => {
                    let _ = error;
                    Ok(())
                }
                Err(error) => Err(format!("{error}; expected {}", case.expected)),
            }
        },
    );
}

#[test]
fn hosts_file_matches_kubernetes() {
    support::check("hosts-file", |case| {
        let pod = support::pod(&case.input["pod"]);
        let domain = support::text(&case.input["clusterDomain"]);
        let ips = support::texts(&case.input["podIPs"]);
        let (name, pod_domain) = hosts::hostname(&pod, domain);
        let mut ours = json!({"hostname": name});
        if let Some(domain) = pod_domain {
            ours["domain"] = json!(domain);
        }
        // For a container without mounts, the file exists exactly if there are addresses.
        let mount = agent::spec::mounts_hosts_file(&pod, &Default::default(), &ips);
        ours["mount"] = json!(mount);
        if mount {
            let node_hosts = support::text(&case.input["nodeHostsFile"]);
            ours["content"] = json!(hosts::hosts_file(&pod, &ips, domain, node_hosts));
        }
        support::same("hosts", &ours, &case.expected)
    });
}

#[test]
fn pod_dns_matches_kubernetes() {
    support::check("pod-dns", |case| {
        let pod = support::pod(&case.input["pod"]);
        match dns::pod_dns(&pod, &node(&case.input["node"])) {
            Ok(ours) => {
                let mut options = ours.config.options;
                options.sort();
                let mut words: BTreeMap<&str, Value> = BTreeMap::new();
                words.insert("options", json!(options));
                words.insert("searches", json!(ours.config.searches));
                words.insert("servers", json!(ours.config.servers));
                let mut expected = json!({"options": [], "searches": [], "servers": []});
                for (key, value) in case.expected["dns"].as_object().into_iter().flatten() {
                    expected[key] = value.clone();
                }
                support::same("dns", &json!(words), &expected)?;
                let events = support::list(&case.expected["events"]).iter();
                let theirs: Vec<&str> = events
                    .filter(|e| e["object"] == "Pod")
                    .map(|e| support::text(&e["message"]))
                    .collect();
                support::same("warnings", &json!(ours.warnings), &json!(theirs))
            }
            Err(error) => {
                support::same("error", &json!(error.to_string()), &case.expected["error"])
            }
        }
    });
}

/// The node of a case.
pub(crate) fn node(facts: &Value) -> Node {
    let mut node = Node::new(
        support::text(&facts["name"]),
        support::text(&facts["rootDir"]),
        support::text(&facts["podLogsDir"]),
    );
    node.cluster_dns = support::texts(&facts["clusterDNS"]);
    node.cluster_domain = support::text(&facts["clusterDomain"]).to_owned();
    node.resolv_conf = facts
        .get("resolvConf")
        .map(|text| support::text(text).to_owned());
    node.ips = support::texts(&facts["nodeIPs"]);
    if node.ips.is_empty() {
        // Without configured addresses, the node's internal ones are used.
        let addresses = support::list(&facts["addresses"]).iter();
        let internal = addresses.filter(|address| address["type"] == "InternalIP");
        node.ips = internal
            .map(|address| support::text(&address["address"]).to_owned())
            .collect();
    }
    let pairs = |value: &Value| -> BTreeMap<String, String> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), support::text(value).to_owned()))
            .collect()
    };
    node.allocatable = pairs(&facts["allocatable"]);
    node.runtime_classes = pairs(&facts["runtimeClasses"]);
    node.seccomp_root = support::text(&facts["seccompProfileRoot"]).into();
    node.seccomp_default = facts["seccompDefault"] == true;
    node.memory_capacity = facts["memoryCapacity"].as_i64().unwrap_or_default();
    node.cpu_quota_period =
        (facts["cpuCFSQuota"] == true).then(|| facts["cpuCFSQuotaPeriodMicros"].as_i64().unwrap());
    node
}
