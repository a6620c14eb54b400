//! GetContainerEvents: every change, in order, to each subscriber.

use cri::v1::{ContainerEventResponse, ContainerEventType};
use tonic::Streaming;

use crate::support::*;

async fn next(stream: &mut Streaming<ContainerEventResponse>) -> ContainerEventResponse {
    let event = tokio::time::timeout(PATIENCE, stream.message()).await;
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
