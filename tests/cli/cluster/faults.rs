//! An API server that is unavailable, slow, forgetful or returns errors, and a killed agent: no running pod is stopped.

use std::path::PathBuf;
use std::time::Duration;

use super::api_server::ApiServer;
use super::joined::{Joined, condition, pod, wait};
use crate::command::*;

/// The restart count of a pod's container, and its id.
fn run(pod: &Value) -> (Value, Value) {
    let container = &pod["status"]["containerStatuses"][0];
    (container["restartCount"].clone(), container["containerID"].clone())
}

/// Creates the directory `signs` of the place. Returns the end of the manifest of a [`pod`] that sees it at `/signs`.
fn signs(joined: &Joined) -> (PathBuf, String) {
    let signs = joined.place.path("signs");
    std::fs::create_dir(&signs).unwrap();
    let volume = format!(
        "    volumeMounts: [{{name: signs, mountPath: /signs}}]\n  volumes: [{{name: signs, hostPath: {{path: {}}}}}]\n",
        signs.display()
    );
    (signs, volume)
}

#[tokio::test]
async fn agent_waits_for_a_server_that_is_away_at_the_start() {
    let mut joined = Joined::new(ApiServer::away()).await;
    joined.place.file("static/own.yaml", &pod("own", "sleep 3600"));
    let manifests = joined.place.path("static");
    let agent = joined.agent(&["--manifests", manifests.to_str().unwrap()]);
    // Static pods run without a cluster.
    joined.wait_for_running(1).await;
    joined.server.come();
    joined.wait_for_ready_node().await;
    joined.create_pod(&pod("web", "sleep 3600"));
    joined.wait_for_phase("web", "Running").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn pods_run_on_while_the_server_is_away_and_are_seen_to_afterwards() {
    let (mut joined, agent) = Joined::start().await;
    let (signs, volume) = signs(&joined);
    let waits = pod("ends", "while ! test -e /signs/go; do sleep 0.1; done; exit 0");
    for manifest in [pod("stays", "sleep 3600"), pod("goes", "sleep 3600"), waits + &volume] {
        joined.create_pod(&manifest);
    }
    for name in ["stays", "goes", "ends"] {
        joined.wait_for_phase(name, "Running").await;
    }
    let before = run(&joined.pod("stays"));
    joined.server.go().await;
    // In the meantime one pod is deleted by force, one exits, one is created; and the server discards its history of changes.
    joined.delete_pod("goes", Some(0));
    std::fs::write(signs.join("go"), "").unwrap();
    // One has ended, and nothing else.
    joined.wait_for_running(2).await;
    joined.create_pod(&pod("new", "sleep 3600"));
    for number in 0..40 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{number}"), "namespace": "default"}});
        joined.server.store().create(map, jiff::Timestamp::now()).unwrap();
    }
    joined.server.come();
    joined.wait_for_phase("ends", "Succeeded").await;
    joined.wait_for_phase("new", "Running").await;
    // The deleted one has ended.
    joined.wait_for_running(2).await;
    assert_eq!(run(&joined.pod("stays")), before);
    joined.end(agent).await;
}

#[tokio::test]
async fn refused_patches_are_repeated() {
    let (joined, agent) = Joined::start().await;
    joined.wait_for_ready_node().await;
    joined.server.refuse_patches(2);
    joined.create_pod(&pod("web", "exit 0"));
    joined.wait_for_phase("web", "Succeeded").await;
    assert_eq!(joined.server.patches_to_refuse(), 0);
    joined.delete_pod("web", None);
    joined.wait_until_gone("web").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn pod_whose_status_cannot_be_written_delays_no_other_status() {
    let (joined, agent) = Joined::start().await;
    let (signs, volume) = signs(&joined);
    let mut uids = ["a", "b"].map(|name| {
        let waits = pod(name, &format!("while ! test -e /signs/{name}; do sleep 0.1; done"));
        (joined.create_pod(&(waits + &volume)), name)
    });
    // Statuses are written in the order of the uids.
    uids.sort();
    let [first, second] = uids.map(|(_, name)| name);
    for name in [first, second] {
        joined.wait_for_phase(name, "Running").await;
    }
    let path = format!("/api/v1/namespaces/default/pods/{first}/status");
    joined.server.fail(&path, u32::MAX);
    let patch = format!("PATCH {path}");
    let before = joined.server.count(&patch);
    std::fs::write(signs.join(first), "").unwrap();
    let tries = || Value::from(joined.server.count(&patch));
    wait("a failed patch", tries, |seen| seen.as_u64() > Some(before as u64)).await;
    std::fs::write(signs.join(second), "").unwrap();
    joined.wait_for_phase(second, "Succeeded").await;
    assert_eq!(joined.pod(first)["status"]["phase"], "Running");
    joined.server.fail(&path, 0);
    joined.wait_for_phase(first, "Succeeded").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn slow_server_delays_nothing_but_its_own_answers() {
    let (joined, agent) = Joined::start().await;
    joined.wait_for_ready_node().await;
    joined.server.be_slow(Duration::from_millis(500));
    joined.create_pod(&pod("web", "sleep 3600"));
    let is_ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
    joined.wait_for_pod("web", "ready", is_ready).await;
    joined.delete_pod("web", Some(1));
    joined.wait_until_gone("web").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn agent_continues_after_previous_one_was_killed() {
    let joined = Joined::new(ApiServer::start()).await;
    let first = joined.agent(&[]);
    joined.create_pod(&pod("stays", "sleep 3600"));
    joined.create_pod(&pod("goes", "trap 'exit 0' TERM; while :; do sleep 0.1; done"));
    for name in ["stays", "goes"] {
        joined.wait_for_phase(name, "Running").await;
    }
    let before = joined.pod("stays");
    first.signal(Signal::SIGKILL);
    first.end().await;
    joined.delete_pod("goes", Some(20));
    let patches = joined.server.count("PATCH /api/v1/namespaces/default/pods/stays");
    let second = joined.agent(&[]);
    joined.wait_until_gone("goes").await;
    joined.wait_for_ready_node().await;
    let after = joined.pod("stays");
    assert_eq!(run(&after), run(&before));
    assert_eq!(after["status"]["startTime"], before["status"]["startTime"]);
    assert_eq!(after["status"]["phase"], "Running");
    // The second agent found the status that the first had written, and only added its own observations.
    let more = joined.server.count("PATCH /api/v1/namespaces/default/pods/stays") - patches;
    assert!(more <= 2, "{more} patches");
    joined.end(second).await;
}
