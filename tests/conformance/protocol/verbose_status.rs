//! Process ids and namespaces in verbose statuses, compared with /proc.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use cri::v1::{ContainerStatusRequest, NamespaceMode, PodSandboxStatusRequest};
use serde_json::Value;

use crate::support::*;

async fn of_container(runtime: &Runtime, id: &str) -> Value {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let mut client = runtime.client.runtime.clone();
    let answer = client.container_status(request).await.unwrap();
    serde_json::from_str(&answer.into_inner().info["info"]).unwrap()
}

async fn of_pod(runtime: &Runtime, pod: &Pod) -> Value {
    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true };
    let mut client = runtime.client.runtime.clone();
    let answer = client.pod_sandbox_status(request).await.unwrap();
    serde_json::from_str(&answer.into_inner().info["info"]).unwrap()
}

/// The arguments of a process and its parent's PID.
fn process(pid: &Value) -> (Vec<String>, Value) {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let arguments = file("cmdline");
    let arguments = arguments.split_terminator('\0').map(str::to_owned);
    let status = file("status");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    (arguments.collect(), parent.unwrap().trim().parse().unwrap())
}

/// For scripts that use containerd's fields: `crictl inspect -o go-template --template '{{.info.pid}}'`.
#[tokio::test]
async fn verbose_status_reports_process_ids() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let seconds = format!("1000.{}", std::process::id());
    let id = pod.start(fixture::container("c", ["sleep", &seconds])).await.unwrap();
    for _ in 0..2 {
        let (container, sandbox) =
            (of_container(&runtime, &id).await, of_pod(&runtime, &pod).await);
        assert_eq!(container["sandboxID"], *pod.id);
        // The status already contains the state, and scripts search the text of both.
        assert_eq!(container.get("state"), None);
        let (arguments, parent) = process(&container["pid"]);
        assert_eq!(arguments, ["sleep", &seconds]);
        assert_eq!(parent, sandbox["pid"]);
        // A restarted daemon reports the same.
        runtime.kill_and_restart().await.unwrap();
    }
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(of_container(&runtime, &id).await["pid"], 0);
    assert_ne!(of_pod(&runtime, &pod).await["pid"], 0);
    runtime.client.stop_pod(&pod.id).await.unwrap();
    assert_eq!(of_pod(&runtime, &pod).await["pid"], 0);
}

/// The path of a namespace of this type, as scripts for containerd read it from `crictl inspectp`.
fn namespace(info: &Value, kind: &str) -> Option<String> {
    let all = info["runtimeSpec"]["linux"]["namespaces"].as_array()?;
    let found = all.iter().find(|namespace| namespace["type"] == kind)?;
    Some(found["path"].as_str().unwrap().to_owned())
}

fn inode(path: &str) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[tokio::test]
async fn verbose_status_names_files_of_namespaces() {
    harness::needs!(Namespaces);
    let (runtime, pod) = pod_of(Runtime::with().durable()).await;
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let container = of_container(&runtime, &id).await;
    let sandbox = of_pod(&runtime, &pod).await;
    let first = &container["pid"];
    for (kind, name) in [("network", "net"), ("ipc", "ipc"), ("uts", "uts")] {
        let real = inode(&format!("/proc/{first}/ns/{name}"));
        assert_ne!(real, inode(&format!("/proc/self/ns/{name}")), "{kind}");
        for info in [&container, &sandbox] {
            let path = namespace(info, kind).unwrap();
            fs::File::open(&path).unwrap();
            assert_eq!(inode(&path), real, "{kind}");
        }
    }
    let mounts = namespace(&container, "mount").unwrap();
    assert_eq!(inode(&mounts), inode(&format!("/proc/{first}/ns/mnt")));

    // Namespaces of the host are not listed.
    let mut config = runtime.sandbox("host");
    let options = fixture::pod_namespaces(&mut config);
    options.network = NamespaceMode::Node.into();
    config.hostname.clear();
    let host = Pod::run(&runtime.client, config).await.unwrap();
    let info = of_pod(&runtime, &host).await;
    assert_eq!(namespace(&info, "network"), None);
    assert!(namespace(&info, "ipc").is_some());

    runtime.client.stop_pod(&pod.id).await.unwrap();
    assert_eq!(of_pod(&runtime, &pod).await.get("runtimeSpec"), None);
    assert_eq!(of_container(&runtime, &id).await.get("runtimeSpec"), None);
}
