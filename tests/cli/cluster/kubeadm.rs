//! A node prepared by kubeadm: `crib kubelet` with the files that kubeadm writes.

use proxy::Proxy;

use super::api_server::ApiServer;
use super::credentials::{HOUR, Signer, answer, signed, wait_for_request};
use super::joined::{Joined, NODE};
use crate::command::*;
use crate::nodes::agent_cgroups::{remove_classes, request};
use crate::nodes::agent_flags::{free_port, pod};

/// `/var/lib/kubelet/config.yaml` as kubeadm 1.36 writes it on a joining node (cmd/kubeadm/app/componentconfigs/kubelet.go and
/// phases/kubelet/config.go, in the YAML form of k8s.io/kubelet's types).
const CONFIG: &str = r#"apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: "unix:///run/containerd/containerd.sock"
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"#;

#[tokio::test]
async fn node_joins_with_the_files_of_kubeadm() {
    let joined = Joined::new(ApiServer::start()).await;
    let place = &joined.place;
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let upstream = joined.endpoint().trim_start_matches("unix://");
    let proxy = Proxy::start(&place.path("p"), upstream.as_ref()).unwrap();
    let config = CONFIG
        .replace("/etc/kubernetes", &path("kubernetes"))
        .replace("/run/containerd/containerd.sock", &path("p"));
    let config = place.file("kubelet/config.yaml", &config);
    let signer = Signer::new();
    place.file("kubernetes/pki/ca.crt", &signer.authority());
    let bootstrap = place.file("kubernetes/bootstrap-kubelet.conf", &joined.server.kubeconfig());
    // Settings that a test's machine may not support or must not keep.
    let (cgroup, port) = (fixture::unique("crib-test"), free_port().to_string());
    let healthz_port = free_port();
    let own = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nfailSwapOn: false\n\
         podLogsDir: {}\nevictionHard: {{}}\ncgroupRoot: /{cgroup}\naddress: 127.0.0.1\nport: {port}\nhealthzPort: {healthz_port}\n",
        path("logs")
    );
    place.file("kubelet/config.d/10-test.conf", &own);
    // As the systemd unit of Kubernetes' packages starts it: KUBELET_KUBECONFIG_ARGS, KUBELET_CONFIG_ARGS, KUBELET_KUBEADM_ARGS.
    let agent = place.start(&[
        "kubelet",
        &format!("--bootstrap-kubeconfig={bootstrap}"),
        &format!("--kubeconfig={}", path("kubernetes/kubelet.conf")),
        &format!("--config={config}"),
        &format!("--config-dir={}", path("kubelet/config.d")),
        &format!("--root-dir={}", path("kubelet")),
        &format!("--hostname-override={NODE}"),
    ]);
    let csr = wait_for_request(&joined).await;
    // From here on clients present certificates, which this server cannot see without TLS.
    joined.server.admit_anyone();
    let certificate = signer.sign(csr["spec"]["request"].as_str().unwrap(), HOUR, 100 * HOUR);
    answer(&joined, &csr, &signed(&certificate));
    joined.wait_for_ready_node().await;
    assert!(place.path("kubernetes/kubelet.conf").exists());
    assert!(place.path("kubelet/pki/kubelet-client-current.pem").exists());
    let seen = joined.node()["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].clone();
    assert_eq!(seen.to_string(), port);
    joined.create_pod(&pod("web", "", ""));
    joined.wait_for_phase("web", "Running").await;
    // The runtime's cgroup driver takes precedence over kubeadm's.
    let sandbox = request(&proxy, "RunPodSandbox").await;
    let parent = sandbox["config"]["linux"]["cgroup_parent"].as_str().unwrap();
    assert!(parent.starts_with(&format!("/{cgroup}/kubepods/besteffort/pod")), "{parent}");
    assert!(place.path("logs").read_dir().unwrap().next().is_some());
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await.exits(0);
    ended.err_has("driver=Cgroupfs");
    ended.err_has("manifests does not exist");
    // All settings that kubeadm writes have an effect.
    assert!(!ended.err.contains("have no effect"), "{}", ended.err);
    joined.end_runtime().await;
    remove_classes(&cgroup).await;
}
