//! The inside of a container: variable expansion, environment, hosts file, DNS.

use std::collections::BTreeMap;
use std::path::Path;

use agent::Features;
use agent::objects::ObjectMap;
use agent::pod_spec::dns;
use agent::pod_spec::dns::DnsWarning;
use agent::pod_spec::env;
use agent::pod_spec::env::{EnvFile, EnvFiles, EnvInputs};
use agent::pod_spec::hosts;
use agent::pod_spec::spec::{
    CgroupDriver, CgroupVersion, HandlerFeatures, Node, NodeAddress, SwapBehavior,
};
use k8s_openapi::api::core::v1::Container;
use serde_json::{Map, Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const EXPANSION: Set =
    Set::new("var-expansion", "variable expansion in commands and arguments", expansion);

fn expansion(case: &Case) -> Result<(), String> {
    let vars = &case.input["vars"];
    let ours = env::expand(read::text(&case.input["input"]), env::MOST_BYTES, |name| {
        vars.get(name).and_then(Value::as_str)
    });
    let ours = ours.map_err(|error| error.to_string())?;
    read::same("output", &json!(ours), &json!(read::text(&case.expected["output"])))
}

pub(crate) const ENVIRONMENT: Set =
    Set::new("container-env", "the environment of a container", environment);

fn environment(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let (_, container) = pod.container(read::text(&case.input["container"])).unwrap();
    let node = node(&case.input["node"]);
    let objects = objects(&case.input);
    let inputs = EnvInputs {
        node: &node,
        ips: &pods::texts(&case.input["podIPs"]),
        objects: (case.input["node"]["standalone"] != true).then_some(&objects),
        files: &env_files(case, container),
    };
    match env::environment(&pod, container, inputs) {
        Ok(ours) => {
            let count = ours.len();
            let text = |value: Vec<u8>| json!(String::from_utf8(value).unwrap());
            let ours: Map<String, Value> =
                ours.into_iter().map(|(name, value)| (name, text(value))).collect();
            assert_eq!(ours.len(), count, "names are unique");
            read::same("env", &Value::Object(ours), &case.expected["env"])
        }
        Err(error) => read::same("error", &json!(error.to_string()), &case.expected["error"]),
    }
}

/// The files that a container's variables refer to.
fn env_files(case: &Case, container: &Container) -> EnvFiles {
    let file = |(volume, path): (&str, &str)| {
        let root = case.input["volumes"].get(volume)?["hostPath"].as_str()?;
        let text = case.input["volumeFiles"][volume][path].as_str();
        let file = EnvFile { path: Path::new(root).join(path), text: text.map(str::to_owned) };
        Some(((volume.to_owned(), path.to_owned()), file))
    };
    env::files(container).filter_map(file).collect()
}

/// The API objects of a case.
pub(crate) fn objects(input: &Value) -> ObjectMap {
    let mut objects = ObjectMap::default();
    for object in read::list(&input["configMaps"]) {
        objects.insert_config_map(serde_json::from_value(object.clone()).unwrap());
    }
    for object in read::list(&input["secrets"]) {
        objects.insert_secret(serde_json::from_value(object.clone()).unwrap());
    }
    for service in read::list(&input["services"]) {
        let object = json!({
            "metadata": {"namespace": service["namespace"], "name": service["name"]},
            "spec": {"clusterIP": service["clusterIP"], "ports": service["ports"]},
        });
        objects.insert_service(serde_json::from_value(object).unwrap());
    }
    objects
}

/// Warnings about a pod's name resolution as events.
pub(crate) fn events(warnings: &[DnsWarning]) -> Value {
    let event = |warning: &DnsWarning| {
        let object = if warning.of_node { "Node" } else { "Pod" };
        json!({"object": object, "type": "Warning", "reason": warning.reason, "message": warning.message})
    };
    warnings.iter().map(event).collect()
}

pub(crate) const HOSTS: Set = Set::new("hosts-file", "a container's hosts file", hosts_file);

fn hosts_file(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let domain = read::text(&case.input["clusterDomain"]);
    let ips = pods::texts(&case.input["podIPs"]);
    let (name, pod_domain) = hosts::hostname(&pod, domain, Features::default());
    let mut ours = json!({"hostname": name});
    if let Some(domain) = pod_domain {
        ours["domain"] = json!(domain);
    }
    // For a container without mounts, the file exists exactly if there are addresses.
    let mount = agent::pod_spec::spec::mounts_hosts_file(&pod, &Default::default(), &ips);
    ours["mount"] = json!(mount);
    if mount {
        let node_hosts = read::text(&case.input["nodeHostsFile"]);
        ours["content"] =
            json!(hosts::hosts_file(&pod, &ips, domain, node_hosts, Features::default()));
    }
    read::same("hosts", &ours, &case.expected)
}

pub(crate) const DNS: Set = Set::new("pod-dns", "a pod's DNS configuration", pod_dns);

fn pod_dns(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
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
            read::same("dns", &json!(words), &expected)?;
            let theirs = json!(read::list(&case.expected["events"]));
            read::same("events", &events(&ours.warnings), &theirs)
        }
        Err(error) => read::same("error", &json!(error.to_string()), &case.expected["error"]),
    }
}

/// The node of a case.
pub(crate) fn node(facts: &Value) -> Node {
    let mut node = Node::new(
        read::text(&facts["name"]),
        read::text(&facts["rootDir"]),
        read::text(&facts["podLogsDir"]),
    );
    node.cluster_dns = pods::texts(&facts["clusterDNS"]);
    node.cluster_domain = read::text(&facts["clusterDomain"]).to_owned();
    node.resolv_conf = facts.get("resolvConf").map(|text| read::text(text).to_owned());
    node.ips = pods::texts(&facts["nodeIPs"]);
    let addresses = read::list(&facts["addresses"]).iter();
    node.addresses = addresses
        .map(|address| NodeAddress {
            kind: read::text(&address["type"]).to_owned(),
            address: read::text(&address["address"]).to_owned(),
        })
        .collect();
    let pairs = |value: &Value| -> BTreeMap<String, String> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), read::text(value).to_owned()))
            .collect()
    };
    node.allocatable = pairs(&facts["allocatable"]);
    node.runtime_classes = Some(pairs(&facts["runtimeClasses"]));
    node.seccomp_root = read::text(&facts["seccompProfileRoot"]).into();
    node.seccomp_default = facts["seccompDefault"] == true;
    node.memory_capacity = facts["memoryCapacity"].as_i64().unwrap_or_default();
    node.cpu_quota = facts["cpuCFSQuota"] == true;
    node.cpu_quota_period = facts["cpuCFSQuotaPeriodMicros"].as_i64().unwrap_or(100_000);
    node.cgroup_driver = match read::text(&facts["cgroupDriver"]) {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    };
    node.cgroup_root = read::text(&facts["cgroupRoot"]).to_owned();
    node.cgroups_per_qos = facts["cgroupsPerQOS"] == true;
    node.cgroup_version =
        if facts["cgroupVersion"] == 1 { CgroupVersion::V1 } else { CgroupVersion::V2 };
    node.single_process_oom_kill = facts["singleProcessOOMKill"] == true;
    node.hugepage_sizes = pods::texts(&facts["hugePageSizes"]);
    node.swap_capacity = facts["swapCapacity"].as_i64().unwrap_or_default();
    node.swap_controller = facts["swapControllerAvailable"] == true;
    node.swap_behavior = match read::text(&facts["memorySwapBehavior"]) {
        "LimitedSwap" => SwapBehavior::LimitedSwap,
        _ => SwapBehavior::NoSwap,
    };
    node.runtime_handlers = facts["runtimeHandlers"].as_array().map(|handlers| {
        let handler = |handler: &Value| {
            let features = HandlerFeatures {
                recursive_read_only_mounts: handler["recursiveReadOnlyMounts"] == true,
                user_namespaces: handler["userNamespaces"] == true,
            };
            (read::text(&handler["name"]).to_owned(), features)
        };
        handlers.iter().map(handler).collect()
    });
    node.container_stop_signals = facts["featureGates"]["ContainerStopSignals"] == true;
    node
}
