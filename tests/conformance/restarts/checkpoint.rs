//! Checkpoints by criu: containers continue from the checkpoint, and invalid requests and archives are rejected.

mod killed;
mod refused;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use harness::runtime::Options;

use crate::support::*;

const IMAGE: &str = "example.com/counter:1";

/// Counts in a variable and in a file, prints the count, and exits 143 on SIGTERM.
const COUNT: &str = "\
trap 'echo ended at $i; exit 143' TERM
rm /etc/motd; echo mine > /etc/mine
echo shared > /dev/shm/ours; exec 5< /dev/shm/ours
i=0
while :; do i=$((i + 1)); echo $i; echo $i > /count; sleep 0.05; done";

/// A runtime with an image whose containers can be checkpointed, and the directory of its archive.
async fn with_image() -> (Runtime, TempDir) {
    with_image_and(Options::durable).await
}

async fn with_image_and(options: impl Fn(Options) -> Options) -> (Runtime, TempDir) {
    let layer = Layer::new().file("etc/motd", 0o644, "of the image\n").directory("tmp", 0o1777);
    let programs = ["/bin/sh", "/bin/cat", "/bin/sleep", "/bin/rm", "/bin/ls"];
    let layer = with_programs(layer, &programs);
    crate::support::with_image(options(Runtime::with()), IMAGE, layer).await
}

fn counter(name: &str) -> v1::ContainerConfig {
    of_image(fixture::script(name, COUNT), IMAGE)
}

async fn checkpoint(runtime: &Runtime, id: &str, to: &Path) -> Result<(), Status> {
    let request = v1::CheckpointContainerRequest {
        container_id: id.to_owned(),
        location: to.display().to_string(),
        timeout: 0,
    };
    let mut client = runtime.client.runtime.clone();
    client.checkpoint_container(request).await.map(drop)
}

async fn checkpoint_pod(runtime: &Runtime, pod: &Pod, to: &Path) -> Result<(), Status> {
    let request = v1::CheckpointPodRequest {
        pod_sandbox_id: pod.id.clone(),
        output_path: to.display().to_string(),
        ..Default::default()
    };
    let mut client = runtime.client.runtime.clone();
    client.checkpoint_pod(request).await.map(drop)
}

async fn restore_pod(
    runtime: &Runtime,
    from: &Path,
    config: v1::PodSandboxConfig,
    container_configs: Vec<v1::ContainerConfig>,
) -> Result<(Pod, Vec<v1::RestoredContainer>), Status> {
    let request = v1::RestorePodRequest {
        checkpoint_path: from.display().to_string(),
        config: Some(config.clone()),
        container_configs,
        ..Default::default()
    };
    let mut client = runtime.client.runtime.clone();
    let answer = client.restore_pod(request).await?.into_inner();
    let pod = Pod { id: answer.pod_sandbox_id, config, client: runtime.client.clone() };
    Ok((pod, answer.restored_containers))
}

/// Waits until a counter exceeds `from`, and returns the count.
async fn wait_for_counter_beyond(pod: &Pod, id: &str, from: u64) -> u64 {
    eventually(WAIT_LIMIT, &format!("container {id} counting on from {from}"), || async {
        let status = pod.client.container(id).await.unwrap();
        let lines = pod.log(&status);
        let last = lines.iter().rev().find_map(|line| line.text.parse().ok());
        last.filter(|last| *last > from).ok_or((status, lines))
    })
    .await
}

/// The names of an archive's members.
fn names(archive: &Path) -> Vec<String> {
    let mut tar = tar::Archive::new(fs::File::open(archive).unwrap());
    let entries = tar.entries().unwrap();
    entries.map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
}

#[tokio::test]
async fn container_continues_after_checkpoint_and_restore() {
    harness::needs!(Checkpoints);
    let (runtime, _place) = with_image().await;
    let archives = directory(&runtime, "archives");
    let archive = archives.join("c.tar");
    let pod = runtime.pod("before").await.unwrap();
    let id = pod.start(counter("c")).await.unwrap();
    let before = wait_for_counter_beyond(&pod, &id, 10).await;
    let open = runtime.client.sh(&id, "ls /proc/1/fd").await.unwrap();
    checkpoint(&runtime, &id, &archive).await.unwrap();

    // The container keeps running.
    wait_for_counter_beyond(&pod, &id, before + 20).await;
    assert_eq!(fs::read_dir(&archives).unwrap().count(), 1);
    assert_eq!(archive.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let names = names(&archive);
    for wanted in [
        "checkpoint/inventory.img",
        "config.dump",
        "spec.dump",
        "crib.dump",
        "rootfs-diff.tar",
        "dump.log",
        "stats-dump",
    ] {
        assert!(names.iter().any(|name| name == wanted), "{wanted}: {names:?}");
    }
    runtime.client.stop(&id, 10).await.unwrap();
    let first = runtime.client.container(&id).await.unwrap();
    assert_eq!(first.exit_code, 143);
    runtime.client.remove_pod(&pod.id).await.unwrap();

    // Restores into another pod without a container configuration: the archive names the image.
    let config = runtime.sandbox("after");
    let (pod, restored) = restore_pod(&runtime, &archive, config, Vec::new()).await.unwrap();
    let [one] = restored.as_slice() else {
        panic!("{restored:?}");
    };
    assert_eq!(one.name, "c");
    let id = &one.container_id;
    let after = wait_for_counter_beyond(&pod, id, before).await;
    let status = runtime.client.container(id).await.unwrap();
    assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
    assert_eq!(status.metadata.as_ref().unwrap().name, "c");
    let lines = pod.log(&status);
    let begun: u64 = lines.iter().find_map(|line| line.text.parse().ok()).unwrap();
    assert!(begun >= before && after >= begun, "{begun} after {before}");
    wait_for_counter_beyond(&pod, id, after + 5).await;
    let seen = runtime.client.sh(id, "cat /etc/mine; ls /etc; cat /count; cat /proc/1/stat");
    let seen = seen.await.unwrap();
    assert!(seen.starts_with("mine\n") && !seen.contains("motd"), "{seen}");
    assert!(seen.contains("\n1 (sh) "), "{seen}");

    assert_eq!(runtime.client.sh(id, "ls /proc/1/fd").await.unwrap(), open);

    // A restored container supports the same calls as any other.
    assert!(runtime.client.container_stats(id).await.unwrap().memory.is_some());
    runtime.client.reopen_log(id).await.unwrap();
    runtime.client.stop(id, 10).await.unwrap();
    let status = runtime.client.container(id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (143, "Error"));
    let last = pod.log(&status).pop().unwrap().text;
    assert!(last.starts_with("ended at "), "{last}");
    runtime.client.remove(id).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// Two containers, one with a volume; the daemon is killed after the restore.
#[tokio::test]
async fn pod_continues_after_checkpoint_and_restore() {
    harness::needs!(Checkpoints);
    let (mut runtime, _place) = with_image().await;
    let archive = runtime.root().join("pod.tar");
    let (old, new) = (directory(&runtime, "old"), directory(&runtime, "new"));
    let pod = runtime.pod("before").await.unwrap();
    let one = pod.start(counter("one")).await.unwrap();
    let mut config = counter("two");
    config.mounts = vec![of(&old, "/data")];
    let two = pod.start(config.clone()).await.unwrap();
    let (before, begun) = (
        wait_for_counter_beyond(&pod, &one, 5).await,
        wait_for_counter_beyond(&pod, &two, 5).await,
    );
    checkpoint_pod(&runtime, &pod, &archive).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();

    // A configuration that differs from the checkpoint is rejected, and the attempt leaves nothing.
    let mut without = config.clone();
    without.mounts.clear();
    let mut more = config.clone();
    more.mounts.push(of(&old, "/more"));
    let mut other = config.clone();
    other.image.as_mut().unwrap().image = fixture::image();
    for wrong in [without, more, other, counter("three")] {
        let sandbox = runtime.sandbox("wrong");
        let answer = restore_pod(&runtime, &archive, sandbox, vec![wrong]).await;
        assert_eq!(code(answer.map(drop)), Code::InvalidArgument);
        assert!(runtime.client.pods(v1::PodSandboxFilter::default()).await.unwrap().is_empty());
    }

    config.mounts = vec![of(&new, "/data")];
    config.log_path = "again.log".to_owned();
    fs::write(new.join("new"), "").unwrap();
    let sandbox = runtime.sandbox("after");
    let (pod, restored) = restore_pod(&runtime, &archive, sandbox, vec![config]).await.unwrap();
    let id_of = |name: &str| {
        let one = restored.iter().find(|one| one.name == name).unwrap();
        one.container_id.clone()
    };
    let (one, two) = (id_of("one"), id_of("two"));
    wait_for_counter_beyond(&pod, &one, before).await;
    let at = wait_for_counter_beyond(&pod, &two, begun).await;
    let status = runtime.client.container(&two).await.unwrap();
    assert!(status.log_path.ends_with("again.log"), "{status:?}");
    let seen = runtime.client.sh(&two, "ls /data; cat /dev/shm/ours").await.unwrap();
    assert_eq!(seen, "new\nshared\n");

    runtime.kill_and_restart().await.unwrap();
    wait_for_counter_beyond(&pod, &two, at + 5).await;
    for id in [&one, &two] {
        runtime.client.stop(id, 10).await.unwrap();
        assert_eq!(runtime.client.container(id).await.unwrap().exit_code, 143);
    }
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// Whether this process, and thus its runtime, has a capability in its effective set.
fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(set.unwrap().trim(), 16).unwrap() & (1 << number) != 0
}

/// Like containerd and CRI-O, crib accepts the path of an archive as the image. The container's confinement is restored.
#[rstest]
#[case::confined(false)]
#[case::privileged(true)]
#[tokio::test]
async fn create_restores_checkpoint_given_as_image(#[case] privileged: bool) {
    harness::needs!(Checkpoints);
    let (runtime, _place) = with_image().await;
    let archive = runtime.root().join("c.tar");
    let pod = runtime.pod("p").await.unwrap();
    let mut config = counter("before");
    config.command = ["/bin/sh", "-c", "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.05; done"]
        .map(str::to_owned)
        .into();
    config.stdin = true;
    let security = fixture::security(&mut config);
    // criu needs CAP_SYS_RESOURCE to read the limits of another user's process.
    if has_capability(24) {
        security.run_as_user = Some(v1::Int64Value { value: 1000 });
    }
    security.privileged = privileged;
    security.no_new_privs = !privileged;
    security.readonly_rootfs = true;
    security.seccomp = Some(v1::SecurityProfile::default());
    security.supplemental_groups = vec![7];
    security.masked_paths = vec!["/proc/kcore".to_owned(), "/proc/irq".to_owned()];
    security.readonly_paths = vec!["/proc/sys".to_owned()];
    let id = pod.start(config.clone()).await.unwrap();
    let before = wait_for_counter_beyond(&pod, &id, 5).await;
    let what = "cat /proc/1/status /proc/1/cgroup /proc/1/mountinfo; ls /proc/irq";
    let shown = runtime.client.sh(&id, what).await.unwrap();
    checkpoint(&runtime, &id, &archive).await.unwrap();

    config.metadata.as_mut().unwrap().name = "after".to_owned();
    config.log_path = "after.log".to_owned();
    config.image.as_mut().unwrap().image = archive.display().to_string();
    let again = pod.create(config).await.unwrap();
    let status = runtime.client.container(&again).await.unwrap();
    assert_eq!(status.state(), v1::ContainerState::ContainerCreated);
    runtime.client.start(&again).await.unwrap();
    wait_for_counter_beyond(&pod, &again, before).await;
    let confined = |shown: &str| -> Vec<String> {
        let kept = ["Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp", "NSpid:"];
        let lines = shown.lines();
        let kept =
            lines.filter(|line| kept.iter().any(|k| line.starts_with(k)) || line.contains(":/"));
        kept.map(|line| line.rsplit_once('\t').map_or(line, |(_, own)| own).to_owned()).collect()
    };
    let mounted = |shown: &str| -> Vec<String> {
        let lines = shown.lines().filter(|line| line.contains(" - "));
        let mut mounted: Vec<String> = lines
            .map(|line| line.split(' ').skip(4).take(2).collect::<Vec<_>>().join(" "))
            .collect();
        mounted.sort();
        mounted
    };
    let after = runtime.client.sh(&again, what).await.unwrap();
    assert_eq!(confined(&after), confined(&shown));
    assert_eq!(mounted(&after), mounted(&shown));
    let status = runtime.client.container(&again).await.unwrap();
    assert_eq!(status.image_ref, runtime.client.container(&id).await.unwrap().image_ref);

    // The original container keeps running.
    wait_for_counter_beyond(&pod, &id, before + 10).await;
    runtime.client.stop(&again, 0).await.unwrap();
    assert_eq!(runtime.client.container(&again).await.unwrap().exit_code, 137);
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
