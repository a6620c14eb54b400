//! An unreachable keeper is not the same as a dead one.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use cri::v1::{ContainerState, PodSandboxState};
use harness::process::Process;

use super::{marked, process, reason, sandbox_dir};
use crate::restarts::recovery::{nothing_runs, pod_on};
use crate::support::*;

/// `crib runtime` on the state of a stopped `runtime`, started by a shell after the commands in `shell`.
fn runtime_command_after(runtime: &Runtime, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell}; exec \"$0\" \"$@\"")])
        .arg(harness::binary::crib().unwrap())
        .arg("runtime")
        .arg("--listen")
        .arg(format!("unix://{}", runtime.socket().display()))
        .arg("--state-dir")
        .arg(runtime.state_dir())
        .stdin(Stdio::null());
    command
}

async fn eight_pods(runtime: &Runtime) -> Vec<(Pod, String, String)> {
    let mut pods = Vec::new();
    for number in 0..8 {
        let pod = runtime.pod(&format!("p{number}")).await.unwrap();
        let (container, mark) = marked(&pod, "c").await;
        pods.push((pod, container, mark));
    }
    pods
}

#[tokio::test]
async fn start_fails_with_too_few_descriptors_and_keeps_pods() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let pods = eight_pods(&runtime).await;
    let before: Vec<_> = pods.iter().map(|(.., mark)| process(mark)).collect();
    runtime.kill9().await;
    for limit in [24, 32, 64, 200] {
        let mut command = runtime_command_after(&runtime, &format!("ulimit -n {limit}"));
        let refused = command.output().unwrap();
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(3), "{limit}: {message}");
        let named =
            [format!("may open {limit} files"), format!("is limited to {limit} open files")];
        assert!(named.iter().any(|named| message.contains(named)), "{message}");
    }
    runtime.restart().await.unwrap();
    for ((pod, container, mark), before) in pods.iter().zip(&before) {
        assert_eq!(&process(mark), before);
        assert!(runtime.client.pod_is_ready(&pod.id).await.unwrap());
        let fine = runtime.client.sh(container, "echo fine").await;
        assert_eq!(fine.unwrap(), "fine\n");
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    nothing_runs(&runtime).await;
}

/// The daemon raises its own soft limit; containers get the original one.
#[tokio::test]
async fn nofile_soft_limit_is_raised_for_daemon_only() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    runtime.stop().await.unwrap();
    let mut command = runtime_command_after(&runtime, "ulimit -Sn 128");
    let mut daemon = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null())).unwrap();
    let mut line = String::new();
    let mut message = BufReader::new(daemon.take_stdout().unwrap());
    message.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line:?}");

    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let columns: Vec<&str> = files.unwrap().split_whitespace().collect();
    assert_eq!(columns[3], columns[4], "soft and hard: {limits}");
    let client = harness::Client::new(&runtime.socket());
    let pod = Pod::run(&client, runtime.sandbox("p")).await.unwrap();
    let output = pod.output(pod.script("c", "ulimit -Sn")).await.unwrap();
    assert_eq!(output, "128\n");
    let (container, _) = marked(&pod, "d").await;
    assert_eq!(client.sh(&container, "ulimit -Sn").await.unwrap(), "128\n");
    client.remove_pod(&pod.id).await.unwrap();
    daemon.signal(Signal::SIGTERM);
    daemon.wait(WAIT_LIMIT).await.unwrap();
}

async fn wait_for_state(runtime: &Runtime, pod: &str, state: PodSandboxState) {
    eventually(WAIT_LIMIT, "the pod's state", async || {
        let status = runtime.client.pod(pod).await.unwrap().status.unwrap();
        if status.state() == state { Ok(()) } else { Err(status) }
    })
    .await;
}

/// A pod is NOTREADY while its keeper is unreachable, and READY again afterwards.
async fn check_unreachable_keeper(
    cut: impl FnOnce(&Runtime, &Pod),
    mend: impl FnOnce(&Runtime, &Pod),
    expected: &str,
) {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let (container, mark) = marked(&pod, "c").await;
    let other = runtime.pod("other").await.unwrap();
    let (neighbour, _) = marked(&other, "c").await;
    let before = process(&mark);
    runtime.kill9().await;
    cut(&runtime, &pod);
    runtime.restart().await.unwrap();
    wait_for_state(&runtime, &pod.id, PodSandboxState::SandboxNotready).await;
    let why = reason(&runtime, &pod.id).await.unwrap();
    assert!(why.starts_with("its keeper is unreachable") && why.contains(expected), "{why}");
    let status = runtime.client.container(&container).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerUnknown);
    assert_eq!(process(&mark), before);
    assert_eq!(runtime.client.sh(&neighbour, "echo fine").await.unwrap(), "fine\n");
    // StopContainer must not report success for a container that may still run.
    runtime.client.stop(&container, 0).await.unwrap_err();

    mend(&runtime, &pod);
    wait_for_state(&runtime, &pod.id, PodSandboxState::SandboxReady).await;
    assert_eq!(reason(&runtime, &pod.id).await, None);
    let status = runtime.client.container(&container).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert_eq!(process(&mark), before);
    assert_eq!(runtime.client.sh(&container, "echo fine").await.unwrap(), "fine\n");
    let pod = pod_on(&pod, &runtime);
    let late = pod.output(pod.script("late", "echo late")).await.unwrap();
    assert_eq!(late, "late\n");
    for pod in [&pod, &other] {
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    nothing_runs(&runtime).await;
}

fn signal_keeper(runtime: &Runtime, pod: &Pod, signal: Signal) {
    kill(keeper_of(runtime, &pod.id), signal).unwrap();
}

#[tokio::test]
async fn stopped_keeper_is_retried_and_pod_kept() {
    check_unreachable_keeper(
        |runtime, pod| signal_keeper(runtime, pod, Signal::SIGSTOP),
        |runtime, pod| signal_keeper(runtime, pod, Signal::SIGCONT),
        "answer",
    )
    .await;
}

#[tokio::test]
async fn keeper_without_socket_is_retried_and_pod_kept() {
    let away = |runtime: &Runtime, pod: &Pod| {
        let directory = sandbox_dir(runtime, &pod.id);
        (directory.join("keeper.sock"), directory.join("elsewhere"))
    };
    check_unreachable_keeper(
        |runtime, pod| {
            let (socket, elsewhere) = away(runtime, pod);
            fs::rename(socket, elsewhere).unwrap();
        },
        |runtime, pod| {
            let (socket, elsewhere) = away(runtime, pod);
            fs::rename(elsewhere, socket).unwrap();
        },
        "connect",
    )
    .await;
}
