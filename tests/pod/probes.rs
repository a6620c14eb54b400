//! Probes of containers: the effects of their results.

use cri::v1::ContainerState::ContainerRunning;
use harness::{Node, Runtime, WAIT_LIMIT, eventually};

use crate::support::{FOREVER, container_in, containers, manifest, ready};

/// Waits until a probe has recorded a result for the `count`th time.
async fn recorded(node: &Node, probe: &str, result: &str, count: usize) {
    let (probe, result) = (format!("probe={probe}"), format!("result={result}"));
    let is_it = |line: &&str| line.contains(&probe) && line.contains(&result);
    eventually(WAIT_LIMIT, &format!("{probe} {result}"), || async {
        let log = node.agent_log();
        let seen = log.lines().filter(is_it).count();
        if seen >= count { Ok(()) } else { Err(log) }
    })
    .await;
}

fn with_probes(pod: &str, container: &str, probes: &str) -> String {
    let name = format!("  - name: {container}\n");
    pod.replace(&name, &format!("{name}{probes}"))
}

#[tokio::test]
async fn liveness_probe_restarts_container_and_readiness_probe_does_not() {
    let node = Node::start().await.unwrap();
    let pod = manifest("p", "Always", &[("app", &format!("rm -f /shared/*; {FOREVER}"))]);
    let probes = "    livenessProbe: {exec: {command: [test, '!', -e, /shared/bad]}, periodSeconds: 1, timeoutSeconds: 30, \
                  failureThreshold: 2, terminationGracePeriodSeconds: 5}\n    \
                  readinessProbe: {exec: {command: [test, -e, /shared/up]}, periodSeconds: 1, failureThreshold: 1}\n";
    node.write_manifest("p.yaml", &with_probes(&pod, "app", probes)).unwrap();
    let app = ready(&node, "p", "app").await;
    recorded(&node, "Readiness", "Failure", 1).await;
    node.runtime.client.sh(&app.id, "touch /shared/up").await.unwrap();
    recorded(&node, "Readiness", "Success", 1).await;
    node.runtime.client.sh(&app.id, "rm /shared/up").await.unwrap();
    recorded(&node, "Readiness", "Failure", 2).await;
    assert_eq!(containers(&node, "p").await.len(), 1);

    node.runtime.client.sh(&app.id, "touch /shared/bad").await.unwrap();
    recorded(&node, "Liveness", "Failure", 1).await;
    let again = eventually(WAIT_LIMIT, "the next attempt", || async {
        let all = containers(&node, "p").await;
        let next = all
            .iter()
            .find(|(_, attempt, container)| *attempt == 1 && container.state() == ContainerRunning);
        next.map(|(_, _, container)| container.clone()).ok_or((all, node.agent_log()))
    })
    .await;
    assert_ne!(again.id, app.id);
    // The results start over with the container.
    recorded(&node, "Liveness", "Success", 2).await;
}

#[tokio::test]
async fn sidecar_with_startup_probe_holds_app_back() {
    let node = Node::start().await.unwrap();
    let scripts = [("init-side", FOREVER), ("app", FOREVER)];
    let pod = manifest("p", "Always", &scripts);
    let probes = "    restartPolicy: Always\n    \
                  startupProbe: {exec: {command: [test, -e, /shared/up]}, periodSeconds: 1, failureThreshold: 600}\n";
    node.write_manifest("p.yaml", &with_probes(&pod, "init-side", probes)).unwrap();
    let side = ready(&node, "p", "init-side").await;
    recorded(&node, "Startup", "Unknown", 1).await;
    assert_eq!(containers(&node, "p").await.len(), 1);
    node.runtime.client.sh(&side.id, "touch /shared/up").await.unwrap();
    ready(&node, "p", "app").await;
}

/// Responds with 200 if /shared/up exists.
const SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8080, ReuseAddr => 1) or die "listen: $!";
    while ($client = $server->accept) {
        while (<$client>) { last if /^\s*$/ }
        print $client "HTTP/1.1 ", -e "/shared/up" ? "200 OK" : "503 No", "\r\nContent-Length: 0\r\n\r\n";
        close $client;
    }'"#;

#[tokio::test]
async fn http_probe_reaches_pod_by_its_address() {
    probe_reaches_pod(&Node::start().await.unwrap()).await;
}

/// The bridge of a rootless runtime's pods is in its own network namespace.
#[tokio::test]
async fn http_probe_reaches_pod_of_rootless_runtime() {
    harness::needs!(UserNamespaces);
    let node = Node::start_with(Runtime::with().isolation("rootless")).await.unwrap();
    probe_reaches_pod(&node).await;
}

async fn probe_reaches_pod(node: &Node) {
    let pod = manifest("p", "Always", &[("app", SERVER)]);
    let probes = "    ports: [{name: web, containerPort: 8080}]\n    \
                  readinessProbe: {httpGet: {port: web, path: /healthz}, periodSeconds: 1}\n    \
                  startupProbe: {tcpSocket: {port: web}, periodSeconds: 1}\n";
    node.write_manifest("p.yaml", &with_probes(&pod, "app", probes)).unwrap();
    let app = container_in(node, "p", "app", ContainerRunning).await;
    recorded(node, "Startup", "Success", 1).await;
    recorded(node, "Readiness", "Failure", 1).await;
    node.runtime.client.sh(&app.id, "touch /shared/up").await.unwrap();
    recorded(node, "Readiness", "Success", 1).await;
}
