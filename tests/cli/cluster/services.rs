//! Services of the cluster: the node's pods reach their ClusterIPs through the agent's table, unless kube-proxy serves them.

use cluster::{Key, Kind};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::joined::{Joined, NODE, condition, pod, wait};
use crate::command::*;

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// A script without quotes that sends its name to each client.
fn says(name: &str) -> String {
    format!(
        "exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die; while ($c = $s->accept) {{ print $c qq({name}); close $c }}'"
    )
}

/// Creates the objects of the API server and its controllers: a Service and its EndpointSlice.
fn create_service(joined: &Joined, name: &str, address: &str, endpoints: &[&str]) {
    let labels = json!({"kubernetes.io/service-name": name});
    let endpoint = |address| json!({"addresses": [address], "conditions": {"ready": true}});
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    for object in [
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "clusterIP": address,
                "clusterIPs": [address],
                "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}],
                "selector": {"app": name},
            },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": format!("{name}-1"), "namespace": "default", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        }),
    ] {
        joined.server.store().create(object, Timestamp::now()).unwrap();
    }
}

/// The address in a pod's status, once it is set.
async fn address_of(joined: &Joined, name: &str) -> String {
    let pod = joined.wait_for_pod(name, "an address", |pod| pod["status"]["podIP"].is_string());
    pod.await["status"]["podIP"].as_str().unwrap().to_owned()
}

/// Runs a client in a pod until it receives `expected`.
async fn hears(joined: &Joined, pod: &str, at: &str, expected: &str) {
    let script = format!("exec timeout 5 bash -c 'exec 3<>/dev/tcp/{at} && cat <&3'");
    harness::eventually(WAIT_LIMIT, &format!("{expected:?} at {at}"), async || {
        let args =
            ["exec", "--runtime-endpoint", joined.endpoint(), pod, "--", "sh", "-c", &script];
        let ended = joined.place.crib(&args).await;
        if ended.out == expected { Ok(()) } else { Err(ended.err) }
    })
    .await
}

#[tokio::test]
async fn pods_reach_cluster_ips_without_the_api_server_and_after_the_runtime_was_killed() {
    harness::needs!(Namespaces);
    let (mut joined, agent) = Joined::start().await;
    joined.wait_for_ready_node().await;
    create_service(&joined, "early", "10.96.0.6", &[]);
    // The proxy ends with its runtime; the next one gets the table again.
    let requested = || json!(joined.server.count(&format!("GET {SLICES}")));
    wait("a watch of slices", requested, |count| count.as_u64() >= Some(2)).await;
    joined.replace_runtime().await;
    joined.create_pod(&pod("client", "sleep 3600"));
    joined.create_pod(&pod("one", &says("one")));
    joined.create_pod(&pod("two", &says("two")));
    for name in ["client", "one", "two"] {
        joined.wait_for_phase(name, "Running").await;
    }
    create_service(&joined, "web", "10.96.0.7", &[&address_of(&joined, "one").await]);
    hears(&joined, "client", "10.96.0.7/80", "one").await;
    // Change the endpoints.
    let slice = Key::new(Kind::of("discovery.k8s.io/v1", "EndpointSlice"), "default", "web-1");
    let two = address_of(&joined, "two").await;
    let change = |slice: &mut Value| {
        slice["endpoints"][0]["addresses"] = json!([two]);
        Ok(())
    };
    joined.server.store().change(&slice, cluster::Part::Main, change).unwrap();
    hears(&joined, "client", "10.96.0.7/80", "two").await;
    joined.server.go().await;
    hears(&joined, "client", "10.96.0.7/80", "two").await;
    joined.end(agent).await;
}

/// Waits until the node's condition contains a text, or does not.
async fn lacks(joined: &Joined, text: &str, expected: bool) {
    let says = |node: &Value| {
        let message = condition(node, "PodNetworkLimited")["message"].clone();
        message.as_str().unwrap_or_default().contains(text) == expected
    };
    wait(&format!("the condition has {text:?}: {expected}"), || joined.node(), says).await;
}

/// The permissions of a kubelet are not sufficient.
#[tokio::test]
async fn forbidden_slices_are_reported_in_a_condition() {
    let joined = Joined::new(ApiServer::start()).await;
    joined.server.forbid(Some(SLICES));
    let agent = joined.agent(&["--service-proxy", "on"]);
    lacks(&joined, "bind the ClusterRole system:node-proxier", true).await;
    joined.server.forbid(None);
    lacks(&joined, "bind the ClusterRole system:node-proxier", false).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn services_are_left_to_kube_proxy() {
    harness::needs!(Namespaces);
    let joined = Joined::new(ApiServer::start()).await;
    let agent = joined.agent(&["--service-proxy", "off"]);
    joined.wait_for_ready_node().await;
    agent.stop().await;
    assert_eq!(joined.server.count(&format!("GET {SLICES}")), 0);
    // The pod is on the node before the agent starts, and is deleted later.
    let proxy = pod("kube-proxy", "sleep 3600")
        .replace("{name: kube-proxy}", "{name: kube-proxy, labels: {k8s-app: kube-proxy}}")
        .replace("spec:\n", "spec:\n  hostNetwork: true\n");
    joined.create_pod(&proxy);
    let agent = joined.agent(&[]);
    joined.wait_for_phase("kube-proxy", "Running").await;
    assert_eq!(joined.server.count(&format!("GET {SLICES}")), 0);
    joined.create_pod(&pod("client", "sleep 3600"));
    joined.create_pod(&pod("one", &says("one")));
    joined.wait_for_phase("client", "Running").await;
    create_service(&joined, "web", "10.96.0.7", &[&address_of(&joined, "one").await]);
    joined.delete_pod("kube-proxy", Some(0));
    hears(&joined, "client", "10.96.0.7/80", "one").await;
    assert_eq!(joined.node()["metadata"]["name"], NODE);
    joined.end(agent).await;
}
