//! Volumes that a container fills to disrupt their removal: the agent keeps working, and removes them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use cri::v1::ContainerState::ContainerExited;
use harness::{Node, eventually};

use crate::support::{FOREVER, containers, manifest, no_pods, ready};

/// How long the creation or removal of a large tree may take on a busy host.
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
