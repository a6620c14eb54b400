//! Swap of containers under `crib agent` with `memorySwap` in its configuration, on a node whose kernel supports swap limits.

use std::collections::BTreeMap;

use proxy::{Call, Proxy};
use tokio::process::Command;

use crate::command::*;

/// Runs a command with another `/proc/meminfo` ($0), and with a `/sys/fs/cgroup` that has the unified hierarchy and swap limits.
const NODE: &str = "set -e; own=$(sed -n s/^0:://p /proc/self/cgroup); \
    mount -t tmpfs cgroup /sys/fs/cgroup; mkdir -p /sys/fs/cgroup/$own; \
    touch /sys/fs/cgroup/cgroup.controllers /sys/fs/cgroup/$own/memory.swap.max; \
    mount --bind \"$0\" /proc/meminfo; exec \"$@\"";

/// A node with twice as much memory as swap.
const MEMINFO: &str = "MemTotal:        4194304 kB\nSwapTotal:       2097152 kB\n";

const PODS: [(&str, &str); 4] = [
    ("burstable", "{requests: {memory: 1Gi}}"),
    ("fixed", "{requests: {memory: 64Mi}, limits: {memory: 64Mi, cpu: 1}}"),
    ("equal", "{requests: {cpu: 100m, memory: 1Gi}, limits: {memory: 1Gi}}"),
    ("besteffort", "{}"),
];

/// Starts the agent on such a node. Its own mount namespace hides the mounts from other processes.
fn start(place: &Place, crib: &Command) -> Running {
    let meminfo = place.file("meminfo", MEMINFO);
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["--mount", "sh", "-c", NODE, &meminfo]);
    command.arg(crib.as_std().get_program());
    command.args(crib.as_std().get_args());
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap());
    }
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    Running::start(command)
}

/// `memory.swap.max` in CreateContainer, by the pod's name.
async fn swap_limits(behavior: &str) -> BTreeMap<String, String> {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let upstream = endpoint.trim_start_matches("unix://");
    let proxy = Proxy::start(&place.path("p"), upstream.as_ref()).unwrap();
    let config = place.file(
        "kubelet.yaml",
        &format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmemorySwap: {{swapBehavior: {behavior}}}\n"
        ),
    );
    for (name, resources) in PODS {
        place.file(
            &format!("pods/{name}.yaml"),
            &format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
                 - {{name: app, image: crib.local/host, command: [sleep, '3600'], resources: {resources}}}\n"
            ),
        );
    }
    let endpoint = place.path("p");
    let agent = place.agent(endpoint.to_str().unwrap(), "pods", &["--config", &config]);
    let agent = start(&place, &agent);
    let created = proxy.recording().until(|calls| {
        let calls = calls.iter().filter(|call| call.method == "CreateContainer");
        // A call is recorded before its message arrives.
        let requests = calls.map(Call::request).filter(|request| !request.is_null());
        let limits: BTreeMap<String, String> = requests.map(|request| limit(&request)).collect();
        (limits.len() == PODS.len()).then_some(limits)
    });
    let limits = tokio::time::timeout(WAIT_LIMIT, created).await.unwrap();
    agent.stop().await;
    runtime.stop().await;
    limits
}

/// The pod of a CreateContainerRequest, and its `memory.swap.max`.
fn limit(request: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or("absent").to_owned();
    let pod = text(&request["sandbox_config"]["metadata"]["name"]);
    let resources = &request["config"]["linux"]["resources"];
    (pod, text(&resources["unified"]["memory.swap.max"]))
}

fn table(rows: [(&str, &str); 4]) -> BTreeMap<String, String> {
    let own = |(name, limit): (&str, &str)| (name.to_owned(), limit.to_owned());
    rows.map(own).into()
}

#[tokio::test]
async fn limited_swap_is_shared_by_memory_requests_of_burstable_pods() {
    // A quarter of the memory, and thus of the swap. None without a request, or if request and limit are equal.
    let expected =
        table([("burstable", "536870912"), ("fixed", "0"), ("equal", "0"), ("besteffort", "0")]);
    assert_eq!(swap_limits("LimitedSwap").await, expected);
}

#[tokio::test]
async fn no_swap_is_limit_of_zero() {
    let expected = table(PODS.map(|(name, _)| (name, "0")));
    assert_eq!(swap_limits("NoSwap").await, expected);
}
