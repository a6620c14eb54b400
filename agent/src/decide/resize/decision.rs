//! ◆ Decides whether the node grants a resize.
//!
//! A kubelet only gets resizes that the API server has validated; resizes of a source without an API server are validated here.
//!
//! Other pods are preempted for the resize of a critical pod, as for a new one.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/allocation/handlers.go; pkg/kubelet/lifecycle/predicate.go Admit;
//! pkg/apis/core/validation/validation.go ValidatePodResize.

use api::pod::{Pod, PodUid};
use api::qos::qos_class;
use api::totals::{self, Amounts, Kind};
use compact::Map;
use k8s_openapi::api::core::v1::{Container, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::Infeasible;
use crate::pod_spec::admission::{AdmittedPods, NodeInfo, Rejection, admit_or_preempt, preempted};
use crate::pod_spec::spec::Node;
use crate::pod_spec::spec::resources::may_swap;

/// Whether a resize is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The node grants it.
    Granted,
    /// The node grants it when preempted pods have ended. The listed ones must still be evicted, because there is too little of this
    /// resource.
    Preempting(Vec<PodUid>, String),
    /// The node cannot grant it now; the reason is that of the failed check.
    Deferred(Rejection),
    /// The node can never grant it, for this reason.
    Infeasible(Infeasible),
}

/// Decides on the resize from `allocated` to `desired`, given the resources of the active pods; `kept` returns those of the active
/// pods that are not being evicted.
pub(crate) fn decide(
    desired: &Pod,
    allocated: &Pod,
    admitted: &AdmittedPods,
    kept: impl FnOnce() -> AdmittedPods,
    node_info: &NodeInfo,
    node: &Node,
) -> Decision {
    let why = |message, detail| Infeasible { message, detail };
    let invalid = invalid(desired, allocated).map(|message| why(message, "invalid"));
    let swaps = || swaps(desired, allocated, node).map(|message| why(message, "swap_limitation"));
    let gate_is_off = || {
        let message = lacks_gate(desired, allocated, node)?;
        Some(why(message, "plr_feature_gate_off"))
    };
    if let Some(forbidden) = invalid.or_else(swaps).or_else(gate_is_off) {
        return Decision::Infeasible(forbidden);
    }
    let preempted = match admit_or_preempt(desired, admitted, node_info) {
        Ok(victims) if victims.is_empty() => return Decision::Granted,
        Ok(_) => preempted(desired, &kept(), node_info),
        Err(rejection) => Err(rejection),
    };
    match preempted {
        Ok((victims, resource)) => Decision::Preempting(victims, resource),
        Err(rejection) => Decision::Deferred(rejection),
    }
}

/// The gate that is off, if the resize changes the resources of the pod as a whole.
fn lacks_gate(desired: &Pod, allocated: &Pod, node: &Node) -> Option<String> {
    let differs = desired.spec().resources != allocated.spec().resources;
    let is_off = differs && !node.features.pod_level_resizes;
    is_off.then(|| "InPlacePodLevelResourcesVerticalScaling is disabled".to_owned())
}

/// Why the API server would refuse the resize.
fn invalid(desired: &Pod, allocated: &Pod) -> Option<String> {
    let lists = [("requests", Kind::Requests), ("limits", Kind::Limits)];
    let removed = |new: Option<&ResourceRequirements>, old: Option<&ResourceRequirements>| {
        let of = |kind: Kind, from| kind.of(from).into_iter().flatten();
        lists.into_iter().find_map(|(word, kind)| {
            let gone = of(kind, old).any(|(name, _)| of(kind, new).all(|(kept, _)| kept != name));
            gone.then_some(word)
        })
    };
    let of_container = |container: &Container| {
        let mut before = allocated.init_and_apps();
        let before = before.find(|before| before.name == container.name)?;
        let word = removed(container.resources.as_ref(), before.resources.as_ref())?;
        Some(format!("container {}: resource {word} cannot be removed", container.name))
    };
    let (new, old) = (desired.spec().resources.as_ref(), allocated.spec().resources.as_ref());
    if let Some(word) = removed(new, old) {
        return Some(format!("pod-level resource {word} cannot be removed"));
    }
    desired.init_and_apps().find_map(of_container).or_else(|| {
        let differs = qos_class(desired) != qos_class(allocated);
        differs.then(|| "Pod QOS Class may not change as a result of resizing".to_owned())
    })
}

/// Why the resize would change how much swap a running container may use.
fn swaps(desired: &Pod, allocated: &Pod, node: &Node) -> Option<String> {
    let request = |container: &Container| {
        let requests = Kind::Requests.of(container.resources.as_ref());
        requests.and_then(|requests| requests.get("memory")).map(totals::amount)
    };
    let restarts = |container: &Container| {
        let mut policies = container.resize_policy.iter().flatten();
        policies
            .find(|policy| policy.resource_name == "memory")
            .is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    let would_swap = desired.init_and_apps().any(|container| {
        let mut before = allocated.init_and_apps();
        let Some(before) = before.find(|before| before.name == container.name) else {
            return false;
        };
        request(container) != request(before)
            && !restarts(before)
            && (may_swap(desired, container, node) || may_swap(allocated, before, node))
    });
    would_swap.then(|| "In-place resize of containers with swap is not supported.".to_owned())
}

/// An active pod with the resources that count against the node: until a decrease is carried out, those in its status if they are
/// larger.
pub(crate) fn counted(pod: &Pod, status: Option<&PodStatus>) -> Option<Pod> {
    let status = status?;
    let reported = |name: &str| -> Option<&Amounts> {
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let mut all = lists.into_iter().flatten().flatten();
        let of = all.find(|of| of.name == name)?;
        Kind::Requests.of(of.resources.as_ref())
    };
    let more = |container: &Container| -> Map<String, ApiQuantity> {
        let own = Kind::Requests.of(container.resources.as_ref());
        let amounts = reported(&container.name).into_iter().flatten();
        amounts
            .filter(|(name, amount)| {
                let own = own.and_then(|own| own.get(*name)).map(totals::amount);
                own.is_none_or(|own| own < totals::amount(amount))
            })
            .map(|(name, amount)| (name.clone(), amount.clone()))
            .collect()
    };
    if pod.init_and_apps().all(|container| more(container).is_empty()) {
        return None;
    }
    let mut api = pod.api().clone();
    let spec = api.spec.get_or_insert_default();
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        let more = more(container);
        let resources = container.resources.get_or_insert_default();
        resources.requests.get_or_insert_default().extend(more);
    }
    Some(Pod::new(api))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::pod_spec::spec::SwapBehavior;

    fn pod(resources: Value) -> Pod {
        fixtures::pod(
            json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a", "resources": resources}]}}),
        )
    }

    fn node_info() -> NodeInfo {
        NodeInfo {
            allocatable: [("cpu", "2"), ("memory", "1Gi"), ("pods", "110")]
                .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
                .into(),
            ..NodeInfo::default()
        }
    }

    fn burstable(cpu: &str, memory: &str) -> Value {
        json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "8", "memory": "8Gi"}})
    }

    #[rstest]
    #[case::fits(burstable("2", "1Gi"), "granted")]
    #[case::too_much_cpu(
        burstable("2100m", "1Gi"),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000"
    )]
    #[case::too_much_memory(
        burstable("1", "2Gi"),
        "OutOfmemory: Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824"
    )]
    #[case::other_class(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}), "Infeasible: Pod QOS Class may not change as a result of resizing")]
    #[case::limit_removed(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1"}}), "Infeasible: container a: resource limits cannot be removed")]
    fn resize_is_granted_deferred_or_infeasible(#[case] wanted: Value, #[case] expected: &str) {
        let node = Node::new("n", "/r", "/l");
        let allocated = pod(burstable("1", "512Mi"));
        let shown = match decided(&pod(wanted), &allocated, &AdmittedPods::default(), &node) {
            Decision::Granted => "granted".to_owned(),
            Decision::Preempting(victims, _) => format!("preempting {victims:?}"),
            Decision::Deferred(why) => format!("{}: {}", why.reason, why.message),
            Decision::Infeasible(why) => format!("Infeasible: {}", why.message),
        };
        assert_eq!(shown, expected);
    }

    /// The decision while no pod is being evicted.
    fn decided(desired: &Pod, allocated: &Pod, admitted: &AdmittedPods, node: &Node) -> Decision {
        decide(desired, allocated, admitted, || admitted.clone(), &node_info(), node)
    }

    /// A pod that requests this much CPU.
    fn requesting(uid: &str, priority: i32, cpu: &str) -> Pod {
        let app = json!({"name": "a", "resources": burstable(cpu, "1Mi")});
        fixtures::pod_of(uid, uid, json!({"priority": priority, "containers": [app]}))
    }

    const CRITICAL: i32 = 2_000_000_000;

    #[rstest]
    #[case::is_evicted(CRITICAL, 0, false, Some("other"))]
    #[case::is_being_evicted(CRITICAL, 0, true, Some(""))]
    #[case::for_no_ordinary_pod(1, 0, false, None)]
    #[case::not_a_critical_one(CRITICAL, CRITICAL, false, None)]
    fn other_pod_is_preempted_for_the_resize_of_a_critical_one(
        #[case] priority: i32,
        #[case] other: i32,
        #[case] is_being_evicted: bool,
        #[case] expected: Option<&str>,
    ) {
        let allocated = requesting("u", priority, "500m");
        let other = requesting("other", other, "1500m");
        let admitted: AdmittedPods = [allocated.clone(), other.clone()].into_iter().collect();
        let mut kept = admitted.clone();
        if is_being_evicted {
            kept.remove(other.uid());
        }
        let node = Node::new("n", "/r", "/l");
        let desired = requesting("u", priority, "600m");
        let decision = decide(&desired, &allocated, &admitted, || kept, &node_info(), &node);
        let victims = match decision {
            Decision::Preempting(victims, resource) => {
                assert_eq!(resource, if is_being_evicted { "" } else { "cpu" });
                let uids: Vec<&str> = victims.iter().map(PodUid::as_str).collect();
                Some(uids.join(" "))
            }
            Decision::Deferred(_) => None,
            Decision::Granted | Decision::Infeasible(_) => panic!("{decision:?}"),
        };
        assert_eq!(victims.as_deref(), expected);
    }

    #[rstest]
    #[case::on(true, "2", None)]
    #[case::off(false, "2", Some("plr_feature_gate_off"))]
    #[case::off_without_a_change(false, "1", None)]
    fn resources_of_a_pod_are_resized_with_the_gate(
        #[case] is_on: bool,
        #[case] cpu: &str,
        #[case] expected: Option<&str>,
    ) {
        let mut node = Node::new("n", "/r", "/l");
        node.features.pod_level_resizes = is_on;
        let sized = |cpu: &str| {
            let spec = json!({"resources": burstable(cpu, "1Mi"), "containers": [{"name": "a"}]});
            fixtures::pod_of("u", "p", spec)
        };
        let decision = decided(&sized(cpu), &sized("1"), &AdmittedPods::default(), &node);
        assert_eq!(detail(decision), expected);
    }

    #[rstest]
    #[case::memory(burstable("1", "600Mi"), json!([]), true)]
    #[case::cpu_alone(burstable("2", "512Mi"), json!([]), false)]
    #[case::restarted(burstable("1", "600Mi"), json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]), false)]
    fn memory_of_containers_with_swap_stays(
        #[case] wanted: Value,
        #[case] policy: Value,
        #[case] infeasible: bool,
    ) {
        let mut node = Node::new("n", "/r", "/l");
        node.swap_controller = true;
        node.swap_behavior = SwapBehavior::LimitedSwap;
        node.cgroup_version = crate::pod_spec::spec::CgroupVersion::V2;
        let with_policy = |resources: Value| {
            fixtures::pod(
                json!({"spec": {"containers": [{"name": "a", "resources": resources, "resizePolicy": policy}]}}),
            )
        };
        let (desired, allocated) = (with_policy(wanted), with_policy(burstable("1", "512Mi")));
        let decision = decided(&desired, &allocated, &AdmittedPods::default(), &node);
        assert_eq!(detail(decision), infeasible.then_some("swap_limitation"));
    }

    /// Why a resize is infeasible.
    fn detail(decision: Decision) -> Option<&'static str> {
        match decision {
            Decision::Infeasible(why) => Some(why.detail),
            Decision::Granted | Decision::Preempting(..) | Decision::Deferred(_) => None,
        }
    }

    #[test]
    fn decrease_counts_after_it_is_actuated() {
        let reported = |cpu: &str| -> PodStatus {
            let resources = json!({"requests": {"cpu": cpu}});
            let status = json!({"containerStatuses": [{"name": "a", "resources": resources}]});
            serde_json::from_value(status).unwrap()
        };
        let allocated = pod(burstable("1", "1Gi"));
        assert_eq!(counted(&allocated, None), None);
        assert_eq!(counted(&allocated, Some(&reported("1"))), None);
        let more = counted(&allocated, Some(&reported("2"))).unwrap();
        let requests = more.containers()[0].resources.clone().unwrap().requests;
        assert_eq!(requests.unwrap()["cpu"].0, "2");
    }
}
