//! Cgroups of pods under `crib agent` with `cgroupsPerQOS`: the agent names them, and the runtime makes them.

use std::path::{Path, PathBuf};

use harness::witness;
use proxy::{Call, Proxy};

use crate::command::*;

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
pub(crate) async fn request(proxy: &Proxy, method: &str) -> Value {
    let made = proxy.recording().until(|calls| {
        let mut calls = calls.iter().filter(|call| call.method == method);
        calls.next().map(Call::request).filter(|request| !request.is_null())
    });
    tokio::time::timeout(PATIENCE, made).await.unwrap()
}

#[tokio::test]
async fn agent_names_pod_cgroups_below_their_class() {
    let place = Place::unchecked();
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

    if Need::Cgroups.missing().is_some() {
        agent.stop().await;
        runtime.stop().await;
        harness::needs!(Cgroups);
        return;
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
        files.iter().find_map(|file| std::fs::read_to_string(own.parent()?.join(file)).ok())
    });
    assert_eq!(whole.unwrap().trim(), "67108864", "the pod's limit");
    agent.stop().await;
    runtime.stop().await;
}

/// Writes the manifest of a pod with these requests, whose process has this mark.
fn pod_with(place: &Place, name: &str, mark: &str, requests: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - {{name: app, image: crib.local/host, command: [sleep, '3600'], resources: {{requests: {{{requests}}}}}, \
         env: [{{name: CRIB_TEST_MARK, value: {mark}-{name}}}]}}\n"
    );
    place.file(&format!("pods/{name}.yaml"), &text);
}

/// The weights of a process's pod and of the pod's class.
fn weights(mark: &str) -> Result<[String; 2], String> {
    let process = witness::marked(&format!("CRIB_TEST_MARK={mark}"));
    let process = process.first().ok_or(format!("no process of {mark}"))?;
    let weight = |directory: &Path| {
        let files = ["cpu.shares", "cpu.weight"].into_iter();
        let mut texts = files.filter_map(|file| std::fs::read_to_string(directory.join(file)).ok());
        texts.next().map(|text| text.trim().to_owned())
    };
    let mut found = process.cgroups().into_values().filter_map(|own| {
        let pod = own.parent()?;
        Some([weight(pod)?, weight(pod.parent()?)?])
    });
    found.next().ok_or(format!("no weights of {mark}"))
}

#[tokio::test]
async fn classes_weigh_what_their_pods_do() {
    harness::needs!(Cgroups);
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let (root, mark) = (fixture::unique("crib-test"), fixture::unique("mark"));
    for (name, requests) in [("few", "cpu: 100m"), ("more", "cpu: 250m"), ("none", "")] {
        pod_with(&place, name, &mark, requests);
    }
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let agent = Running::start(place.command(&[
        "agent",
        "--runtime-endpoint",
        &endpoint,
        "--manifests",
        &path("pods"),
        "--root-dir",
        &path("agent"),
        "--cgroups-per-qos",
        "--cgroup-root",
        &format!("/{root}"),
    ]));
    // Of cgroup v1 and v2, as a kubelet computes them.
    let shares = |v1: [&str; 2], v2: [&str; 2]| [v1, v2].map(|two| two.map(str::to_owned));
    let wait = async |name: &str, expected: [[String; 2]; 2]| {
        let mark = format!("{mark}-{name}");
        harness::eventually(PATIENCE, "the weights", || async {
            let found = weights(&mark);
            match &found {
                Ok(two) if expected.contains(two) => Ok(()),
                _ => Err(format!("{found:?}")),
            }
        })
        .await;
    };
    wait("few", shares(["102", "358"], ["17", "45"])).await;
    wait("more", shares(["256", "358"], ["35", "45"])).await;
    wait("none", shares(["2", "2"], ["1", "1"])).await;
    std::fs::remove_file(place.path("pods/more.yaml")).unwrap();
    wait("few", shares(["102", "102"], ["17", "17"])).await;
    agent.stop().await;
    runtime.stop().await;
    remove_classes(&root).await;
}

/// Removes the cgroups of the classes, which stay without pods, as a kubelet's do.
async fn remove_classes(root: &str) {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap();
    let roots: Vec<PathBuf> = hierarchies
        .map(|entry| entry.unwrap().path().join(root))
        .chain([Path::new("/sys/fs/cgroup").join(root)])
        .collect();
    harness::eventually(PATIENCE, "the cgroups to be gone", || async {
        let left = roots.iter().filter(|root| root.is_dir());
        let left: Vec<&PathBuf> = left.collect();
        for root in &left {
            for cgroup in witness::cgroups_below(root).iter().chain([*root]) {
                let _ = std::fs::remove_dir(cgroup);
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// Whether a cgroup is in a hierarchy that the runtime uses for limits.
fn has_limits(cgroup: &Path) -> bool {
    ["memory.limit_in_bytes", "cpu.shares", "memory.max"]
        .iter()
        .any(|file| cgroup.join(file).exists())
}
