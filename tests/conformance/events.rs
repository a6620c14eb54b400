//! GetContainerEvents: every change, in order, to each subscriber.

use std::time::Duration;

use cri::v1::{ContainerEventResponse, ContainerEventType, ContainerState, PodSandboxState};
use harness::{PATIENCE, Pod, Runtime};
use tonic::Streaming;

use crate::support::graceful_container;

async fn next(stream: &mut Streaming<ContainerEventResponse>) -> ContainerEventResponse {
    let event = tokio::time::timeout(PATIENCE, stream.message()).await;
    event
        .expect("no event came")
        .unwrap()
        .expect("the stream ended")
}

/// The events about the sandboxes and containers in `ids`, up to the one that deletes `ids[0]`.
async fn events_until_deleted(
    stream: &mut Streaming<ContainerEventResponse>,
    ids: &[&str],
) -> Vec<ContainerEventResponse> {
    let mut events = Vec::new();
    loop {
        let event = next(stream).await;
        if !ids.contains(&event.container_id.as_str()) {
            continue;
        }
        let last = event.container_id == ids[0]
            && event.container_event_type() == ContainerEventType::ContainerDeletedEvent;
        events.push(event);
        if last {
            return events;
        }
    }
}

#[tokio::test]
async fn events_report_every_change_in_order_to_each_subscriber() {
    use ContainerEventType::{
        ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted,
        ContainerStartedEvent as Started, ContainerStoppedEvent as Stopped,
    };
    let runtime = Runtime::start().await.unwrap();
    let client = &runtime.client;
    let mut first = client.events().await.unwrap();
    let mut second = client.events().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = graceful_container(&pod, "c").await;
    client.stop(&id, 30).await.unwrap();
    client.remove(&id).await.unwrap();
    client.stop_pod(&pod.id).await.unwrap();
    client.remove_pod(&pod.id).await.unwrap();

    let ids = [pod.id.as_str(), id.as_str()];
    let heard = events_until_deleted(&mut first, &ids).await;
    assert_eq!(events_until_deleted(&mut second, &ids).await, heard);
    let told: Vec<(&str, ContainerEventType)> = heard
        .iter()
        .map(|event| (event.container_id.as_str(), event.container_event_type()))
        .collect();
    let (p, c) = (pod.id.as_str(), id.as_str());
    assert_eq!(
        told,
        [
            (p, Created),
            (p, Started),
            (c, Created),
            (c, Started),
            (c, Stopped),
            (c, Deleted),
            (p, Stopped),
            (p, Deleted)
        ]
    );
    assert!(heard.iter().all(|event| event.created_at > 0));
    assert!(heard.is_sorted_by_key(|event| event.created_at));

    let (last, before) = heard.split_last().unwrap();
    assert_eq!(
        (&last.pod_sandbox_status, last.containers_statuses.len()),
        (&None, 0)
    );
    for event in before {
        assert_eq!(event.pod_sandbox_status.as_ref().unwrap().id, pod.id);
    }
    // Each event has the state at its time, not the current state.
    assert_eq!(
        heard[1].pod_sandbox_status.as_ref().unwrap().state(),
        PodSandboxState::SandboxReady
    );
    assert_eq!(
        heard[6].pod_sandbox_status.as_ref().unwrap().state(),
        PodSandboxState::SandboxNotready
    );
    let states: Vec<Vec<ContainerState>> = heard
        .iter()
        .map(|event| {
            event
                .containers_statuses
                .iter()
                .map(|status| status.state())
                .collect()
        })
        .collect();
    assert_eq!(states[2], [ContainerState::ContainerCreated]);
    assert_eq!(states[3], [ContainerState::ContainerRunning]);
    assert_eq!(states[4], [ContainerState::ContainerExited]);
    assert_eq!(heard[4].containers_statuses[0].exit_code, 143);
    assert_eq!(states[5], []);
}

#[tokio::test]
async fn events_report_exit_of_container() {
    let runtime = Runtime::start().await.unwrap();
    let mut events = runtime.client.events().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(pod.script("c", "exit 5")).await.unwrap();
    loop {
        let event = next(&mut events).await;
        if event.container_id == id
            && event.container_event_type() == ContainerEventType::ContainerStoppedEvent
        {
            assert_eq!(event.containers_statuses[0].exit_code, 5);
            break;
        }
    }
}

#[tokio::test]
async fn events_are_not_delayed_by_slow_subscriber() {
    let runtime = Runtime::start().await.unwrap();
    let deaf = runtime.client.events().await.unwrap();
    let mut events = runtime.client.events().await.unwrap();
    // Annotations of 64 KiB fill all buffers soon.
    let mut config = runtime.sandbox("p");
    config
        .annotations
        .insert("long".to_owned(), "x".repeat(64 << 10));
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let listener = tokio::spawn(async move {
        let mut stopped = 0;
        while stopped < 30 {
            let event = next(&mut events).await;
            let exited = event
                .containers_statuses
                .iter()
                .any(|status| status.id == event.container_id);
            if exited && event.container_event_type() == ContainerEventType::ContainerStoppedEvent {
                stopped += 1;
            }
        }
    });
    for number in 0..30 {
        let id = pod
            .start(pod.script(&format!("c{number}"), "true"))
            .await
            .unwrap();
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
    tokio::time::timeout(Duration::from_secs(30), rest)
        .await
        .unwrap();
}
