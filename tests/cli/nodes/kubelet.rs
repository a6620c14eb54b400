//! `crib kubelet`: a kubelet's command line, its exit codes, and its notifications to systemd.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use fetch::pki_types::CertificateDer;
use fetch::pki_types::pem::PemObject as _;
use http::Method;
use tokio::process::Command;

use crate::cluster::server_client::{answered, ask};
use crate::command::*;
use crate::nodes::agent_cgroups::{pods_end, roots};
use crate::nodes::agent_flags::{free_port, get, pod, wait_until_shown};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A kubelet with its own runtime, which runs static pods.
struct Kubelet {
    place: Place,
    runtime: Running,
    args: Vec<String>,
    port: u16,
}

impl Kubelet {
    async fn new() -> Self {
        let place = Place::unchecked();
        let (runtime, endpoint) = place.runtime().await;
        let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
        let port = free_port();
        place.file("pods/web.yaml", &pod("web", "", ""));
        let config = place.file(
            "config.yaml",
            &format!(
                "{HEAD}failCgroupV1: false\nfailSwapOn: false\npodLogsDir: {}\nevictionHard: {{}}\ncgroupsPerQOS: false\n\
                 enforceNodeAllocatable: [none]\nhealthzPort: 0\nreadOnlyPort: {port}\naddress: 127.0.0.1\n",
                path("logs")
            ),
        );
        let args = [
            "kubelet".to_owned(),
            format!("--container_runtime_endpoint={endpoint}"),
            format!("--config={config}"),
            format!("--root-dir={}", path("kubelet")),
            format!("--pod-manifest-path={}", path("pods")),
            "--hostname-override=n1".to_owned(),
            "-v=4".to_owned(),
        ];
        Self { place, runtime, args: args.to_vec(), port }
    }

    fn command(&self, more: &[&str]) -> Command {
        let args = self.args.iter().map(String::as_str);
        self.place.command(&args.chain(more.iter().copied()).collect::<Vec<_>>())
    }

    async fn end(self, agent: Running) -> Ended {
        agent.signal(Signal::SIGTERM);
        let ended = agent.end().await;
        self.runtime.stop().await;
        ended
    }
}

#[tokio::test]
async fn kubelet_runs_static_pods_and_notifies_systemd() {
    let kubelet = Kubelet::new().await;
    let name = fixture::unique("crib-test-notify");
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let systemd = UnixDatagram::bind_addr(&address).unwrap();
    systemd.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    let received = move || {
        let mut text = [0; 64];
        let length = systemd.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command =
        kubelet.command(&["--max-pods=7", "--hairpin-mode=none", "--housekeeping-interval=1s"]);
    command.env("NOTIFY_SOCKET", format!("@{name}")).env("WATCHDOG_USEC", "1200000");
    let agent = Running::start(command);
    let (ready, fed, received) =
        tokio::task::spawn_blocking(move || (received(), received(), received)).await.unwrap();
    assert_eq!((ready.as_str(), fed.as_str()), ("READY=1", "WATCHDOG=1"));
    let list = wait_until_shown(kubelet.port, &["web-n1 Running "]).await;
    assert_eq!(list["items"][0]["spec"]["nodeName"], "n1");
    let ended = kubelet.end(agent).await.exits(0);
    ended.err_has(
        "configuration fields have no effect fields=\"hairpinMode (the runtime configures the pod network",
    );
    ended.err_has("the node server needs --kubeconfig");
    ended.err_has("flags have no effect fields=\"--housekeeping-interval (crib has no cAdvisor)");
    let last = tokio::task::spawn_blocking(move || {
        std::iter::repeat_with(received).find(|it| it != "WATCHDOG=1")
    });
    assert_eq!(last.await.unwrap().as_deref(), Some("STOPPING=1"));
}

#[tokio::test]
async fn kubelet_without_cluster_serves_unauthenticated_clients() {
    let kubelet = Kubelet::new().await;
    let port = free_port();
    let agent = Running::start(kubelet.command(&[
        &format!("--port={port}"),
        "--anonymous-auth",
        "--authentication-token-webhook=false",
        "--authorization-mode=AlwaysAllow",
    ]));
    wait_until_shown(kubelet.port, &["web-n1 Running "]).await;
    let own = kubelet.place.path("kubelet/pki/kubelet.crt");
    let own = CertificateDer::from_pem_file(own).unwrap();
    for token in [None, Some("unknown")] {
        let answer = ask(port, &own, Method::GET, "/configz", None, token).await;
        let (status, body) = answered(answer).await;
        let shown: Value = serde_json::from_str(&body).unwrap();
        let shown = &shown["kubeletconfig"];
        assert_eq!((status, &shown["port"]), (200, &json!(port)));
        assert_eq!(shown["clusterDomain"], "", "a kubelet has none that it is not told");
    }
    kubelet.end(agent).await.exits(0);
}

#[tokio::test]
async fn cgroups_of_a_node_are_its_own_and_end_with_it() {
    harness::needs!(Root, Cgroups);
    let kubelet = Kubelet::new().await;
    let flags = ["--cgroups-per-qos", "--enforce-node-allocatable=pods", "--pod-max-pids=50"];
    let agent = Running::start(kubelet.command(&flags));
    wait_until_shown(kubelet.port, &["web-n1 Running "]).await;
    let id = std::fs::read_to_string(kubelet.place.path("kubelet/agent-id")).unwrap();
    let root = format!("crib-{}", id.trim());
    let cgroups = roots(&root).into_iter().flat_map(|root| harness::procfs::cgroups_below(&root));
    let limits = cgroups.filter_map(|cgroup| {
        let name = cgroup.file_name()?.to_string_lossy().into_owned();
        let limit = std::fs::read_to_string(cgroup.join("pids.max")).ok()?;
        name.starts_with("pod").then(|| limit.trim().to_owned())
    });
    assert_eq!(
        limits.collect::<Vec<_>>(),
        ["50"],
        "one pod, in the hierarchy that counts processes"
    );
    std::fs::remove_file(kubelet.place.path("pods/web.yaml")).unwrap();
    pods_end(&root).await;
    kubelet.end(agent).await.exits(0);
    let left: Vec<_> = roots(&root).into_iter().filter(|root| root.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The OOM score of a process, by its id or as `self`.
fn oom_score(process: &str) -> i32 {
    let score = std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
    score.trim().parse().unwrap()
}

/// The soft and the hard limit of a process's open files.
fn open_files(process: &str) -> [u64; 2] {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut limits = files.split_whitespace().map(|limit| limit.parse().unwrap());
    [limits.next().unwrap(), limits.next().unwrap()]
}

/// Runs a kubelet with these flags, and applies `show` to its process id.
async fn process_with<T>(flags: &[&str], show: impl Fn(&str) -> T) -> T {
    let kubelet = Kubelet::new().await;
    let agent = Running::start(kubelet.command(flags));
    wait_until_shown(kubelet.port, &["web-n1 Running "]).await;
    let shown = show(&agent.child.id().unwrap().to_string());
    kubelet.end(agent).await.exits(0);
    shown
}

/// Every user may raise the score of a process, and lower its limits.
#[tokio::test]
async fn process_has_the_oom_score_and_the_open_files_of_its_configuration() {
    let score = oom_score("self").min(999) + 1;
    let [_, files] = open_files("self").map(|limit| limit - 1);
    let flags = [format!("--oom-score-adj={score}"), format!("--max-open-files={files}")];
    let flags = flags.each_ref().map(String::as_str);
    let shown = process_with(&flags, |process| (oom_score(process), open_files(process))).await;
    assert_eq!(shown, (score, [files; 2]));
}

#[tokio::test]
async fn process_is_killed_last_without_configuration() {
    harness::needs!(Root, LowerOomScore);
    assert_eq!(process_with(&[], oom_score).await, -999);
}

#[tokio::test]
async fn health_is_served_once_its_port_is_free() {
    let kubelet = Kubelet::new().await;
    let port = free_port();
    let other = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut agent = Running::start(kubelet.command(&[&format!("--healthz-port={port}")]));
    agent.err_line_with("failed to bind the healthz port").await;
    wait_until_shown(kubelet.port, &["web-n1 Running "]).await;
    drop(other);
    let answer = harness::eventually(WAIT_LIMIT, "/healthz", async || {
        get(port, "/healthz").await.ok_or("nothing")
    });
    assert_eq!(answer.await, ("200 OK".to_owned(), "ok".to_owned()));
    kubelet.end(agent).await.exits(0);
}

#[tokio::test]
async fn kubelet_ends_when_its_lock_file_is_opened() {
    let kubelet = Kubelet::new().await;
    let lock = kubelet.place.path("lock");
    let flag = format!("--lock-file={}", lock.display());
    let agent = Running::start(kubelet.command(&[&flag, "--exit-on-lock-contention"]));
    wait_until_shown(kubelet.port, &["web-n1 Running "]).await;
    let other = std::fs::File::open(&lock).unwrap();
    let ended = agent.end().await.exits(0);
    ended.err_has("another process opened the lock file");
    other.lock().unwrap();
    kubelet.runtime.stop().await;
}

#[tokio::test]
async fn bad_command_lines_exit_1_with_a_message() {
    let place = Place::unchecked();
    let pods = place.path("pods");
    std::fs::create_dir(&pods).unwrap();
    let root = format!("--root-dir={}", place.path("kubelet").display());
    let pods = format!("--pod-manifest-path={}", pods.display());
    let wrong = place.file(
        "wrong.yaml",
        &format!("{HEAD}maxPods: -1\nport: 99999\ncpuManagerPolicy: dynamic\n"),
    );
    let wrong = format!("--config={wrong}");
    let drop_in = place.file("d/a.conf", "kind: Pod\n");
    let drop_ins = format!("--config-dir={}", place.path("d").display());
    for (flags, words) in [
        (&["--frobnicate"][..], "'--frobnicate'"),
        (&["run"], "'run'"),
        (&["--max-pods"], "--max-pods"),
        (&["--max-pods=many"], "--max-pods: \"many\" is not a number"),
        (&["--fail-swap-on=yes"], "--fail-swap-on: \"yes\" is not true or false"),
        (&["--feature-gates=Nothing=true"], "featureGates.Nothing: Kubernetes 1.36 has no such"),
        (&["--feature-gates=NodeSwap=false"], "featureGates.NodeSwap: it is locked to true"),
        (&["--cloud-provider=aws"], "--cloud-provider: \"aws\" is neither external nor empty"),
        (
            &["--node-labels=k8s.io/a=b"],
            "--node-labels: k8s.io/a: a node must not set this label on itself",
        ),
        (&["--runonce"], "runOnce: crib's agent does not support this; leave it out"),
        (
            &[
                "--fail-cgroupv1=false",
                "--protect-kernel-defaults",
                "--fail-swap-on=0",
                "--container-runtime-endpoint=tcp://a",
            ],
            "containerRuntimeEndpoint: tcp:// is not supported",
        ),
        (
            &[
                "--fail-cgroupv1=false",
                "--fail-swap-on=f",
                "--container-runtime-endpoint=unix:///nowhere",
                "--cgroups-per-qos=false",
                "--enforce-node-allocatable=",
                "--read-only-port=0",
            ],
            "no container runtime listens at /nowhere",
        ),
        (&["--config=/nowhere"], "failed to read --config /nowhere"),
        (&[&wrong], "maxPods: -1 is less than 0"),
        (&[&wrong], "port: 99999 is not between 1 and 65535"),
        (&[&wrong], "cpuManagerPolicy: \"dynamic\" is not one of none, static"),
        (&[&drop_ins], &format!("--config-dir {drop_in}: expected apiVersion")),
    ] {
        let args: Vec<&str> = ["kubelet", &root, &pods].iter().chain(flags).copied().collect();
        let ended = place.crib(&args).await;
        assert_eq!(ended.code, Some(1), "{flags:?}: {ended:?}");
        assert!(ended.err.contains(words), "{flags:?}: {ended:?}");
    }
}

#[tokio::test]
async fn version_is_that_of_kubernetes() {
    let place = Place::unchecked();
    let plain = place.crib(&["kubelet", "--version"]).await.exits(0);
    assert!(plain.out.starts_with("Kubernetes v1.36."), "{plain:?}");
    let raw = place.crib(&["kubelet", "--version=raw"]).await.exits(0);
    raw.out_has("Minor:\"36\", GitVersion:\"v1.36.");
    place
        .crib(&["kubelet", "--help"])
        .await
        .exits(0)
        .out_has("--container-runtime-endpoint <TEXT>");
}
