//! crib's agent as a client of the runtime: `crib proxy --lint` finds nothing in what it does.

use harness::{Node, PATIENCE};
use proxy::{Proxy, RecordedCall, SeenCall, lint};

use crate::support::{FOREVER, manifest, ready};

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
    // The agent's connections have ended, and with them its streams.
    let ended = proxy.recording().until(|calls| {
        let all = calls.iter().all(|call| call.end.is_some());
        all.then(|| calls.to_vec())
    });
    let calls = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert!(calls.iter().any(|call| call.method == "RemovePodSandbox"));
    let seen: Vec<_> = calls.iter().map(|call| SeenCall::from(&RecordedCall::from(call))).collect();
    let findings: Vec<_> = lint(&seen).iter().map(ToString::to_string).collect();
    assert_eq!(findings, Vec::<String>::new());
}
