//! Containers with a terminal, and their standard streams.

use cri::v1::ContainerConfig;
use harness::cri_log::{Line, Stream};
use harness::{Pod, Runtime, fixture};

use crate::support::{Means, skip_if};

fn on_terminal(pod: &Pod, text: &str) -> ContainerConfig {
    ContainerConfig {
        tty: true,
        ..pod.script("c", text)
    }
}

/// Runs a script on a terminal to its end, and returns its log lines without carriage returns.
async fn lines(pod: &Pod, text: &str) -> Vec<String> {
    let id = pod.start(on_terminal(pod, text)).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    let lines: Vec<Line> = pod.log(&status);
    // A terminal has a single output stream (CRI v1, ContainerConfig.tty).
    assert!(lines.iter().all(|line| line.stream == Stream::Stdout));
    let lines = lines.into_iter().map(|line| line.text);
    lines
        .map(|line| line.trim_end_matches('\r').to_owned())
        .collect()
}

#[tokio::test]
async fn standard_streams_are_terminal_with_tty() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script =
        "test -t 0 && test -t 1 && test -t 2 && echo yes; echo $TERM; stty size; echo err >&2;
        echo mine > /dev/tty";
    assert_eq!(
        lines(&pod, script).await,
        ["yes", "xterm", "24 80", "err", "mine"]
    );
}

/// The log has the bytes of the terminal unchanged, like CRI-O; containerd removes carriage returns.
#[tokio::test]
async fn terminal_output_is_logged_unchanged() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod
        .start(on_terminal(&pod, "printf 'a\\033[1mb\\n'"))
        .await
        .unwrap();
    let status = pod.ended(&id).await.unwrap();
    let text: Vec<String> = pod.log(&status).into_iter().map(|line| line.text).collect();
    assert_eq!(text, ["a\u{1b}[1mb\r"]);
}

#[tokio::test]
async fn dev_console_is_terminal_with_tty_only() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "dev_console_is_terminal_with_tty_only",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let script = "test -c /dev/console && echo console > /dev/console; tty";
    assert_eq!(lines(&pod, script).await, ["console", "/dev/pts/0"]);
    // Without a terminal there is no /dev/console.
    let config = pod.script("d", "test -e /dev/console || echo none");
    assert_eq!(pod.output(config).await.unwrap(), "none\n");
}

#[tokio::test]
async fn long_terminal_output_is_logged_completely() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let expected: Vec<String> = (1..=20_000).map(|number| number.to_string()).collect();
    let have = lines(&pod, "seq 20000").await;
    assert!(have == expected, "{} lines", have.len());
}

#[tokio::test]
async fn program_can_close_and_reopen_its_terminal() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "name=$(tty); echo one; exec 0<&- 1>&- 2>&-; sleep 0.3; exec >\"$name\"; echo two";
    assert_eq!(lines(&pod, script).await, ["one", "two"]);
}

#[tokio::test]
async fn unprivileged_user_can_reopen_standard_streams() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "unprivileged_user_can_reopen_standard_streams",
        Means::of(&runtime).await.no_users()
    );
    let pod = runtime.pod("p").await.unwrap();
    let script = "echo out > /dev/stdout && echo err > /dev/stderr && id -u";
    for tty in [true, false] {
        let name = format!("tty-{tty}");
        let mut config = ContainerConfig {
            tty,
            ..pod.script(&name, script)
        };
        fixture::security(&mut config).run_as_user = Some(cri::v1::Int64Value { value: 1000 });
        let id = pod.start(config).await.unwrap();
        let status = pod.ended(&id).await.unwrap();
        let lines = pod.log(&status);
        let mut texts: Vec<&str> = lines
            .iter()
            .map(|line| line.text.trim_end_matches('\r'))
            .collect();
        texts.sort_unstable();
        assert_eq!(texts, ["1000", "err", "out"], "tty: {tty}");
    }
}

#[tokio::test]
async fn stop_ends_container_on_terminal() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
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
