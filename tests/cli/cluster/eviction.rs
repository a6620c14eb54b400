//! A node under memory pressure by configuration: its eviction threshold exceeds any machine's memory.

use cluster::{Kind, Selection};

use super::api_server::ApiServer;
use super::joined::{Joined, KUBELET_CONFIGURATION, NODE, condition, pod, wait};
use crate::command::*;

/// A node whose eviction threshold is 7 EiB of available memory.
async fn short_of_memory() -> (Joined, Running) {
    let joined = Joined::new(ApiServer::start()).await;
    let text = format!("{KUBELET_CONFIGURATION}evictionHard: {{memory.available: 7Ei}}\n");
    let config = joined.place.file("kubelet.yaml", &text);
    let agent = joined.agent(&["--config", &config]);
    let is_short = |node: &Value| condition(node, "MemoryPressure")["status"] == "True";
    wait("the node is short of memory", || joined.node(), is_short).await;
    (joined, agent)
}

/// A Burstable pod: it requests some CPU.
fn burstable(name: &str) -> String {
    pod(name, "exec sleep 3600") + "    resources: {requests: {cpu: 1m}}\n"
}

/// Waits for an event of this reason about an object of this kind.
pub(crate) async fn event(joined: &Joined, kind: &str, reason: &str) -> Value {
    let find = || {
        let all = joined.server.store().list(&Selection::of(Kind::of("v1", "Event"))).items;
        let mut all = all.iter().map(|event| event.value.clone());
        let is_it =
            |event: &Value| event["involvedObject"]["kind"] == kind && event["reason"] == reason;
        all.find(is_it).unwrap_or_default()
    };
    wait(&format!("event {reason}"), find, |event| !event.is_null()).await
}

#[tokio::test]
async fn node_under_memory_pressure_evicts_pod_with_event() {
    let (joined, agent) = short_of_memory().await;
    let node = joined.node();
    let found = condition(&node, "MemoryPressure");
    assert_eq!(found["reason"], "KubeletHasInsufficientMemory");
    assert_eq!(found["message"], "kubelet has insufficient memory available");
    assert_eq!(condition(&node, "DiskPressure")["status"], "False");
    assert_eq!(condition(&node, "PIDPressure")["status"], "False");
    assert_eq!(node["status"]["allocatable"]["memory"], "0");
    joined.create_pod(&burstable("web"));
    let evicted = joined.wait_for_phase("web", "Failed").await;
    let status = &evicted["status"];
    assert_eq!(status["reason"], "Evicted");
    let message = status["message"].as_str().unwrap();
    let begins = "The node was low on resource: memory. Threshold quantity: 7Ei, available: ";
    assert!(message.starts_with(begins), "{message}");
    let disruption = condition(&evicted, "DisruptionTarget");
    assert_eq!(
        (&disruption["status"], &disruption["reason"], &disruption["message"]),
        (&json!("True"), &json!("TerminationByKubelet"), &json!(message))
    );
    let of_pod = event(&joined, "Pod", "Evicted").await;
    assert_eq!((&of_pod["type"], &of_pod["message"]), (&json!("Warning"), &json!(message)));
    let of_node = event(&joined, "Node", "EvictionThresholdMet").await;
    assert_eq!(of_node["message"], "Attempting to reclaim memory");
    let expected = json!({"apiVersion": "v1", "kind": "Node", "name": NODE});
    assert_eq!(of_node["involvedObject"], expected);
    assert_eq!(joined.running().await, [""; 0]);
    joined.end(agent).await;
}

#[tokio::test]
async fn node_under_memory_pressure_rejects_best_effort_pod() {
    let (joined, agent) = short_of_memory().await;
    joined.create_pod(&pod("best-effort", "exec sleep 3600"));
    let rejected = joined.wait_for_phase("best-effort", "Failed").await;
    let status = &rejected["status"];
    assert_eq!(status["reason"], "Evicted");
    assert_eq!(status["message"], "Pod was rejected: The node had condition: [MemoryPressure]. ");
    // A pod that tolerates the taint is admitted, and evicted later.
    let toleration =
        "  tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists}]\n";
    joined.create_pod(&(pod("tolerant", "exec sleep 3600") + toleration));
    let evicted = joined.wait_for_phase("tolerant", "Failed").await;
    let message = evicted["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("The node was low on resource: memory. "), "{message}");
    joined.end(agent).await;
}
