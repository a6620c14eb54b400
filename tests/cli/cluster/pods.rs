//! Pods bound to the node: they run, the API server has their statuses, and their objects are deleted last.

use cluster::{Key, Part};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::joined::{Joined, condition, pod, pod_with_handler, wait};
use crate::command::*;

#[tokio::test]
async fn bound_pod_runs_and_its_status_is_written() {
    let (joined, agent) = Joined::start().await;
    joined.create_pod(&pod("web", "sleep 3600"));
    let is_ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
    let web = joined.wait_for_pod("web", "ready", is_ready).await;
    let status = &web["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["qosClass"], "BestEffort");
    assert_ne!(status["startTime"], Value::Null);
    let container = &status["containerStatuses"][0];
    let running = joined.running().await;
    let id = container["containerID"].as_str().unwrap();
    assert_eq!(running.len(), 1);
    assert!(id.ends_with(&running[0]), "{id} {running:?}");
    for kind in ["PodScheduled", "Initialized", "ContainersReady", "PodReadyToStartContainers"] {
        assert_eq!(condition(&web, kind)["status"], "True", "{kind}");
    }
    joined.end(agent).await;
}

#[tokio::test]
async fn deleted_pod_ends_with_its_grace_period_before_its_object_is_removed() {
    let (joined, agent) = Joined::start().await;
    // The container exits on SIGTERM: if it were killed, its exit code would differ.
    let script = "trap 'exit 7' TERM; touch /dev/shm/set; while :; do sleep 0.1; done";
    joined.create_pod(&pod_with_handler("web", script));
    let is_ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
    joined.wait_for_pod("web", "ready", is_ready).await;
    let mut watch = joined
        .server
        .store()
        .watch(
            cluster::Selection::of(cluster::Kind::pod()),
            joined.server.store().list(&cluster::Selection::default()).version,
        )
        .unwrap();
    joined.delete_pod("web", Some(30));
    joined.wait_until_gone("web").await;
    let mut last = Value::Null;
    while let Some(event) = watch.try_next().unwrap() {
        last = event.object().value.clone();
    }
    assert_eq!(last["status"]["phase"], "Failed");
    let ended = &last["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 7, "{ended}");
    assert_eq!(condition(&last, "Ready")["status"], "False");
    assert_eq!(joined.running().await, Vec::<String>::new());
    joined.end(agent).await;
}

#[tokio::test]
async fn ended_and_rejected_pods_stay_until_they_are_deleted() {
    let (joined, agent) = Joined::start().await;
    joined.create_pod(&pod("done", "exit 0"));
    joined.create_pod(&pod("failed", "exit 3"));
    let elsewhere =
        pod("elsewhere", "sleep 3600").replace("spec:\n", "spec:\n  nodeSelector: {disk: none}\n");
    joined.create_pod(&elsewhere);
    joined.wait_for_phase("done", "Succeeded").await;
    let failed = joined.wait_for_phase("failed", "Failed").await;
    let ended = &failed["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 3);
    let rejected = joined.wait_for_phase("elsewhere", "Failed").await;
    assert_eq!(rejected["status"]["reason"], "NodeAffinity");
    assert_eq!(rejected["status"].get("containerStatuses"), None);
    for name in ["done", "failed", "elsewhere"] {
        assert_ne!(joined.pod(name), Value::Null, "{name}");
        joined.delete_pod(name, None);
        joined.wait_until_gone(name).await;
    }
    joined.end(agent).await;
}

#[tokio::test]
async fn status_of_others_is_kept_and_a_changed_one_is_written_again() {
    let (joined, agent) = Joined::start().await;
    joined.create_pod(&pod("web", "sleep 3600"));
    let web = joined.wait_for_phase("web", "Running").await;
    let key = cluster::Key::pod("default", "web");
    let store = joined.server.store();
    store
        .change(&key, cluster::Part::Status, |pod| {
            let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
            conditions.push(json!({"type": "example.com/Gate", "status": "True"}));
            pod["status"]["phase"] = json!("Pending");
            pod["status"]["future"] = json!("kept");
            Ok(())
        })
        .unwrap();
    let again = joined.wait_for_phase("web", "Running").await;
    assert_eq!(condition(&again, "example.com/Gate")["status"], "True");
    assert_eq!(again["status"]["future"], "kept");
    assert_eq!(again["status"]["startTime"], web["status"]["startTime"]);
    joined.end(agent).await;
}

#[tokio::test]
async fn status_at_rest_is_written_once() {
    let (joined, agent) = Joined::start().await;
    joined.create_pod(&pod("web", "sleep 3600"));
    let is_ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
    joined.wait_for_pod("web", "ready", is_ready).await;
    let renewals =
        || joined.server.count("PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease");
    let wait_for_renewals = async |more: usize| {
        let wanted = renewals() + more;
        wait(
            "renewals of the lease",
            || renewals().into(),
            |seen| seen.as_u64() >= Some(wanted as u64),
        )
        .await;
    };
    // The lease is renewed as often as statuses are compared with those of the server.
    wait_for_renewals(1).await;
    // The node is watched, not polled.
    let requests = || {
        ["PATCH /api/v1/namespaces/default/pods/web", "GET /api/v1/nodes/n1"]
            .map(|request| joined.server.count(request))
    };
    let before = requests();
    wait_for_renewals(2).await;
    assert_eq!(requests(), before);
    joined.end(agent).await;
}

#[tokio::test]
async fn pod_that_takes_the_name_of_another_gets_its_own_status() {
    let (joined, agent) = Joined::start().await;
    let first = joined.create_pod(&pod("web", "sleep 3600"));
    joined.wait_for_phase("web", "Running").await;
    // Deleted by force: the object is removed immediately, whatever the node does.
    joined.delete_pod("web", Some(0));
    let second = joined.create_pod(&pod("web", "sleep 3601"));
    assert_ne!(first, second);
    let web = joined.wait_for_phase("web", "Running").await;
    assert_eq!(web["metadata"]["uid"], second.as_str());
    let id = web["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    harness::eventually(WAIT_LIMIT, "only the second pod runs", async || {
        let running = joined.running().await;
        let is_so = running.len() == 1 && id.ends_with(&running[0]);
        if is_so { Ok(()) } else { Err(running) }
    })
    .await;
    joined.end(agent).await;
}

#[tokio::test]
async fn pod_deleted_before_start_is_removed() {
    let joined = Joined::new(ApiServer::start()).await;
    joined.create_pod(&pod("early", "sleep 3600"));
    joined.delete_pod("early", Some(30));
    assert_eq!(joined.pod("early")["metadata"]["deletionGracePeriodSeconds"], 30);
    let agent = joined.agent(&[]);
    joined.wait_until_gone("early").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn pods_that_were_there_before_the_agent_are_run() {
    let joined = Joined::new(ApiServer::start()).await;
    let before = Timestamp::now();
    joined.create_pod(&pod("early", "sleep 3600"));
    let agent = joined.agent(&[]);
    let early = joined.wait_for_phase("early", "Running").await;
    let started: Timestamp = early["status"]["startTime"].as_str().unwrap().parse().unwrap();
    assert!(started.as_second() >= before.as_second(), "{started} {before}");
    joined.end(agent).await;
}

/// A pod whose container has this CPU request and limit.
fn sized(cpu: &str) -> String {
    let list = format!("{{cpu: {cpu}}}");
    pod("web", "exec sleep 3600")
        + &format!("    resources: {{requests: {list}, limits: {list}}}\n")
}

/// Resizes the pod, like `kubectl patch --subresource resize`. Returns its new generation.
fn resize(joined: &Joined, cpu: &str) -> Value {
    let resized = joined.server.store().change(&Key::pod("default", "web"), Part::Resize, |pod| {
        let list = json!({"cpu": cpu});
        pod["spec"]["containers"][0]["resources"] = json!({"requests": list, "limits": list});
        Ok(())
    });
    resized.unwrap().value["metadata"]["generation"].clone()
}

/// The container's CPU limit in the status.
fn cpu_limit(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"]
}

fn is_pending(pod: &Value) -> bool {
    !condition(pod, "PodResizePending").is_null()
}

/// Without cgroups, the runtime records the limits without applying them.
#[tokio::test]
async fn resized_pod_has_its_new_resources_without_a_restart() {
    let (joined, agent) = Joined::start().await;
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
    let (joined, agent) = Joined::start().await;
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
