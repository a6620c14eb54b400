//! A pod on a node of the test's own.

use harness::Node;

const JOB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: Never
  initContainers: [{name: init, image: crib.local/host, command: [sh, -c, echo prepared]}]
  containers: [{name: main, image: crib.local/host, command: [sh, -c, 'echo hello; exit 7']}]
";

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
