//! Several nodes of one cluster on one machine: each has its own runtime, agent and ports.

use cluster::{Key, Kind, Part};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::joined::{Joined, KUBELET_CONFIGURATION, condition, pod, wait};
use crate::command::*;

/// A second node in addition to that of [`Joined`].
pub(crate) struct Second {
    place: Place,
    runtime: Running,
    agent: Running,
    pub(crate) name: &'static str,
}

impl Second {
    /// Starts a runtime and an agent at the same API server.
    pub(crate) async fn of(joined: &Joined, name: &'static str, more: &[&str]) -> Self {
        let place = Place::unchecked();
        let kubeconfig = place.file("kubeconfig", &joined.server.kubeconfig());
        let (runtime, endpoint) = place.runtime().await;
        let root = place.path("root");
        // No evictions, however full the disk is.
        let calm = place.file("calm.yaml", &format!("{KUBELET_CONFIGURATION}evictionHard: {{}}\n"));
        let args = [
            "agent",
            "--runtime-endpoint",
            &endpoint,
            "--root-dir",
            root.to_str().unwrap(),
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            name,
            "--adopt-node",
            "--config",
            &calm,
        ];
        let agent = place.start(&[&args[..], more].concat());
        Self { place, runtime, agent, name }
    }

    pub(crate) async fn end(self) {
        self.agent.stop().await;
        self.runtime.stop().await;
        drop(self.place);
    }
}

/// The port of the kubelet's server in a node's object.
async fn published_port(joined: &Joined, node: &str) -> u16 {
    let look = || joined.server.store().get(&Key::new(Kind::of("v1", "Node"), "", node));
    let port = |node: &Value| node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].clone();
    let look = || look().map(|node| port(&node.value)).unwrap_or_default();
    let port = wait("the port of the node", look, |port| !port.is_null()).await;
    u16::try_from(port.as_u64().unwrap()).unwrap()
}

/// Only the first node requests both default ports of a kubelet.
#[tokio::test]
async fn nodes_of_one_machine_publish_distinct_ports() {
    let joined = Joined::new(ApiServer::start()).await;
    let mut first = joined.agent_with_server(&[]);
    let second = Second::of(&joined, "n2", &[]).await;
    let ports = [published_port(&joined, "n1").await, published_port(&joined, second.name).await];
    assert_ne!(ports[0], ports[1]);
    for port in ports {
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    }
    let line = first.err_line_with("node server is listening").await;
    assert!(line.contains(&format!("0.0.0.0:{}", ports[0])), "{line}");
    second.end().await;
    joined.end(first).await;
}

/// An explicitly configured port is not replaced.
#[tokio::test]
async fn taken_port_that_a_file_names_is_an_error() {
    let joined = Joined::new(ApiServer::start()).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    for (fields, advice) in [
        (
            format!("port: {port}\naddress: 127.0.0.1\n"),
            "set another --port or --address, or --port 0 to disable the server",
        ),
        (format!("healthzPort: {port}\n"), "set another --healthz-port, or 0 to disable it"),
        (format!("readOnlyPort: {port}\n"), "set another --read-only-port, or 0 to disable it"),
    ] {
        let config = joined.place.file("kubelet.yaml", &format!("{header}{fields}"));
        let ended = joined.agent_with_server(&["--config", &config]).end().await;
        let ended = ended.exits(2);
        ended.err_has(&format!("failed to bind 127.0.0.1:{port}"));
        ended.err_has(advice);
    }
    joined.end_runtime().await;
}

/// Assigns a pod CIDR to a node once it exists, like the controller-manager.
async fn give_range(joined: &Joined, node: &str, range: &str) {
    let key = Key::new(Kind::of("v1", "Node"), "", node);
    let look = || joined.server.store().get(&key).map(|node| node.value.clone());
    wait("the node", || look().unwrap_or_default(), |node| !node.is_null()).await;
    let change = |node: &mut Value| {
        node["spec"]["podCIDR"] = json!(range);
        node["spec"]["podCIDRs"] = json!([range]);
        Ok(())
    };
    joined.server.store().change(&key, Part::Main, change).unwrap();
}

/// A pod CIDR that is probably unused by other tests: the bridges of root's runtimes share the machine's network.
fn range() -> String {
    let number = Timestamp::now().as_nanosecond() / 1000;
    format!("10.{}.{}.0/24", 210 + number % 40, number / 40 % 250)
}

/// Whether an address is in a /24 range.
fn is_in(address: &str, range: &str) -> bool {
    address.rsplit_once('.').unwrap().0 == range.rsplit_once('.').unwrap().0
}

#[tokio::test]
async fn pods_have_addresses_of_their_nodes_ranges() {
    harness::needs!(Namespaces);
    let joined = Joined::new(ApiServer::start()).await;
    let mut first = joined.agent(&[]);
    let mut second = Second::of(&joined, "n2", &["--port", "0"]).await;
    let first_range = range();
    // Both may be generated from the same time.
    let second_range = std::iter::repeat_with(range).find(|other| *other != first_range).unwrap();
    let ranges = [first_range, second_range];
    for (agent, node, range) in
        [(&mut first, "n1", &ranges[0]), (&mut second.agent, "n2", &ranges[1])]
    {
        give_range(&joined, node, range).await;
        agent.err_line_with("updated the runtime's pod CIDRs").await;
    }
    joined.create_pod(&pod("one", "sleep 3600"));
    joined.create_pod_on("n2", &pod("two", "sleep 3600"));
    for (name, range) in [("one", &ranges[0]), ("two", &ranges[1])] {
        let has_address = |pod: &Value| pod["status"]["podIP"].is_string();
        let pod = joined.wait_for_pod(name, "an address", has_address).await;
        let address = pod["status"]["podIP"].as_str().unwrap();
        assert!(is_in(address, range), "{address} {range}");
    }
    // The runtime does not change the range while it has pods; the agent tries again once they are gone.
    give_range(&joined, "n1", &range()).await;
    let says = |node: &Value| condition(node, "PodNetworkLimited")["message"].clone();
    let says =
        |node: &Value| says(node).as_str().unwrap_or_default().contains("takes effect after they");
    wait("the condition", || joined.node(), says).await;
    joined.delete_pod("one", Some(0));
    wait("no condition", || joined.node(), |node| !says(node)).await;
    second.end().await;
    joined.end(first).await;
}
