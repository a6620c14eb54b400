//! Containers with a terminal, and their standard streams.

use cri::v1::ContainerConfig;
use harness::cri_log::{Line, Stream};

use crate::support::*;

fn on_terminal(pod: &Pod, text: &str) -> ContainerConfig {
    ContainerConfig { tty: true, ..pod.script("c", text) }
}

/// Runs a script on a terminal to its end, and returns its log lines without carriage returns.
async fn lines(pod: &Pod, text: &str) -> Vec<String> {
    let id = pod.start(on_terminal(pod, text)).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    let lines: Vec<Line> = pod.log(&status);
    // A terminal has a single output stream (CRI v1, ContainerConfig.tty).
    assert!(lines.iter().all(|line| line.stream == Stream::Stdout));
    let lines = lines.into_iter().map(|line| line.text);
    lines.map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

#[tokio::test]
async fn standard_streams_are_terminal_with_tty() {
    let (_runtime, pod) = with_pod().await;
    let script =
        "test -t 0 && test -t 1 && test -t 2 && echo yes; echo $TERM; stty size; echo err >&2;
        echo mine > /dev/tty";
    assert_eq!(lines(&pod, script).await, ["yes", "xterm", "24 80", "err", "mine"]);
}

/// The log has the bytes of the terminal unchanged, like CRI-O; containerd removes carriage returns.
#[tokio::test]
async fn terminal_output_is_logged_unchanged() {
    let (_runtime, pod) = with_pod().await;
    let id = pod.start(on_terminal(&pod, "printf 'a\\033[1mb\\n'")).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    let text: Vec<String> = pod.log(&status).into_iter().map(|line| line.text).collect();
    assert_eq!(text, ["a\u{1b}[1mb\r"]);
}

#[tokio::test]
async fn program_can_close_and_reopen_its_terminal() {
    let (_runtime, pod) = with_pod().await;
    let script = "name=$(tty); echo one; exec 0<&- 1>&- 2>&-; sleep 0.3; exec >\"$name\"; echo two";
    assert_eq!(lines(&pod, script).await, ["one", "two"]);
}

#[tokio::test]
async fn stop_ends_container_on_terminal() {
    let (runtime, pod) = with_pod().await;
    let script =
        "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(on_terminal(&pod, script)).await.unwrap();
    pod.logged(&id, "ready\r").await.unwrap();
    assert_eq!(runtime.client.sh(&id, "echo exec").await.unwrap(), "exec\n");
    runtime.client.stop(&id, 30).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.exit_code, 3);
    let last = pod.log(&status).pop().unwrap();
    assert_eq!(last.text, "asked\r");
}
