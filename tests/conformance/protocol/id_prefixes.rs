//! Ids in requests: complete, or an unambiguous prefix, as crictl prints them.

use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor, ReflectMessage as _, Value};

use crate::guard::malformed::{call, methods, valid_request};
use crate::support::*;

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

/// Calls that end their object; other tests cover them.
const ENDING: [&str; 4] =
    ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"];

#[tokio::test]
async fn every_call_accepts_id_prefix() {
    let (runtime, pod, id) = with_container().await;
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
        assert!(lacking || unknown == Err(Code::NotFound), "{name}: {unknown:?}");
        tried += 1;
    }
    assert!(tried >= 14, "{tried} calls");
}

#[tokio::test]
async fn filters_of_stats_accept_id_prefix() {
    let runtime = Runtime::start().await.unwrap();
    let (pod, other) = (runtime.pod("p").await.unwrap(), runtime.pod("q").await.unwrap());
    let id = pod.start(fixture::forever("c")).await.unwrap();
    other.start(fixture::forever("c")).await.unwrap();
    let (short, short_pod) = (id[..SHOWN].to_owned(), pod.id[..SHOWN].to_owned());
    let client = &runtime.client;
    for (id, pod_sandbox_id) in [(short.as_str(), ""), ("", &short_pod), (&short, &short_pod)] {
        let (id, pod_sandbox_id) = (id.to_owned(), pod_sandbox_id.to_owned());
        let filter = v1::ContainerStatsFilter { id, pod_sandbox_id, ..Default::default() };
        assert_eq!(client.list_container_stats(filter).await.unwrap().len(), 1);
    }
    let filter = v1::PodSandboxStatsFilter { id: short_pod, ..Default::default() };
    assert_eq!(client.list_pod_stats(filter).await.unwrap().len(), 1);
}

/// An image is found by 12 digits of its id, or by fewer digits after `sha256:`.
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
        let config = of_image(fixture::forever("c"), name);
        let container = pod.create(config).await.unwrap();
        let status = runtime.client.container(&container).await.unwrap();
        assert_eq!(status.image_id, id);
    }
    // Fewer digits may be a name.
    assert_eq!(runtime.client.image(&digits[..8]).await.unwrap(), None);
}
