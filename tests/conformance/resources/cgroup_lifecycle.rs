//! Cgroups: where they are created, which processes end with them, and that none leaks, whichever process is killed.

use std::fs;
use std::path::PathBuf;

use cri::v1::{LinuxContainerResources, NamespaceMode};
use harness::leak::Leak;

use crate::support::*;

async fn running(mark: &str, count: usize) -> Vec<ObservedProcess> {
    eventually(WAIT_LIMIT, "the container's processes", || async {
        let found = procfs::marked(mark);
        if found.len() == count { Ok(found) } else { Err(found) }
    })
    .await
}

/// The existing directories with this path, in all hierarchies.
fn in_all_hierarchies(path: &str) -> Vec<PathBuf> {
    let roots = procfs::cgroup_directories().into_iter();
    roots.map(|root| root.join(path)).filter(|at| at.exists()).collect()
}

/// The remaining cgroups of pods, without the parent directory that the daemon keeps.
fn leftover_cgroups(runtime: &Runtime) -> Vec<String> {
    let name = runtime_fake::instance_name(&runtime.state_dir());
    let all = runtime.leaks().cgroups().into_iter();
    all.filter(|leak| !matches!(leak, Leak::Cgroup(path) if path.ends_with(&name)))
        .map(|leak| leak.to_string())
        .collect()
}

async fn wait_for_no_leftovers(runtime: &Runtime) {
    all_gone("the cgroups to be gone", || leftover_cgroups(runtime)).await;
}

#[tokio::test]
async fn pod_cgroups_follow_cgroup_parent_and_end_with_pod() {
    harness::needs!(Cgroups);
    let runtime = Runtime::start().await.unwrap();
    let name = fixture::unique("crib-test");
    let mut config = runtime.sandbox("p");
    let parent = format!("/{name}/burstable/pod1");
    config.linux.get_or_insert_default().cgroup_parent = parent.clone();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let (config, mark) = marked(pod.script("c", "while :; do sleep 1000 & wait $!; done"));
    let id = pod.start(config).await.unwrap();
    for (controllers, at) in running(&mark, 2).await[0].cgroups() {
        let inside = at.ends_with(format!("{}/{id}", &parent[1..]));
        // The runtime does not use these hierarchies.
        let used = !["name=systemd", "freezer"].contains(&&*controllers);
        assert_eq!(inside, used, "{controllers}: {}", at.display());
    }
    // An existing parent is kept.
    let mut config = runtime.sandbox("q");
    config.linux.get_or_insert_default().cgroup_parent = format!("{name}/burstable");
    let other = Pod::run(&runtime.client, config).await.unwrap();
    other.start(fixture::forever("c")).await.unwrap();
    runtime.client.remove_pod(&other.id).await.unwrap();
    assert!(!in_all_hierarchies(&parent[1..]).is_empty());
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert_eq!(in_all_hierarchies(&name), Vec::<PathBuf>::new());
}

#[rstest]
#[case::slice("kubepods-burstable.slice", "a slice of systemd")]
#[case::dot_dot("/a/../../b", "without ..")]
#[case::root("/", "is not a path")]
#[tokio::test]
async fn run_pod_rejects_invalid_cgroup_parent(#[case] parent: &str, #[case] complaint: &str) {
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    config.linux.get_or_insert_default().cgroup_parent = parent.to_owned();
    rejected(Pod::run(&runtime.client, config).await, Code::InvalidArgument, complaint);
}

/// In the PID namespace of the pod or the host, the kernel does not kill them.
#[rstest]
#[case::pod(NamespaceMode::Pod)]
#[case::host(NamespaceMode::Node)]
#[tokio::test]
async fn stop_kills_remaining_processes_in_shared_pid_namespace(#[case] mode: NamespaceMode) {
    harness::needs!(Cgroups);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).pid = mode.into();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let script = "setsid sh -c '(sleep 1000 &); (setsid sleep 1000 &); sleep 1000' & \
                  setsid sleep 1000 & echo ready; read nothing";
    let (mut config, mark) = marked(pod.script("c", script));
    config.stdin = true;
    fixture::security(&mut config).namespace_options.get_or_insert_default().pid = mode.into();
    let id = pod.start_ready(config).await.unwrap();
    running(&mark, 6).await;
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(procfs::marked(&mark), []);
    // The rest of the pod keeps running.
    assert!(runtime.client.pod_is_ready(&pod.id).await.unwrap());
}

/// A keeper's children die with it; in the host's PID namespace their children would not.
#[rstest]
#[tokio::test]
async fn processes_left_by_killed_keeper_are_killed(#[values(true, false)] daemon_lives: bool) {
    harness::needs!(Cgroups);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let mut config = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).pid = NamespaceMode::Node.into();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let script = "setsid sh -c '(sleep 1000 &); sleep 1000' & echo ready; wait";
    let (mut config, mark) = marked(pod.script("c", script));
    fixture::security(&mut config).namespace_options.get_or_insert_default().pid =
        NamespaceMode::Node.into();
    let id = pod.start_ready(config).await.unwrap();
    running(&mark, 4).await;
    let keeper = keeper_of(&runtime, &pod.id);
    if !daemon_lives {
        runtime.kill9().await;
    }
    kill(keeper, Signal::SIGKILL).unwrap();
    if !daemon_lives {
        runtime.restart().await.unwrap();
    }
    all_gone("all to be gone", || procfs::marked(&mark)).await;
    wait_for_no_leftovers(&runtime).await;
    let again = Pod { client: runtime.client.clone(), ..pod };
    again.ended(&id).await.unwrap();
}

/// Kills the daemon thirty times at different points of pod lifecycles, and every other time also a keeper.
#[tokio::test]
async fn no_cgroup_leaks_after_thirty_kills() {
    harness::needs!(Cgroups);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    for round in 0..30u64 {
        let lives = (0..3).map(|number| {
            let (client, config) =
                (runtime.client.clone(), runtime.sandbox(&format!("pod-{round}-{number}")));
            tokio::spawn(async move {
                // The daemon may die before any call.
                while let Ok(pod) = Pod::run(&client, config.clone()).await {
                    if pod.start(fixture::forever("a")).await.is_err()
                        || pod.create(fixture::forever("b")).await.is_err()
                        || client.remove_pod(&pod.id).await.is_err()
                    {
                        break;
                    }
                }
            })
        });
        let lives: Vec<_> = lives.collect();
        tokio::time::sleep(Duration::from_millis(round * 7 % 60)).await;
        let keepers: Vec<i32> = fs::read_dir(runtime.state_dir().join("sandboxes"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("keeper.pid")).ok())
            .filter_map(|pid| pid.trim().parse().ok())
            .collect();
        runtime.kill9().await;
        if round % 2 == 0
            && let Some(pid) = keepers.first()
            && (ObservedProcess { pid: *pid }).status("Name").as_deref() == Some("crib-keeper")
        {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        for life in lives {
            life.await.unwrap();
        }
        runtime.restart().await.unwrap();
        for pod in runtime.client.pods(Default::default()).await.unwrap() {
            runtime.client.remove_pod(&pod.id).await.unwrap();
        }
        wait_for_no_leftovers(&runtime).await;
    }
    let of_daemon = |leak: &Leak| matches!(leak, Leak::Process { process, .. } if is_daemon(&runtime, *process));
    let processes = runtime.leaks().processes();
    assert!(processes.iter().all(of_daemon), "{processes:?}");
}

#[tokio::test]
async fn inapplicable_limits_are_reported_in_status_and_log() {
    harness::needs!(NoCgroups);
    let runtime = Runtime::start().await.unwrap();
    let status = runtime.client.status().await.unwrap();
    let conditions = status.status.unwrap().conditions;
    let message = &conditions.iter().find(|c| c.r#type == "RuntimeReady").unwrap().message;
    assert!(message.contains("are not applied"), "{message}");
    assert!(runtime.log().contains("not applied"), "{}", runtime.log());
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    let wished = LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        cpu_shares: 100,
        ..Default::default()
    };
    config.linux.get_or_insert_default().resources = Some(wished.clone());
    let id = pod.start(config).await.unwrap();
    let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: true };
    let mut calls = runtime.client.runtime.clone();
    let info = calls.container_status(request).await.unwrap().into_inner().info;
    assert!(info["info"].contains("memory_limit_in_bytes: "), "{info:?}");
    let late = LinuxContainerResources { cpu_quota: -7, ..wished };
    assert_eq!(code(runtime.client.update(&id, late).await), Code::InvalidArgument);
}
