//! Volumes in memory, which crib's agent requests with an annotation of the sandbox: the containers of a pod share them as long as
//! the pod exists.

use cri::v1::{ContainerConfig, Mount, PodSandboxConfig};

use crate::guard::userns::with_user_namespace;
use crate::support::*;

/// The host path of the volume in the containers' mounts. It does not exist.
const PATH: &str = "/var/lib/agent/volumes/memory";

/// A pod with a volume of 1 MiB in memory.
fn with_volume(mut config: PodSandboxConfig) -> PodSandboxConfig {
    let volumes = format!(r#"[{{"path": "{PATH}", "size": 1048576}}]"#);
    config.annotations.insert("crib.local/memory-volumes".to_owned(), volumes);
    config
}

/// A container with the volume at `/data`.
fn mounting(mut config: ContainerConfig) -> ContainerConfig {
    config.mounts.push(Mount {
        host_path: PATH.to_owned(),
        container_path: "/data".to_owned(),
        ..Default::default()
    });
    config
}

/// Prints the file system type and the size in bytes of the mount at `/data`.
const LOOK: &str = "stat -f -c %T /data; df -B1 /data | awk 'NR == 2 { print $2 }'";

#[tokio::test]
async fn volume_in_memory_outlives_a_killed_daemon() {
    harness::needs!(Namespaces);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let config = with_volume(runtime.sandbox("p"));
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let first = pod.start(mounting(fixture::forever("a"))).await.unwrap();
    runtime.client.sh(&first, "echo kept > /data/file").await.unwrap();

    runtime.kill_and_restart().await.unwrap();

    let seen = runtime.client.sh(&first, "cat /data/file").await.unwrap();
    assert_eq!(seen, "kept\n", "in the container that ran");
    let script = format!("cat /data/file; {LOOK}");
    let later = mounting(pod.script("b", &script));
    let seen = pod.output(later).await.unwrap();
    assert_eq!(seen, "kept\ntmpfs\n1048576\n", "in a container that comes later");
}

/// Linux 6.4 keeps a tmpfs out of swap that root of the machine mounts.
#[tokio::test]
async fn volume_in_memory_is_not_swapped_out() {
    harness::needs!(HostMounts);
    let runtime = Runtime::start().await.unwrap();
    let pod = Pod::run(&runtime.client, with_volume(runtime.sandbox("p"))).await.unwrap();
    let seen = pod.output(mounting(pod.script("a", "grep ' /data ' /proc/self/mountinfo"))).await;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
    let is_supported = (number(), number()) >= (6, 4) && file_tree::private::is_root_of_machine();
    let seen = seen.unwrap();
    assert_eq!(seen.contains("noswap"), is_supported, "{seen}");
}

#[tokio::test]
async fn volume_in_memory_belongs_to_root_of_a_user_namespace() {
    harness::needs!(UserIds);
    let runtime = Runtime::start().await.unwrap();
    let config = with_volume(runtime.sandbox("p"));
    let config = with_user_namespace(&runtime, config).await;
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let script = format!("echo text > /data/file && stat -c %u /data/file; {LOOK}");
    let seen = pod.output(mounting(pod.script("a", &script))).await.unwrap();
    assert_eq!(seen, "0\ntmpfs\n1048576\n");
}
