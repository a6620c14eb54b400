//! Pods on a node of the test's own, and a pod on a runtime without an agent.

use harness::cri::v1::ContainerEventType;
use harness::{Node, Runtime};

const JOB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: Never
  initContainers: [{name: init, image: crib.local/host, command: [sh, -c, echo prepared]}]
  containers: [{name: main, image: crib.local/host, command: [sh, -c, 'echo hello; exit 7']}]
";

const SERVER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  containers: [{name: main, image: crib.local/host, command: [sh, -c, "trap 'exit 0' TERM; sleep 1000 & wait"]}]
"#;

#[tokio::test]
async fn job_runs_to_its_end() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::start().await?;
    node.apply(JOB)?;
    assert_eq!(node.finished("job").await?.exit_code("main"), 7);
    assert_eq!(node.logs("job", "main").await?, "hello\n");
    node.remove("job").await?;
    node.assert_nothing_left();
    Ok(())
}

#[tokio::test]
async fn server_runs_until_it_is_removed() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::start().await?;
    node.apply(SERVER)?;
    node.running("server", &["main"]).await?;
    node.remove("server").await?;
    node.assert_nothing_left();
    Ok(())
}

#[tokio::test]
async fn client_gets_the_event_of_an_exit() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::start().await?;
    let mut events = runtime.events().await?;
    let pod = runtime.pod("worker").await?;
    let id = pod
        .start(pod.script("main", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"))
        .await?;
    pod.logged(&id, "ready").await?;
    runtime.client.stop(&id, 10).await?;
    let stopped = ContainerEventType::ContainerStoppedEvent;
    let exit = events
        .until("the container's exit", |event| {
            event.container_id == id && event.container_event_type() == stopped
        })
        .await?;
    assert_eq!(exit.containers_statuses[0].exit_code, 0);
    Ok(())
}
