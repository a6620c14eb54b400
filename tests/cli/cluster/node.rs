//! The node at the API server: registered, ready, alive.

use cluster::Kind;
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::joined::{Joined, NODE, condition, wait};
use crate::command::*;

#[tokio::test]
async fn agent_registers_a_ready_node_and_renews_its_lease() {
    let joined = Joined::new(ApiServer::start()).await;
    let more = ["--node-labels", "disk=ssd", "--register-with-taints", "dedicated=x:NoSchedule"];
    let agent = joined.agent(&[&more[..], &["--max-pods", "7"]].concat());
    let node = joined.wait_for_ready_node().await;

    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/hostname"], NODE);
    assert_eq!(labels["kubernetes.io/os"], "linux");
    assert_eq!(labels["disk"], "ssd");
    let taint = json!([{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]);
    assert_eq!(node["spec"]["taints"], taint);
    let status = &node["status"];
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        assert_eq!(condition(&node, kind)["status"], "False", "{kind}");
    }
    assert_eq!(condition(&node, "Ready")["message"], "kubelet is posting ready status");
    assert_eq!(status["capacity"]["pods"], "7");
    for resource in ["cpu", "memory", "ephemeral-storage", "pods"] {
        assert_ne!(status["allocatable"][resource], Value::Null, "{resource}");
    }
    let addresses = status["addresses"].as_array().unwrap();
    assert_eq!(addresses.last().unwrap(), &json!({"type": "Hostname", "address": NODE}));
    let info = &status["nodeInfo"];
    assert_eq!(info["operatingSystem"], "linux");
    assert!(info["kubeletVersion"].as_str().unwrap().starts_with("v1.36."), "{info}");
    assert!(info["containerRuntimeVersion"].as_str().unwrap().starts_with("crib://"), "{info}");
    assert_ne!(info["kernelVersion"], "");

    let lease =
        || joined.object(Kind::of("coordination.k8s.io/v1", "Lease"), "kube-node-lease", NODE);
    let first = wait("a lease", lease, |lease| !lease.is_null()).await;
    assert_eq!(first["spec"]["holderIdentity"], NODE);
    assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    let renewed = |lease: &Value| lease["spec"]["renewTime"] != first["spec"]["renewTime"];
    wait("a renewed lease", lease, renewed).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn agent_takes_over_its_node_and_leaves_what_others_wrote() {
    let joined = Joined::new(ApiServer::start()).await;
    let existing = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"theirs": "1", "kubernetes.io/os": "plan9"}},
        "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
    });
    let store = joined.server.store();
    let created = store.create(existing.clone(), Timestamp::now()).unwrap();
    store
        .change(&created.key, cluster::Part::Status, |node| {
            node["status"] =
                json!({"conditions": [{"type": "Mine", "status": "True"}], "future": 1});
            Ok(())
        })
        .unwrap();
    let agent = joined.agent(&["--register-with-taints", "own=x:NoSchedule"]);
    let node = joined.wait_for_ready_node().await;
    assert_eq!(node["metadata"]["labels"]["theirs"], "1");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["spec"], existing["spec"]);
    assert_eq!(condition(&node, "Mine")["status"], "True");
    assert_eq!(node["status"]["future"], 1);
    joined.end(agent).await;
}

#[tokio::test]
async fn unusable_kubeconfigs_are_refused_before_anything_starts() {
    let place = Place::new();
    let bad = place.file("bad", "current-context: none\n");
    let missing = place.path("missing").to_str().unwrap().to_owned();
    for (file, problem) in [(&bad, "there is no context \"none\""), (&missing, "failed to read")] {
        let args = ["agent", "--runtime-endpoint", "unix:///nowhere.sock", "--kubeconfig", file];
        let ended = place.crib(&args).await.exits(2);
        ended.err_has("--kubeconfig: ");
        ended.err_has(problem);
    }
}
