//! Streamed lists: more items than fit into one message.

use std::collections::HashMap;

use cri::v1::{PodSandbox, PodSandboxFilter, StreamPodSandboxesRequest};

use crate::support::*;

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
    // 18 MiB in total; a message may have 16.
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
