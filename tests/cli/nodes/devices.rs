//! Devices of a device plugin in containers of a real runtime.

#[path = "../../../agent/managers/tests/node/plugin.rs"]
#[allow(dead_code, reason = "shared with the tests of the managers")]
mod plugin;

use cri::podresources::AllocatableResourcesRequest;
use cri::podresources::pod_resources_lister_client::PodResourcesListerClient;

use crate::command::*;
use crate::nodes::servers::logs;
use plugin::{GPU, Running as RunningPlugin, Script};

/// A pod that prints what it got from its devices, and keeps running.
fn manifest(name: &str) -> String {
    let script = "echo has=$NVIDIA_VISIBLE_DEVICES version=$(cat /opt/version); \
                  test -c /dev/$NVIDIA_VISIBLE_DEVICES && echo node; exec sleep 3600";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: app\n    \
         image: crib.local/host\n    command: [sh, -c, '{script}']\n    resources: {{limits: {{{GPU}: 1}}}}\n"
    )
}

/// Registers the plugin once the agent listens, and waits until the agent has its two devices: earlier pods that request them are
/// rejected.
async fn registered(place: &Place, script: &Script) -> RunningPlugin {
    let directory = place.path("agent/device-plugins");
    wait_for_socket(&directory.join("kubelet.sock")).await;
    let plugin = plugin::start(&directory, GPU, script).await.unwrap();
    wait_for_devices(place, 2).await;
    plugin
}

async fn wait_for_socket(socket: &std::path::Path) {
    harness::eventually(WAIT_LIMIT, "the agent listens", async || {
        tokio::net::UnixStream::connect(socket).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// Waits until the agent has this many devices.
async fn wait_for_devices(place: &Place, count: usize) {
    let socket = place.path("agent/pod-resources/kubelet.sock");
    wait_for_socket(&socket).await;
    let lister = plugin::connect(socket).await;
    harness::eventually(WAIT_LIMIT, "the agent knows the devices", async || {
        let request = AllocatableResourcesRequest {};
        let mut lister = PodResourcesListerClient::new(lister.clone());
        let known = lister.get_allocatable_resources(request).await;
        let devices = known.map_err(|status| status.to_string())?.into_inner().devices;
        if devices.len() == count { Ok(()) } else { Err(format!("{devices:?}")) }
    })
    .await;
}

async fn wait_for_log(place: &Place, words: &str) {
    eventually("the containers have written", || {
        let logs = logs(place);
        if logs.contains(words) { vec![] } else { vec![logs] }
    })
    .await;
}

#[tokio::test]
async fn devices_of_plugins_are_in_containers_and_stay_theirs_when_the_agent_is_killed() {
    harness::needs!(Namespaces);
    let place = Place::new();
    place.file("driver/version", "1.0");
    let (runtime, endpoint) = place.runtime().await;
    let start = || Running::start(place.agent(&endpoint, "manifests", &[]));
    let agent = start();
    let script = Script::new(&["nvidia0", "nvidia1"]);
    script.set(|state| state.files = Some(place.path("driver")));
    let plugin = registered(&place, &script).await;
    place.file("manifests/one.yaml", &manifest("one"));
    wait_for_log(&place, "has=nvidia0 version=1.0").await;
    wait_for_log(&place, "stdout F node").await;

    agent.signal(Signal::SIGKILL);
    drop(agent.end().await);
    drop(plugin);
    let agent = start();
    // Then the previous plugin's socket is gone.
    let gone = place.path("agent/device-plugins/nvidia.com-gpu.sock");
    eventually("the agent wants plugins to register again", || {
        gone.exists().then(|| gone.display().to_string()).into_iter().collect()
    })
    .await;
    let plugin = registered(&place, &script).await;
    place.file("manifests/two.yaml", &manifest("two"));
    wait_for_log(&place, "has=nvidia1 version=1.0").await;
    assert_eq!(logs(&place).matches("has=nvidia0").count(), 1, "the first one runs on");
    assert_eq!(script.calls(), ["allocate nvidia0", "allocate nvidia1"]);

    for name in ["one", "two"] {
        std::fs::remove_file(place.path(&format!("manifests/{name}.yaml"))).unwrap();
    }
    eventually("the pods are gone", || {
        let pods = std::fs::read_dir(place.path("agent/pods")).into_iter().flatten().flatten();
        pods.map(|entry| entry.path().display().to_string()).collect()
    })
    .await;
    drop(plugin);
    agent.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn agent_finds_device_plugins_by_their_sockets_until_these_are_removed() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let script = Script::new(&["nvidia0", "nvidia1"]);
    // The socket may exist before the agent starts.
    let registry = place.path("agent/plugins_registry");
    let (_plugin, mut registration) = plugin::start_to_be_found(&registry, "v1beta1", &script);
    let agent = Running::start(place.agent(&endpoint, "manifests", &[]));
    let status =
        tokio::time::timeout(WAIT_LIMIT, registration.wait_for(Option::is_some)).await.unwrap();
    assert!(status.unwrap().as_ref().is_some_and(|status| status.plugin_registered));
    wait_for_devices(&place, 2).await;
    std::fs::remove_file(registry.join("gpu.sock")).unwrap();
    wait_for_devices(&place, 0).await;
    agent.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn agent_with_changed_policy_names_state_file_to_remove() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    place.file(
        "agent/cpu_manager_state",
        r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
    );
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let config = |name: &str, fields: &str| place.file(name, &format!("{head}{fields}"));
    let unreserved = config("a.yaml", "cpuManagerPolicy: static\n");
    let reserved = config("b.yaml", "cpuManagerPolicy: static\nsystemReserved: {cpu: 100m}\n");
    for (file, words) in [
        (
            unreserved,
            "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
        ),
        (reserved, "configured policy \"static\" differs from state checkpoint policy \"none\""),
    ] {
        let agent = place.agent(&endpoint, "manifests", &["--config", &file]);
        let ended = place.end(agent).await.exits(2);
        ended.err_has(words);
    }
    runtime.stop().await;
}
