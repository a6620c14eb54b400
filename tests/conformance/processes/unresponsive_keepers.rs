//! Unresponsive keepers: calls to their pod end at the deadline, other pods are not affected, and the daemon can exit. Also a
//! killed zygote.

use std::time::Instant;

use cri::v1::{ExecSyncRequest, StopContainerRequest};
use tonic::Request;

use crate::restarts::recovery::{keepers, pod_on};
use crate::support::*;

/// The maximum shutdown time of a daemon that keeps its pods, with a margin for a busy host.
const LONGEST_END: Duration = Duration::from_secs(10 + 5);

/// A process stopped by SIGSTOP, continued on drop.
struct Stopped(Pid);

impl Stopped {
    fn keeper_of(runtime: &Runtime, pod: &Pod) -> Self {
        Self::process(keeper_of(runtime, &pod.id).as_raw())
    }

    fn process(pid: i32) -> Self {
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The process may have been killed.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn exec(container: &str) -> ExecSyncRequest {
    ExecSyncRequest { container_id: container.to_owned(), cmd: vec!["true".to_owned()], timeout: 0 }
}

#[tokio::test]
async fn calls_to_stopped_keeper_end_at_deadline_and_others_continue() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let container = pod.start(fixture::forever("c")).await.unwrap();
    let created = pod.create(fixture::forever("created")).await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    let neighbour = other.start(fixture::forever("c")).await.unwrap();

    let stopped = Stopped::keeper_of(&runtime, &pod);
    let client = runtime.client.clone();
    // Many execs first: the keeper has responses for a daemon that has exited before it reads the stop request behind them.
    let hasty = (0..20).map(|_| {
        let mut hasty = Request::new(exec(&container));
        hasty.set_timeout(Duration::from_millis(100));
        let mut runtime = client.runtime.clone();
        async move { runtime.exec_sync(hasty).await.unwrap_err() }
    });
    for late in futures_util::future::join_all(hasty).await {
        // The client's own deadline is shorter, and the client enforces it too.
        assert!(!late.message().contains("did not answer"), "{late}");
    }
    let calls = async {
        let stop = StopContainerRequest { container_id: container.clone(), timeout: 3600 };
        let (mut one, mut two) = (client.runtime.clone(), client.runtime.clone());
        tokio::join!(
            one.exec_sync(exec(&container)),
            two.stop_container(stop),
            client.reopen_log(&container),
        )
    };
    let others = async {
        for _ in 0..10 {
            assert_eq!(client.sh(&neighbour, "echo fine").await.unwrap(), "fine\n");
            let late = other.start(other.script("late", "exit 3")).await.unwrap();
            assert_eq!(other.ended(&late).await.unwrap().exit_code, 3);
            client.remove(&late).await.unwrap();
        }
    };
    let (answers, ()) = tokio::join!(tokio::time::timeout(WAIT_LIMIT * 2, calls), others);
    let (exec_answer, stop, log) = answers.unwrap();
    for answer in [exec_answer.map(drop), stop.map(drop), log] {
        let refused = answer.unwrap_err();
        assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
        assert!(refused.message().contains("did not answer"), "{refused}");
    }
    // A pending call does not delay the shutdown.
    let start = tokio::spawn({
        let (client, created) = (client.clone(), created.clone());
        async move { client.start(&created).await }
    });
    let _events = client.events().await.unwrap();
    let began = Instant::now();
    assert!(runtime.stop().await.unwrap().success());
    assert!(began.elapsed() < LONGEST_END, "{:?}", began.elapsed());
    start.await.unwrap().unwrap_err();

    // The keeper continues, and all calls work again.
    drop(stopped);
    runtime.restart().await.unwrap();
    let pod = pod_on(&pod, &runtime);
    assert!(runtime.client.pod_is_ready(&pod.id).await.unwrap());
    let late = pod.output(pod.script("late", "echo late")).await.unwrap();
    assert_eq!(late, "late\n");
    // The keeper executes the stop that was queued while it was stopped.
    assert_eq!(pod.ended(&container).await.unwrap().exit_code, 143);
}

#[tokio::test]
async fn remove_pod_kills_stopped_keeper() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("silent").await.unwrap();
    pod.start(fixture::forever("c")).await.unwrap();
    let _stopped = Stopped::keeper_of(&runtime, &pod);
    let removal = runtime.client.remove_pod(&pod.id);
    tokio::time::timeout(WAIT_LIMIT * 2, removal).await.unwrap().unwrap();
    assert!(keepers(&runtime).is_empty());
}

/// Pods of an ephemeral daemon end with it, within the bound, even those of stopped keepers.
#[tokio::test]
async fn sigterm_ends_ephemeral_daemon_with_stopped_keeper() {
    let mut runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("silent").await.unwrap();
    pod.start(fixture::forever("c")).await.unwrap();
    let _stopped = Stopped::keeper_of(&runtime, &pod);
    assert!(runtime.stop().await.unwrap().success());
    assert!(keepers(&runtime).is_empty());
}

/// Reading a FIFO blocks a thread of the daemon.
#[tokio::test]
async fn sigterm_ends_daemon_while_it_reads_fifo() {
    let place = tempfile::tempdir().unwrap();
    let fifo = place.path().join("vendor.json");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let config = format!("cdi:\n  spec_dirs: [{}]\n", place.path().display());
    let (mut runtime, pod) = pod_of(Runtime::with().durable().config(&config)).await;
    let mut device = fixture::forever("c");
    device.cdi_devices = vec![v1::CdiDevice { name: "vendor.com/device=one".to_owned() }];
    let create = tokio::spawn({
        let pod = pod.clone();
        async move { pod.create(device).await }
    });
    // The first call is in progress once this later one is answered.
    runtime.client.version().await.unwrap();
    let began = Instant::now();
    runtime.stop().await.unwrap();
    assert!(began.elapsed() < LONGEST_END, "{:?}", began.elapsed());
    create.await.unwrap().unwrap_err();
    // The daemon that cleans up must not read it again.
    std::fs::remove_file(&fifo).unwrap();
}

fn zygotes(runtime: &Runtime) -> Vec<ObservedProcess> {
    let root = runtime.root();
    let all = procfs::processes().into_iter();
    all.filter(|process| {
        process.text("comm").trim() == "crib-zygote"
            && process.link("fd/2").is_some_and(|log| log.starts_with(&root))
    })
    .collect()
}

async fn zygote(runtime: &Runtime) -> ObservedProcess {
    eventually(WAIT_LIMIT, "the zygote", || async {
        <[ObservedProcess; 1]>::try_from(zygotes(runtime)).map(|[zygote]| zygote)
    })
    .await
}

/// Keepers do not notice when the zygote is killed, and the daemon starts another one.
#[tokio::test]
async fn pods_survive_killed_zygote_and_more_pods_start() {
    let runtime = Runtime::start().await.unwrap();
    let first = runtime.pod("first").await.unwrap();
    let id = first.start(fixture::forever("c")).await.unwrap();
    let killed = zygote(&runtime).await;
    kill(Pid::from_raw(killed.pid), Signal::SIGKILL).unwrap();
    eventually(WAIT_LIMIT, "the end of the zygote", || async {
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
