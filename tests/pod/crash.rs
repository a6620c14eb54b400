//! The agent and the runtime are killed: pods keep running, and the restarted daemons take them over.

use harness::{Node, Runtime, WAIT_LIMIT, eventually};

use crate::support::{FOREVER, containers, manifest, no_pods, ready};

#[tokio::test]
async fn new_agent_adopts_pods_of_killed_agent() {
    let mut node = Node::start().await.unwrap();
    let pod = manifest("p", "Always", &[("init", "echo once >> /shared/count"), ("app", FOREVER)]);
    node.write_manifest("p.yaml", &pod).unwrap();
    let before = ready(&node, "p", "app").await;
    node.write_manifest("goes.yaml", &manifest("goes", "Always", &[("app", FOREVER)])).unwrap();
    ready(&node, "goes", "app").await;

    node.kill9_agent().await;
    assert_eq!(node.runtime.client.sh(&before.id, "cat /shared/count").await.unwrap(), "once\n");
    // While no agent runs, one manifest is removed and another one added.
    node.delete_manifest("goes.yaml").unwrap();
    node.write_manifest("comes.yaml", &manifest("comes", "Always", &[("app", FOREVER)])).unwrap();
    node.start_agent().unwrap();

    ready(&node, "comes", "app").await;
    eventually(WAIT_LIMIT, "the pod without a manifest to go", || async {
        let left = containers(&node, "goes").await;
        if left.is_empty() { Ok(()) } else { Err((left, node.agent_log())) }
    })
    .await;
    // The surviving container keeps running: it is neither restarted nor initialised again.
    let after = ready(&node, "p", "app").await;
    assert_eq!((after.id.as_str(), after.created_at), (before.id.as_str(), before.created_at));
    assert_eq!(node.runtime.client.sh(&after.id, "cat /shared/count").await.unwrap(), "once\n");

    // The new agent fully manages the pod.
    node.delete_manifest("p.yaml").unwrap();
    node.delete_manifest("comes.yaml").unwrap();
    no_pods(&node).await;
}

#[tokio::test]
async fn agent_survives_runtime_restart() {
    let mut node = Node::start_with(Runtime::with().durable()).await.unwrap();
    node.write_manifest("p.yaml", &manifest("p", "Always", &[("app", FOREVER)])).unwrap();
    let before = ready(&node, "p", "app").await;
    node.runtime.kill9().await;
    node.write_manifest("q.yaml", &manifest("q", "Always", &[("app", FOREVER)])).unwrap();
    node.runtime.restart().await.unwrap();
    ready(&node, "q", "app").await;
    let after = ready(&node, "p", "app").await;
    assert_eq!(after.id, before.id);
    node.delete_manifest("p.yaml").unwrap();
    node.delete_manifest("q.yaml").unwrap();
    no_pods(&node).await;
}

#[tokio::test]
async fn pods_are_adopted_after_agent_and_runtime_are_killed() {
    let mut node = Node::start_with(Runtime::with().durable()).await.unwrap();
    for number in 0..5 {
        let name = format!("pod-{number}");
        node.write_manifest(
            &format!("{name}.yaml"),
            &manifest(&name, "Always", &[("init", "sleep 0.2"), ("app", FOREVER)]),
        )
        .unwrap();
    }
    // Kill both while the pods are being created.
    ready(&node, "pod-0", "app").await;
    node.runtime.kill9().await;
    node.kill9_agent().await;
    node.runtime.restart().await.unwrap();
    node.start_agent().unwrap();
    for number in 0..5 {
        ready(&node, &format!("pod-{number}"), "app").await;
    }
    for number in 0..5 {
        node.delete_manifest(&format!("pod-{number}.yaml")).unwrap();
    }
    no_pods(&node).await;
}
