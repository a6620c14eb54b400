//! Cgroups of pods under `crib agent` with `cgroupsPerQOS`: the agent creates them if it may, otherwise the runtime does.

use std::path::{Path, PathBuf};

use harness::procfs;
use proxy::{Call, Proxy};

use crate::command::*;

/// A pod with pod-level limits, because its only container has limits.
fn manifest(mark: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, uid: u1}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - name: app\n    image: crib.local/host\n    command: [sleep, '3600']\n    \
         env: [{{name: CRIB_TEST_MARK, value: {mark}}}]\n    \
         resources: {{requests: {{cpu: 100m, memory: 16Mi}}, limits: {{cpu: 500m, memory: 64Mi}}}}\n"
    )
}

/// The request of the first call of a method.
pub(crate) async fn request(proxy: &Proxy, method: &str) -> Value {
    let made = proxy.recording().until(|calls| {
        let mut calls = calls.iter().filter(|call| call.method == method);
        calls.next().map(Call::request).filter(|request| !request.is_null())
    });
    tokio::time::timeout(WAIT_LIMIT, made).await.unwrap()
}

#[tokio::test]
async fn agent_names_pod_cgroups_below_their_class() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let upstream = endpoint.trim_start_matches("unix://");
    let proxy = Proxy::start(&place.path("p"), upstream.as_ref()).unwrap();
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (endpoint, logs) = (path("p"), path("logs"));
    let config = place.file(
        "kubelet.yaml",
        &format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupsPerQOS: true\ncgroupRoot: /other\n\
             cpuCFSQuotaPeriod: 10ms\npodLogsDir: {logs}\nseccompDefault: true\n"
        ),
    );
    let (root, mark) = (fixture::unique("crib-test"), fixture::unique("mark"));
    place.file("pods/p.yaml", &manifest(&mark));
    let more = ["--config", &config, "--cgroup-root", &format!("/{root}")];
    let agent = Running::start(place.agent(&endpoint, "pods", &more));
    let sandbox = request(&proxy, "RunPodSandbox").await;
    let parent = format!("/{root}/kubepods/burstable/podu1");
    assert_eq!(sandbox["config"]["linux"]["cgroup_parent"], parent);
    let directory = sandbox["config"]["log_directory"].as_str().unwrap();
    assert!(directory.starts_with(&logs), "{directory}");
    let container = request(&proxy, "CreateContainer").await;
    let linux = &container["config"]["linux"];
    assert_eq!(linux["resources"]["cpu_period"], "10000");
    assert_eq!(linux["resources"]["cpu_quota"], "5000");
    // RuntimeDefault is the default value of the enum, so it is omitted.
    let seccomp = &linux["security_context"]["seccomp"];
    assert!(seccomp["profile_type"].is_null(), "{seccomp}");

    if Need::Cgroups.missing().is_some() {
        agent.stop().await;
        runtime.stop().await;
        harness::needs!(Cgroups);
        return;
    }
    let mark = format!("CRIB_TEST_MARK={mark}");
    let process = harness::eventually(WAIT_LIMIT, "the container to run", || async {
        let found = procfs::marked(&mark).first().copied();
        found.ok_or_else(|| procfs::marked(&mark).len())
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
    std::fs::remove_file(place.path("pods/p.yaml")).unwrap();
    pods_end(&root).await;
    agent.stop().await;
    runtime.stop().await;
    remove_classes(&root).await;
}

/// Waits until no pod has a cgroup below a root.
pub(crate) async fn pods_end(root: &str) {
    harness::eventually(WAIT_LIMIT, "the pods' cgroups to be gone", || async {
        let roots = roots(root);
        let cgroups = roots.iter().flat_map(|root| procfs::cgroups_below(root));
        let is_pod = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pod"))
        };
        let left: Vec<PathBuf> = cgroups.filter(is_pod).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// The directories of a cgroup in all hierarchies that can contain it.
pub(crate) fn roots(root: &str) -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
    let hierarchies = hierarchies.map(|entry| entry.unwrap().path().join(root));
    hierarchies.chain([Path::new("/sys/fs/cgroup").join(root)]).collect()
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

/// The CPU weights of a process's pod and of the pod's QoS class.
fn weights(mark: &str) -> Result<[String; 2], String> {
    let process = procfs::marked(&format!("CRIB_TEST_MARK={mark}"));
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
async fn qos_class_weights_are_sums_of_their_pods() {
    harness::needs!(Cgroups);
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let (root, mark) = (fixture::unique("crib-test"), fixture::unique("mark"));
    for (name, requests) in [("few", "cpu: 100m"), ("more", "cpu: 250m"), ("none", "")] {
        pod_with(&place, name, &mark, requests);
    }
    let more = ["--cgroups-per-qos", "--cgroup-root", &format!("/{root}")];
    let agent = Running::start(place.agent(&endpoint, "pods", &more));
    // With cgroup v1, and with v2: set by the agent, which uses the kubelet's formula, or by the runtime.
    let shares = |v1: [&str; 2], v2: [&str; 2], runtime: [&str; 2]| {
        [v1, v2, runtime].map(|two| two.map(str::to_owned))
    };
    let wait = async |name: &str, expected: [[String; 2]; 3]| {
        let mark = format!("{mark}-{name}");
        harness::eventually(WAIT_LIMIT, "the weights", || async {
            let found = weights(&mark);
            match &found {
                Ok(two) if expected.contains(two) => Ok(()),
                _ => Err(format!("{found:?}")),
            }
        })
        .await;
    };
    wait("few", shares(["102", "358"], ["4", "14"], ["17", "45"])).await;
    wait("more", shares(["256", "358"], ["10", "14"], ["35", "45"])).await;
    wait("none", shares(["2", "2"], ["1", "1"], ["1", "1"])).await;
    std::fs::remove_file(place.path("pods/more.yaml")).unwrap();
    wait("few", shares(["102", "102"], ["4", "4"], ["17", "17"])).await;
    agent.stop().await;
    runtime.stop().await;
    remove_classes(&root).await;
}

/// The first directory of a cgroup that contains this file.
fn cgroup_with(path: &str, file: &str) -> Option<PathBuf> {
    roots(path).into_iter().find(|directory| directory.join(file).exists())
}

#[tokio::test]
async fn killed_agent_is_continued_and_unknown_cgroups_are_removed() {
    harness::needs!(Root, Cgroups);
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let (root, mark) = (fixture::unique("crib-test"), fixture::unique("mark"));
    place.file("pods/p.yaml", &manifest(&mark));
    let config = place.file(
        "kubelet.yaml",
        &format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupsPerQOS: true\ncgroupRoot: /{root}\n\
             podPidsLimit: 50\nsystemReserved: {{cpu: 100m}}\n"
        ),
    );
    let more = ["--config", &config, "--adopt-node"];
    let start = || Running::start(place.agent(&endpoint, "pods", &more));
    let agent = start();
    let pod = format!("{root}/kubepods/burstable/podu1");
    let limit = harness::eventually(WAIT_LIMIT, "the pod's limit", || async {
        let cgroup = cgroup_with(&pod, "pids.max").ok_or("no cgroup")?;
        let limit = std::fs::read_to_string(cgroup.join("pids.max")).unwrap_or_default();
        if limit.trim() == "max" { Err("no limit yet") } else { Ok(limit) }
    })
    .await;
    assert_eq!(limit.trim(), "50");
    let marked = format!("CRIB_TEST_MARK={mark}");
    harness::eventually(WAIT_LIMIT, "the container to run", || async {
        procfs::marked(&marked).first().copied().ok_or("not yet")
    })
    .await;
    agent.signal(Signal::SIGKILL);
    agent.end().await;
    // The remains of a pod that the next agent does not know: a process in its cgroup.
    let left = format!("{root}/kubepods/besteffort/podleft");
    let parent = cgroup_with(&format!("{root}/kubepods/besteffort"), "pids.max").unwrap();
    let orphan = parent.join("podleft");
    std::fs::create_dir(&orphan).unwrap();
    let mut process = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
    std::fs::write(orphan.join("cgroup.procs"), process.id().to_string()).unwrap();
    std::fs::remove_file(place.path("pods/p.yaml")).unwrap();
    let agent = start();
    // Reap the process, or its cgroup would not be empty.
    let ended = tokio::task::spawn_blocking(move || process.wait());
    let ended = tokio::time::timeout(WAIT_LIMIT, ended).await.unwrap().unwrap().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
    harness::eventually(WAIT_LIMIT, "both pods' cgroups to be gone", || async {
        let gone = |path: &str| roots(path).iter().all(|directory| !directory.exists());
        if gone(&pod) && gone(&left) { Ok(()) } else { Err("left") }
    })
    .await;
    assert!(procfs::marked(&marked).is_empty());
    agent.stop().await;
    runtime.stop().await;
    remove_classes(&root).await;
}

/// Removes a test's root cgroup, with the cgroups of pods that outlived their agent.
pub(crate) async fn remove_classes(root: &str) {
    let roots = roots(root);
    harness::eventually(WAIT_LIMIT, "the cgroups to be gone", || async {
        let left = roots.iter().filter(|root| root.is_dir());
        let left: Vec<&PathBuf> = left.collect();
        for root in &left {
            for cgroup in procfs::cgroups_below(root).iter().chain([*root]) {
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
