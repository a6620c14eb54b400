//! Static pods on a cluster's node: the API server shows them as mirror pods.

use cluster::{Kind, Part};
use harness::streaming::{self, Streams, Transport};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::joined::{Joined, NODE, condition, pod, pod_with_handler, wait};
use super::server_client::Served;
use crate::command::*;

const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A directory of manifests with the static pod `web`, which runs this script.
fn manifests(joined: &Joined, script: &str) -> String {
    joined.place.file("static/web.yaml", &pod("web", script));
    joined.place.path("static").to_str().unwrap().to_owned()
}

/// Writes a manifest atomically.
fn put(joined: &Joined, name: &str, text: &str) {
    let new = joined.place.file("new", text);
    std::fs::rename(new, joined.place.path(&format!("static/{name}"))).unwrap();
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn container(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["containerID"].clone()
}

#[tokio::test]
async fn static_pod_is_shown_by_a_mirror_pod_of_the_node() {
    let joined = Joined::new(ApiServer::start()).await;
    let manifests = manifests(&joined, "sleep 3600");
    let agent = joined.agent(&["--manifests", &manifests]);
    let mirror = joined.wait_for_pod("web-n1", "ready", is_ready).await;
    let metadata = &mirror["metadata"];
    let hash = &metadata["annotations"][HASH];
    assert_eq!(&metadata["annotations"][MIRROR], hash);
    assert_eq!(metadata["annotations"]["kubernetes.io/config.source"], "file");
    assert_ne!(&metadata["uid"], hash);
    let owner = &metadata["ownerReferences"][0];
    assert_eq!(owner["uid"], joined.node()["metadata"]["uid"]);
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("Node"), &json!(true)));
    assert_eq!(mirror["spec"]["nodeName"], NODE);
    // The pod runs once, and its mirror pod is not run.
    let running = joined.wait_for_running(1).await;
    assert!(container(&mirror).as_str().unwrap().ends_with(&running[0]));

    // Events refer to the pod's uid, which is its hash: kubectl describe looks for that uid.
    let events = || {
        let events = cluster::Selection::of(Kind::of("v1", "Event"));
        let events = joined.server.store().list(&events).items;
        events.iter().map(|event| event.value["involvedObject"].clone()).collect()
    };
    let is_reported = |events: &Value| {
        let mut events = events.as_array().unwrap().iter();
        events.any(|object| object["name"] == "web-n1" && object["uid"] == *hash)
    };
    wait("an event of the static pod", events, is_reported).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn deleted_mirror_pod_is_recreated_and_its_pod_keeps_running() {
    let joined = Joined::new(ApiServer::start()).await;
    let manifests = manifests(&joined, "sleep 3600");
    let agent = joined.agent(&["--manifests", &manifests]);
    let mut last = joined.wait_for_pod("web-n1", "ready", is_ready).await;
    let first = container(&last);
    for grace in [None, Some(0)] {
        joined.delete_pod("web-n1", grace);
        let before = uid(&last);
        let is_new = |pod: &Value| !pod.is_null() && uid(pod) != before && is_ready(pod);
        last = joined.wait_for_pod("web-n1", "another one, ready", is_new).await;
        assert_eq!(container(&last), first, "{grace:?}");
    }
    joined.wait_for_running(1).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn mirror_pod_follows_the_manifest() {
    let joined = Joined::new(ApiServer::start()).await;
    let slow = "trap 'sleep 1; exit 7' TERM; while :; do sleep 0.1; done";
    let manifests = manifests(&joined, slow);
    let agent = joined.agent(&["--manifests", &manifests]);
    let before = joined.wait_for_pod("web-n1", "ready", is_ready).await;
    let earlier = joined.running().await;
    let quick = "trap 'exit 7' TERM; touch /dev/shm/set; while :; do sleep 0.1; done";
    put(&joined, "web.yaml", &pod_with_handler("web", quick));
    let is_another = |pod: &Value| !pod.is_null() && uid(pod) != uid(&before);
    joined.wait_for_pod("web-n1", "another one", is_another).await;
    let running = joined.running().await;
    assert!(!running.contains(&earlier[0]), "the earlier one is shown until it has ended");
    let is_new = |pod: &Value| {
        !pod.is_null()
            && is_ready(pod)
            && uid(pod) != uid(&before)
            && container(pod) != container(&before)
    };
    let after = joined.wait_for_pod("web-n1", "that of the new manifest", is_new).await;
    assert_ne!(after["metadata"]["annotations"][MIRROR], before["metadata"]["annotations"][MIRROR]);
    let store = joined.server.store();
    let version = store.list(&cluster::Selection::default()).version;
    let mut watch = store.watch(cluster::Selection::of(Kind::pod()), version).unwrap();
    std::fs::remove_file(joined.place.path("static/web.yaml")).unwrap();
    joined.wait_until_gone("web-n1").await;
    // The mirror pod stays until nothing of the pod runs, and shows how the pod ended.
    assert_eq!(joined.running().await, Vec::<String>::new());
    let mut last = Value::Null;
    while let Some(event) = watch.try_next().unwrap() {
        last = event.object().value.clone();
    }
    let ended = &last["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 7, "{last}");
    joined.end(agent).await;
}

#[tokio::test]
async fn mirror_pod_without_a_static_pod_is_deleted_and_never_run() {
    let joined = Joined::new(ApiServer::start()).await;
    joined.place.file("static/.keep", "");
    let manifests = joined.place.path("static").to_str().unwrap().to_owned();
    let create = || {
        let container =
            json!({"name": "app", "image": "crib.local/host", "command": ["sleep", "3600"]});
        let orphan = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "gone-n1", "namespace": "default", "annotations": {HASH: "x", MIRROR: "x"}},
            "spec": {"nodeName": NODE, "containers": [container]},
        });
        joined.server.store().create(orphan, Timestamp::now()).unwrap();
    };
    create();
    let agent = joined.agent(&["--manifests", &manifests]);
    joined.wait_until_gone("gone-n1").await;
    create();
    joined.wait_until_gone("gone-n1").await;
    assert_eq!(joined.running().await, Vec::<String>::new());
    joined.end(agent).await;
}

#[tokio::test]
async fn static_pods_run_before_the_server_is_there_and_are_shown_afterwards() {
    let mut joined = Joined::new(ApiServer::away()).await;
    let manifests = manifests(&joined, "exit 0");
    let agent = joined.agent(&["--manifests", &manifests]);
    let ended = async || {
        let args = ["ps", "-a", "--runtime-endpoint", joined.endpoint(), "-o", "json"];
        let ended = joined.place.crib(&args).await.exits(0);
        if ended.out.contains("CONTAINER_EXITED") { Ok(()) } else { Err(ended.out) }
    };
    harness::eventually(WAIT_LIMIT, "the static pod has ended", ended).await;
    joined.server.come();
    joined.wait_for_phase("web-n1", "Succeeded").await;
    joined.end(agent).await;
}

#[tokio::test]
async fn logs_of_a_mirror_pod_are_those_of_the_static_pod() {
    let joined = Joined::new(ApiServer::start()).await;
    let manifests = manifests(&joined, "echo hello; sleep 3600");
    let served = Served::with(joined, &["--manifests", &manifests]).await;
    served.joined.wait_for_pod("web-n1", "ready", is_ready).await;
    harness::eventually(WAIT_LIMIT, "the line", async || {
        let seen = served.get("/containerLogs/default/web-n1/app").await;
        if seen == (200, "hello\n".to_owned()) { Ok(()) } else { Err(seen) }
    })
    .await;
    // A node lists each pod once.
    let (_, pods) = served.get("/pods").await;
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods["items"].as_array().unwrap().len(), 1, "{pods}");
    served.end().await;
}

/// Clients may use the mirror pod's uid, which they get from the API server.
#[tokio::test]
async fn uid_of_a_mirror_pod_names_the_static_pod() {
    let joined = Joined::new(ApiServer::start()).await;
    let manifests = manifests(&joined, "sleep 3600");
    let served = Served::with(joined, &["--manifests", &manifests]).await;
    let mirror = served.joined.wait_for_pod("web-n1", "ready", is_ready).await;
    let of_static = mirror["metadata"]["annotations"][HASH].as_str().unwrap().to_owned();
    let plain = served.plain().await;
    for uid in [uid(&mirror), of_static] {
        let url =
            |kind: &str, rest: &str| format!("{}/{kind}/default/web-n1/{uid}{rest}", plain.url);
        let stdout = Streams { stdout: true, ..Streams::default() };
        let exec = url("exec", "/app?command=echo&command=hello&output=1");
        let mut command = streaming::command(&exec, stdout, Transport::Spdy).await.unwrap();
        assert_eq!(streaming::text(&mut command.stdout).await, "hello\n");
        assert_eq!(command.ended().await.unwrap(), 0);
        let attach = url("attach", "/app?output=1");
        streaming::command(&attach, stdout, Transport::Spdy).await.map(drop).unwrap();
        streaming::port_forward(&url("portForward", ""), Transport::Spdy).await.map(drop).unwrap();
    }
    served.end().await;
}

#[tokio::test]
async fn mirror_pod_keeps_the_time_at_which_it_began_with_the_next_agent() {
    let joined = Joined::new(ApiServer::start()).await;
    let manifests = manifests(&joined, "sleep 3600");
    let agent = joined.agent(&["--manifests", &manifests]);
    joined.wait_for_pod("web-n1", "ready", is_ready).await;
    agent.stop().await;
    // Long ago: a difference of a second would not be detected.
    let began = json!("2026-01-01T00:00:00Z");
    let store = joined.server.store();
    let changed = store.change(&cluster::Key::pod("default", "web-n1"), Part::Status, |pod| {
        pod["status"]["startTime"] = began.clone();
        pod["status"]["conditions"] = json!([]);
        Ok(())
    });
    changed.unwrap();
    let agent = joined.agent(&["--manifests", &manifests]);
    let after = joined.wait_for_pod("web-n1", "ready again", is_ready).await;
    assert_eq!(after["status"]["startTime"], began);
    joined.end(agent).await;
}

#[tokio::test]
async fn mirror_pods_go_on_with_a_node_that_is_made_again() {
    let joined = Joined::new(ApiServer::start()).await;
    let manifests = manifests(&joined, "sleep 3600");
    let agent = joined.agent(&["--manifests", &manifests]);
    let before = joined.wait_for_pod("web-n1", "ready", is_ready).await;
    let store = joined.server.store();
    let key = cluster::Key::new(Kind::of("v1", "Node"), "", NODE);
    store.delete(&key, &cluster::DeleteOptions::default(), Timestamp::now()).unwrap();
    // Like a cluster's garbage collection, for which nodes own their mirror pods.
    joined.delete_pod("web-n1", Some(0));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    let node = store.create(node, Timestamp::now()).unwrap();
    let after = joined
        .wait_for_pod("web-n1", "ready again, of the new node", |pod| {
            let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
            if !pod.is_null() && owner != node.uid() {
                // Created just before the agent sees the new node.
                joined.delete_pod("web-n1", Some(0));
            }
            owner == node.uid() && is_ready(pod)
        })
        .await;
    assert_eq!(container(&after), container(&before));
    // The new node gets the status of the old one.
    let again = joined.wait_for_ready_node().await;
    assert_eq!(again["metadata"]["uid"], node.uid());
    assert_eq!(again["metadata"]["labels"]["kubernetes.io/os"], "linux");
    joined.end(agent).await;
}
