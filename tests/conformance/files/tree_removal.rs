//! Removal of hostile directory trees: the daemon keeps answering, and the trees are deleted.

use std::fs::{self, File};

use cri::v1::ContainerConfig;
use harness::runtime::Options;

use crate::support::*;

const IMAGE: &str = "example.com/nest:1";

/// A script that nests directories, 1024 at a time, to a path longer than PATH_MAX.
fn nesting_script(times: usize) -> String {
    format!(
        "p=d/; for i in 1 2 3 4 5 6 7 8 9 10; do p=$p$p; done; n=0
         while [ $n -lt {times} ]; do mkdir -p $p && cd -P $p || exit 9; n=$((n+1)); done 2>/dev/null; echo made"
    )
}

/// A runtime with an image whose containers have their writable layer in the state directory.
async fn with_nest(options: Options) -> (Runtime, TempDir) {
    with_image(options, IMAGE, with_programs(Layer::new(), &["/bin/sh", "/bin/mkdir"])).await
}

fn nested(name: &str, script: &str) -> ContainerConfig {
    of_image(fixture::script(name, &format!("cd /; {script}")), IMAGE)
}

/// Runs the container to its end, with a long time limit.
async fn run_to_end(pod: &Pod, config: ContainerConfig) -> String {
    let id = pod.start(config).await.unwrap();
    eventually(LONG, "the tree to be made", || async {
        let status = pod.client.container(&id).await.unwrap();
        if status.finished_at > 0 {
            let lines: Vec<String> = pod.log(&status).into_iter().map(|l| l.text).collect();
            assert_eq!(lines, ["made"], "{status:?}");
            Ok(())
        } else {
            Err(status.state)
        }
    })
    .await;
    id
}

#[tokio::test]
async fn removal_survives_deep_writable_layer() {
    harness::needs!(Namespaces, SmallDisk);
    // On a tmpfs, where creating directories is fast.
    let (runtime, _place) = with_nest(Runtime::with().small_disk(64 << 20)).await;
    let pod = runtime.pod("p").await.unwrap();
    let pid = runtime.pid();
    let id = run_to_end(&pod, nested("deep", &nesting_script(30))).await;
    // Measuring the layer must not crash the daemon either. A call does not wait for a slow measurement.
    let layer = eventually(LONG, "the layer to be measured", || async {
        let stats = runtime.client.container_stats(&id).await.unwrap();
        stats.writable_layer.ok_or("no usage")
    })
    .await;
    let inodes = layer.inodes_used.unwrap().value;
    assert!(inodes > 30 * 1024, "{inodes} inodes");
    runtime.client.remove(&id).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
    nothing_in_trash(&runtime.disk().unwrap()).await;
    assert_alive(&runtime).await;
    assert_eq!(runtime.pid(), pid);
}

#[tokio::test]
async fn removal_continues_after_daemon_is_killed() {
    harness::needs!(Namespaces);
    let (mut runtime, _place) = with_nest(Runtime::with().durable()).await;
    let pod = runtime.pod("p").await.unwrap();
    let files = "i=0; mkdir many; while [ $i -lt 3000 ]; do : > many/$i; i=$((i+1)); done; ";
    let id = run_to_end(&pod, nested("c", &format!("{files}{}", nesting_script(2)))).await;
    runtime.client.remove(&id).await.unwrap();
    // Removed objects stay removed, even if the daemon is killed.
    runtime.kill9().await;
    let containers = runtime.state_dir().join("sandboxes").join(&pod.id);
    assert_eq!(fs::read_dir(containers.join("containers")).unwrap().count(), 0);
    // As if the daemon had been killed before it started to delete.
    let late = runtime.state_dir().join("trash/late");
    fs::create_dir_all(late.join("a/b/c")).unwrap();
    File::create(late.join("a/file")).unwrap();
    runtime.restart().await.unwrap();
    nothing_in_trash(&runtime.state_dir()).await;
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert_alive(&runtime).await;
}

/// The removal does not cross mounts, and undeletable entries do not block other calls.
#[tokio::test]
async fn trash_with_mount_keeps_mounted_files() {
    harness::needs!(Root);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let trash = runtime.state_dir().join("trash");
    let (kept, at) = (runtime.root().join("kept"), trash.join("tree/a/mount"));
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("file"), "kept").unwrap();
    runtime.stop().await;
    fs::create_dir_all(&at).unwrap();
    fs::create_dir_all(trash.join("tree/other/directory")).unwrap();
    rustix::mount::mount_bind(&kept, &at).unwrap();
    runtime.restart().await.unwrap();
    eventually(LONG, "all but the mount to go", || async {
        let left = [trash.join("tree/other").exists(), at.exists()];
        if left == [false, true] { Ok(()) } else { Err(left) }
    })
    .await;
    assert_alive(&runtime).await;
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "kept");
    runtime.restart().await.unwrap();
    nothing_in_trash(&runtime.state_dir()).await;
}

/// A volume belongs to the client: the runtime does not remove its tree.
#[tokio::test]
async fn deep_volume_does_not_disturb_removal() {
    harness::needs!(Namespaces);
    let runtime = Runtime::with().start().await.unwrap();
    let volume = runtime.root().join("volume");
    fs::create_dir(&volume).unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", &format!("cd /mnt; {}", nesting_script(2)));
    config.mounts.push(of(&volume, "/mnt"));
    run_to_end(&pod, config).await;
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert!(volume.join("d/d/d").is_dir());
    assert_alive(&runtime).await;
}
