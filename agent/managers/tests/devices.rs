//! Device plugins and the agent, through their sockets.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "node/agent.rs"]
mod node;
#[path = "node/plugin.rs"]
mod plugin;

use std::time::Duration;

use agent::managers::ManagerValue;
use agent::pod_spec::spec::ContainerSpec;
use api::pod::Pod;
use cri::client::{GrpcClient, single};
use cri::pluginregistration::RegistrationStatus;
use cri::podresources as resources;
use cri::podresources::pod_resources_lister_client::PodResourcesListerClient;
use node::{Node, container, pod, pod_of};
use plugin::{GPU, Script};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Request};

/// A node with a plugin that has this many devices.
async fn with_plugin(script: &Script, count: usize) -> (Node, plugin::Running) {
    let node = Node::start();
    let running = plugin::start(&node.plugins(), GPU, script).await.unwrap();
    node.until_devices(GPU, &count.to_string(), &count.to_string()).await;
    (node, running)
}

/// The devices in a container's environment.
fn visible(spec: &ContainerSpec) -> &str {
    let mut envs = spec.envs.iter();
    let found = envs.find(|(name, _)| name == "NVIDIA_VISIBLE_DEVICES");
    found.map_or("", |(_, value)| std::str::from_utf8(value).unwrap())
}

#[tokio::test]
async fn container_is_created_with_the_devices_of_a_plugin() {
    let script = Script::new(&["nvidia0", "nvidia1"]);
    let (node, _plugin) = with_plugin(&script, 2).await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    let spec = node.fake.spec("app").unwrap();
    assert_eq!(visible(&spec), "nvidia0");
    let devices: Vec<_> = spec.devices.iter().map(|device| device.host_path.as_str()).collect();
    assert_eq!(devices, ["/dev/nvidia0"]);
    assert_eq!(spec.cdi_devices, ["nvidia.com/gpu=nvidia0"]);
    assert_eq!(spec.annotations["nvidia"], "nvidia0");
    let mount = spec.mounts.first().unwrap();
    assert_eq!((mount.container_path.as_str(), mount.readonly), ("/usr/local/nvidia", true));

    let two = pod("u2", GPU, 2);
    node.want(&[&one, &two]);
    let (reason, message) = node.until_rejected(&two).await;
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. \
         Requested: 2, Available: 1, which is unexpected"
    );
    assert_eq!(script.calls(), ["allocate nvidia0"]);
    let metrics = node.view().manager_metrics();
    let of = |name: &str| metrics.iter().find(|metric| metric.name == name).map(|it| &it.value);
    let registrations = of("kubelet_device_plugin_registration_total");
    assert_eq!(registrations, Some(&ManagerValue::Count(1)));
    let Some(ManagerValue::Durations(took)) = of("kubelet_device_plugin_alloc_duration_seconds")
    else {
        panic!("no durations of allocations");
    };
    assert_eq!(took.count(), 1);
}

#[tokio::test]
async fn extended_resources_are_reset_if_directory_is_empty() {
    let mut node = Node::start();
    assert!(node.view().resets_extended_resources());
    node.kill_agent().await;
    node.start_agent();
    assert!(!node.view().resets_extended_resources(), "the earlier agent has left its socket");

    let script = Script::new(&["nvidia0"]);
    let (node, _plugin) = with_plugin(&script, 1).await;
    assert!(!node.view().resets_extended_resources(), "the plugin is of this machine");
}

#[tokio::test]
async fn devices_of_an_ended_pod_are_free() {
    let script = Script::new(&["nvidia0"]);
    let (node, _plugin) = with_plugin(&script, 1).await;
    let job = pod_of(
        "u1",
        json!({"containers": [container("job", "job", GPU, 1)], "restartPolicy": "Never"}),
    );
    node.want(&[&job]);
    node.until(&job, |report| report.finished).await;
    let next = pod("u2", GPU, 1);
    node.want(&[&job, &next]);
    node.until_running(&next).await;
    assert_eq!(script.calls(), ["allocate nvidia0", "allocate nvidia0"]);
}

#[tokio::test]
async fn health_and_disappearance_of_devices_are_counted() {
    let script = Script::new(&["nvidia0", "nvidia1"]);
    let (node, plugin) = with_plugin(&script, 2).await;
    script.list(&[("nvidia0", "Unhealthy"), ("nvidia1", "Healthy"), ("nvidia2", "Healthy")]);
    node.until_devices(GPU, "2", "3").await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    assert_eq!(visible(&node.fake.spec("app").unwrap()), "nvidia1", "not the broken one");
    let health = |report: &agent::PodReport| {
        let mut containers = report.published.container_statuses.iter().flatten();
        let of_resource = containers.find_map(|it| it.allocated_resources_status.clone()?.pop());
        let device = of_resource.and_then(|it| it.resources?.pop());
        device.map(|it| (it.resource_id, it.health.unwrap_or_default()))
    };
    let is = |expected: &str| {
        let expected = Some(("nvidia1".to_owned(), expected.to_owned()));
        move |report: &agent::PodReport| health(report) == expected
    };
    node.until(&one, is("Healthy")).await;
    script.list(&[("nvidia0", "Healthy"), ("nvidia1", "Unhealthy"), ("nvidia2", "Healthy")]);
    node.until(&one, is("Unhealthy")).await;
    script.list(&[("nvidia0", "Unhealthy"), ("nvidia1", "Healthy"), ("nvidia2", "Healthy")]);
    node.until(&one, is("Healthy")).await;
    drop(plugin);
    node.until_devices(GPU, "0", "3").await;
    let two = pod("u2", GPU, 1);
    node.want(&[&one, &two]);
    let (_, message) = node.until_rejected(&two).await;
    assert!(message.contains("no healthy devices present"), "{message}");
    assert_eq!(node.fake.running(), ["app"], "a pod that has its devices keeps them");

    let _again = plugin::start(&node.plugins(), GPU, &script).await.unwrap();
    node.until_devices(GPU, "2", "3").await;
}

#[tokio::test]
async fn plugin_that_registers_again_replaces_itself() {
    let script = Script::new(&["nvidia0"]);
    let (node, old) = with_plugin(&script, 1).await;
    let more = Script::new(&["nvidia0", "nvidia1"]);
    let _new = plugin::start(&node.plugins(), GPU, &more).await.unwrap();
    node.until_devices(GPU, "2", "2").await;
    drop(old);
    script.list(&[]);
    let one = pod("u1", GPU, 2);
    node.want(&[&one]);
    node.until_running(&one).await;
    assert_eq!((script.calls().len(), more.calls().len()), (0, 1));
    node.until_devices(GPU, "2", "2").await;
}

#[tokio::test]
async fn preferred_allocation_of_plugin_is_used() {
    let script = Script::new(&["nvidia0", "nvidia1", "nvidia2"]);
    script.set(|state| {
        state.has_preferences = true;
        state.preferred = vec!["nvidia2".to_owned()];
    });
    let (node, _plugin) = with_plugin(&script, 3).await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    let expected = ["prefer nvidia0,nvidia1,nvidia2", "allocate nvidia2"];
    assert_eq!(script.calls(), expected);
}

#[tokio::test]
async fn plugin_prepares_devices_before_each_container() {
    let script = Script::new(&["nvidia0"]);
    script.set(|state| {
        state.prepares = true;
        state.preparation_fails = Some("it is hot".to_owned());
    });
    let (node, _plugin) = with_plugin(&script, 1).await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    let waiting = |report: &agent::PodReport| {
        let mut all = report.status.container_statuses.iter().flatten();
        all.find_map(|status| status.state.clone()?.waiting?.message)
    };
    let report = node.until(&one, |report| waiting(report).is_some()).await;
    assert_eq!(
        waiting(&report).unwrap(),
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = it is hot"
    );
    script.set(|state| state.preparation_fails = None);
    node.until_running(&one).await;
    let calls = script.calls();
    assert_eq!(calls.first().map(String::as_str), Some("allocate nvidia0"));
    assert!(
        calls.len() >= 3 && calls[1..].iter().all(|call| call == "prepare nvidia0"),
        "{calls:?}"
    );
}

#[tokio::test]
async fn failed_allocation_rejects_the_pod_and_keeps_the_devices_free() {
    let script = Script::new(&["nvidia0"]);
    script.set(|state| state.allocation_fails = Some("no power".to_owned()));
    let (node, _plugin) = with_plugin(&script, 1).await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    let (reason, message) = node.until_rejected(&one).await;
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = no power, which is unexpected"
    );
    script.set(|state| state.allocation_fails = None);
    let two = pod("u2", GPU, 1);
    node.want(&[&one, &two]);
    node.until_running(&two).await;
}

#[tokio::test]
async fn resources_by_a_claim_are_not_allocated() {
    let script = Script::new(&["nvidia0"]);
    let (node, _plugin) = with_plugin(&script, 1).await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    let mapping = json!({"containerName": "app", "requestName": "r", "resourceName": GPU});
    let claim = json!({"resourceClaimName": "e", "requestMappings": [mapping]});
    let status = json!({"extendedResourceClaimStatus": claim});
    let mut claiming = pod("u2", GPU, 1).api().clone();
    claiming.status = Some(serde_json::from_value(status).unwrap());
    let two = Pod::new(claiming);
    node.want(&[&one, &two]);
    // It is admitted, and fails later, because this node has no drivers.
    let is_admitted = |report: &agent::PodReport| {
        report.containers.iter().any(|it| it.reason == "FailedPrepareDynamicResources")
    };
    node.until(&two, is_admitted).await;
    assert_eq!(script.calls(), ["allocate nvidia0"]);
}

#[tokio::test]
async fn devices_of_pods_that_run_are_kept_when_the_agent_is_killed() {
    let script = Script::new(&["nvidia0", "nvidia1"]);
    let (mut node, plugin) = with_plugin(&script, 2).await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    node.kill_agent().await;
    drop(plugin);
    node.start_agent();
    assert_eq!(node.view().capacity()[GPU], "0", "plugins have to register again");
    assert!(!node.plugins().join("nvidia.com-gpu.sock").exists(), "they see that by their sockets");
    node.want(&[&one]);
    node.until_running(&one).await;
    let _plugin = plugin::start(&node.plugins(), GPU, &script).await.unwrap();
    node.until_devices(GPU, "2", "2").await;
    let two = pod("u2", GPU, 1);
    node.want(&[&one, &two]);
    node.until_running(&two).await;
    assert_eq!(script.calls(), ["allocate nvidia0", "allocate nvidia1"]);
    assert_eq!(node.fake.running().len(), 2);
}

#[tokio::test]
async fn allocated_devices_stay_with_pod_after_agent_is_killed() {
    let script = Script::new(&["nvidia0", "nvidia1"]);
    let (mut node, plugin) = with_plugin(&script, 2).await;
    // The pod is admitted, but no container of it can be created.
    node.fake.fail("RunPodSandbox", u32::MAX, agent::cri::Code::Internal, "not yet");
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until(&one, |report| !report.finished).await;
    let allocated = async {
        while script.calls().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), allocated).await.unwrap();
    node.until(&one, |report| report.status.phase.as_deref() == Some("Pending")).await;
    node.kill_agent().await;
    drop(plugin);
    node.fake.fail("RunPodSandbox", 0, agent::cri::Code::Internal, "");
    node.start_agent();
    let _plugin = plugin::start(&node.plugins(), GPU, &script).await.unwrap();
    node.until_devices(GPU, "2", "2").await;
    let two = pod("u2", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    assert_eq!(visible(&node.fake.spec("app").unwrap()), "nvidia0");
    node.want(&[&one, &two]);
    node.until_running(&two).await;
    assert_eq!(script.calls(), ["allocate nvidia0", "allocate nvidia1"], "nothing twice");
}

#[tokio::test]
async fn unreachable_plugin_is_notified() {
    let node = Node::start();
    let refused = plugin::register(&node.plugins(), "v1alpha", "gpu.sock", GPU).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    assert!(refused.message().contains("is not supported by kubelet"), "{refused:?}");
    let refused = plugin::register(&node.plugins(), "v1beta1", "gpu.sock", GPU).await.unwrap_err();
    assert!(refused.message().starts_with("failed to dial device plugin: "), "{refused:?}");
}

/// Waits for the notification about a plugin's registration.
async fn told(statuses: &mut watch::Receiver<Option<RegistrationStatus>>) -> RegistrationStatus {
    let told = statuses.wait_for(Option::is_some);
    timeout(Duration::from_secs(20), told).await.unwrap().unwrap().clone().unwrap()
}

#[tokio::test]
async fn plugin_found_by_its_socket_offers_devices_until_the_socket_is_removed() {
    let script = Script::new(&["nvidia0", "nvidia1"]);
    let node = Node::start();
    let (_plugin, mut statuses) = plugin::start_to_be_found(&node.registry(), "v1beta1", &script);
    let status = told(&mut statuses).await;
    assert_eq!((status.plugin_registered, status.error.as_str()), (true, ""));
    node.until_devices(GPU, "2", "2").await;
    let one = pod("u1", GPU, 1);
    node.want(&[&one]);
    node.until_running(&one).await;
    assert_eq!(visible(&node.fake.spec("app").unwrap()), "nvidia0");

    std::fs::remove_file(node.registry().join("gpu.sock")).unwrap();
    node.until_devices(GPU, "0", "2").await;
    let (_next, mut statuses) = plugin::start_to_be_found(&node.registry(), "v1beta1", &script);
    assert!(told(&mut statuses).await.plugin_registered);
    node.until_devices(GPU, "2", "2").await;
    // A plugin that registers at the agent's socket replaces it.
    let more = Script::new(&["nvidia0", "nvidia1", "nvidia2"]);
    let _own = plugin::start(&node.plugins(), GPU, &more).await.unwrap();
    node.until_devices(GPU, "3", "3").await;
    let two = pod("u2", GPU, 1);
    node.want(&[&one, &two]);
    node.until_running(&two).await;
    assert_eq!((script.calls().len(), more.calls().len()), (1, 1));
}

#[tokio::test]
async fn plugin_with_unsupported_version_is_notified_of_rejection() {
    let node = Node::start();
    let script = Script::new(&["nvidia0"]);
    let (_plugin, mut statuses) = plugin::start_to_be_found(&node.registry(), "v1", &script);
    let status = told(&mut statuses).await;
    assert!(!status.plugin_registered);
    assert_eq!(
        status.error,
        "RegisterPlugin error -- plugin validation failed with err: manager version, v1beta1, is not among plugin supported versions [v1]"
    );
    assert!(!node.view().capacity().contains_key(GPU));
}

async fn lister(node: &Node) -> tonic::transport::Channel {
    let socket = node.root_dir().join("pod-resources/kubelet.sock");
    let there = async {
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), there).await.unwrap();
    plugin::connect(socket).await
}

#[tokio::test]
async fn pod_resources_list_ended_pods_without_the_gate() {
    let gates = json!({"featureGates": {"KubeletPodResourcesListUseActivePods": false}});
    let node = Node::with(|settings| settings.file = serde_json::from_value(gates).unwrap());
    let job = pod_of(
        "u1",
        json!({"containers": [{"name": "job", "image": "job"}], "restartPolicy": "Never"}),
    );
    node.want(&[&job]);
    node.until(&job, |report| report.finished).await;
    let mut lister = PodResourcesListerClient::new(lister(&node).await);
    let listed = lister.list(resources::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let names: Vec<&str> = listed.pod_resources.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["pod-u1"]);
}

/// Clients in Go name the socket's path as the authority, percent-encoded.
#[tokio::test]
async fn client_with_path_as_authority_gets_response() {
    const HEADERS: u8 = 1;
    let node = Node::start();
    drop(lister(&node).await);
    let socket = node.root_dir().join("pod-resources/kubelet.sock");
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let literal =
        |name: &[u8], value: &[u8]| [name, &[u8::try_from(value.len()).unwrap()], value].concat();
    // POST over http, RFC 7541.
    let block = [
        b"\x83\x86".to_vec(),
        literal(&[4], b"/v1.PodResourcesLister/List"),
        literal(&[1], b"%2Fvar%2Flib%2Fkubelet%2Fpod-resources%2Fkubelet.sock"),
        literal(&[15, 16], b"application/grpc"),
        literal(b"\x00\x02te", b"trailers"),
    ]
    .concat();
    let frame = |kind: u8, flags: u8, id: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, id], payload].concat()
    };
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(HEADERS, 4, 1, &block),
        frame(0, 1, 1, &[0; 5]),
    ];
    stream.write_all(&request.concat()).await.unwrap();
    // The first frame of the stream must be a response, not a reset.
    let kind = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            stream.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).await.unwrap();
            if head[8] == 1 {
                return head[3];
            }
        }
    };
    assert_eq!(timeout(Duration::from_secs(20), kind).await.unwrap(), HEADERS);
}

#[tokio::test]
async fn pod_resources_list_what_containers_have() {
    let script = Script::new(&["nvidia0", "nvidia1"]);
    let (node, _plugin) = with_plugin(&script, 2).await;
    script.list(&[("nvidia0", "Healthy"), ("nvidia1", "Unhealthy")]);
    node.until_devices(GPU, "1", "2").await;
    let one = pod("u1", GPU, 1);
    let job = pod_of(
        "u2",
        json!({"containers": [{"name": "job", "image": "job"}], "restartPolicy": "Never"}),
    );
    node.want(&[&one, &job]);
    node.until_running(&one).await;
    node.until(&job, |report| report.finished).await;
    let channel = lister(&node).await;
    let mut lister = PodResourcesListerClient::new(channel.clone());
    let listed = lister.list(resources::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let device = |id: &str| resources::ContainerDevices {
        resource_name: GPU.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: None,
    };
    let app = resources::ContainerResources {
        name: "app".to_owned(),
        devices: vec![device("nvidia0")],
        ..Default::default()
    };
    let expected = resources::PodResources {
        name: "pod-u1".to_owned(),
        namespace: "default".to_owned(),
        containers: vec![app],
    };
    assert_eq!(
        listed.pod_resources,
        std::slice::from_ref(&expected),
        "pods that have ended are not listed"
    );
    let get = |name: &str| resources::GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "default".to_owned(),
    };
    let got = lister.get(get("pod-u1")).await.unwrap().into_inner();
    assert_eq!(got.pod_resources, Some(expected));
    let request = single(Request::new(resources::ListPodResourcesRequest {}));
    let mut older = GrpcClient::new(channel);
    let all = older.unary(request, "/v1alpha1.PodResourcesLister/List").await;
    let all: resources::ListPodResourcesResponse = all.unwrap().into_inner();
    let names = |pod: &resources::PodResources| -> Vec<String> {
        let containers = pod.containers.iter().map(|container| container.name.clone());
        [pod.name.clone()].into_iter().chain(containers).collect()
    };
    let mut seen: Vec<Vec<String>> = all.pod_resources.iter().map(names).collect();
    seen.sort();
    assert_eq!(seen, [["pod-u1", "app"], ["pod-u2", "job"]], "v1alpha1 lists all pods");
    for (name, why) in [("pod-u2", "has ended"), ("pod-u3", "does not exist")] {
        let missing = lister.get(get(name)).await.unwrap_err();
        let message = format!("pod {name} in namespace default not found");
        assert_eq!(missing.message(), message, "{why}");
    }
    let all = resources::AllocatableResourcesRequest {};
    let all = lister.get_allocatable_resources(all).await.unwrap().into_inner();
    assert_eq!(all.devices, [device("nvidia0")], "given or not, but healthy");
    let metrics = node.view().manager_metrics();
    let counts: Vec<_> = metrics
        .iter()
        .filter_map(|it| Some((it.name.split_once("_endpoint_")?.1, &it.labels[..], &it.value)))
        .collect();
    let [v1, older] = ["v1", "v1alpha1"].map(|api| [("server_api_version", api.to_owned())]);
    let expected = [
        ("requests_list", &v1[..], &ManagerValue::Count(1)),
        ("requests_get_allocatable", &v1, &ManagerValue::Count(1)),
        ("requests_get", &v1, &ManagerValue::Count(3)),
        ("errors_get", &v1, &ManagerValue::Count(2)),
        ("requests_total", &v1, &ManagerValue::Count(5)),
        ("requests_total", &older, &ManagerValue::Count(1)),
    ];
    assert_eq!(counts, expected);
}
