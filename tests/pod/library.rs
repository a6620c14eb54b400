//! The harness from the perspective of a test's author: waits that end, and report the last observation.

use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::time::Duration;

use cri::v1::{ContainerEventType, ContainerState};
use harness::binary::NoBinary;
use harness::process::Process;
use harness::{Node, Runtime, StartError, fixture};

use super::support::{FOREVER, container_in, manifest, ready};

#[tokio::test]
async fn node_reports_exit_codes_and_logs_of_finished_pod() {
    let node = Node::start().await.unwrap();
    let scripts = [("init", "echo early"), ("app", "echo late; exit 7")];
    node.apply(&manifest("job", "Never", &scripts)).unwrap();
    let job = node.finished("job").await.unwrap();
    assert_eq!((job.exit_code("init"), job.exit_code("app")), (0, 7));
    assert!(!job.succeeded());
    assert_eq!(node.logs("job", "app").await.unwrap(), "late\n");
    let error = node.logs("job", "web").await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::NotFound);
    node.remove("job").await.unwrap();
    node.assert_nothing_left();
}

#[tokio::test]
async fn node_waits_until_containers_run() {
    let node = Node::start().await.unwrap();
    node.apply(&manifest("web", "Always", &[("app", FOREVER)])).unwrap();
    node.running("web", &["app"]).await.unwrap();
    assert!(node.apply("kind: Pod").is_err());
    ready(&node, "web", "app").await;
    node.remove("web").await.unwrap();
    let error = node.remove("web").await.unwrap_err().to_string();
    assert!(error.contains("failed to remove its manifest"), "{error}");
}

/// Whether a wait does not return for a while, in which these pods reach their states.
async fn waits<T>(wait: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_secs(1), wait).await.is_err()
}

#[tokio::test]
async fn finished_waits_for_every_container() {
    let node = Node::start().await.unwrap();
    let scripts =
        [("first", "exit 0"), ("last", "until [ -e /shared/go ]; do sleep 0.05; done; exit 7")];
    assert!(waits(node.finished("job")).await, "there is no such pod");
    node.apply(&manifest("job", "Never", &scripts)).unwrap();
    let last = container_in(&node, "job", "last", ContainerState::ContainerRunning).await;
    container_in(&node, "job", "first", ContainerState::ContainerExited).await;
    assert!(waits(node.finished("job")).await, "a container runs");
    let go = ["touch", "/shared/go"].map(str::to_owned).to_vec();
    node.runtime.client.exec(&last.id, go, 10).await.unwrap();
    let job = node.finished("job").await.unwrap();
    assert_eq!((job.exit_code("first"), job.exit_code("last")), (0, 7));
}

#[tokio::test]
async fn running_waits_for_every_named_container() {
    let node = Node::start().await.unwrap();
    assert!(waits(node.running("web", &[])).await, "there is no such pod");
    let scripts = [("app", FOREVER), ("over", "exit 0")];
    node.apply(&manifest("web", "Never", &scripts)).unwrap();
    container_in(&node, "web", "over", ContainerState::ContainerExited).await;
    node.running("web", &["app"]).await.unwrap();
    assert!(waits(node.running("web", &["app", "over"])).await, "one has exited");
    assert!(waits(node.running("web", &["app", "none"])).await, "one does not exist");
}

#[tokio::test]
async fn node_names_process_that_is_left() {
    let node = Node::start().await.unwrap();
    let mut left = Command::new("sleep");
    left.arg("1000").current_dir(node.runtime.root());
    let left = Process::spawn(left.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
    let checked = AssertUnwindSafe(|| node.assert_nothing_left());
    let panic = std::panic::catch_unwind(checked).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    let process = format!("left: process {} (sleep 1000)", left.pid());
    assert!(message.contains(&process), "{process} is not in: {message}");
}

#[tokio::test]
async fn events_arrive_in_order_and_pod_gets_ready() {
    let runtime = Runtime::start().await.unwrap();
    let mut events = runtime.events().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    pod.ready().await.unwrap();
    let first = events.next().await.unwrap();
    assert_eq!(first.container_id, pod.id);
    let started = events.until("the container's start", |event| {
        event.container_id == id
            && event.container_event_type() == ContainerEventType::ContainerStartedEvent
    });
    started.await.unwrap();
}

#[tokio::test]
async fn start_without_binary_is_an_error() {
    let options = Runtime::with().binary("/nonexistent/crib".as_ref());
    let error = options.start().await.unwrap_err();
    assert!(matches!(error, StartError::NoBinary(_)), "{error}");
    let missing = NoBinary::Missing.to_string();
    for way in ["cargo install", "CRIB_BIN", "CRIB_BUILD=1"] {
        assert!(missing.contains(way), "{missing}");
    }
}

/// Runs the test above in its own process, with its own temporary directory.
#[test]
fn start_without_binary_leaves_no_directory() {
    let temporary = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "library::start_without_binary_is_an_error"])
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 passed"), "{text}");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
