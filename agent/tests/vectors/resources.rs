//! cpu-conversions and qos-cgroup: the conversion of resources to kernel settings.

use agent::pod_spec::spec::{cgroup, cpu, qos};
use api::qos::{QosClass, qos_class};
use serde_json::{Map, Value, json};

use crate::container_environment;
use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const CPU: Set =
    Set::new("cpu-conversions", "CPU quantities converted to the kernel's units", cpu_conversion);

fn cpu_conversion(case: &Case) -> Result<(), String> {
    let input = |key: &str| case.input[key].as_i64();
    let ours = match (input("milliCPU"), input("weight"), input("quotaMicros")) {
        (Some(milli), _, _) => {
            let shares = cpu::shares(milli);
            json!({
                "shares": shares,
                "quotaMicros": cpu::quota(milli, input("periodMicros").unwrap()),
                "weight": cpu::weight(shares),
                "milliCPUFromShares": cpu::milli_of_shares(shares),
            })
        }
        (None, Some(weight), _) => json!({"shares": cpu::shares_of_weight(weight)}),
        (None, None, quota) => {
            let period = input("periodMicros").unwrap();
            json!({"milliCPU": cpu::milli_of_quota(quota.unwrap(), period)})
        }
    };
    read::same("conversion", &ours, &case.expected)
}

pub(crate) const QOS: Set =
    Set::new("qos-cgroup", "QoS classes, OOM scores, and the cgroups of pods", qos_cgroup);

fn qos_cgroup(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let node = container_environment::node(&case.input["node"]);
    let containers = pod.init_containers().iter().chain(pod.containers());
    let scores: Map<String, Value> = containers
        .map(|container| {
            let score = qos::oom_score(&pod, container, node.memory_capacity);
            (container.name.clone(), json!(score))
        })
        .collect();
    let values = cgroup::pod_cgroup(&pod, &node);
    let mut own =
        json!({"cpuShares": values.cpu_shares, "cpuWeight": cpu::weight(values.cpu_shares)});
    if let Some((quota, period)) = values.cpu_quota {
        own["cpuQuota"] = json!(quota);
        own["cpuPeriod"] = json!(period);
    }
    if let Some(memory) = values.memory {
        own["memory"] = json!(memory);
    }
    if !values.hugepages.is_empty() {
        own["hugePageLimitByPageSizeBytes"] = json!(values.hugepages);
    }
    let mut ours = json!({
        "qosClass": qos_class(&pod).as_str(),
        "oomScoreAdj": scores,
        "cgroupParent": cgroup::pod_path(&pod, &node).unwrap_or_default(),
        "podCgroup": own,
    });
    for (name, class) in [
        ("guaranteed", QosClass::Guaranteed),
        ("burstable", QosClass::Burstable),
        ("besteffort", QosClass::BestEffort),
    ] {
        if let Some(path) = cgroup::class_path(&node, class) {
            ours["qosCgroups"][name] = json!(path);
        }
    }
    read::same("qos", &ours, &case.expected)
}
