//! `crib agent` on a runtime that several agents share, and in kubelet mode.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use crate::command::*;

/// A runtime, and agents that share it.
struct Shared {
    place: Place,
    endpoint: String,
}

impl Shared {
    /// Starts an agent.
    fn start(&self, root: &str, manifests: &str, more: &[&str]) -> Running {
        let path = |name: &str| self.place.path(name).to_str().unwrap().to_owned();
        let (root, manifests) = (path(root), path(manifests));
        std::fs::create_dir_all(&manifests).unwrap();
        let args = [
            "agent",
            "--runtime-endpoint",
            &self.endpoint,
            "--root-dir",
            &root,
            "--manifests",
            &manifests,
            "--node-name",
            "node-1",
        ];
        self.place.start(&[&args[..], more].concat())
    }

    /// The names of the running pods, sorted.
    async fn ready(&self) -> String {
        let args = ["pods", "--runtime-endpoint", &self.endpoint, "--state", "ready", "-o", "json"];
        let ended = self.place.crib(&args).await.exits(0);
        let pods: Value = serde_json::from_str(&ended.out).unwrap();
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str());
        let mut names: Vec<&str> = names.flatten().collect();
        names.sort_unstable();
        names.join(" ")
    }

    async fn wait_for(&self, pods: &str) {
        harness::eventually(WAIT_LIMIT, &format!("ready pods {pods:?}"), async || {
            let ready = self.ready().await;
            if ready == pods { Ok(()) } else { Err(ready) }
        })
        .await;
    }
}

const POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  terminationGracePeriodSeconds: 1
  unknownField: 1
  containers:
  - name: app
    image: crib.local/host
    command: [sleep, '3600']
";

#[tokio::test]
async fn agent_ends_pods_of_other_agents_only_if_it_adopts_the_node() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let shared = Shared { place, endpoint };

    // Like a kubelet: any file name, unknown fields ignored, the node's name in the pod's.
    let one = shared.start("one", "static", &["--manifest-mode", "kubelet"]);
    shared.place.file("static/web", POD);
    shared.wait_for("web-node-1").await;

    // Another agent has its own pod. It does not affect the first one, even when its own ends.
    let two = shared.start("two", "pods", &[]);
    let own = POD.replace("name: web", "name: own").replace("  unknownField: 1\n", "");
    shared.place.file("pods/own.yaml", &own);
    shared.wait_for("own web-node-1").await;
    std::fs::remove_file(shared.place.path("pods/own.yaml")).unwrap();
    shared.wait_for("web-node-1").await;

    // In kubelet mode, a manifest that becomes unreadable stops its pod.
    shared.place.file("static/web", "kind: [");
    shared.wait_for("").await;
    shared.place.file("static/web", POD);
    shared.wait_for("web-node-1").await;
    for agent in [one, two] {
        agent.stop().await;
    }

    let three = shared.start("three", "none", &["--adopt-node"]);
    shared.wait_for("").await;
    three.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn second_agent_is_kept_from_a_root_directory() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let shared = Shared { place, endpoint };
    let root = shared.place.path("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    let first = shared.start("root", "pods", &[]);
    let pod = POD.replace("  unknownField: 1\n", "");
    shared.place.file("pods/web.yaml", &pod);
    shared.wait_for("web").await;
    // Other users cannot enter the directory, which contains volumes.
    assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o7777, 0o700);

    let second = shared.start("root", "none", &[]).end().await.exits(3);
    let refusal =
        "is in use by another agent: stop the other agent, or give this one another --root-dir";
    second.err_has(refusal);
    assert_eq!(shared.ready().await, "web");

    // A killed agent does not block the next one.
    first.signal(Signal::SIGKILL);
    first.end().await;
    let third = shared.start("root", "none", &[]);
    shared.wait_for("").await;
    for process in [third, runtime] {
        process.stop().await;
    }
}

/// A pod that waits for a ConfigMap.
const WAITING: &str = "apiVersion: v1
kind: Pod
metadata: {name: configured}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, configMap: {name: settings}}]
  containers:
  - name: app
    image: crib.local/host
    volumeMounts: [{name: v, mountPath: /mnt}]
    command: [sleep, '3600']
";

#[tokio::test]
async fn agent_follows_a_directory_of_objects() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let shared = Shared { place, endpoint };
    let objects = shared.place.path("objects");
    let agent = shared.start("one", "pods", &["--objects", objects.to_str().unwrap()]);
    shared.place.file(
        "pods/other.yaml",
        &WAITING.replace("configured", "other").replace("settings", "others"),
    );
    shared.place.file("pods/pod.yaml", WAITING);
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: others}\n";
    shared.place.file("objects/others.yaml", map);
    // The other pod still waits.
    shared.wait_for("other").await;
    shared.place.file("objects/settings.yaml", &map.replace("others", "settings"));
    shared.wait_for("configured other").await;
    for running in [agent, runtime] {
        running.signal(Signal::SIGTERM);
        running.end().await;
    }
}

#[tokio::test]
async fn signal_ends_agent_that_reads_many_objects_and_next_agent_has_them_all() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let shared = Shared { place, endpoint };
    let objects = shared.place.path("objects");
    std::fs::create_dir(&objects).unwrap();
    for number in 0..1000 {
        let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m{number}}}\n");
        std::fs::write(objects.join(format!("{:04}.yaml", 1000 - number)), map).unwrap();
    }
    // The test does not read the warnings about invalid files, which are more than a pipe can hold: the agent cannot read everything
    // before the signal.
    let invalid: Vec<_> =
        (0..1000).map(|number| objects.join(format!("{number:0200}.yaml"))).collect();
    for file in &invalid {
        std::fs::write(file, "kind: [").unwrap();
    }
    shared.place.file("pods/pod.yaml", &WAITING.replace("settings", "m999"));
    let more = ["--objects", objects.to_str().unwrap()];
    let mut first = shared.start("root", "pods", &more);
    first.err_line_with("starting").await;
    first.interrupt().await.exits(130);
    for file in &invalid {
        std::fs::remove_file(file).unwrap();
    }
    let next = shared.start("root", "pods", &more);
    shared.wait_for("configured").await;
    next.stop().await;
    runtime.stop().await;
}

/// A bad file in a watched directory: the error names it, and the other files still apply.
#[rstest]
#[case::manifest("pods/bomb.yaml", "kind: Pod", "web")]
#[case::object("objects/bomb.yaml", "kind: ConfigMap", "web")]
#[tokio::test]
async fn nested_aliases_in_a_directory_keep_no_other_pod_from_running(
    #[case] file: &str,
    #[case] kind: &str,
    #[case] running: &str,
) {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let shared = Shared { place, endpoint };
    let objects = shared.place.path("objects");
    std::fs::create_dir(&objects).unwrap();
    let bomb = crate::workloads::explain_run::bomb();
    let text = format!("apiVersion: v1\n{kind}\nmetadata: {{name: bomb}}\n{bomb}");
    shared.place.file(file, &text);
    shared.place.file("pods/web.yaml", &POD.replace("  unknownField: 1\n", ""));
    let agent = shared.start("root", "pods", &["--objects", objects.to_str().unwrap()]);
    shared.wait_for(running).await;
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await.exits(0);
    let reported = ended.err.matches("with aliases expanded").count();
    assert_eq!(reported, 1, "{}", ended.err);
    assert!(ended.err.contains("bomb.yaml") && ended.err.len() < 8000, "{}", ended.err);
    runtime.stop().await;
}
