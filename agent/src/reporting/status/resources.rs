//! ◆ Requests and limits in statuses: the granted ones of a pod and its containers, and the ones that the kernel enforces.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go convertContainerStatusResources, convertToAPIPodLevelResourcesStatus.

use api::pod::Pod;
use api::quantity::{Format, Quantity};
use api::totals::{self, Amounts, Kind};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, PodStatus, ResourceHealth, ResourceRequirements, ResourceStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::decide::resize::actuated::{Actuated, CpuMemory, PodLimits};
use crate::managers::DeviceHealth;
use crate::node::Features;
use crate::observed::{ContainerResources, ObservedContainer};

/// The lowest `cpu.shares`; a request of at most this many thousandths is reported as granted.
const MIN_SHARES: i64 = 2;
/// The lowest CPU limit that a quota can express, in thousandths; lower ones are reported as granted.
const MIN_MILLI_CPU_LIMIT: i64 = 10;

/// The health of a container's devices from device plugins (Kubernetes 1.36, pkg/kubelet/cm/devicemanager/manager.go
/// UpdateAllocatedResourcesStatus).
pub(crate) fn device_status(devices: DeviceHealth) -> Vec<ResourceStatus> {
    let health = |(resource_id, is_healthy)| ResourceHealth {
        resource_id,
        health: Some(if is_healthy { "Healthy" } else { "Unhealthy" }.to_owned()),
        message: None,
    };
    let status = |(name, devices): (String, compact::Map<String, bool>)| ResourceStatus {
        name,
        resources: Some(devices.into_iter().map(health).collect()),
    };
    devices.into_iter().map(status).collect()
}

/// What a status shows of the health of devices; `None`: nothing.
pub(crate) fn shown_health(
    mut statuses: Vec<ResourceStatus>,
    features: Features,
) -> Option<Vec<ResourceStatus>> {
    if !features.device_health_message {
        let devices = statuses.iter_mut().filter_map(|status| status.resources.as_mut());
        devices.flatten().for_each(|device| device.message = None);
    }
    (features.device_health && !statuses.is_empty()).then_some(statuses)
}

/// Sets the pod's own resources: what it was granted, and what of that it has. A pod that does not run according to the API server
/// has what it was granted, as in a kubelet.
pub(super) fn of_pod(
    pod: &Pod,
    actuated: Option<&Actuated>,
    old: &PodStatus,
    status: &mut PodStatus,
) {
    let spec = pod.spec();
    let requests = totals::of_pod(spec, Kind::Requests);
    status.allocated_resources = filled(requests.clone());
    let phase = pod.api().status.as_ref().and_then(|status| status.phase.as_deref());
    status.resources = Some(match actuated {
        Some(actuated) if phase == Some("Running") => of_running(pod, actuated, &requests, old),
        Some(_) | None => ResourceRequirements {
            requests: filled(requests),
            limits: filled(totals::of_pod(spec, Kind::Limits)),
            claims: spec.resources.as_ref().and_then(|resources| resources.claims.clone()),
        },
    });
}

/// The actual resources of a running pod. `granted` are its requests.
///
/// A kubelet reads the values of the pod's cgroup, which are the last written ones, rounded by the kernel. No cgroup has the memory
/// request: a kubelet keeps the first one as long as the pod runs. Here it is the pod-level request of the last completed resize,
/// or the sum of the containers' granted requests.
fn of_running(
    pod: &Pod,
    actuated: &Actuated,
    granted: &Amounts,
    old: &PodStatus,
) -> ResourceRequirements {
    let PodLimits { cpu_shares, cpu_quota, cpu_period, memory } = actuated.cgroup;
    let memory_limit = memory.unwrap_or_default();
    let cgroup = ContainerResources { cpu_shares, cpu_quota, cpu_period, memory_limit };
    let resources = pod.spec().resources.clone().unwrap_or_default();
    let mut requests = resources.requests.unwrap_or_default();
    let mut limits = resources.limits.unwrap_or_default();
    let was_running = old.phase.as_deref() == Some("Running");
    let old = old.resources.as_ref().filter(|_| was_running);
    let old_requests = old.and_then(|old| old.requests.as_ref());
    let old_limits = old.and_then(|old| old.limits.as_ref());
    set_cpu(&mut requests, cpu_request(cgroup), MIN_SHARES, old_requests);
    match granted.get("memory") {
        // The sum of the containers' requests.
        Some(sum) if !requests.contains_key("memory") => {
            requests.insert("memory".to_owned(), sum.clone());
        }
        Some(_) | None => {
            let actuated_request = actuated.pod.memory_request;
            set_memory_request(&mut requests, Some(actuated_request), old_requests);
        }
    }
    set_cpu(&mut limits, cpu_limit(cgroup), MIN_MILLI_CPU_LIMIT, old_limits);
    set_memory_limit(&mut limits, memory_limit, old_limits);
    ResourceRequirements {
        requests: filled(requests),
        limits: filled(limits),
        claims: resources.claims,
    }
}

fn filled(amounts: Amounts) -> Option<Amounts> {
    (!amounts.is_empty()).then_some(amounts)
}

/// The resources of a container that exists in the runtime: those of the spec, and for a running one those that the kernel
/// enforces. A value that the runtime does not report is taken from `actuated`, or else from `old`.
pub(super) fn of_container(
    container: &Container,
    seen: &ObservedContainer,
    old: Option<&ContainerStatus>,
    actuated: Option<CpuMemory>,
) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    if !seen.state.is_running() {
        return resources;
    }
    let reported = seen.resources.unwrap_or_default();
    let old = old.and_then(|old| old.resources.as_ref());
    if let Some(limits) = &mut resources.limits {
        let old = old.and_then(|old| old.limits.as_ref());
        set_cpu(limits, cpu_limit(reported), MIN_MILLI_CPU_LIMIT, old);
        set_memory_limit(limits, reported.memory_limit, old);
    }
    if let Some(requests) = &mut resources.requests {
        let old = old.and_then(|old| old.requests.as_ref());
        set_cpu(requests, cpu_request(reported), MIN_SHARES, old);
        set_memory_request(requests, actuated.map(|actuated| actuated.memory_request), old);
    }
    resources
}

/// Keeps the previously reported amount.
fn keep(amounts: &mut Amounts, name: &str, old: Option<&Amounts>) {
    if let Some(amount) = old.and_then(|old| old.get(name)) {
        amounts.insert(name.to_owned(), amount.clone());
    }
}

/// Sets the memory limit that the kernel enforces; 0: unknown.
fn set_memory_limit(limits: &mut Amounts, bytes: i64, old: Option<&Amounts>) {
    if bytes <= 0 {
        return keep(limits, "memory", old);
    }
    let memory = Quantity::whole(bytes, Format::BinarySi);
    limits.insert("memory".to_owned(), ApiQuantity(memory.to_string()));
}

/// Sets the memory request that was passed to the runtime, which no cgroup has; 0: none.
fn set_memory_request(
    requests: &mut Amounts,
    actuated_request: Option<i64>,
    old: Option<&Amounts>,
) {
    let given = requests.get("memory").map(totals::amount);
    match actuated_request.filter(|actuated_request| *actuated_request != 0) {
        // It stays in its original format.
        Some(actuated_request) if given.is_some_and(|given| given.value() == actuated_request) => {}
        Some(actuated_request) => {
            let memory = Quantity::whole(actuated_request, Format::BinarySi);
            requests.insert("memory".to_owned(), ApiQuantity(memory.to_string()));
        }
        None => keep(requests, "memory", old),
    }
}

/// Sets the CPU in thousandths, unless both it and the granted one are at most `least`, where the kernel makes no difference.
fn set_cpu(amounts: &mut Amounts, reported: Option<i64>, least: i64, old: Option<&Amounts>) {
    let Some(milli) = reported else {
        return keep(amounts, "cpu", old);
    };
    let given = amounts.get("cpu").map(totals::amount);
    if milli > least || given.is_some_and(|given| given.milli_value() > least) {
        let text = Quantity::parse(&format!("{milli}m")).map(|cpu| cpu.to_string());
        amounts.insert("cpu".to_owned(), ApiQuantity(text.unwrap_or_default()));
    }
}

/// The CPU limit for a quota, in thousandths.
fn cpu_limit(resources: ContainerResources) -> Option<i64> {
    let ContainerResources { cpu_quota: quota, cpu_period: period, .. } = resources;
    (quota > 0 && period > 0)
        .then(|| quota.saturating_mul(1000) / period)
        .filter(|milli| *milli > 0)
}

/// The CPU request for shares, in thousandths, rounded up.
fn cpu_request(resources: ContainerResources) -> Option<i64> {
    let shares = resources.cpu_shares;
    (shares >= MIN_SHARES).then(|| shares.saturating_mul(1000).saturating_add(1023) / 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::node::Node;

    fn running(resources: Option<ContainerResources>) -> ObservedContainer {
        let container = fixtures::container("c", "app", fixtures::running());
        ObservedContainer { resources, ..container }
    }

    fn reported(shares: i64, quota: i64, memory: i64) -> ContainerResources {
        ContainerResources {
            cpu_shares: shares,
            cpu_quota: quota,
            cpu_period: 100_000,
            memory_limit: memory,
        }
    }

    #[rstest]
    #[case::all(true, true, Some(Some("broken")))]
    #[case::no_message(true, false, Some(None))]
    #[case::nothing(false, true, None)]
    fn device_health_in_status_follows_its_feature_gates(
        #[case] device_health: bool,
        #[case] device_health_message: bool,
        #[case] expected: Option<Option<&str>>,
    ) {
        let device = ResourceHealth {
            resource_id: "gpu0".to_owned(),
            health: Some("Unhealthy".to_owned()),
            message: Some("broken".to_owned()),
        };
        let status = ResourceStatus { name: "gpu".to_owned(), resources: Some(vec![device]) };
        let features = Features { device_health, device_health_message, ..Features::default() };
        let shown = shown_health(vec![status], features);
        let messages = shown.map(|shown| shown[0].resources.as_ref().unwrap()[0].message.clone());
        assert_eq!(messages, expected.map(|message| message.map(str::to_owned)));
        assert_eq!(shown_health(Vec::new(), Features::default()), None);
    }

    fn container(resources: Value) -> Container {
        serde_json::from_value(json!({"name": "app", "resources": resources})).unwrap()
    }

    #[rstest]
    #[case::none(json!({}), reported(2, 0, 0), json!({}))]
    #[case::resized(
        json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}),
        reported(204, 100_000, 128 << 20),
        json!({"limits": {"cpu": "1", "memory": "128Mi"}, "requests": {"cpu": "200m", "memory": "32Mi"}})
    )]
    #[case::below_what_the_kernel_expresses(
        json!({"limits": {"cpu": "1m"}, "requests": {"cpu": "1m"}}),
        reported(2, 1000, 0),
        json!({"limits": {"cpu": "1m"}, "requests": {"cpu": "1m"}})
    )]
    fn kernel_values_replace_those_of_the_spec(
        #[case] given: Value,
        #[case] reported: ContainerResources,
        #[case] expected: Value,
    ) {
        let seen = running(Some(reported));
        let resources = of_container(&container(given), &seen, None, None);
        assert_eq!(serde_json::to_value(resources).unwrap(), expected);
    }

    #[test]
    fn unreported_resource_values_are_kept() {
        let given = container(json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}));
        let old = ContainerStatus {
            resources: container(json!({"limits": {"memory": "2Gi"}})).resources,
            ..ContainerStatus::default()
        };
        let resources = of_container(&given, &running(None), Some(&old), None);
        assert_eq!(resources.limits.unwrap()["memory"].0, "2Gi");
        assert_eq!(resources.requests.unwrap()["memory"].0, "1Gi");
    }

    #[test]
    fn memory_request_in_status_is_the_actuated_one() {
        let given = container(json!({"requests": {"memory": "2Gi"}}));
        let actuated = CpuMemory { memory_request: 1 << 30, ..CpuMemory::default() };
        let resources = of_container(&given, &running(None), None, Some(actuated));
        assert_eq!(resources.requests.unwrap()["memory"].0, "1Gi");
    }

    #[test]
    fn memory_request_keeps_its_format() {
        let given = container(json!({"requests": {"memory": "33M"}}));
        let actuated = CpuMemory { memory_request: 33_000_000, ..CpuMemory::default() };
        let resources = of_container(&given, &running(None), None, Some(actuated));
        assert_eq!(resources.requests.unwrap()["memory"].0, "33M");
    }

    #[test]
    fn pod_has_the_sum_of_its_containers() {
        let pod = fixtures::pod(json!({"spec": {"containers": [
            container(json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "50m"}})),
            container(json!({"limits": {"memory": "1Gi"}})),
        ]}}));
        let mut status = PodStatus::default();
        of_pod(&pod, None, &PodStatus::default(), &mut status);
        let expected = json!({"limits": {"memory": "2Gi"}, "requests": {"cpu": "50m"}});
        assert_eq!(serde_json::to_value(status.resources).unwrap(), expected);
        assert_eq!(status.allocated_resources.unwrap()["cpu"].0, "50m");
    }

    fn whole(phase: &str, resources: Value) -> Pod {
        fixtures::pod(json!({
            "spec": {"containers": [container(json!({}))], "resources": resources},
            "status": {"phase": phase},
        }))
    }

    #[rstest]
    #[case::running(
        "Running",
        json!({"requests": {"cpu": "500m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}})
    )]
    #[case::not_yet_running(
        "Pending",
        json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "128Mi"}})
    )]
    fn pod_has_what_is_actuated_while_it_runs(#[case] phase: &str, #[case] expected: Value) {
        let before = json!({"requests": {"cpu": "500m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
        let granted = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "128Mi"}});
        let actuated = Actuated::new(&whole(phase, before), &Node::new("n", "/r", "/l"));
        let mut status = PodStatus::default();
        of_pod(&whole(phase, granted), Some(&actuated), &PodStatus::default(), &mut status);
        assert_eq!(serde_json::to_value(&status.resources).unwrap(), expected);
        assert_eq!(status.allocated_resources.unwrap()["cpu"].0, "1");
    }

    #[test]
    fn running_pod_without_resources_of_its_own_has_those_of_its_containers() {
        let pod = fixtures::pod(json!({
            "spec": {"containers": [
                container(json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "50m", "memory": "1Gi"}})),
            ]},
            "status": {"phase": "Running"},
        }));
        let actuated = Actuated::new(&pod, &Node::new("n", "/r", "/l"));
        let mut status = PodStatus::default();
        of_pod(&pod, Some(&actuated), &PodStatus::default(), &mut status);
        let expected =
            json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "50m", "memory": "1Gi"}});
        assert_eq!(serde_json::to_value(status.resources).unwrap(), expected);
    }
}
