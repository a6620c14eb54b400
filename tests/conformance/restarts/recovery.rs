//! Recovery: the daemon or a keeper is killed at any point, and the state is consistent afterwards.

use std::fs;
use std::path::PathBuf;

use cri::v1::{ContainerFilter, ContainerState, ContainerStatus, PodSandboxFilter};
use harness::leak::Leak;

use crate::support::*;

/// The pod with the client of the restarted runtime.
pub(crate) fn pod_on(pod: &Pod, runtime: &Runtime) -> Pod {
    Pod { client: runtime.client.clone(), ..pod.clone() }
}

/// The keepers of a runtime, found by their log files.
pub(crate) fn keepers(runtime: &Runtime) -> Vec<(PathBuf, ObservedProcess)> {
    let sandboxes = runtime.state_dir().join("sandboxes");
    procfs::processes()
        .into_iter()
        .filter(|process| process.status("Name").as_deref() == Some("crib-keeper"))
        .filter_map(|process| {
            let log =
                process.descriptors().into_iter().find(|path| path.starts_with(&sandboxes))?;
            Some((log, process))
        })
        .collect()
}

/// The processes, links and cgroups of a test apart from the daemon.
pub(crate) fn others(runtime: &Runtime) -> Vec<String> {
    let daemon = runtime.pid();
    let cgroups = runtime_fake::instance_name(&runtime.state_dir());
    let running = runtime.leaks().running().into_iter();
    running
        .filter(|leak| match leak {
            Leak::Process { process, .. } => !is_daemon(runtime, *process),
            // A running daemon keeps its bridge.
            Leak::Link(_) | Leak::Table(_) => daemon.is_none(),
            // ... and the parent cgroup of its pods.
            Leak::Cgroup(path) => daemon.is_none() || !path.ends_with(&cgroups),
            Leak::Mount(_) | Leak::File(_) => true,
        })
        .map(|leak| leak.to_string())
        .collect()
}

pub(crate) async fn nothing_runs(runtime: &Runtime) {
    all_gone("everything to be gone", || others(runtime)).await;
}

/// The parts of a status that never change.
fn constant_fields(status: &ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        state: 0,
        finished_at: 0,
        exit_code: 0,
        reason: String::new(),
        ..status.clone()
    }
}

#[tokio::test]
async fn containers_survive_kill_of_daemon() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let stopped = runtime.pod("stopped").await.unwrap();
    runtime.client.stop_pod(&stopped.id).await.unwrap();
    let volume = runtime.root().join("volume");
    fs::create_dir(&volume).unwrap();
    let mount = Mount {
        host_path: volume.display().to_string(),
        container_path: volume.display().to_string(),
        ..Default::default()
    };
    let with_volume = |name: &str, script: String| {
        let mut config = fixture::script(name, &script);
        config.mounts = vec![mount.clone()];
        config
    };
    let at = volume.display();
    let runs = pod.start(fixture::forever("runs")).await.unwrap();
    let created = pod.create(pod.script("created", "echo late")).await.unwrap();
    let ended_before = pod.start(pod.script("ended-before", "exit 4")).await.unwrap();
    pod.ended(&ended_before).await.unwrap();
    // While no daemon runs, one container exits at the test's signal, and another writes to its log.
    let wait = format!("until [ -e {at}/go ]; do sleep 0.02; done");
    let ends = pod.start(with_volume("ends", format!("{wait}; echo going; exit 5"))).await.unwrap();
    let writes = with_volume(
        "writes",
        format!("{wait}; seq 1000; touch {at}/written; while :; do sleep 1000; done"),
    );
    let writes = pod.start(writes).await.unwrap();
    let ids = [&runs, &created, &ended_before, &ends, &writes];
    let mut before = Vec::new();
    for id in ids {
        before.push(runtime.client.container(id).await.unwrap());
    }
    let pod_before = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();

    runtime.kill9().await;
    fs::write(volume.join("go"), "").unwrap();
    eventually(WAIT_LIMIT, "the containers to go on", || async {
        let written = fs::exists(volume.join("written")).unwrap();
        let record =
            fs::read_dir(runtime.state_dir().join("sandboxes").join(&pod.id)).unwrap().count();
        if written { Ok(()) } else { Err(record) }
    })
    .await;

    runtime.restart().await.unwrap();
    let client = &runtime.client;
    let pod = pod_on(&pod, &runtime);
    assert_eq!(client.pod(&pod.id).await.unwrap().status.unwrap(), pod_before);
    assert!(!client.pod_is_ready(&stopped.id).await.unwrap());
    let ended = pod.ended(&ends).await.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_str()), (5, "Error"));
    assert!(ended.finished_at >= ended.started_at && ended.started_at > 0);
    assert_eq!(pod.log(&ended)[0].text, "going");
    let mut states = Vec::new();
    for (id, before) in ids.into_iter().zip(&before) {
        let after = client.container(id).await.unwrap();
        assert_eq!(constant_fields(&after), constant_fields(before));
        states.push((after.state(), after.exit_code));
    }
    use ContainerState::{
        ContainerCreated as Created, ContainerExited as Exited, ContainerRunning as Running,
    };
    assert_eq!(states, [(Running, 0), (Created, 0), (Exited, 4), (Exited, 5), (Running, 0)]);
    let lines = pod.logged(&writes, "1000").await.unwrap();
    assert_eq!(lines, (1..=1000).map(|number| number.to_string()).collect::<Vec<_>>());

    // All calls work as before.
    assert_eq!(client.sh(&runs, "echo fine").await.unwrap(), "fine\n");
    client.start(&created).await.unwrap();
    assert_eq!(pod.ended(&created).await.unwrap().exit_code, 0);
    pod.logged(&created, "late").await.unwrap();
    client.reopen_log(&runs).await.unwrap();
    client.stop(&runs, 3600).await.unwrap();
    assert_eq!(client.container(&runs).await.unwrap().exit_code, 143);
    assert_eq!(pod.output(pod.script("new", "echo new")).await.unwrap(), "new\n");
    assert_eq!(code(client.run_pod(pod.config.clone()).await), Code::AlreadyExists);
    client.remove(&writes).await.unwrap();
    for id in [&pod.id, &stopped.id] {
        client.stop_pod(id).await.unwrap();
        client.remove_pod(id).await.unwrap();
    }
    nothing_runs(&runtime).await;
}

#[tokio::test]
async fn keeper_death_ends_its_pod_only() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let other = runtime.pod("other").await.unwrap();
    let running = pod.start(fixture::forever("running")).await.unwrap();
    let created = pod.create(fixture::forever("created")).await.unwrap();
    let ended = pod.start(pod.script("ended", "exit 6")).await.unwrap();
    pod.ended(&ended).await.unwrap();
    let neighbour = other.start(fixture::forever("neighbour")).await.unwrap();

    let kill_keeper = |runtime: &Runtime, id: &str| {
        kill(keeper_of(runtime, id), Signal::SIGKILL).unwrap();
    };
    kill_keeper(&runtime, &pod.id);
    eventually(WAIT_LIMIT, "the pod not to be ready", || async {
        if runtime.client.pod_is_ready(&pod.id).await.unwrap() {
            Err("it is ready")
        } else {
            Ok(())
        }
    })
    .await;
    for id in [&running, &created] {
        let status = runtime.client.container(id).await.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerExited);
        assert_ne!(status.exit_code, 0);
    }
    assert_eq!(runtime.client.container(&ended).await.unwrap().exit_code, 6);
    assert_eq!(code(pod.create(fixture::forever("late")).await), Code::FailedPrecondition);
    let seen = runtime.client.container(&neighbour).await.unwrap().state();
    assert_eq!(seen, ContainerState::ContainerRunning);

    // The keeper may also die while no daemon runs.
    runtime.kill9().await;
    kill_keeper(&runtime, &other.id);
    runtime.restart().await.unwrap();
    assert!(!runtime.client.pod_is_ready(&other.id).await.unwrap());
    let status = runtime.client.container(&neighbour).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(runtime.client.container(&ended).await.unwrap().exit_code, 6);

    for id in [&pod.id, &other.id] {
        runtime.client.stop_pod(id).await.unwrap();
        runtime.client.remove_pod(id).await.unwrap();
    }
    nothing_runs(&runtime).await;
}

/// After a restart each listed pod works, and unlisted pods have left nothing.
#[tokio::test]
async fn daemon_killed_at_any_instant_leaves_consistent_state() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let whole = runtime.pod("whole").await.unwrap();
    let began = std::time::Instant::now();
    let id = whole.start(fixture::forever("c")).await.unwrap();
    runtime.client.remove(&id).await.unwrap();
    let one_life = began.elapsed() * 3;
    for round in 0..16_u32 {
        let (client, config) = (runtime.client.clone(), runtime.sandbox(&format!("pod-{round}")));
        let life = tokio::spawn(async move {
            let pod = Pod::run(&client, config).await?;
            let id = pod.start(fixture::forever("c")).await?;
            client.stop(&id, 0).await?;
            client.remove_pod(&pod.id).await
        });
        // Kill the daemon at a different instant in each round.
        tokio::time::sleep(one_life * round / 16).await;
        runtime.kill9().await;
        life.abort();
        let _ = life.await;
        runtime.restart().await.unwrap();

        let pods = runtime.client.pods(PodSandboxFilter::default()).await.unwrap();
        for listed in pods.iter().filter(|listed| listed.id != whole.id) {
            let status = runtime.client.pod(&listed.id).await.unwrap();
            for container in &status.containers_statuses {
                runtime.client.stop(&container.id, 0).await.unwrap();
                let stopped = runtime.client.container(&container.id).await.unwrap();
                assert_eq!(stopped.state(), ContainerState::ContainerExited, "round {round}");
            }
            if runtime.client.pod_is_ready(&listed.id).await.unwrap() {
                let mut config = runtime.sandbox("unused");
                config.log_directory.clear();
                let pod = Pod { id: listed.id.clone(), config, client: runtime.client.clone() };
                let late = pod.start(pod.script("late", "exit 7")).await.unwrap();
                assert_eq!(pod.ended(&late).await.unwrap().exit_code, 7, "round {round}");
            }
            runtime.client.stop_pod(&listed.id).await.unwrap();
            runtime.client.remove_pod(&listed.id).await.unwrap();
        }
        // Only the pod from before the rounds is left.
        assert!(runtime.client.pod_is_ready(&whole.id).await.unwrap());
        eventually(WAIT_LIMIT, "the other keepers to go", || async {
            let left = keepers(&runtime);
            if left.len() == 1 { Ok(()) } else { Err((round, left)) }
        })
        .await;
        let directories: Vec<String> = fs::read_dir(runtime.state_dir().join("sandboxes"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(directories, [whole.id.as_str()], "round {round}");
        assert_eq!(
            runtime.client.containers(ContainerFilter::default()).await.unwrap(),
            [],
            "round {round}"
        );
    }
}

#[tokio::test]
async fn pods_end_with_killed_ephemeral_daemon() {
    let mut runtime = Runtime::with().start().await.unwrap();
    for name in ["a", "b", "c"] {
        let pod = runtime.pod(name).await.unwrap();
        pod.start(pod.script("c", "trap '' TERM; setsid sleep 1000 & sleep 1000")).await.unwrap();
        pod.create(fixture::forever("d")).await.unwrap();
    }
    assert_eq!(keepers(&runtime).len(), 3);
    runtime.kill9().await;
    // Only the bridge remains, if it is in the host's network namespace.
    all_gone("every process to end", || runtime.leaks().processes()).await;
    assert_eq!(runtime.leaks().mounts(), []);
}

#[tokio::test]
async fn second_daemon_on_same_state_directory_is_refused() {
    let (runtime, pod) = pod_of(Runtime::with().durable()).await;
    let second = std::process::Command::new(harness::binary::crib().unwrap())
        .arg("runtime")
        .arg("--listen")
        .arg(format!("unix://{}", runtime.root().join("second.sock").display()))
        .arg("--state-dir")
        .arg(runtime.state_dir())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(!second.status.success() && second.stdout.is_empty(), "{second:?}");
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(
        message.contains("in use") && message.contains(&runtime.state_dir().display().to_string()),
        "{message}"
    );
    // The first daemon is not affected.
    assert_eq!(pod.output(pod.script("c", "echo fine")).await.unwrap(), "fine\n");
}

/// An incomplete sandbox directory does not prevent the recovery of other pods.
#[tokio::test]
async fn sandbox_directory_without_record_does_not_block_recovery() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let id = pod.start(fixture::forever("c")).await.unwrap();
    runtime.kill9().await;
    // A daemon that is killed between two steps leaves a directory without a record.
    fs::create_dir_all(
        runtime.state_dir().join("sandboxes").join("0".repeat(64)).join("containers"),
    )
    .unwrap();
    runtime.restart().await.unwrap();
    assert_eq!(runtime.client.sh(&id, "echo fine").await.unwrap(), "fine\n");
    let listed = runtime.client.pods(PodSandboxFilter::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    tokio::time::timeout(Duration::from_secs(30), runtime.client.remove_pod(&pod.id))
        .await
        .unwrap()
        .unwrap();
    nothing_runs(&runtime).await;
}

/// The kernel clears the parent-death signal when a process changes its user, as many entry points do.
#[rstest]
#[case::with_daemon(false)]
#[case::without_daemon(true)]
#[tokio::test]
async fn container_that_changed_user_ends_with_killed_keeper(#[case] away: bool) {
    harness::needs!(UserIds);
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let mark = fixture::unique("mark");
    let script = format!(
        "exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'echo ready; sleep 1000; true' {mark}"
    );
    let id = pod.start_ready(pod.script("c", &script)).await.unwrap();
    let ours = keepers(&runtime);
    let [(_, keeper)] = ours.as_slice() else { panic!("one pod, one keeper: {ours:?}") };
    if away {
        runtime.kill9().await;
    }
    kill(Pid::from_raw(keeper.pid), Signal::SIGKILL).unwrap();
    if away {
        runtime.restart().await.unwrap();
    }
    all_gone("the end of the container", || procfs::marked(&mark)).await;
    let status = pod_on(&pod, &runtime).ended(&id).await.unwrap();
    assert_eq!(status.reason, "Unknown");
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
