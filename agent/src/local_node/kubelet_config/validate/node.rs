//! ◆ Rules about the node: reserved resources, taints, managers, shutdown. Pure.

use api::quantity::Quantity;
use compact::Set;

use super::Findings;
use crate::local_node::allocatable::cpus;
use crate::local_node::kubelet_config::{GoDuration, KubeletConfiguration, reserved_memory};

const ENFORCEMENTS: [&str; 6] = [
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
];
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn find(findings: &mut Findings<'_>) {
    cgroups(findings);
    reservations(findings);
    taints(findings);
    managers(findings);
    shutdown(findings);
    enforcement(findings);
}

fn cgroups(findings: &mut Findings<'_>) {
    let c = findings.config;
    if c.system_cgroups.is_some() && c.cgroup_root.is_none() {
        findings.add("systemCgroups", "it needs cgroupRoot");
    }
    findings.one_of("cgroupDriver", c.cgroup_driver.as_ref(), &["cgroupfs", "systemd"]);
    let usual = GoDuration::of_nanos(100_000_000);
    let period = c.cpu_cfs_quota_period.unwrap_or_default();
    let range = GoDuration::of_nanos(1_000_000)..=GoDuration::of_seconds(1);
    findings.needs("cpuCFSQuotaPeriod", period != usual, "CustomCPUCFSQuotaPeriod");
    if !range.contains(&period) {
        findings.add("cpuCFSQuotaPeriod", format!("{period} is not between 1ms and 1s"));
    }
    findings.one_of(
        "hairpinMode",
        c.hairpin_mode.as_ref(),
        &["hairpin-veth", "promiscuous-bridge", "none"],
    );
    if let Some(ids) = c.user_namespaces.as_ref().and_then(|it| it.ids_per_pod) {
        let field = "userNamespaces.idsPerPod";
        if ids % 65_536 != 0 {
            findings.add(field, format!("{ids} is not a multiple of 65536"));
        }
        findings.within(field, Some(ids), 65_536, u32::MAX.into());
    }
}

fn reservations(findings: &mut Findings<'_>) {
    let c = findings.config;
    for (field, reserved) in
        [("systemReserved", &c.system_reserved), ("kubeReserved", &c.kube_reserved)]
    {
        for (resource, amount) in reserved.iter().flatten() {
            if !RESERVABLE.contains(&resource.as_str()) {
                let expected = RESERVABLE.join(", ");
                findings.add(field, format!("cannot reserve {resource:?}: expected {expected}"));
            }
            match Quantity::parse(amount) {
                Ok(amount) if !amount.is_negative() => {}
                Ok(_) => findings.add(field, format!("{resource}: {amount} is less than zero")),
                Err(error) => findings.add(field, format!("{resource}: {error}")),
            }
        }
    }
    if let Some(list) = c.reserved_system_cpus.as_deref() {
        if c.system_reserved_cgroup.is_some() || c.kube_reserved_cgroup.is_some() {
            let problem = "cannot be set together with systemReservedCgroup or kubeReservedCgroup";
            findings.add("reservedSystemCPUs", problem);
        }
        if cpus(list).is_none() {
            let problem = format!("{list:?} is not a list of processors such as 0-3,7");
            findings.add("reservedSystemCPUs", problem);
        }
    }
    let mut seen = Set::new();
    for reservation in c.reserved_memory.iter().flatten() {
        let node = reservation.numa_node.unwrap_or_default();
        for (resource, amount) in reservation.limits.iter().flatten() {
            let mut add = |problem: &str| {
                findings.add("reservedMemory", format!("NUMA node {node}: {resource}: {problem}"));
            };
            if resource != "memory" && !resource.starts_with("hugepages-") {
                add("expected memory or hugepages-<size>");
            }
            let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            match Quantity::parse(&amount) {
                Ok(amount) if amount.is_zero() => add("must not be zero"),
                Ok(_) => {}
                Err(error) => add(&error.to_string()),
            }
            if !seen.insert((node, resource)) {
                add("it is reserved twice");
            }
        }
    }
}

fn taints(findings: &mut Findings<'_>) {
    let c = findings.config;
    for taint in c.register_with_taints.iter().flatten() {
        let field = "registerWithTaints";
        let key = &taint.key;
        if let Some(expected) = api::manifest::qualified(key) {
            findings.add(field, format!("key {key:?}: {expected}"));
        }
        let value = taint.value.as_deref().unwrap_or_default();
        if let Some(expected) = api::manifest::label_value(value) {
            findings.add(field, format!("{key}: value {value:?}: {expected}"));
        }
        if !TAINT_EFFECTS.contains(&taint.effect.as_str()) {
            let expected = TAINT_EFFECTS.join(", ");
            findings.add(field, format!("{key}: {:?} is not one of {expected}", taint.effect));
        }
        if taint.time_added.is_some() {
            findings.add(field, format!("{key}: timeAdded cannot be set"));
        }
    }
}

fn managers(findings: &mut Findings<'_>) {
    let c = findings.config;
    findings.one_of("cpuManagerPolicy", c.cpu_manager_policy.as_ref(), &["none", "static"]);
    findings.one_of("memoryManagerPolicy", c.memory_manager_policy.as_ref(), &["None", "Static"]);
    if let Err(problem) = reserved_memory(c) {
        findings.add("qosReserved", problem);
    }
    let policies = ["none", "best-effort", "restricted", "single-numa-node"];
    findings.one_of("topologyManagerPolicy", c.topology_manager_policy.as_ref(), &policies);
    let scope = c.topology_manager_scope.as_ref();
    findings.one_of("topologyManagerScope", scope, &["container", "pod"]);
}

fn shutdown(findings: &mut Findings<'_>) {
    let KubeletConfiguration {
        shutdown_grace_period,
        shutdown_grace_period_critical_pods,
        shutdown_grace_period_by_pod_priority,
        ..
    } = findings.config;
    let zero = GoDuration::default();
    let all = shutdown_grace_period.unwrap_or_default();
    let critical = shutdown_grace_period_critical_pods.unwrap_or_default();
    let gate = "GracefulNodeShutdown";
    let of_critical = "shutdownGracePeriodCriticalPods";
    findings.needs("shutdownGracePeriod", all > zero, gate);
    findings.needs(of_critical, critical > zero, gate);
    if findings.gates.enabled(gate) {
        if critical > all {
            let problem = format!("{critical} is more than shutdownGracePeriod, {all}");
            findings.add(of_critical, problem);
        }
        for (field, period) in [("shutdownGracePeriod", all), (of_critical, critical)] {
            if period != zero && period < GoDuration::of_seconds(1) {
                findings.add(field, format!("{period} is neither 0 nor at least 1s"));
            }
        }
    }
    let by_priority =
        shutdown_grace_period_by_pod_priority.as_ref().is_some_and(|all| !all.is_empty());
    let gate = "GracefulNodeShutdownBasedOnPodPriority";
    let field = "shutdownGracePeriodByPodPriority";
    findings.needs(field, by_priority, gate);
    if by_priority && (all > zero || critical > zero) && findings.gates.enabled(gate) {
        findings.add(field, "cannot be set together with shutdownGracePeriod");
    }
}

fn enforcement(findings: &mut Findings<'_>) {
    let c = findings.config;
    let field = "enforceNodeAllocatable";
    let levels = c.enforce_node_allocatable.as_deref().unwrap_or_default();
    let has = |level: &str| levels.iter().any(|given| given == level);
    for level in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{level}-compressible");
        if has(level) && has(&compressible) {
            findings.add(field, format!("{level} and {compressible} are mutually exclusive"));
        }
    }
    let mut seen = Set::new();
    for level in levels {
        if !seen.insert(level) {
            findings.add(field, format!("{level} is given twice"));
            continue;
        }
        let cgroup = match level.as_str() {
            "pods" => None,
            "system-reserved" | "system-reserved-compressible" => {
                Some(("systemReservedCgroup", &c.system_reserved_cgroup))
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                Some(("kubeReservedCgroup", &c.kube_reserved_cgroup))
            }
            "none" => {
                if levels.len() > 1 {
                    findings.add(field, "none must be the only value");
                }
                continue;
            }
            _ => {
                let expected = ENFORCEMENTS.join(", ");
                findings.add(field, format!("{level:?} is not one of {expected}"));
                continue;
            }
        };
        if let Some((name, None)) = cgroup {
            findings.add(field, format!("{level} needs {name}"));
        }
        if c.cgroups_per_qos != Some(true) {
            findings.add(field, format!("{level} needs cgroupsPerQOS: true"));
        }
    }
}
