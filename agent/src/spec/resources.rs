//! Converts requests and limits to kernel settings, QoS class and OOM score adjustment.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, pkg/kubelet/cm/helpers_linux.go,
//! pkg/kubelet/qos/policy.go, component-helpers/resource.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::pod::{Pod, is_sidecar};
use crate::quantity::Quantity;
use crate::spec::{Node, Resources};

/// QoS class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has limits, equal to its requests.
    Guaranteed,
    /// Neither Guaranteed nor BestEffort.
    Burstable,
    /// No container has requests or limits.
    BestEffort,
}

impl QosClass {
    /// The name in a pod's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

type Amounts = BTreeMap<String, Quantity>;
type ApiAmounts = Option<BTreeMap<String, ApiQuantity>>;

/// Invalid quantities count as zero; validation has rejected them before.
fn amounts(list: &ApiAmounts) -> Amounts {
    let entries = list.iter().flatten();
    entries
        .map(|(name, amount)| {
            (
                name.clone(),
                Quantity::parse(&amount.0).unwrap_or(Quantity::ZERO),
            )
        })
        .collect()
}

fn requests_of(resources: Option<&ResourceRequirements>) -> Amounts {
    resources
        .map(|resources| amounts(&resources.requests))
        .unwrap_or_default()
}

fn limits_of(resources: Option<&ResourceRequirements>) -> Amounts {
    resources
        .map(|resources| amounts(&resources.limits))
        .unwrap_or_default()
}

/// Computes the QoS class. Only CPU and memory count, of init and app containers or of the pod-level resources.
pub fn qos_class(pod: &Pod) -> QosClass {
    let whole = pod
        .spec()
        .resources
        .as_ref()
        .filter(|whole| whole.requests.is_some() || whole.limits.is_some());
    let each: Vec<Option<&ResourceRequirements>> = match whole {
        Some(whole) => vec![Some(whole)],
        None => pod
            .init_containers()
            .iter()
            .chain(pod.containers())
            .map(|c| c.resources.as_ref())
            .collect(),
    };
    let counts = |amounts: Amounts| -> Amounts {
        let counted = |name: &str| name == "cpu" || name == "memory";
        amounts
            .into_iter()
            .filter(|(name, amount)| counted(name) && *amount > Quantity::ZERO)
            .collect()
    };
    let sum = |lists: &mut dyn Iterator<Item = Amounts>| lists.fold(Amounts::new(), add);
    let requests = sum(&mut each.iter().map(|resources| counts(requests_of(*resources))));
    let limits = sum(&mut each.iter().map(|resources| counts(limits_of(*resources))));
    if requests.is_empty() && limits.is_empty() {
        return QosClass::BestEffort;
    }
    let all_limited = each
        .iter()
        .all(|resources| counts(limits_of(*resources)).len() == 2);
    if all_limited
        && requests
            .iter()
            .all(|(name, amount)| limits.get(name) == Some(amount))
        && requests.len() == limits.len()
    {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

fn add(mut sum: Amounts, more: Amounts) -> Amounts {
    for (name, amount) in more {
        let entry = sum.entry(name).or_insert(Quantity::ZERO);
        *entry = entry.plus(amount);
    }
    sum
}

fn greatest(mut most: Amounts, other: Amounts) -> Amounts {
    for (name, amount) in other {
        let entry = most.entry(name).or_insert(Quantity::ZERO);
        *entry = (*entry).max(amount);
    }
    most
}

/// The pod's peak: all app containers and sidecars, or one init container with the sidecars before it.
fn pod_amounts(pod: &Pod, of: impl Fn(Option<&ResourceRequirements>) -> Amounts) -> Amounts {
    let of_container = |container: &Container| of(container.resources.as_ref());
    let mut sidecars = Amounts::new();
    let mut hungriest_init = Amounts::new();
    for init in pod.init_containers() {
        let with_sidecars = add(sidecars.clone(), of_container(init));
        if is_sidecar(init) {
            sidecars = with_sidecars.clone();
        }
        hungriest_init = greatest(hungriest_init, with_sidecars);
    }
    let apps = pod
        .containers()
        .iter()
        .map(of_container)
        .fold(sidecars, add);
    let mut total = greatest(apps, hungriest_init);
    // Pod-level resources override the containers' sum.
    total.extend(of(pod.spec().resources.as_ref()));
    total
}

/// The pod's resources, for its sandbox.
pub(super) fn of_sandbox(pod: &Pod, node: &Node) -> Resources {
    kernel(
        &pod_amounts(pod, requests_of),
        &pod_amounts(pod, limits_of),
        node,
    )
}

/// The sandbox's overhead (`spec.overhead`).
pub(super) fn overhead(pod: &Pod, node: &Node) -> Resources {
    match amounts(&pod.spec().overhead) {
        none if none.is_empty() => Resources::default(),
        overhead => kernel(&overhead, &overhead, node),
    }
}

/// Resources of one container.
pub(super) fn of_container(pod: &Pod, container: &Container, node: &Node) -> Resources {
    let requests = requests_of(container.resources.as_ref());
    let mut limits = limits_of(container.resources.as_ref());
    // Without its own limit, a container is limited by the pod-level limit.
    for (name, limit) in limits_of(pod.spec().resources.as_ref()) {
        limits.entry(name).or_insert(limit);
    }
    let mut resources = kernel(&requests, &limits, node);
    resources.oom_score_adj = oom_score(pod, container, node);
    resources
}

fn kernel(requests: &Amounts, limits: &Amounts, node: &Node) -> Resources {
    let cpu_limit = limits.get("cpu").map_or(0, |limit| limit.milli_value());
    // Without a request, the limit is the request.
    let cpu_request = requests
        .get("cpu")
        .map_or(cpu_limit, |request| request.milli_value());
    let (cpu_period, cpu_quota) = match node.cpu_quota_period {
        Some(period) if cpu_limit > 0 => (period, (cpu_limit * period / 1000).max(1000)),
        Some(period) => (period, 0),
        None => (0, 0),
    };
    Resources {
        cpu_shares: cpu_shares(cpu_request),
        cpu_period,
        cpu_quota,
        memory_limit: limits.get("memory").map_or(0, |limit| limit.value()),
        ..Resources::default()
    }
}

/// Converts millicores to cgroup v1 shares: 1024 per core, at least 2.
fn cpu_shares(milli: i64) -> i64 {
    if milli == 0 {
        2
    } else {
        (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
    }
}

/// The oom_score_adj of a container, from -997 (killed last) to 1000 (killed first).
fn oom_score(pod: &Pod, container: &Container, node: &Node) -> i64 {
    const NODE_CRITICAL: i32 = 2_000_001_000;
    match qos_class(pod) {
        _ if pod
            .spec()
            .priority
            .is_some_and(|priority| priority >= NODE_CRITICAL) =>
        {
            -997
        }
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let memory = |container: &Container| {
                requests_of(container.resources.as_ref())
                    .get("memory")
                    .map_or(0, |request| request.value())
            };
            let score = |request: i64| match node.memory_capacity {
                capacity if capacity > 0 => {
                    let adjusted = 1000
                        - i64::try_from(1000 * i128::from(request) / i128::from(capacity))
                            .unwrap_or(1000);
                    adjusted.clamp(3, 999)
                }
                _ => 999,
            };
            let own = score(memory(container));
            let sidecar = is_sidecar(container)
                && pod
                    .init_containers()
                    .iter()
                    .any(|init| init.name == container.name);
            if sidecar {
                // A sidecar must not be OOM killed before the app containers.
                pod.containers()
                    .iter()
                    .map(|app| score(memory(app)))
                    .min()
                    .map_or(own, |least| own.min(least))
            } else {
                own
            }
        }
    }
}
