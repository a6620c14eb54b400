//! Pods whose CPU and memory are resized while they run, with cgroups.

use cri::v1::ContainerState::ContainerRunning;
use harness::procfs::{self, ObservedProcess};
use harness::{Node, WAIT_LIMIT, eventually, fixture};

use crate::support::{container_in, containers};

/// A manifest of a pod with this uid, whose container has these requests and limits.
fn manifest(mark: &str, uid: &str, cpu: &str, memory: &str, policy: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, uid: {uid}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers:\n  - name: app\n    image: crib.local/host\n    command: [sleep, '1000']\n    \
         env: [{{name: CRIB_TEST_MARK, value: {mark}}}]\n    resizePolicy: [{policy}]\n    \
         resources:\n      requests: {{cpu: {cpu}, memory: {memory}}}\n      limits: {{cpu: {cpu}, memory: {memory}}}\n"
    )
}

/// The quota and the memory limit that the kernel applies to a process.
fn limits(process: ObservedProcess) -> (String, String) {
    let cpu = process.cgroup_file("cpu", "cpu.cfs_quota_us", "cpu.max");
    let quota = cpu.split(' ').next().unwrap_or_default().to_owned();
    let memory = process.cgroup_file("memory", "memory.limit_in_bytes", "memory.max");
    (quota, memory)
}

/// Waits until the kernel applies these limits to the process with a mark, and returns it.
async fn limited(node: &Node, mark: &str, quota: &str, memory: &str) -> ObservedProcess {
    let mark = format!("CRIB_TEST_MARK={mark}");
    let wanted = (quota.to_owned(), memory.to_owned());
    eventually(WAIT_LIMIT, "the limits to apply", || async {
        let found = procfs::marked(&mark).first().copied();
        match found {
            Some(process) if limits(process) == wanted => Ok(process),
            other => Err((other.map(limits), node.agent_log())),
        }
    })
    .await
}

#[tokio::test]
async fn limits_of_running_container_change_without_restart() {
    harness::needs!(Cgroups);
    let node = Node::start().await.unwrap();
    let mark = fixture::unique("mark");
    let write = |cpu: &str, memory: &str| {
        let text = manifest(&mark, "resized", cpu, memory, "");
        node.write_manifest("p.yaml", &text).unwrap();
    };
    write("200m", "64Mi");
    let first = container_in(&node, "p", "app", ContainerRunning).await;
    let process = limited(&node, &mark, "20000", "67108864").await;
    write("400m", "128Mi");
    limited(&node, &mark, "40000", "134217728").await;
    write("100m", "32Mi");
    let still = limited(&node, &mark, "10000", "33554432").await;
    assert_eq!(still.pid, process.pid);
    let all = containers(&node, "p").await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].2.id, first.id);
    node.delete_manifest("p.yaml").unwrap();
}

#[tokio::test]
async fn resize_continues_after_agent_was_killed() {
    harness::needs!(Cgroups);
    let mut node = Node::start().await.unwrap();
    let mark = fixture::unique("mark");
    let text = |cpu: &str| manifest(&mark, "resized", cpu, "64Mi", "");
    node.write_manifest("p.yaml", &text("200m")).unwrap();
    let process = limited(&node, &mark, "20000", "67108864").await;
    node.kill9_agent().await;
    node.write_manifest("p.yaml", &text("300m")).unwrap();
    node.start_agent().unwrap();
    let still = limited(&node, &mark, "30000", "67108864").await;
    assert_eq!(still.pid, process.pid);
}

#[tokio::test]
async fn policy_restarts_container_with_new_limits() {
    harness::needs!(Cgroups);
    let node = Node::start().await.unwrap();
    let mark = fixture::unique("mark");
    let policy = "{resourceName: cpu, restartPolicy: RestartContainer}";
    let text = |cpu: &str| manifest(&mark, "resized", cpu, "64Mi", policy);
    node.write_manifest("p.yaml", &text("200m")).unwrap();
    limited(&node, &mark, "20000", "67108864").await;
    node.write_manifest("p.yaml", &text("300m")).unwrap();
    limited(&node, &mark, "30000", "67108864").await;
    let newest = containers(&node, "p").await.pop().unwrap();
    assert_eq!(newest.1, 1, "the second attempt");
}
