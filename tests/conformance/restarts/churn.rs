//! Hundreds of pods, a few at a time: the daemon leaks no descriptors, processes or memory.

use std::collections::BTreeMap;

use crate::restarts::recovery::nothing_runs;
use crate::support::*;

/// The number of pods in a round, and of concurrent ones.
const PODS: usize = 200;
const AT_A_TIME: usize = 4;

/// The resources of a daemon between two rounds.
#[derive(Debug)]
struct Daemon {
    /// Its descriptors, by kind.
    descriptors: BTreeMap<String, usize>,
    /// Its children, including zombies.
    children: usize,
    /// Its resident memory in KiB.
    rss: u64,
}

impl Daemon {
    fn of(pid: i32) -> Self {
        let process = ObservedProcess { pid };
        let mut descriptors = BTreeMap::new();
        for path in process.descriptors() {
            let kind = path.display().to_string();
            let kind = kind.split('[').next().unwrap_or_default().to_owned();
            *descriptors.entry(kind).or_default() += 1;
        }
        let rss = process.status("VmRSS").unwrap();
        Self {
            descriptors,
            children: procfs::processes().into_iter().filter(|child| child.parent() == pid).count(),
            rss: rss.trim_end_matches(" kB").parse().unwrap(),
        }
    }
}

/// Runs and removes a round of pods, each with a running and an exited container.
async fn run_round(runtime: &Runtime, number: usize) {
    let workers = (0..AT_A_TIME).map(|worker| {
        let client = runtime.client.clone();
        let names = (worker..PODS).step_by(AT_A_TIME);
        let pods: Vec<_> =
            names.map(|pod| runtime.sandbox(&format!("pod-{number}-{pod}"))).collect();
        tokio::spawn(async move {
            for config in pods {
                let pod = Pod::run(&client, config).await.unwrap();
                pod.start(fixture::forever("runs")).await.unwrap();
                pod.start(pod.script("ends", "echo done")).await.unwrap();
                // A kubelet stops the pod first; for other clients RemovePodSandbox alone must be sufficient.
                if pod.config.hostname.ends_with(['0', '5']) {
                    client.stop_pod(&pod.id).await.unwrap();
                }
                client.remove_pod(&pod.id).await.unwrap();
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
}

#[tokio::test]
async fn two_rounds_of_two_hundred_pods_leak_nothing() {
    let runtime = Runtime::with().start().await.unwrap();
    let fresh = after_first_pod(&runtime).await;
    run_round(&runtime, 1).await;
    let first = wait_until_idle(&runtime, &fresh).await;
    run_round(&runtime, 2).await;
    let second = wait_until_idle(&runtime, &fresh).await;
    // An allocator does not return all memory immediately. A leak of 10 KiB per pod would be 2000 KiB.
    assert!(
        second.rss < first.rss + 2000,
        "{} KiB after the first round, {} KiB after the second",
        first.rss,
        second.rss
    );
}

/// Runs a pod and removes it. Afterwards the daemon keeps a network namespace for the next pod.
async fn after_first_pod(runtime: &Runtime) -> Daemon {
    let pod = harness::Pod::run(&runtime.client, runtime.sandbox("first")).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
    nothing_runs(runtime).await;
    nothing_in_trash(&runtime.state_dir()).await;
    let has_network = runtime.isolation().await.unwrap() != "process";
    eventually(WAIT_LIMIT, "a network namespace for the next pod", || async {
        let now = Daemon::of(runtime.pid().unwrap());
        if has_network && !now.descriptors.contains_key("net:") { Err(now) } else { Ok(now) }
    })
    .await
}

/// Waits until no pod has left anything, and the daemon has no more descriptors and children than at its start.
async fn wait_until_idle(runtime: &Runtime, fresh: &Daemon) -> Daemon {
    nothing_runs(runtime).await;
    let pods = runtime.client.pods(Default::default()).await;
    assert_eq!(pods.unwrap(), []);
    let containers = runtime.client.containers(Default::default()).await;
    assert_eq!(containers.unwrap(), []);
    let sandboxes = std::fs::read_dir(runtime.state_dir().join("sandboxes"));
    assert_eq!(sandboxes.into_iter().flatten().count(), 0);
    nothing_in_trash(&runtime.state_dir()).await;
    // Connections to keepers are closed shortly after the keepers exit.
    eventually(WAIT_LIMIT, "the daemon to be as before", || async {
        let now = Daemon::of(runtime.pid().unwrap());
        let mut kinds = now.descriptors.iter();
        let more =
            kinds.any(|(kind, count)| fresh.descriptors.get(kind).is_none_or(|had| count > had));
        if more || now.children > fresh.children { Err((now, fresh)) } else { Ok(now) }
    })
    .await
}
