//! Computes the status for a Kubernetes API server from the observed state.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go generateAPIPodStatus.

mod conditions;
mod containers;
pub(crate) mod eviction;
pub(crate) mod last;
pub mod merge;
mod phase;
mod ready;
pub(crate) mod record;
mod resources;
pub(crate) mod restarts;
pub(crate) mod transition;

use api::pod::Pod;
use api::qos::qos_class;
use compact::Map;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};

use crate::decide::plan::restart;
use crate::decide::resize::ResizeConditions;
use crate::decide::resize::actuated::Actuated;
use crate::node::Features;
use crate::observed::{Observed, ObservedSandbox};

pub use conditions::is_own;
pub use phase::phase;
pub(crate) use resources::{device_status, shown_health};

/// Why the latest start of a container failed or was deferred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartError {
    /// The reason: `ErrImagePull`, `CrashLoopBackOff`, `CreateContainerError`.
    pub reason: String,
    /// The message.
    pub message: String,
}

/// The inputs of a pod's status.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The pod, whose `status` is the API server's copy.
    pub pod: &'a Pod,
    /// The runtime's state.
    pub observed: &'a Observed,
    /// The previously computed status; `None` after a restart of the agent.
    pub previous: Option<&'a PodStatus>,
    /// The latest start error of each container.
    pub start_errors: &'a Map<String, StartError>,
    /// Whether the agent has terminated the pod: all containers have stopped and none will be started.
    pub terminated: bool,
    /// Whether the pod's probes run.
    pub probes_registered: bool,
    /// When the agent was started.
    pub agent_started_at: Option<Timestamp>,
    /// The node's addresses now, the primary one first.
    pub node_ips: &'a [String],
    /// Whether IPv6 is the family of the node's first configured address: pods' addresses of that family are first.
    pub prefers_ipv6: bool,
    /// Whether the pod's runtime handler can make read-only mounts recursive.
    pub recursive_read_only: bool,
    /// Whether statuses include the containers' stop signals (gate ContainerStopSignals).
    pub stop_signals: bool,
    /// Which features are on.
    pub features: Features,
    /// The CPU and memory last actuated at the runtime; `None`: what was granted.
    pub actuated: Option<&'a Actuated>,
    /// The conditions of the pod's resize; `None`: there is none.
    pub resize: Option<&'a ResizeConditions>,
}

/// Computes the status of a pod. The reporter sets transition times and `startTime`.
pub fn pod_status(inputs: &Inputs<'_>) -> PodStatus {
    let pod = inputs.pod;
    let api = pod.api().status.clone().unwrap_or_default();
    let old = inputs.previous.unwrap_or(&api);
    let restarting = restart::restarts_all(pod, inputs.observed, old);

    let mut status = PodStatus {
        qos_class: Some(qos_class(pod).as_str().to_owned()),
        container_statuses: filled(containers::apps(inputs, old, restarting)),
        init_container_statuses: filled(containers::inits(inputs, old, restarting)),
        ephemeral_container_statuses: filled(containers::ephemeral(inputs, old, restarting)),
        ..PodStatus::default()
    };
    let all: Vec<_> = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten()
        .cloned()
        .collect();
    let computed =
        phase(pod, &all, inputs.terminated, containers::has_initialized(pod, inputs.observed));
    let next = settled_phase(computed, old.phase.as_deref(), api.phase.as_deref());
    if old.phase.as_deref() == Some(next) {
        let kept = |old: &Option<String>, api: &Option<String>| {
            let is_not_empty = |text: &&String| !text.is_empty();
            old.as_ref().filter(is_not_empty).or(api.as_ref().filter(is_not_empty)).cloned()
        };
        status.reason = kept(&old.reason, &api.reason);
        status.message = kept(&old.message, &api.message);
    }
    status.phase = Some(next.to_owned());
    if deadline_passed(inputs, old) {
        status.phase = Some("Failed".to_owned());
        status.reason = Some("DeadlineExceeded".to_owned());
        status.message =
            Some("Pod was active on the node longer than the specified deadline".to_owned());
    }
    // A terminal phase in the API server is final.
    if let Some(last) = api.phase.as_deref().filter(|phase| is_terminal(phase)) {
        status.phase = Some(last.to_owned());
    }
    ready::mark_ready(inputs, &mut status);
    status.conditions = filled(conditions::all(inputs, old, &api, &status));
    addresses(inputs, &mut status);
    if inputs.features.pod_level_resizes {
        resources::of_pod(pod, inputs.actuated, old, &mut status);
    }
    status
}

/// Whether the pod has exceeded `spec.activeDeadlineSeconds`, counted from the start that was last reported.
fn deadline_passed(inputs: &Inputs<'_>, old: &PodStatus) -> bool {
    let deadline = inputs.pod.spec().active_deadline_seconds;
    old.start_time.as_ref().zip(deadline).is_some_and(|(started, deadline)| {
        inputs.observed.at.duration_since(started.0) >= SignedDuration::from_secs(deadline)
    })
}

fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// A terminal phase is final.
fn settled_phase<'a>(computed: &'a str, old: Option<&'a str>, api: Option<&'a str>) -> &'a str {
    if is_terminal(computed) {
        return computed;
    }
    old.filter(|phase| is_terminal(phase))
        .or(api.filter(|phase| is_terminal(phase)))
        .unwrap_or(computed)
}

/// Sets the addresses of the pod and its node. A pod with host network has the node's, also when they change: a kubelet keeps the pod's
/// first ones until the runtime reports a change of the pod.
fn addresses(inputs: &Inputs<'_>, status: &mut PodStatus) {
    let mut ips = pod_ips(inputs);
    if inputs.pod.host_network() {
        if ips.is_empty() {
            ips.extend(inputs.node_ips.first().cloned());
        }
        if let ([first], [_, second]) = (ips.as_slice(), inputs.node_ips)
            && is_v6(first) != is_v6(second)
        {
            ips.push(second.clone());
        }
    }
    status.pod_ip = ips.first().cloned();
    status.pod_ips = filled(ips.into_iter().map(|ip| PodIP { ip }).collect());
    status.host_ip = inputs.node_ips.first().cloned();
    status.host_ips =
        filled(inputs.node_ips.iter().take(2).map(|ip| HostIP { ip: ip.clone() }).collect());
}

fn is_v6(ip: &str) -> bool {
    ip.contains(':')
}

/// Returns the addresses of the newest sandbox if it is ready: one per family, the preferred one first.
fn pod_ips(inputs: &Inputs<'_>) -> Vec<String> {
    let newest = inputs.observed.sandboxes.first().filter(|sandbox| sandbox.ready);
    if inputs.pod.host_network() {
        return Vec::new();
    }
    let reported = newest.map(ObservedSandbox::addresses).unwrap_or_default();
    let parsed = reported.iter().filter_map(|ip| ip.parse::<std::net::IpAddr>().ok());
    let valid: Vec<String> = parsed.map(|ip| ip.to_string()).collect();
    let of_family = |v6: bool| valid.iter().find(|ip| is_v6(ip) == v6).cloned();
    let first = inputs.prefers_ipv6;
    of_family(first).into_iter().chain(of_family(!first)).collect()
}
