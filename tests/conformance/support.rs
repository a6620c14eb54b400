//! Imports from the harness and other packages, and helpers that the test modules share.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
pub(crate) use std::time::Duration;

pub(crate) use cri::v1::{self, Mount};
pub(crate) use harness::fixture_image::{ImageBuilder, Layer};
pub(crate) use harness::need::Need;
pub(crate) use harness::process::write_program;
pub(crate) use harness::procfs::{self, ObservedProcess};
pub(crate) use harness::runtime::Options;
pub(crate) use harness::{Pod, Runtime, WAIT_LIMIT, eventually, fixture};
pub(crate) use nix::sys::signal::{Signal, kill};
pub(crate) use nix::unistd::Pid;
pub(crate) use rstest::rstest;
pub(crate) use tempfile::TempDir;
pub(crate) use tonic::{Code, Status};

/// The ids of a user that owns nothing, and of its group.
pub(crate) const NOBODY: u32 = 65534;

/// The code of the expected error, which must have a message.
#[track_caller]
pub(crate) fn code<T: Debug>(result: Result<T, Status>) -> Code {
    let error = result.unwrap_err();
    assert!(!error.message().is_empty(), "{error:?} says nothing");
    error.code()
}

/// Asserts that a call was rejected with this code and these words; returns the error.
#[track_caller]
pub(crate) fn rejected<T: Debug>(result: Result<T, Status>, code: Code, words: &str) -> Status {
    let error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error:?}");
    assert!(error.message().contains(words), "{words:?} is not in {error:?}");
    error
}

/// Options of an ordinary user's runtime.
pub(crate) fn rootless() -> Options {
    let options = Runtime::with().isolation("rootless");
    match nix::unistd::geteuid().is_root() {
        true => options.user(NOBODY, NOBODY),
        false => options,
    }
}

/// A runtime, and a pod.
pub(crate) async fn with_pod() -> (Runtime, Pod) {
    pod_of(Runtime::with()).await
}

/// A runtime with these options, and a pod.
pub(crate) async fn pod_of(options: Options) -> (Runtime, Pod) {
    let runtime = options.start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    (runtime, pod)
}

/// A runtime that has pulled an image with this layer from an archive, and the archive's directory.
pub(crate) async fn with_image(options: Options, name: &str, layer: Layer) -> (Runtime, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("image.tar");
    ImageBuilder::new(name).layer(layer).write_docker(&archive).unwrap();
    let runtime = options.archive(&archive).start().await.unwrap();
    runtime.client.pull(name).await.unwrap();
    (runtime, place)
}

/// The layer with these programs of the host.
pub(crate) fn with_programs(layer: Layer, programs: &[&str]) -> Layer {
    programs.iter().fold(layer, |layer, program| layer.host_program(program).unwrap())
}

/// A container of another image.
pub(crate) fn of_image(mut config: v1::ContainerConfig, image: &str) -> v1::ContainerConfig {
    config.image.as_mut().unwrap().image = image.to_owned();
    config
}

/// A container whose processes can be found from outside by a mark in their environment.
pub(crate) fn marked(mut config: v1::ContainerConfig) -> (v1::ContainerConfig, String) {
    let mark = fixture::unique("mark");
    let value = mark.clone().into();
    config.envs.push(v1::KeyValue { key: "CRIB_TEST_MARK".to_owned(), value });
    (config, format!("CRIB_TEST_MARK={mark}"))
}

/// A runtime, a pod, and the id of a running container.
pub(crate) async fn with_container() -> (Runtime, Pod, String) {
    let (runtime, pod) = with_pod().await;
    let id = pod.start(fixture::forever("c")).await.unwrap();
    (runtime, pod, id)
}

/// Starts a container that exits 143 on SIGTERM, and waits until its shell handles the signal: before that, the kernel ignores it,
/// because the shell is the first process of a PID namespace.
pub(crate) async fn graceful_container(pod: &Pod, name: &str) -> String {
    let script = "trap 'exit 143' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    pod.start_ready(pod.script(name, script)).await.unwrap()
}

/// Waits until nothing is left.
pub(crate) async fn all_gone<T: Debug>(what: &str, left: impl Fn() -> Vec<T>) {
    eventually(WAIT_LIMIT, what, async || {
        let left = left();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// The keeper of a pod.
pub(crate) fn keeper_of(runtime: &Runtime, pod: &str) -> Pid {
    let path = runtime.state_dir().join("sandboxes").join(pod).join("keeper.pid");
    Pid::from_raw(trimmed(&fs::read_to_string(path).unwrap()).parse().unwrap())
}

/// The process with this mark in its environment or arguments, once it runs.
pub(crate) async fn process_of(mark: &str) -> ObservedProcess {
    eventually(WAIT_LIMIT, "the container's process", || async {
        procfs::marked(mark).first().copied().ok_or("no process")
    })
    .await
}

/// Asserts that the runtime can still run a pod.
pub(crate) async fn assert_alive(runtime: &Runtime) {
    let pod = runtime.pod(&fixture::unique("alive")).await.unwrap();
    assert_eq!(pod.output(pod.script("c", "echo fine")).await.unwrap(), "fine\n");
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// The time limit for creating or removing a large tree on a busy host.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Waits until the trash of a state directory is empty.
pub(crate) async fn nothing_in_trash(state_dir: &Path) {
    eventually(LONG, "the trash to be empty", || async {
        let left: Vec<_> = fs::read_dir(state_dir.join("trash"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// `text` without its trailing newlines.
pub(crate) fn trimmed(text: &str) -> &str {
    text.trim_end_matches('\n')
}

/// A bind mount of a host path.
pub(crate) fn of(host_path: &Path, container_path: &str) -> Mount {
    Mount {
        host_path: host_path.display().to_string(),
        container_path: container_path.to_owned(),
        ..Default::default()
    }
}

/// Creates a directory for the test.
pub(crate) fn directory(runtime: &Runtime, name: &str) -> PathBuf {
    let path = runtime.root().join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Whether a process is the daemon or lives as long: the zygote, and the egress processes of rootless pods.
pub(crate) fn is_daemon(runtime: &Runtime, process: ObservedProcess) -> bool {
    let daemon = runtime.pid();
    Some(process.pid) == daemon
        || Some(process.parent()) == daemon && process.text("comm").trim() == "crib-zygote"
        || daemon.is_some() && is_egress(process)
}

/// Whether a process is an egress process of rootless pods; the program has one or two.
fn is_egress(process: ObservedProcess) -> bool {
    let parent = |process: ObservedProcess| ObservedProcess { pid: process.parent() };
    let ancestors = std::iter::successors(Some(process), |process| Some(parent(*process)));
    ancestors.take(3).any(|process| process.text("comm").trim() == "crib-egress")
}
