//! ◆ Decides whether the node admits a pod, before anything of the pod is created.
//!
//! The checks and their order are the kubelet's (Kubernetes 1.36, pkg/kubelet/kubelet.go `NewMainKubelet`, pkg/kubelet/lifecycle,
//! pkg/kubelet/sysctl): pressure, sysctls, exclusive resources (`managers`), operating system, supplemental groups, resources, node
//! affinity, node name, host ports, taints, AppArmor. The reason is that of the first failed check. A critical pod is not rejected
//! for lack of resources if other pods can be preempted for it.

mod admitted;
mod affinity;
mod preemption;
mod resources;
mod sysctl;

use std::collections::BTreeMap;

use api::pod::{Pod, PodUid};
use api::qos::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{
    ContainerPort, Node, PersistentVolume, PodStatus, Taint, Toleration,
};
use serde::{Deserialize, Serialize};

use crate::node::Pressure;
pub use admitted::AdmittedPods;
use admitted::host_ports;

/// The label of nodes, and of pods that require it, with the operating system.
const OS_LABEL: &str = "kubernetes.io/os";
/// The only operating system.
const OS: &str = "linux";

/// The node's properties that admission depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeInfo {
    /// The node's name.
    pub node_name: String,
    /// The node's labels; `None`: the node matches any name or label that a pod selects.
    pub labels: Option<BTreeMap<String, String>>,
    /// The node's taints.
    pub taints: Vec<Taint>,
    /// Allocatable quantities by resource name; `pods` is the maximum number of pods.
    pub allocatable: BTreeMap<String, String>,
    /// Whether the runtime supports `supplementalGroupsPolicy: Strict`.
    pub strict_supplemental_groups: bool,
    /// Whether AppArmor is enabled.
    pub app_armor: bool,
    /// Unsafe sysctls that pods may set; a trailing `*` is a wildcard.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The node's pressure conditions.
    pub pressure: Pressure,
    /// Tolerations may compare numbers (gate TaintTolerationComparisonOperators).
    pub compares_taints: bool,
}

impl NodeInfo {
    /// Applies the node's object in an API server: its labels and taints replace the node's, and resources that the agent does not
    /// know are added, because other components set them. Other resources in the object come from the agent itself.
    pub fn follow(&mut self, node: &Node) {
        self.labels = Some(node.metadata.labels.clone().unwrap_or_default());
        self.taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        for (resource, amount) in allocatable.into_iter().flatten() {
            let known = self.allocatable.entry(resource.clone());
            known.or_insert_with(|| amount.0.clone());
        }
    }
}

/// The reason of a rejection because the node cannot attach another volume of a driver.
pub(crate) const ATTACHMENT_LIMIT: &str = "VolumeAttachmentLimitExceeded";

/// Why the node rejects a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The reason in the pod's status and event, such as `OutOfcpu`.
    pub reason: String,
    /// What is missing, as a sentence.
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// The rejection while the machine shuts down.
    pub(crate) fn of_shutdown() -> Self {
        Self::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
    }

    /// The rejection because the node cannot attach these volumes (Kubernetes 1.36,
    /// pkg/kubelet/volumemanager/volume_manager.go VolumeAttachLimitExceededError).
    pub(crate) fn of_attachments(volumes: &str) -> Self {
        Self::new(
            ATTACHMENT_LIMIT,
            format!(
                "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{volumes}], unattached \
                 volumes=[{volumes}], failed to process volumes=[]: context deadline exceeded"
            ),
        )
    }

    /// A failed check of the scheduler, which the kubelet repeats.
    fn predicate(name: &str, what: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {what}"))
    }

    /// The status of a pod that was rejected.
    #[must_use]
    pub fn status(&self, pod: &Pod) -> PodStatus {
        PodStatus {
            phase: Some("Failed".to_owned()),
            reason: Some(self.reason.clone()),
            message: Some(format!("Pod was rejected: {}", self.message)),
            qos_class: Some(qos_class(pod).as_str().to_owned()),
            observed_generation: pod.api().metadata.generation,
            ..PodStatus::default()
        }
    }
}

/// Whether the node admits `pod` beside the other admitted pods that have not ended. Its own entry in `admitted` is ignored.
///
/// # Errors
///
/// The first check that fails.
pub fn admit(pod: &Pod, admitted: &AdmittedPods, node_info: &NodeInfo) -> Result<(), Rejection> {
    before_resources(pod, node_info)?;
    match resources::shortages(pod, admitted, &node_info.allocatable).first() {
        Some(shortage) => Err(shortage.rejection()),
        None => after_resources(pod, admitted, node_info),
    }
}

/// Like [`admit`], but other pods may be preempted for a critical pod: returns the pods to evict first.
///
/// # Errors
///
/// The first check that fails; for a critical pod that of resources comes last.
pub fn admit_or_preempt(
    pod: &Pod,
    admitted: &AdmittedPods,
    node_info: &NodeInfo,
) -> Result<Vec<PodUid>, Rejection> {
    let shortages = resources::shortages(pod, admitted, &node_info.allocatable);
    if shortages.is_empty() || !preemption::is_critical(pod) {
        return admit(pod, admitted, node_info).map(|()| Vec::new());
    }
    before_resources(pod, node_info)?;
    after_resources(pod, admitted, node_info)?;
    let others: Vec<&Pod> = admitted.others(pod.uid()).collect();
    preemption::victims(pod, &others, &shortages)
}

/// The pods to evict for a critical pod, and the first resource of which the node has too little. `kept` are the admitted pods
/// without those that are already being evicted, whose resources count as free.
///
/// # Errors
///
/// The first check that fails.
pub(crate) fn preempted(
    pod: &Pod,
    kept: &AdmittedPods,
    node_info: &NodeInfo,
) -> Result<(Vec<PodUid>, String), Rejection> {
    let victims = admit_or_preempt(pod, kept, node_info)?;
    let shortages = resources::shortages(pod, kept, &node_info.allocatable);
    let first = shortages.into_iter().next().map(|shortage| shortage.resource);
    Ok((victims, first.unwrap_or_default()))
}

/// The checks before exclusive resources are allocated.
///
/// # Errors
///
/// The first check that fails.
pub(crate) fn before_allocation(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    pressure(pod, node_info)?;
    sysctl::check(pod, &node_info.allowed_unsafe_sysctls)
}

/// The checks before that of resources.
fn before_resources(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    before_allocation(pod, node_info)?;
    operating_system(pod)?;
    supplemental_groups(pod, node_info)
}

/// The checks after that of resources.
fn after_resources(
    pod: &Pod,
    admitted: &AdmittedPods,
    node_info: &NodeInfo,
) -> Result<(), Rejection> {
    affinity::check(pod, node_info)?;
    node_name(pod, node_info)?;
    check_ports(pod, admitted)?;
    check_taints(pod, node_info)?;
    app_armor(pod, node_info)
}

/// The fields of a pod that select other nodes than the one with this name and these labels.
#[must_use]
pub fn fields_of_other_nodes(
    pod: &Pod,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> Vec<&'static str> {
    let wanted = pod.spec().node_name.as_deref().unwrap_or_default();
    let fields = [
        ("spec.nodeName", wanted.is_empty() || wanted == node_name),
        ("spec.nodeSelector", affinity::is_selected(pod, labels)),
        ("spec.affinity.nodeAffinity", affinity::is_required(pod, node_name, labels)),
    ];
    let others = fields.into_iter().filter(|(_, is_met)| !is_met);
    others.map(|(field, _)| field).collect()
}

/// Whether a volume can be used on a node with these labels.
pub(crate) fn is_reachable(
    volume: &PersistentVolume,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| affinity::is_matched(required, node_name, labels))
}

/// Whether a node with pressure conditions admits the pod. A node with only memory pressure admits pods that request memory, and
/// pods that tolerate it.
///
/// Source: Kubernetes 1.36, pkg/kubelet/eviction/eviction_manager.go Admit.
fn pressure(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let conditions = node_info.pressure.conditions();
    if conditions.is_empty() || preemption::is_critical(pod) {
        return Ok(());
    }
    if conditions == ["MemoryPressure"] {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let mut tolerations = pod.spec().tolerations.iter().flatten();
        if qos_class(pod) != QosClass::BestEffort
            || tolerations
                .any(|toleration| tolerates(toleration, &taint, node_info.compares_taints))
        {
            return Ok(());
        }
    }
    let conditions = conditions.join(" ");
    Err(Rejection::new("Evicted", format!("The node had condition: [{conditions}]. ")))
}

fn operating_system(pod: &Pod) -> Result<(), Rejection> {
    let mut labels = pod.labels();
    if labels.any(|(key, value)| key == OS_LABEL && value != OS) {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    match &pod.spec().os {
        Some(os) if os.name != OS => Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Whether the pod's processes must not get groups of their image.
pub(crate) fn requires_strict_groups(pod: &Pod) -> bool {
    let context = pod.spec().security_context.as_ref();
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

fn supplemental_groups(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    if requires_strict_groups(pod) && !node_info.strict_supplemental_groups {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

fn node_name(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let wanted = pod.spec().node_name.as_deref().unwrap_or_default();
    if node_info.labels.is_none() || wanted.is_empty() || wanted == node_info.node_name {
        return Ok(());
    }
    Err(Rejection::predicate("NodeName", "node(s) didn't match the requested node name"))
}

/// A pod that requests a profile needs AppArmor. A pod that is not new was admitted before.
fn app_armor(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let status = pod.api().status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if node_info.app_armor
        || phase.is_some_and(|phase| phase != "Pending")
        || !requires_apparmor(pod)
    {
        return Ok(());
    }
    Err(Rejection::new("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"))
}

/// The annotation that named a container's AppArmor profile before Kubernetes 1.30, without the container's name.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Whether the pod or a container has an AppArmor profile other than `Unconfined`, in a field or an annotation.
///
/// Source: Kubernetes 1.36, pkg/security/apparmor/helpers.go isRequired. Of several annotations a kubelet reads a random one.
fn requires_apparmor(pod: &Pod) -> bool {
    let of_pod = pod.spec().security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.app_armor_profile.as_ref());
    let of_containers = pod.all_containers().filter_map(|(_, container)| {
        let context = container.security_context.as_ref()?;
        context.app_armor_profile.as_ref()
    });
    let by_annotation = pod
        .annotations()
        .any(|(name, value)| name.starts_with(APPARMOR_ANNOTATION) && value != "unconfined");
    by_annotation
        || of_pod.into_iter().chain(of_containers).any(|profile| profile.type_ != "Unconfined")
}

// Whether the pod's host ports are free.
//
// Source: Kubernetes 1.36, pkg/scheduler/framework/plugins/nodeports: a port of the wildcard address conflicts with that port of
// every address. Ports of init containers count if these run as long as the pod does.

const ALL_ADDRESSES: &str = "0.0.0.0";

fn check_ports(pod: &Pod, admitted: &AdmittedPods) -> Result<(), Rejection> {
    let conflicts = |wanted: &ContainerPort| {
        let mut others = admitted.host_ports(pod.uid());
        others.any(|port| ports_conflict(wanted, port))
    };
    if host_ports(pod).any(conflicts) {
        return Err(Rejection::predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}

fn ports_conflict(a: &ContainerPort, b: &ContainerPort) -> bool {
    let address = |port: &ContainerPort| match port.host_ip.as_deref() {
        None | Some("") => ALL_ADDRESSES.to_owned(),
        Some(address) => address.to_owned(),
    };
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let (first, second) = (address(a), address(b));
    a.host_port == b.host_port
        && protocol(a) == protocol(b)
        && (first == second || first == ALL_ADDRESSES || second == ALL_ADDRESSES)
}

// Whether the pod tolerates the node's taints. The kubelet checks only `NoExecute`, and admits every static pod.
//
// Source: Kubernetes 1.36, pkg/kubelet/lifecycle/predicate.go, api/core/v1/toleration.go.

fn check_taints(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
    let is_tolerated = |taint: &Taint| {
        tolerations.iter().any(|toleration| tolerates(toleration, taint, node_info.compares_taints))
    };
    let mut untolerated =
        node_info.taints.iter().filter(|taint| taint.effect == "NoExecute" && !is_tolerated(taint));
    if !pod.is_static() && untolerated.next().is_some() {
        return Err(Rejection::predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    Ok(())
}

/// An empty effect or key stands for each. `Lt` and `Gt` match only if `compares`.
fn tolerates(toleration: &Toleration, taint: &Taint, compares: bool) -> bool {
    let fits = |wanted: &Option<String>, given: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == given)
    };
    let wanted = toleration.value.as_deref().unwrap_or_default();
    let given = taint.value.as_deref().unwrap_or_default();
    let value = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => wanted == given,
        Some("Exists") => true,
        Some("Lt") if compares => decimals(given, wanted).is_some_and(|(given, most)| given < most),
        Some("Gt") if compares => {
            decimals(given, wanted).is_some_and(|(given, least)| given > least)
        }
        Some(_) => false,
    };
    value && fits(&toleration.effect, &taint.effect) && fits(&toleration.key, &taint.key)
}

/// Two integers without superfluous signs or zeros.
fn decimals(first: &str, second: &str) -> Option<(i64, i64)> {
    let decimal = |text: &str| text.parse().ok().filter(|number: &i64| number.to_string() == text);
    Some((decimal(first)?, decimal(second)?))
}

#[cfg(test)]
mod tests;
