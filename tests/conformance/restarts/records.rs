//! Unreadable records and unreachable keepers: running containers are not touched until the client removes them.

mod images;
mod keepers;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cri::v1::{ContainerState, ContainerStatusRequest, PodSandboxState, PodSandboxStatusRequest};
use serde_json::Value;

use crate::restarts::recovery::{nothing_runs, pod_on};
use crate::support::*;

/// The damage to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Emptied,
    Cut(usize),
    CutAtTheEnd,
    Zeroed,
    NewerVersion,
    UnknownState,
    DirectoryInItsPlace,
    /// Opening it fails with ELOOP. Removing permissions would not work: the daemon has CAP_DAC_OVERRIDE.
    LinkToItself,
}

const DAMAGES: [Damage; 9] = [
    Damage::Emptied,
    Damage::Cut(1),
    Damage::Cut(300),
    Damage::CutAtTheEnd,
    Damage::Zeroed,
    Damage::NewerVersion,
    Damage::UnknownState,
    Damage::DirectoryInItsPlace,
    Damage::LinkToItself,
];

impl Damage {
    fn make(self, record: &Path) {
        let whole = fs::read(record).unwrap();
        // The last line is the current record.
        let edit = |name: &str, value: Value| {
            let line = format!("\n{}", serde_json::json!({ name: value }));
            fs::write(record, [&whole, line.as_bytes()].concat()).unwrap();
        };
        match self {
            Self::Emptied => fs::write(record, "").unwrap(),
            Self::Cut(length) => fs::write(record, &whole[..length]).unwrap(),
            Self::CutAtTheEnd => fs::write(record, &whole[..whole.len() - 1]).unwrap(),
            Self::Zeroed => fs::write(record, vec![0; whole.len()]).unwrap(),
            Self::NewerVersion => edit("version", 1000.into()),
            Self::UnknownState => edit("state", "dreaming".into()),
            Self::DirectoryInItsPlace => {
                fs::remove_file(record).unwrap();
                fs::create_dir(record).unwrap();
            }
            Self::LinkToItself => {
                fs::remove_file(record).unwrap();
                symlink(record, record).unwrap();
            }
        }
    }
}

fn sandbox_dir(runtime: &Runtime, pod: &str) -> PathBuf {
    runtime.state_dir().join("sandboxes").join(pod)
}

/// A container whose process has a mark.
async fn marked(pod: &Pod, name: &str) -> (String, String) {
    let mark = fixture::unique("mark");
    let script = format!("exec sh -c 'sleep 1000; true' {mark}");
    let id = pod.start(pod.script(name, &script)).await.unwrap();
    eventually(WAIT_LIMIT, "the process to run", async || {
        let found = procfs::marked(&mark);
        if found.is_empty() { Err(()) } else { Ok(()) }
    })
    .await;
    (id, mark)
}

/// The processes with a mark.
fn process(mark: &str) -> Vec<ObservedProcess> {
    procfs::marked(mark)
}

/// The reason in a pod's verbose status.
async fn reason(runtime: &Runtime, pod: &str) -> Option<String> {
    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.to_owned(), verbose: true };
    let answer = runtime.client.runtime.clone().pod_sandbox_status(request).await;
    let info: Value = serde_json::from_str(&answer.unwrap().into_inner().info["info"]).unwrap();
    info["reason"].as_str().map(str::to_owned)
}

async fn address(runtime: &Runtime, pod: &str) -> String {
    let status = runtime.client.pod(pod).await.unwrap().status.unwrap();
    status.network.unwrap().ip
}

#[tokio::test]
async fn pods_with_damaged_records_are_kept_until_removal() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let healthy = runtime.pod("healthy").await.unwrap();
    let (healthy_container, healthy_mark) = marked(&healthy, "c").await;
    let mut damaged = Vec::new();
    for (number, damage) in DAMAGES.into_iter().enumerate() {
        let pod = runtime.pod(&format!("damaged-{number}")).await.unwrap();
        let (container, mark) = marked(&pod, "c").await;
        let ip = address(&runtime, &pod.id).await;
        damaged.push((damage, pod, container, mark, ip));
    }
    let before: Vec<_> = damaged.iter().map(|(.., mark, _)| process(mark)).collect();
    let healthy_before = process(&healthy_mark);
    runtime.kill9().await;
    for (damage, pod, ..) in &damaged {
        damage.make(&sandbox_dir(&runtime, &pod.id).join("sandbox.json"));
    }

    // The first restart must not change the state that the second one reads.
    for _ in 0..2 {
        runtime.restart().await.unwrap();
        assert_eq!(process(&healthy_mark), healthy_before);
        let fine = runtime.client.sh(&healthy_container, "echo fine").await;
        assert_eq!(fine.unwrap(), "fine\n");
        assert!(runtime.client.pod_is_ready(&healthy.id).await.unwrap());
        let listed = runtime.client.pods(Default::default()).await.unwrap();
        assert_eq!(listed.len(), 1 + damaged.len());
        for ((damage, pod, container, mark, _), before) in damaged.iter().zip(&before) {
            assert_eq!(&process(mark), before, "{damage:?}");
            let listed = listed.iter().find(|listed| listed.id == pod.id).unwrap();
            assert_eq!(listed.state(), PodSandboxState::SandboxNotready, "{damage:?}");
            let metadata = listed.metadata.clone().unwrap();
            assert!(!metadata.name.is_empty() && !metadata.uid.is_empty(), "{damage:?}");
            let reason = reason(&runtime, &pod.id).await.unwrap();
            assert!(reason.starts_with("its record "), "{damage:?}: {reason}");
            // The container's record is intact, so its status is available.
            let status = runtime.client.container(container).await.unwrap();
            assert_eq!(status.state(), ContainerState::ContainerRunning, "{damage:?}");
        }
        runtime.kill9().await;
    }
    runtime.restart().await.unwrap();

    // The address stays reserved.
    let new = runtime.pod("new").await.unwrap();
    let ip = address(&runtime, &new.id).await;
    assert!(!ip.is_empty() || runtime.isolation().await.unwrap() == "process");
    assert!(damaged.iter().all(|(.., taken)| *taken != ip), "{ip}");

    // The client can remove each damaged pod, and only that one.
    for (damage, pod, container, mark, _) in &damaged {
        runtime.client.stop_pod(&pod.id).await.unwrap();
        assert_eq!(process(mark), [], "{damage:?}");
        runtime.client.remove_pod(&pod.id).await.unwrap();
        assert!(!sandbox_dir(&runtime, &pod.id).exists(), "{damage:?}");
        assert!(runtime.client.container(container).await.is_err(), "{damage:?}");
    }
    assert_eq!(process(&healthy_mark), healthy_before);
    for pod in [&healthy, &new] {
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    nothing_runs(&runtime).await;
}

#[tokio::test]
async fn containers_with_damaged_records_are_kept_until_removal() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let (healthy, healthy_mark) = marked(&pod, "healthy").await;
    let mut damaged = Vec::new();
    for (number, damage) in DAMAGES.into_iter().enumerate() {
        let (container, mark) = marked(&pod, &format!("c{number}")).await;
        damaged.push((damage, container, mark));
    }
    let before: Vec<_> = damaged.iter().map(|(.., mark)| process(mark)).collect();
    runtime.kill9().await;
    let containers = sandbox_dir(&runtime, &pod.id).join("containers");
    for (damage, container, _) in &damaged {
        damage.make(&containers.join(container).join("container.json"));
    }
    runtime.restart().await.unwrap();

    let pod = pod_on(&pod, &runtime);
    assert!(runtime.client.pod_is_ready(&pod.id).await.unwrap());
    let seen = runtime.client.container(&healthy).await.unwrap().state();
    assert_eq!(seen, ContainerState::ContainerRunning);
    let listed = runtime.client.containers(Default::default()).await.unwrap();
    assert_eq!(listed.len(), 1 + damaged.len());
    for ((damage, container, mark), before) in damaged.iter().zip(&before) {
        assert_eq!(&process(mark), before, "{damage:?}");
        let request = ContainerStatusRequest { container_id: container.clone(), verbose: true };
        let status = runtime.client.runtime.clone().container_status(request).await;
        let status = status.unwrap().into_inner().status.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerUnknown, "{damage:?}");
        assert!(status.message.starts_with("its record "), "{status:?}");
    }
    for (damage, container, mark) in &damaged {
        runtime.client.stop(container, 0).await.unwrap();
        assert_eq!(process(mark), [], "{damage:?}");
        let status = runtime.client.container(container).await.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerExited, "{damage:?}");
        runtime.client.remove(container).await.unwrap();
        assert!(!containers.join(container).exists(), "{damage:?}");
    }
    assert_eq!(process(&healthy_mark).len(), 1);
    let late = pod.output(pod.script("late", "echo late")).await.unwrap();
    assert_eq!(late, "late\n");
    runtime.client.remove_pod(&pod.id).await.unwrap();
    nothing_runs(&runtime).await;
}
