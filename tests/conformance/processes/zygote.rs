//! The zygote, which keepers are forked from.

use crate::support::*;

fn zygotes(runtime: &Runtime) -> Vec<Witness> {
    let root = runtime.root();
    let all = witness::processes().into_iter();
    all.filter(|process| {
        process.text("comm").trim() == "crib-zygote"
            && process.link("fd/2").is_some_and(|log| log.starts_with(&root))
    })
    .collect()
}

async fn zygote(runtime: &Runtime) -> Witness {
    eventually(PATIENCE, "the zygote", || async {
        <[Witness; 1]>::try_from(zygotes(runtime)).map(|[zygote]| zygote)
    })
    .await
}

/// Keepers do not notice when the zygote is killed, and the daemon starts another one.
#[tokio::test]
async fn pods_outlive_killed_zygote_and_further_ones_start() {
    let runtime = Runtime::start().await.unwrap();
    let first = runtime.pod("first").await.unwrap();
    let id = first.start(fixture::forever("c")).await.unwrap();
    let killed = zygote(&runtime).await;
    kill(Pid::from_raw(killed.pid), Signal::SIGKILL).unwrap();
    eventually(PATIENCE, "the end of the zygote", || async {
        let state = killed.status("State").unwrap_or_default();
        if state.is_empty() || state.starts_with('Z') { Ok(()) } else { Err(state) }
    })
    .await;
    let second = runtime.pod("second").await.unwrap();
    second.start(fixture::forever("c")).await.unwrap();
    assert_ne!(zygote(&runtime).await.pid, killed.pid);
    assert_eq!(runtime.client.sh(&id, "echo here").await.unwrap(), "here\n");
}

#[tokio::test]
async fn zygote_ends_with_killed_daemon_and_keepers_do_not() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let id = pod.start(fixture::forever("c")).await.unwrap();
    zygote(&runtime).await;
    runtime.kill9().await;
    all_gone("the end of the zygote", || zygotes(&runtime)).await;
    runtime.restart().await.unwrap();
    assert_eq!(runtime.client.sh(&id, "echo here").await.unwrap(), "here\n");
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
