//! The agent is killed with SIGKILL at each call that changes state, as seen by a proxy: the next agent takes over.
//!
//! agent/src/sync_loop/tests/killed.rs does the same to the agent's tasks, for more scenarios and for every call.

use cri::v1::ContainerState;
use harness::{Node, WAIT_LIMIT, eventually};
use proxy::{Call, Proxy};

use crate::support::{FOREVER, containers, manifest, ready};

/// The moment of a call at which the agent is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The call has reached the proxy.
    Begun,
    /// The runtime's response has reached the proxy.
    Answered,
}

/// Waits until the agent has made this many calls that change state.
async fn call(proxy: &Proxy, number: usize, moment: Moment) {
    const CHANGES: [&str; 8] = [
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "PullImage",
    ];
    let is_counted = |call: &&Call| {
        let reached = match moment {
            Moment::Begun => true,
            Moment::Answered => call.end.is_some(),
        };
        reached && CHANGES.contains(&call.method.as_str())
    };
    let reached = proxy.recording().until(|calls| {
        let count = calls.iter().filter(is_counted).count();
        (count >= number).then_some(())
    });
    tokio::time::timeout(WAIT_LIMIT, reached)
        .await
        .unwrap_or_else(|_| panic!("call {number} was never {moment:?}"));
}

/// Waits until the agent has read the state of a container.
async fn adopted(proxy: &Proxy, container: &str) {
    let looked = proxy.recording().until(|calls| {
        let is_it = |call: &&Call| {
            call.method == "ContainerStatus"
                && call.end.is_some()
                && call.request()["container_id"] == container
        };
        calls.iter().find(is_it).map(|_| ())
    });
    tokio::time::timeout(WAIT_LIMIT, looked)
        .await
        .expect("the agent never looked at the container");
}

/// A pod whose containers record in a file that they were started.
fn noting(name: &str) -> String {
    let app = format!("echo app >> /shared/ran; {FOREVER}");
    let containers = [("init", "echo init >> /shared/ran"), ("app", app.as_str())];
    manifest(name, "Always", &containers)
}

/// Asserts that the pod runs, and that each of its containers was started once.
async fn runs_once(node: &Node, pod: &str) {
    let app = ready(node, pod, "app").await;
    let ran = node.runtime.client.sh(&app.id, "cat /shared/ran").await;
    assert_eq!(ran.unwrap(), "init\napp\n");
    let running = containers(node, pod).await.into_iter();
    let running =
        running.filter(|(_, _, seen)| seen.state() == ContainerState::ContainerRunning).count();
    assert_eq!(running, 1);
}

/// Waits until the runtime has no object of the pod.
async fn gone(node: &Node, pod: &str) {
    eventually(WAIT_LIMIT, &format!("{pod} to be gone"), || async {
        let pods = node.runtime.client.pods(Default::default()).await.unwrap();
        let left = pods
            .iter()
            .any(|seen| seen.metadata.as_ref().is_some_and(|seen| seen.name.starts_with(pod)));
        if left { Err((pods, node.agent_log())) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn pod_starts_once_whichever_call_its_agent_dies_at() {
    let mut node = Node::start().await.unwrap();
    // A sandbox, and two containers that are created and started.
    for number in 1..=5 {
        for moment in [Moment::Begun, Moment::Answered] {
            let pod = format!("p{number}-{moment:?}").to_lowercase();
            let socket = node.runtime.root().join(format!("{pod}.sock"));
            let proxy = Proxy::start(&socket, &node.runtime.socket()).unwrap();
            node.start_agent_on(&socket).unwrap();
            node.write_manifest("p.yaml", &noting(&pod)).unwrap();
            call(&proxy, number, moment).await;
            node.kill9_agent().await;
            node.start_agent_on(&socket).unwrap();
            runs_once(&node, &pod).await;
            node.delete_manifest("p.yaml").unwrap();
            gone(&node, &pod).await;
        }
    }
}

#[tokio::test]
async fn pod_ends_whichever_call_its_agent_dies_at() {
    let mut node = Node::start().await.unwrap();
    // The app container and the sandbox are stopped, and both containers and the sandbox are removed.
    for number in 1..=5 {
        for moment in [Moment::Begun, Moment::Answered] {
            let pod = format!("e{number}-{moment:?}").to_lowercase();
            node.start_agent().unwrap();
            node.write_manifest("e.yaml", &noting(&pod)).unwrap();
            let app = ready(&node, &pod, "app").await;
            let socket = node.runtime.root().join(format!("{pod}.sock"));
            let proxy = Proxy::start(&socket, &node.runtime.socket()).unwrap();
            node.start_agent_on(&socket).unwrap();
            adopted(&proxy, &app.id).await;
            node.delete_manifest("e.yaml").unwrap();
            call(&proxy, number, moment).await;
            node.kill9_agent().await;
            node.start_agent_on(&socket).unwrap();
            gone(&node, &pod).await;
        }
    }
}
