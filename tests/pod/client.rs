//! The agent as a client of the runtime: how it lists all pods, and that `crib proxy --lint` has no findings about it.

use std::collections::HashMap;
use std::time::Duration;

use agent::cri::{LastLists, Lists};
use harness::pod::Pod;
use harness::{Node, Runtime, WAIT_LIMIT, fixture};
use proxy::{CallFacts, Proxy, RecordedCall, lint};

use crate::support::{FOREVER, manifest, ready};

/// The labels by which an agent identifies its own objects.
fn labels() -> HashMap<String, String> {
    ["uid", "namespace", "name"]
        .map(|part| (format!("io.kubernetes.pod.{part}"), part.to_owned()))
        .into()
}

/// The numbers of sandboxes and containers.
fn counts(lists: Option<Lists>) -> Option<(usize, usize)> {
    lists.map(|(sandboxes, containers)| (sandboxes.len(), containers.len()))
}

#[tokio::test]
async fn lists_are_answered_only_when_something_has_changed() {
    let runtime = Runtime::start().await.unwrap();
    let endpoint = format!("unix://{}", runtime.socket().display());
    let cri = agent::cri::grpc::connect(&endpoint).await.unwrap();
    let mut last = LastLists::default();
    assert_eq!(counts(cri.list_all(&mut last).await.unwrap()), Some((0, 0)));
    assert_eq!(counts(cri.list_all(&mut last).await.unwrap()), None);

    let mut sandbox = fixture::sandbox("p");
    sandbox.labels.extend(labels());
    let pod = Pod::run(&runtime.client, sandbox).await.unwrap();
    let mut container = fixture::forever("c");
    container.labels.extend(labels());
    let name = "io.kubernetes.container.name".to_owned();
    container.labels.insert(name, "c".to_owned());
    let id = pod.create(container).await.unwrap();
    assert_eq!(counts(cri.list_all(&mut last).await.unwrap()), Some((1, 1)));
    assert_eq!(counts(cri.list_all(&mut last).await.unwrap()), None);

    // The same number as before, but one has changed its state.
    runtime.client.start(&id).await.unwrap();
    let started = cri.list_all(&mut last).await.unwrap();
    assert_eq!(counts(started), Some((1, 1)));
    let stop = runtime.client.stop(&id, 0);
    tokio::time::timeout(Duration::from_secs(60), stop).await.unwrap().unwrap();
    let ended = cri.list_all(&mut last).await.unwrap();
    assert_eq!(counts(ended), Some((1, 1)));
    assert_eq!(counts(cri.list_all(&mut last).await.unwrap()), None);
    // Another client has no earlier lists.
    let mut of_another = LastLists::default();
    let all = cri.list_all(&mut of_another).await.unwrap();
    assert_eq!(counts(all), Some((1, 1)));
}

#[tokio::test]
async fn agent_keeps_rules_for_clients_in_life_of_pods() {
    let mut node = Node::start().await.unwrap();
    let socket = node.runtime.root().join("lint.sock");
    let proxy = Proxy::start(&socket, &node.runtime.socket()).unwrap();
    node.start_agent_on(&socket).unwrap();
    let containers = [("init", "true"), ("app", FOREVER)];
    node.apply(&manifest("stays", "Always", &containers)).unwrap();
    node.apply(&manifest("ends", "Never", &[("app", "exit 3")])).unwrap();
    node.apply(&manifest(
        "again",
        "OnFailure",
        &[("app", "test -e /shared/ran || { touch /shared/ran; exit 1; }")],
    ))
    .unwrap();
    ready(&node, "stays", "app").await;
    node.finished("ends").await.unwrap();
    node.finished("again").await.unwrap();
    for pod in ["stays", "ends", "again"] {
        node.remove(pod).await.unwrap();
    }
    node.stop_agent().await.unwrap();
    // The agent's connections have ended, and thereby its streams.
    let ended = proxy.recording().until(|calls| {
        let all = calls.iter().all(|call| call.end.is_some());
        all.then(|| calls.to_vec())
    });
    let calls = tokio::time::timeout(WAIT_LIMIT, ended).await.unwrap();
    assert!(calls.iter().any(|call| call.method == "RemovePodSandbox"));
    let seen: Vec<_> =
        calls.iter().map(|call| CallFacts::from(&RecordedCall::from(call))).collect();
    let findings: Vec<_> = lint(&seen).iter().map(ToString::to_string).collect();
    assert_eq!(findings, Vec::<String>::new());
}
