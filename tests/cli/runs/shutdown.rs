//! The end of `crib run` and `crib agent` while something that they wait for hangs.

use std::path::Path;

use crate::command::*;

const FOREVER: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: c\n    image: crib.local/host\n    command: [sh, -c, 'echo ready; sleep 1000']\n";

/// The keepers that have a file below `root` open.
fn keepers(root: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let log = std::fs::read_link(format!("/proc/{pid}/fd/2"));
        name.trim() == "crib-keeper" && log.is_ok_and(|log| log.starts_with(root))
    })
    .map(Pid::from_raw)
    .collect()
}

#[tokio::test]
async fn run_ends_on_signals_while_keeper_is_stopped() {
    let place = Place::new();
    let manifest = place.file("pod.yaml", FOREVER);
    let mut running = place.start(&["run", &manifest]);
    running.line_with("ready").await;
    let keepers = keepers(&place.path("tmp"));
    let [keeper] = keepers.as_slice() else { panic!("one pod, one keeper: {keepers:?}") };
    kill(*keeper, Signal::SIGSTOP).unwrap();
    running.signal(Signal::SIGTERM);
    running.interrupt().await.exits(130);
    place.wait_until_clean().await;
}

#[tokio::test]
async fn agent_ends_while_runtime_is_stopped() {
    let place = Place::new();
    place.file("manifests/pod.yaml", FOREVER);
    let (runtime, endpoint) = place.runtime().await;
    let agent = Running::start(place.agent(&endpoint, "manifests", &[]));
    eventually("the pod", || match keepers(&place.path("state")).len() {
        0 => vec!["no keeper".to_owned()],
        _ => vec![],
    })
    .await;
    runtime.signal(Signal::SIGSTOP);
    agent.signal(Signal::SIGTERM);
    agent.end().await;
    runtime.signal(Signal::SIGCONT);
    runtime.stop().await;
    place.wait_until_clean().await;
}

/// A client that never disconnects, such as an informer of another program, must not prevent the removal of the bridge.
#[tokio::test]
async fn runtime_removes_its_bridge_while_client_stays_connected() {
    use std::io::{Read as _, Write as _};
    let place = Place::new();
    let (runtime, _) = place.runtime().await;
    let mut client = std::os::unix::net::UnixStream::connect(place.path("s")).unwrap();
    // HTTP/2's connection preface, with empty settings; a response means that the runtime serves.
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 9]).unwrap();
    runtime.stop().await;
    let state = place.path("state");
    let leaks = harness::Leaks::below(&state).with_state_dir(&state);
    let links = leaks.links();
    assert!(links.is_empty(), "{links:?}");
    place.wait_until_clean().await;
}

/// The maximum timeout in gRPC is 99,999,999 hours; the grace period in a manifest is unlimited.
#[rstest]
#[case::beyond_grpc("400000000000")]
#[case::longest("9223372036854775807")]
#[tokio::test]
async fn run_ends_pod_with_endless_grace_period(#[case] seconds: &str) {
    let place = Place::new();
    let seconds = format!("terminationGracePeriodSeconds: {seconds}");
    let manifest = FOREVER
        .replace("terminationGracePeriodSeconds: 1", &seconds)
        .replace("echo ready;", "trap exit TERM; echo ready;")
        .replace("sleep 1000", "sleep 1000 & wait");
    let manifest = place.file("pod.yaml", &manifest);
    let mut running = place.start(&["run", &manifest]);
    running.line_with("ready").await;
    let ended = running.interrupt().await.exits(130);
    assert!(!ended.err.contains("panic"), "{ended:?}");
    place.wait_until_clean().await;
}
