//! The agent's ports without authentication: health, pods, statistics and metrics, without a cluster.

use proxy::Proxy;

use super::agent_flags::{free_port, get, pod, wait_until_shown};
use crate::command::*;

/// An agent with a pod, whose calls to the runtime go through a proxy with these faults.
struct Shown {
    place: Place,
    runtime: Running,
    agent: Running,
    _proxy: Proxy,
    port: u16,
    health: u16,
}

impl Shown {
    async fn new(faults: &[&str]) -> Self {
        Self::configured(faults, "").await
    }

    /// The same with these fields in its configuration.
    async fn configured(faults: &[&str], fields: &str) -> Self {
        let place = Place::unchecked();
        let (runtime, endpoint) = place.runtime().await;
        let upstream = endpoint.trim_start_matches("unix://");
        let faults = faults.iter().map(|fault| fault.parse().unwrap()).collect();
        let proxy = Proxy::with_faults(&place.path("p"), upstream.as_ref(), faults).unwrap();
        place.file("pods/web.yaml", &pod("web", "", ""));
        let (port, health) = (free_port(), free_port());
        let endpoint = format!("unix://{}", place.path("p").display());
        let (read_only, healthz) = (port.to_string(), health.to_string());
        let mut more = vec!["--read-only-port", &read_only, "--healthz-port", &healthz];
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let config = place.file("kubelet.yaml", &format!("{head}{fields}\n"));
        if !fields.is_empty() {
            more.extend(["--config", &config]);
        }
        let agent = Running::start(place.agent(&endpoint, "pods", &more));
        wait_until_shown(port, &["web Running "]).await;
        Self { place, runtime, agent, _proxy: proxy, port, health }
    }

    async fn get(&self, path: &str) -> (String, String) {
        get(self.port, path).await.unwrap()
    }

    async fn end(self) {
        self.agent.stop().await;
        self.runtime.stop().await;
        drop(self.place);
    }
}

#[tokio::test]
async fn read_only_port_has_statistics_and_metrics_but_nothing_that_needs_rights() {
    let shown = Shown::new(&[]).await;
    let (status, body) = shown.get("/stats/summary").await;
    assert_eq!(status, "200 OK", "{body}");
    let summary: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(summary["pods"][0]["podRef"]["name"], "web", "{body}");
    for (path, words) in [
        ("/metrics", "kubelet_running_pods 1"),
        ("/metrics", "kubelet_desired_pods{static=\"true\"} 1"),
        ("/metrics/resource", "resource_scrape_error 0"),
        ("/metrics/cadvisor", "machine_memory_bytes"),
        ("/metrics/probes", "process_start_time_seconds"),
        ("/healthz/syncloop", "ok"),
    ] {
        let (status, body) = shown.get(path).await;
        assert!(status == "200 OK" && body.contains(words), "{path} {status} {body}");
    }
    for path in [
        "/configz",
        "/runningpods/",
        "/exec/default/web/app",
        "/logs/",
        "/containerLogs/default/web/app",
    ] {
        assert_eq!(shown.get(path).await.0, "404 Not Found", "{path}");
    }
    for (path, status) in [
        ("/healthz", "200 OK"),
        ("/healthz/ping", "200 OK"),
        ("/healthz/none", "404 Not Found"),
        ("/pods", "404 Not Found"),
        ("/metrics", "404 Not Found"),
        ("/stats/summary", "404 Not Found"),
    ] {
        assert_eq!(get(shown.health, path).await.unwrap().0, status, "{path}");
    }
    shown.end().await;
}

#[rstest]
#[case::no_such_call("UNIMPLEMENTED \"unknown method\"", false)]
// containerd 1.6, if a sandbox has no cgroup parent.
#[case::failure_of_a_sandbox("UNKNOWN \"cgroup deleted\"", true)]
#[tokio::test]
async fn runtime_that_measures_containers_alone_has_pods_as_their_sums(
    #[case] answer: &str,
    #[case] warns: bool,
) {
    let failure = format!("ListPodSandboxStats answer {answer}");
    let faults =
        [failure.as_str(), "ListMetricDescriptors answer UNIMPLEMENTED \"unknown method\""];
    let shown = Shown::new(&faults).await;
    let (status, body) = shown.get("/stats/summary").await;
    assert_eq!(status, "200 OK", "{body}");
    let summary: Value = serde_json::from_str(&body).unwrap();
    let pod = &summary["pods"][0];
    assert_eq!(pod["podRef"]["name"], "web", "{pod}");
    let memory = |of: &Value| of["memory"]["workingSetBytes"].as_u64().unwrap();
    assert_eq!(memory(pod), memory(&pod["containers"][0]), "{pod}");
    assert_eq!(pod.get("network"), None, "{pod}");
    let (_, metrics) = shown.get("/metrics/cadvisor").await;
    let of_app = "container_memory_working_set_bytes{container=\"app\",id=\"\",image=\"crib.local/host:latest\",";
    assert!(metrics.contains(of_app), "{metrics}");
    let (_, metrics) = shown.get("/metrics/resource").await;
    assert!(metrics.contains("\nresource_scrape_error 0\n"), "{metrics}");
    let Shown { place, runtime, agent, .. } = shown;
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await.exits(0);
    let warnings = ended.err.matches("the runtime failed to measure sandboxes").count();
    assert_eq!(warnings, usize::from(warns), "{}", ended.err);
    runtime.stop().await;
    drop(place);
}

#[rstest]
#[case::streams(["ListPodSandbox answer INTERNAL \"list\"", "ListContainers answer INTERNAL \"list\""])]
#[case::lists_where_the_runtime_has_no_streams([
    "StreamPodSandboxes answer UNIMPLEMENTED \"unknown method\"",
    "StreamContainers answer UNIMPLEMENTED \"unknown method\"",
])]
#[tokio::test]
async fn agent_streams_lists_with_its_gate(#[case] faults: [&str; 2]) {
    let shown =
        Shown::configured(&faults, "evictionHard: {}\nfeatureGates: {CRIListStreaming: true}")
            .await;
    let (_, metrics) = shown.get("/metrics").await;
    assert!(metrics.contains("kubelet_running_pods 1"), "{metrics}");
    shown.end().await;
}

#[tokio::test]
async fn failed_measurement_is_an_error_and_a_metric() {
    let faults = [
        "ListPodSandboxStats answer UNAVAILABLE \"away\"",
        "ListPodSandboxMetrics answer INTERNAL \"broken\"",
    ];
    let shown = Shown::new(&faults).await;
    let (status, body) = shown.get("/stats/summary").await;
    assert_eq!(status, "500 Internal Server Error");
    assert!(
        body.starts_with("Internal Error: ListPodSandboxStats: ") && body.contains("away"),
        "{body}"
    );
    let (status, body) = shown.get("/metrics/resource").await;
    assert_eq!(status, "200 OK");
    assert!(body.contains("\nresource_scrape_error 1\n"), "{body}");
    let (status, body) = shown.get("/metrics/cadvisor").await;
    assert_eq!(status, "200 OK");
    assert!(body.contains("\ncontainer_scrape_error 1\n"), "{body}");
    // The node is still measured.
    assert!(body.contains("id=\"/\"") && !body.contains("container=\"app\""), "{body}");
    assert_eq!(shown.get("/healthz").await, ("200 OK".to_owned(), "ok".to_owned()));
    shown.end().await;
}
