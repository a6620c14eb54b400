//! What verbose statuses tell of processes, held against /proc.

use cri::v1::{ContainerStatusRequest, PodSandboxStatusRequest};
use harness::{Pod, Runtime, fixture};
use serde_json::Value;

async fn of_container(runtime: &Runtime, id: &str) -> Value {
    let request = ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: true,
    };
    let mut client = runtime.client.runtime.clone();
    let answer = client.container_status(request).await.unwrap();
    serde_json::from_str(&answer.into_inner().info["info"]).unwrap()
}

async fn of_pod(runtime: &Runtime, pod: &Pod) -> Value {
    let request = PodSandboxStatusRequest {
        pod_sandbox_id: pod.id.clone(),
        verbose: true,
    };
    let mut client = runtime.client.runtime.clone();
    let answer = client.pod_sandbox_status(request).await.unwrap();
    serde_json::from_str(&answer.into_inner().info["info"]).unwrap()
}

/// The arguments of a process, and its parent.
fn process(pid: &Value) -> (Vec<String>, Value) {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let arguments = file("cmdline");
    let arguments = arguments.split_terminator('\0').map(str::to_owned);
    let status = file("status");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    (arguments.collect(), parent.unwrap().trim().parse().unwrap())
}

/// As with containerd: `crictl inspect -o go-template --template '{{.info.pid}}'`.
#[tokio::test]
async fn processes_are_told() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let seconds = format!("1000.{}", std::process::id());
    let program = fixture::container("c", ["sleep", &seconds]);
    let id = pod.start(program).await.unwrap();
    for _ in 0..2 {
        let (container, sandbox) = (
            of_container(&runtime, &id).await,
            of_pod(&runtime, &pod).await,
        );
        assert_eq!(container["sandboxID"], *pod.id);
        let (arguments, parent) = process(&container["pid"]);
        assert_eq!(arguments, ["sleep", &seconds]);
        assert_eq!(parent, sandbox["pid"]);
        // Also by a daemon that did not start them.
        runtime.kill9().await;
        runtime.restart().await.unwrap();
    }
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(of_container(&runtime, &id).await["pid"], 0);
    assert_ne!(of_pod(&runtime, &pod).await["pid"], 0);
    runtime.client.stop_pod(&pod.id).await.unwrap();
    assert_eq!(of_pod(&runtime, &pod).await["pid"], 0);
}
