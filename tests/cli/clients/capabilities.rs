//! The runtime features in Status and their effect on pods: handlers, recursive read-only mounts, supplemental group policies. Also
//! the signal that stops a container.

use proxy::Proxy;

use crate::command::*;
use crate::nodes::agent_flags::{free_port, get, pod, wait_until_shown};

/// An agent that serves its pods over HTTP.
struct Agent {
    running: Running,
    pods: u16,
    health: u16,
}

impl Agent {
    fn start(place: &Place, endpoint: &str) -> Self {
        let (pods, health) = (free_port(), free_port());
        let (read_only, healthz) = (pods.to_string(), health.to_string());
        let more = ["--read-only-port", &read_only, "--healthz-port", &healthz];
        let running = Running::start(place.agent(endpoint, "pods", &more));
        Self { running, pods, health }
    }

    /// Waits until the agent reports these pods: names, phases and reasons.
    async fn shows(&self, expected: &[&str]) -> Vec<Value> {
        let list = wait_until_shown(self.pods, expected).await;
        list["items"].as_array().unwrap().clone()
    }

    /// Waits until the response of `/healthz` begins with `status`.
    async fn is(&self, status: &str) -> String {
        harness::eventually(WAIT_LIMIT, status, async || match get(self.health, "/healthz").await {
            Some((seen, body)) if seen == status => Ok(body),
            other => Err(other),
        })
        .await
    }
}

#[tokio::test]
async fn pods_get_handlers_and_recursive_mounts_of_the_runtime() {
    let place = Place::new();
    let handlers = place.file("runtime.yaml", "handlers:\n  strict: {no_new_privs: true}\n");
    let (runtime, endpoint) = place.runtime_with(&["--config", &handlers]).await;
    let agent = Agent::start(&place, &endpoint);
    agent.is("200 OK").await;
    let recursive =
        ", volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}]";
    let pods = [
        pod("strict", "  runtimeClassName: strict\n", ""),
        pod("unknown", "  runtimeClassName: lax\n", ""),
        pod("recursive", "  volumes: [{name: v, emptyDir: {}}]\n", recursive),
    ];
    place.file("pods/all.yaml", &pods.join("---\n"));
    let all = agent.shows(&["recursive Running ", "strict Running ", "unknown Pending "]).await;
    let named = |name: &str| {
        let mut pods = all.iter();
        pods.find(|pod| pod["metadata"]["name"] == name).unwrap()
    };
    let mount =
        named("recursive").pointer("/status/containerStatuses/0/volumeMounts/0/recursiveReadOnly");
    assert_eq!(mount.unwrap(), "Enabled");
    let listed = place.crib(&["pods", "--runtime-endpoint", &endpoint, "-o", "json"]).await;
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let mut pods = listed["items"].as_array().unwrap().iter();
    let strict = pods.find(|pod| pod["metadata"]["name"] == "strict");
    assert_eq!(strict.unwrap()["runtimeHandler"], "strict", "{listed}");
    agent.running.stop().await;
    runtime.stop().await;
}

/// For example containerd 1.6: it would add the groups of the image, which the pod excludes.
#[tokio::test]
async fn pod_with_strict_groups_is_rejected_by_a_runtime_without() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let upstream = endpoint.trim_start_matches("unix://");
    let silent = vec!["Status drop features".parse().unwrap()];
    let proxy = Proxy::with_faults(&place.path("p"), upstream.as_ref(), silent).unwrap();
    let agent = Agent::start(&place, &format!("unix://{}", place.path("p").display()));
    agent.is("200 OK").await;
    let strict = "  securityContext: {supplementalGroupsPolicy: Strict}\n";
    place.file("pods/groups.yaml", &pod("groups", strict, ""));
    agent.shows(&["groups Failed SupplementalGroupsPolicyNotSupported"]).await;
    let calls = proxy.recording().calls();
    assert!(!calls.iter().any(|call| call.method == "RunPodSandbox"));
    agent.running.stop().await;
    runtime.stop().await;
}

#[rstest]
#[case::of_the_manifest(", lifecycle: {stopSignal: SIGUSR1}", "usr1")]
#[case::default("", "term")]
#[tokio::test]
async fn container_ends_with_its_stop_signal(#[case] lifecycle: &str, #[case] expected: &str) {
    let place = Place::new();
    let script = "trap 'echo usr1; exit 0' USR1; trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let text = pod("signals", "  os: {name: linux}\n", lifecycle)
        .replace("[sleep, '3600']", &format!("[bash, -c, {script:?}]"))
        .replace("PeriodSeconds: 1", "PeriodSeconds: 30");
    let manifest = place.file("m.yaml", &text);
    let mut run = place.start(&["run", "--quiet", &manifest]);
    run.line_with("ready").await;
    let ended = run.interrupt().await.exits(130);
    let last = ended.out.lines().last().unwrap_or_default();
    assert!(last.ends_with(expected), "{ended:?}");
}
