//! Streams: GetContainerEvents sends every change, in order, to each subscriber; streamed lists have more items than fit into one
//! message.

use std::collections::HashMap;

use cri::v1::{
    ContainerEventResponse, ContainerEventType, PodSandbox, PodSandboxFilter,
    StreamPodSandboxesRequest,
};
use tonic::Streaming;

use crate::support::*;

async fn next(stream: &mut Streaming<ContainerEventResponse>) -> ContainerEventResponse {
    let event = tokio::time::timeout(WAIT_LIMIT, stream.message()).await;
    event.expect("no event came").unwrap().expect("the stream ended")
}

#[tokio::test]
async fn events_are_not_delayed_by_slow_subscriber() {
    let runtime = Runtime::start().await.unwrap();
    let deaf = runtime.client.events().await.unwrap();
    let mut events = runtime.client.events().await.unwrap();
    // Annotations of 64 KiB fill all buffers soon.
    let mut config = runtime.sandbox("p");
    config.annotations.insert("long".to_owned(), "x".repeat(64 << 10));
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let listener = tokio::spawn(async move {
        let mut stopped = 0;
        while stopped < 30 {
            let event = next(&mut events).await;
            let exited =
                event.containers_statuses.iter().any(|status| status.id == event.container_id);
            if exited && event.container_event_type() == ContainerEventType::ContainerStoppedEvent {
                stopped += 1;
            }
        }
    });
    for number in 0..30 {
        let id = pod.start(pod.script(&format!("c{number}"), "true")).await.unwrap();
        pod.ended(&id).await.unwrap();
    }
    listener.await.unwrap();
    drop(deaf);
}

#[tokio::test]
async fn event_stream_ends_when_runtime_stops() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let mut events = runtime.client.events().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    assert_eq!(next(&mut events).await.container_id, pod.id);
    assert!(runtime.stop().await.is_some_and(|status| status.success()));
    // The stream ends, with or without an error.
    let rest = async { while let Ok(Some(_)) = events.message().await {} };
    tokio::time::timeout(Duration::from_secs(30), rest).await.unwrap();
}

async fn streamed(runtime: &Runtime, filter: PodSandboxFilter) -> (usize, Vec<PodSandbox>) {
    let request = StreamPodSandboxesRequest { filter: Some(filter) };
    let mut client = runtime.client.runtime.clone();
    let mut stream = client.stream_pod_sandboxes(request).await.unwrap().into_inner();
    let (mut messages, mut all) = (0, Vec::new());
    while let Some(message) = stream.message().await.unwrap() {
        messages += 1;
        all.extend(message.pod_sandboxes);
    }
    (messages, all)
}

#[tokio::test]
async fn stream_returns_more_sandboxes_than_fit_into_message() {
    let runtime = Runtime::start().await.unwrap();
    let mut pods = Vec::new();
    // 18 MiB in total; the limit of a message is 16 MiB.
    for number in 0..6 {
        let mut config = runtime.sandbox(&format!("p{number}"));
        config.annotations = HashMap::from([("note".to_owned(), "x".repeat(3 << 20))]);
        pods.push(Pod::run(&runtime.client, config).await.unwrap());
    }
    let whole = runtime.client.pods(PodSandboxFilter::default()).await;
    assert_eq!(code(whole), Code::OutOfRange);

    let (messages, all) = streamed(&runtime, PodSandboxFilter::default()).await;
    assert_eq!(messages, 6);
    let mut expected: Vec<_> = pods.iter().map(|pod| pod.id.clone()).collect();
    let mut found: Vec<_> = all.into_iter().map(|pod| pod.id).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}
