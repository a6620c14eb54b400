//! Pods that are resized through the API server: their statuses have the new resources, or say why a resize waits.

use cluster::{Key, Part};

use super::api_server::ApiServer;
use super::joined::{Joined, condition, pod};
use crate::command::*;

/// A pod whose container requests this much CPU, and is limited to it.
fn sized(cpu: &str) -> String {
    let list = format!("{{cpu: {cpu}}}");
    pod("web", "exec sleep 3600")
        + &format!("    resources: {{requests: {list}, limits: {list}}}\n")
}

/// Resizes the pod, as `kubectl patch --subresource resize` does. Returns its new generation.
fn resize(joined: &Joined, cpu: &str) -> Value {
    let resized = joined.server.store().change(&Key::pod("default", "web"), Part::Resize, |pod| {
        let list = json!({"cpu": cpu});
        pod["spec"]["containers"][0]["resources"] = json!({"requests": list, "limits": list});
        Ok(())
    });
    resized.unwrap().value["metadata"]["generation"].clone()
}

/// The CPU limit that the container has according to the status.
fn cpu_limit(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"]
}

fn is_pending(pod: &Value) -> bool {
    !condition(pod, "PodResizePending").is_null()
}

/// Without cgroups, the runtime records the limits and does not apply them.
#[tokio::test]
async fn resized_pod_has_its_new_resources_without_a_restart() {
    let joined = Joined::new(ApiServer::start()).await;
    let agent = joined.agent(&[]);
    joined.create_pod(&sized("100m"));
    let before = joined.wait_for_phase("web", "Running").await;
    assert_eq!(cpu_limit(&before), "100m");
    let generation = resize(&joined, "200m");
    let is_resized =
        |pod: &Value| cpu_limit(pod) == "200m" && condition(pod, "PodResizeInProgress").is_null();
    let after = joined.wait_for_pod("web", "resized", is_resized).await;
    assert_eq!(after["status"]["observedGeneration"], generation);
    assert!(!is_pending(&after), "{after}");
    let container = &after["status"]["containerStatuses"][0];
    assert_eq!(container["allocatedResources"]["cpu"], "200m");
    assert_eq!(container["restartCount"], 0);
    assert_eq!(container["containerID"], before["status"]["containerStatuses"][0]["containerID"]);
    joined.end(agent).await;
}

#[tokio::test]
async fn resize_without_room_is_deferred_until_it_is_taken_back() {
    let joined = Joined::new(ApiServer::start()).await;
    let agent = joined.agent(&[]);
    joined.create_pod(&sized("100m"));
    joined.wait_for_phase("web", "Running").await;
    let generation = resize(&joined, "100000");
    let deferred = joined.wait_for_pod("web", "deferred", is_pending).await;
    let pending = condition(&deferred, "PodResizePending");
    assert_eq!((&pending["status"], &pending["reason"]), (&json!("True"), &json!("Deferred")));
    assert_eq!(pending["observedGeneration"], generation);
    let message = pending["message"].as_str().unwrap();
    let begins = "Node didn't have enough resource: cpu, requested: 100000000, used: 0, capacity: ";
    assert!(message.starts_with(begins), "{message}");
    assert_eq!(cpu_limit(&deferred), "100m");
    let generation = resize(&joined, "100m");
    let is_seen = |pod: &Value| pod["status"]["observedGeneration"] == generation;
    let after = joined.wait_for_pod("web", "taken back", is_seen).await;
    assert!(!is_pending(&after), "{after}");
    joined.end(agent).await;
}
