//! The content of pods' volumes in containers, their user namespaces, and that volumes are removed however full they are.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use cri::v1::ContainerState::ContainerExited;
use harness::{Node, WAIT_LIMIT, eventually};

use crate::support::{FOREVER, containers, manifest, no_pods, ready};

/// A pod that runs a script once, with an emptyDir at /shared and its labels at /api.
fn script_pod(script: &str, rest: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: p, labels: {{v: one}}}}
spec:
  restartPolicy: Never
{rest}
  volumes:
  - {{name: shared, emptyDir: {{}}}}
  - {{name: api, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}
  containers:
  - name: app
    image: crib.local/host
    command: [sh, -c, {script:?}]
    volumeMounts: [{{name: shared, mountPath: /shared}}, {{name: api, mountPath: /api}}]
"
    )
}

/// Runs a pod, and returns the lines that it printed.
async fn printed(node: &Node, script: &str, rest: &str) -> Vec<String> {
    node.apply(&script_pod(script, rest)).unwrap();
    node.finished("p").await.unwrap();
    let text = node.logs("p", "app").await.unwrap();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn files_of_volumes_are_links_that_containers_cannot_change() {
    let node = Node::start().await.unwrap();
    let script = "cat /api/labels; echo; readlink /api/labels; touch /api/x 2>&1 | grep -o 'Read-only file system'";
    let seen = printed(&node, script, "").await;
    assert_eq!(seen, ["v=\"one\"", "..data/labels", "Read-only file system"]);
}

#[tokio::test]
async fn user_of_pod_writes_to_volumes_by_group() {
    harness::needs!(HostMounts);
    let node = Node::start().await.unwrap();
    let script =
        "touch /shared/f && stat -c '%u %g' /shared/f; stat -c '%a %g' /shared /api/..data/labels";
    let security = "  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}";
    assert_eq!(printed(&node, script, security).await, ["1000 2000", "2777 2000", "644 2000"]);
}

#[tokio::test]
async fn pod_has_ids_of_its_own_and_owns_its_volumes() {
    harness::needs!(HostMounts);
    let node = Node::start().await.unwrap();
    let script = "awk '{print $1, $2, $3}' /proc/self/uid_map; touch /shared/f; stat -c %u /shared/f /api/labels; until [ -e /shared/end ]; do sleep 0.1; done";
    node.apply(&script_pod(script, "  hostUsers: false")).unwrap();
    node.running("p", &["app"]).await.unwrap();
    eventually(WAIT_LIMIT, "the ids", async || {
        let printed = node.logs("p", "app").await.unwrap();
        if printed == "0 65536 65536\n0\n0\n" { Ok(()) } else { Err(printed) }
    })
    .await;
    let mut pods = node.agent_root().join("pods").read_dir().unwrap();
    let pod = pods.next().unwrap().unwrap().path();
    let record = std::fs::read_to_string(pod.join("userns")).unwrap();
    assert!(record.contains("\"hostId\":65536"), "{record}");
    // On the file system, the file has the pod's own ids, which the mount maps.
    let file = pod.join("volumes/kubernetes.io~empty-dir/shared/f");
    assert_eq!(file.metadata().unwrap().uid(), 0);
    std::fs::write(file.with_file_name("end"), "").unwrap();
    node.finished("p").await.unwrap();
}

/// The time limit for creating or removing a large tree on a busy host.
const LONG: Duration = Duration::from_secs(300);

/// Nests 8192 directories in the volume, so that their path exceeds PATH_MAX.
const NEST: &str = "cd /shared; p=d/; for i in 1 2 3 4 5 6 7 8 9 10; do p=$p$p; done; \
    for i in 1 2 3 4 5 6 7 8; do mkdir -p $p && cd -P $p || exit 9; done 2>/dev/null; echo nested";

#[tokio::test]
async fn agent_removes_deep_volume() {
    let node = Node::start().await.unwrap();
    let agent = node.agent_pid();
    let pod = manifest("p", "Never", &[("init-nest", NEST), ("app", FOREVER)]);
    node.write_manifest("p.yaml", &pod).unwrap();
    eventually(LONG, "the directories to be nested", || async {
        let all = containers(&node, "p").await;
        let ended = |state: i32| state == i32::from(ContainerExited);
        if all.iter().any(|(name, _, c)| name == "init-nest" && ended(c.state)) {
            Ok(())
        } else {
            Err(all)
        }
    })
    .await;
    ready(&node, "p", "app").await;
    assert_eq!(fs::metadata(node.agent_root()).unwrap().mode() & 0o777, 0o700);
    node.delete_manifest("p.yaml").unwrap();
    no_pods(&node).await;
    let trash = node.agent_root().join("trash");
    eventually(LONG, "the volume to be deleted", || async {
        let left: Vec<_> = fs::read_dir(&trash).unwrap().flatten().collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(node.agent_pid(), agent);
    node.write_manifest("q.yaml", &manifest("q", "Never", &[("app", FOREVER)])).unwrap();
    ready(&node, "q", "app").await;
}
