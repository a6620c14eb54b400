//! How containers end: by themselves, by the stop signal, by SIGKILL. The rules of `crib check` (stop) have the plain cases.

use std::time::Duration;

use cri::v1::ContainerState;
use harness::{Runtime, fixture, witness};
use rstest::rstest;
use tonic::Code;

use crate::{
    recovery::keepers,
    support::{Means, code, skip_if},
};

/// A grace period longer than any test, so that its expiry cannot end a container.
const LONG: i64 = 3600;

#[rstest]
#[case::success("exit 0", 0, "Completed")]
#[case::failure("exit 1", 1, "Error")]
#[case::exit_code("exit 77", 77, "Error")]
#[case::by_sigkill("(kill -KILL $$) & wait; sleep 1000", 137, "Error")]
#[case::by_sigalrm_handler(
    "exec perl -e '$SIG{ALRM} = sub { exit 142 }; alarm 1; sleep 1000'",
    142,
    "Error"
)]
#[tokio::test]
async fn exit_code_and_reason_follow_end_of_process(
    #[case] script: &str,
    #[case] exit_code: i32,
    #[case] reason: &str,
) {
    let runtime = Runtime::start().await.unwrap();
    let mut sandbox = runtime.sandbox("p");
    // Not as PID 1, which signals from inside the PID namespace cannot kill.
    fixture::pod_namespaces(&mut sandbox).pid = cri::v1::NamespaceMode::Pod.into();
    let pod = harness::Pod::run(&runtime.client, sandbox).await.unwrap();
    let mut config = pod.script("c", script);
    fixture::security(&mut config)
        .namespace_options
        .as_mut()
        .unwrap()
        .pid = cri::v1::NamespaceMode::Pod.into();
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (exit_code, reason),
        "{status:?}"
    );
}

/// Of two containers that ignore SIGTERM, only the one with the short grace period is killed.
#[tokio::test]
async fn concurrent_stops_keep_their_own_grace_periods() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "trap 'echo no' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let long = pod.start(pod.script("long", script)).await.unwrap();
    let short = pod.start(pod.script("short", script)).await.unwrap();
    pod.logged(&long, "ready").await.unwrap();
    pod.logged(&short, "ready").await.unwrap();
    let (client, id) = (runtime.client.clone(), long.clone());
    let waits = tokio::spawn(async move { client.stop(&id, LONG).await });
    pod.logged(&long, "no").await.unwrap();
    runtime.client.stop(&short, 1).await.unwrap();
    assert_eq!(
        runtime.client.container(&short).await.unwrap().exit_code,
        137
    );
    assert_eq!(
        runtime.client.sh(&long, "echo here").await.unwrap(),
        "here\n"
    );
    runtime.client.stop(&long, 0).await.unwrap();
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn stop_without_grace_period_kills() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(runtime.client.container(&id).await.unwrap().exit_code, 137);

    let created = pod.create(fixture::forever("created")).await.unwrap();
    runtime.client.stop(&created, LONG).await.unwrap();
    let status = runtime.client.container(&created).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_ne!(status.exit_code, 0);
    assert_eq!(
        code(runtime.client.start(&created).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn stop_rejects_negative_grace_period() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    assert_eq!(
        code(runtime.client.stop(&id, -1).await),
        Code::InvalidArgument
    );
    assert_eq!(
        runtime.client.container(&id).await.unwrap().state(),
        ContainerState::ContainerRunning
    );
}

#[tokio::test]
async fn concurrent_stops_and_removals_all_succeed() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..150 {
        let (client, id) = (runtime.client.clone(), id.clone());
        calls.spawn(async move {
            match number % 3 {
                0 => client.remove(&id).await,
                1 => client.stop(&id, 10).await,
                _ => client.stop(&id, 0).await,
            }
        });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(code(runtime.client.container(&id).await), Code::NotFound);
    for _ in 0..20 {
        let (client, id) = (runtime.client.clone(), pod.id.clone());
        calls.spawn(async move { client.remove_pod(&id).await });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(code(runtime.client.pod(&pod.id).await), Code::NotFound);
}

#[tokio::test]
async fn stop_kills_all_processes_of_container() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "stop_kills_all_processes_of_container",
        Means::of(&runtime).await.no_namespaces()
    );
    let pod = runtime.pod("p").await.unwrap();
    let mark = fixture::unique("mark");
    let script = format!(
        "export CRIB_TEST_MARK={mark}; (setsid sleep 1000 &); setsid sh -c 'sleep 1000 & sleep 1000' & echo ready; sleep 1000"
    );
    let id = pod.start(pod.script("c", &script)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    let mark = format!("CRIB_TEST_MARK={mark}");
    harness::eventually(harness::PATIENCE, "the children to run", || async {
        let found = witness::marked(&mark);
        if found.len() >= 4 { Ok(()) } else { Err(found) }
    })
    .await;
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(witness::marked(&mark), []);
}

/// StopPodSandbox ends containers whatever grace period is still running.
#[tokio::test]
async fn stop_pod_does_not_wait_for_grace_period_of_container() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "trap 'echo no' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(pod.script("c", script)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    let (client, long) = (runtime.client.clone(), id.clone());
    let long = tokio::spawn(async move { client.stop(&long, LONG).await });
    pod.logged(&id, "no").await.unwrap();
    let stopped =
        tokio::time::timeout(Duration::from_secs(30), runtime.client.stop_pod(&pod.id)).await;
    stopped.unwrap().unwrap();
    long.await.unwrap().unwrap();
    assert_eq!(runtime.client.container(&id).await.unwrap().exit_code, 137);
}

#[tokio::test]
async fn stop_pod_works_with_stopped_keeper() {
    let runtime = Runtime::start().await.unwrap();
    if !runtime.is_ours() {
        harness::skip!(
            "stop_pod_works_with_stopped_keeper",
            "the runtime has no keepers"
        );
    }
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let [(_, keeper)] = keepers(&runtime).try_into().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(keeper.pid),
        nix::sys::signal::Signal::SIGSTOP,
    )
    .unwrap();
    // The call ends at its deadline, however long the grace period.
    let stop = tokio::time::timeout(harness::PATIENCE, runtime.client.stop(&id, LONG)).await;
    assert_eq!(code(stop.unwrap()), Code::DeadlineExceeded);
    runtime.client.stop_pod(&pod.id).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    runtime.client.remove_pod(&pod.id).await.unwrap();
    harness::eventually(harness::PATIENCE, "the keeper's end", || async {
        if keeper.runs() { Err(keeper) } else { Ok(()) }
    })
    .await;
}
