//! Ids in requests: complete, or an unambiguous prefix, as crictl prints them.

use cri::v1::{
    ContainerFilter, ContainerState, ContainerStatsFilter, ListContainerStatsRequest,
    ListPodSandboxStatsRequest, PodSandboxFilter, PodSandboxState, PodSandboxStatsFilter,
};
use harness::{Runtime, fixture};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor, ReflectMessage as _, Value};
use tonic::Code;

use crate::malformed::{call, methods, valid_request};
use crate::support::code;

/// The length of the prefix that crictl prints.
const SHOWN: usize = 13;

fn has_field(method: &MethodDescriptor, field: &str) -> bool {
    method.input().get_field_by_name(field).is_some()
}

fn with_ids(request: &DynamicMessage, change: impl Fn(&str) -> String) -> Vec<u8> {
    let mut request = request.clone();
    for name in ["pod_sandbox_id", "container_id"] {
        let Some(field) = request.descriptor().get_field_by_name(name) else {
            continue;
        };
        let id = request.get_field(&field).as_str().unwrap().to_owned();
        request.set_field(&field, Value::String(change(&id)));
    }
    request.encode_to_vec()
}

/// Calls that end their object; they have their own tests.
const ENDING: [&str; 4] = [
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

#[tokio::test]
async fn every_call_accepts_id_prefix() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let mut tried = 0;
    for method in methods() {
        let takes_id = has_field(&method, "pod_sandbox_id") || has_field(&method, "container_id");
        if !takes_id || ENDING.contains(&method.name()) {
            continue;
        }
        let request = valid_request(&runtime, &pod, &id, &method);
        let answer = async |request| {
            let answer = call(&runtime, &method, request).await;
            answer.map_err(|status| status.code()).map(drop)
        };
        let whole = answer(with_ids(&request, str::to_owned)).await;
        let short = answer(with_ids(&request, |id| id[..SHOWN].to_owned())).await;
        let name = method.name();
        assert_ne!(whole, Err(Code::NotFound), "{name}");
        // A repeated CreateContainer returns the container that the first call created.
        assert_eq!(short, whole, "{name}");
        let unknown = answer(with_ids(&request, |_| "0".repeat(SHOWN))).await;
        // An incomplete request may be rejected for another reason.
        let lacking = whole.is_err() && unknown == whole;
        assert!(
            lacking || unknown == Err(Code::NotFound),
            "{name}: {unknown:?}"
        );
        tried += 1;
    }
    assert!(tried >= 14, "{tried} calls");
}

#[tokio::test]
async fn start_stop_and_remove_accept_id_prefix() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.create(fixture::forever("c")).await.unwrap();
    let (short, short_pod) = (&id[..SHOWN], &pod.id[..SHOWN]);
    client.start(short).await.unwrap();
    let status = client.container(short).await.unwrap();
    assert_eq!(
        (status.id.as_str(), status.state()),
        (id.as_str(), ContainerState::ContainerRunning)
    );
    client.stop(short, 0).await.unwrap();
    let state = client.container(&id).await.unwrap().state();
    assert_eq!(state, ContainerState::ContainerExited);
    client.remove(short).await.unwrap();
    assert_eq!(code(client.container(&id).await), Code::NotFound);
    client.stop_pod(short_pod).await.unwrap();
    let state = client.pod(&pod.id).await.unwrap().status.unwrap().state();
    assert_eq!(state, PodSandboxState::SandboxNotready);
    client.remove_pod(short_pod).await.unwrap();
    assert_eq!(code(client.pod(&pod.id).await), Code::NotFound);
}

#[tokio::test]
async fn filters_accept_id_prefix() {
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let (pod, other) = (
        runtime.pod("p").await.unwrap(),
        runtime.pod("q").await.unwrap(),
    );
    let id = pod.start(fixture::forever("c")).await.unwrap();
    other.start(fixture::forever("c")).await.unwrap();
    let (short, short_pod) = (id[..SHOWN].to_owned(), pod.id[..SHOWN].to_owned());

    let filter = PodSandboxFilter {
        id: short_pod.clone(),
        ..Default::default()
    };
    let pods = client.pods(filter).await.unwrap();
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].id, pod.id);
    for (id, pod_sandbox_id) in [(short.as_str(), ""), ("", &short_pod), (&short, &short_pod)] {
        let (id, pod_sandbox_id) = (id.to_owned(), pod_sandbox_id.to_owned());
        let filter = ContainerFilter {
            id: id.clone(),
            pod_sandbox_id: pod_sandbox_id.clone(),
            ..Default::default()
        };
        assert_eq!(client.containers(filter).await.unwrap().len(), 1);
        let request = ListContainerStatsRequest {
            filter: Some(ContainerStatsFilter {
                id,
                pod_sandbox_id,
                ..Default::default()
            }),
        };
        let mut client = client.runtime.clone();
        let answer = client.list_container_stats(request).await.unwrap();
        assert_eq!(answer.into_inner().stats.len(), 1);
    }
    let request = ListPodSandboxStatsRequest {
        filter: Some(PodSandboxStatsFilter {
            id: short_pod,
            ..Default::default()
        }),
    };
    let mut client = client.runtime.clone();
    let answer = client.list_pod_sandbox_stats(request).await.unwrap();
    assert_eq!(answer.into_inner().stats.len(), 1);
}

/// An image is found by 12 digits of its id, or by fewer after `sha256:`.
#[tokio::test]
async fn image_is_found_by_id_prefix() {
    let runtime = Runtime::start().await.unwrap();
    let image = runtime.client.image(&fixture::image()).await.unwrap();
    let id = image.unwrap().id;
    let digits = id.strip_prefix("sha256:").unwrap();
    for name in [&id[..], &id[.."sha256:".len() + 6], digits, &digits[..12]] {
        let found = runtime.client.image(name).await.unwrap();
        assert_eq!(found.map(|image| image.id), Some(id.clone()), "{name}");
        let pod = runtime.pod(&fixture::unique("p")).await.unwrap();
        let mut config = fixture::forever("c");
        config.image.as_mut().unwrap().image = name.to_owned();
        let container = pod.create(config).await.unwrap();
        let status = runtime.client.container(&container).await.unwrap();
        assert_eq!(status.image_id, id);
    }
    // Fewer digits may be a name.
    assert_eq!(runtime.client.image(&digits[..8]).await.unwrap(), None);
}
