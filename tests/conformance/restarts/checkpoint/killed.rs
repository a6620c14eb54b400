//! The daemon is killed during a checkpoint; the keeper is killed after a restore.

use std::fs;

use super::{checkpoint, counter, names, restore_pod, wait_for_counter_beyond, with_image};
use crate::restarts::recovery::keepers;
use crate::support::*;

/// The container keeps running, and the archive is either complete or absent.
#[rstest]
#[case::begun("")]
#[case::writing_memory("checkpoint/pages-1.img")]
#[case::frozen("rootfs-diff.tar")]
#[tokio::test]
async fn daemon_killed_during_checkpoint_leaves_container_running(#[case] until: &str) {
    harness::needs!(Checkpoints);
    let (mut runtime, _place) = with_image().await;
    let archives = directory(&runtime, "archives");
    let archive = archives.join("c.tar");
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(counter("c")).await.unwrap();
    wait_for_counter_beyond(&pod, &id, 3).await;
    checkpoint(&runtime, &id, &archive).await.unwrap();
    fs::remove_file(&archive).unwrap();

    let request = v1::CheckpointContainerRequest {
        container_id: id.clone(),
        location: archive.display().to_string(),
        timeout: 0,
    };
    let mut client = runtime.client.runtime.clone();
    let call = tokio::spawn(async move { client.checkpoint_container(request).await });
    let own = runtime.state_dir().join("sandboxes").join(&pod.id).join("containers").join(&id);
    let begun = || {
        let entries = fs::read_dir(&own).unwrap().flatten();
        let mut files =
            entries.filter(|e| e.file_name().to_string_lossy().starts_with("checkpoint-"));
        files.any(|files| files.path().join(until).exists())
    };
    while !begun() && !call.is_finished() {
        tokio::task::yield_now().await;
    }
    runtime.kill9().await;
    let _ = call.await;
    match fs::read_dir(&archives).unwrap().next() {
        None => {}
        Some(only) => {
            assert_eq!(only.unwrap().path(), archive);
            assert!(names(&archive).iter().any(|name| name == "crib.dump"));
        }
    }

    runtime.restart().await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
    let now = wait_for_counter_beyond(&pod, &id, 3).await;
    wait_for_counter_beyond(&pod, &id, now + 5).await;
    fs::remove_file(&archive).ok();
    checkpoint(&runtime, &id, &archive).await.unwrap();
    runtime.client.stop(&id, 10).await.unwrap();
    assert_eq!(runtime.client.container(&id).await.unwrap().exit_code, 143);
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// Restored processes belong to their keeper, like all processes that a keeper starts.
#[tokio::test]
async fn restored_container_ends_with_killed_keeper() {
    harness::needs!(Checkpoints);
    let (runtime, _place) = with_image().await;
    let archive = runtime.root().join("c.tar");
    let pod = runtime.pod("before").await.unwrap();
    let id = pod.start(counter("c")).await.unwrap();
    wait_for_counter_beyond(&pod, &id, 3).await;
    checkpoint(&runtime, &id, &archive).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
    let config = runtime.sandbox("after");
    let (pod, restored) = restore_pod(&runtime, &archive, config, Vec::new()).await.unwrap();
    let [(_, keeper)] = keepers(&runtime).try_into().unwrap();
    kill(Pid::from_raw(keeper.pid), Signal::SIGKILL).unwrap();
    let status = pod.ended(&restored[0].container_id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"));
    eventually(WAIT_LIMIT, "the end of what came back", || async {
        let left = runtime.leaks().processes();
        let left: Vec<_> =
            left.into_iter().filter(|leak| leak.to_string().contains("/bin/sh")).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
