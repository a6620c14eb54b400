//! Cgroups of pods under `crib agent` with `cgroupsPerQOS`: the agent names them, and the runtime makes them.

use harness::proxy::{Call, Proxy};
use harness::{Client, fixture, witness};
use serde_json::Value;

use super::command::{PATIENCE, Place, Running};

/// A pod that is limited as a whole, because its only container is.
fn manifest(mark: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, uid: u1}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - name: app\n    image: crib.local/host\n    command: [sleep, '3600']\n    \
         env: [{{name: CRIB_TEST_MARK, value: {mark}}}]\n    \
         resources: {{requests: {{cpu: 100m, memory: 16Mi}}, limits: {{cpu: 500m, memory: 64Mi}}}}\n"
    )
}

/// The first request of a call.
async fn request(proxy: &Proxy, method: &str) -> Value {
    let made = proxy.recording().until(|calls| {
        let mut calls = calls.iter().filter(|call| call.method == method);
        calls
            .next()
            .map(Call::request)
            .filter(|request| !request.is_null())
    });
    tokio::time::timeout(PATIENCE, made).await.unwrap()
}

#[tokio::test]
async fn agent_names_pod_cgroups_below_their_class() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let upstream = endpoint.trim_start_matches("unix://");
    let proxy = Proxy::start(&place.path("p"), upstream.as_ref()).unwrap();
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let logs = path("logs");
    let config = place.file(
        "kubelet.yaml",
        &format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupsPerQOS: true\ncgroupRoot: /other\n\
             cpuCFSQuotaPeriod: 10ms\npodLogsDir: {logs}\nseccompDefault: true\n"
        ),
    );
    let (root, mark) = (fixture::unique("crib-test"), fixture::unique("mark"));
    place.file("pods/p.yaml", &manifest(&mark));
    let agent = place.command(&[
        "agent",
        "--runtime-endpoint",
        &path("p"),
        "--manifests",
        &path("pods"),
        "--root-dir",
        &path("agent"),
        "--config",
        &config,
        "--cgroup-root",
        &format!("/{root}"),
    ]);
    let agent = Running::start(agent);
    let sandbox = request(&proxy, "RunPodSandbox").await;
    let parent = format!("/{root}/kubepods/burstable/podu1");
    assert_eq!(sandbox["config"]["linux"]["cgroup_parent"], parent);
    let directory = sandbox["config"]["log_directory"].as_str().unwrap();
    assert!(directory.starts_with(&logs), "{directory}");
    let container = request(&proxy, "CreateContainer").await;
    let linux = &container["config"]["linux"];
    assert_eq!(linux["resources"]["cpu_period"], "10000");
    assert_eq!(linux["resources"]["cpu_quota"], "5000");
    // RuntimeDefault is the type that is left out as the first one.
    let seccomp = &linux["security_context"]["seccomp"];
    assert!(seccomp["profile_type"].is_null(), "{seccomp}");

    let status = Client::new(upstream.as_ref()).status().await.unwrap();
    let cgroups = status.info.get("cgroups").cloned().unwrap_or_default();
    if cgroups.is_empty() || cgroups.contains("not applied") {
        agent.stop().await;
        runtime.stop().await;
        harness::skip!("agent_names_pod_cgroups_below_their_class", "{cgroups}");
    }
    let mark = format!("CRIB_TEST_MARK={mark}");
    let process = harness::eventually(PATIENCE, "the container to run", || async {
        let found = witness::marked(&mark).first().copied();
        found.ok_or_else(|| witness::marked(&mark).len())
    })
    .await;
    for own in process.cgroups().into_values() {
        let inside = own.to_string_lossy().contains(&parent);
        assert!(inside || !has_limits(&own), "{}", own.display());
    }
    let memory = process.cgroup_file("memory", "memory.limit_in_bytes", "memory.max");
    assert_eq!(memory, "67108864", "the container's own limit");
    let whole = process.cgroups().into_values().find_map(|own| {
        let files = ["memory.limit_in_bytes", "memory.max"];
        files
            .iter()
            .find_map(|file| std::fs::read_to_string(own.parent()?.join(file)).ok())
    });
    assert_eq!(whole.unwrap().trim(), "67108864", "the pod's limit");
    agent.stop().await;
    runtime.stop().await;
}

/// Whether a cgroup is in a hierarchy that the runtime uses for limits.
fn has_limits(cgroup: &std::path::Path) -> bool {
    ["memory.limit_in_bytes", "cpu.shares", "memory.max"]
        .iter()
        .any(|file| cgroup.join(file).exists())
}
