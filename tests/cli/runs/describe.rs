//! `crib describe`: a run's pods as its agent knows them, and other pods as their runtime knows them.

use crate::command::*;
use crate::runs::background::{Downs, out, printed, start};
use crate::runs::run::pod;

/// The script of a container that runs until SIGTERM.
const FOREVER: &str = "trap 'exit 0' TERM; echo up; while true; do sleep 0.1; done";

/// Describes a pod until the output contains all of these words: the agent records events with a delay.
async fn described(place: &Place, args: &[&str], words: &[&str]) -> String {
    let mut all = vec!["describe"];
    all.extend(args);
    harness::eventually(WAIT_LIMIT, &format!("{words:?}"), async || {
        let text = out(place, &all).await;
        if words.iter().all(|word| text.contains(word)) { Ok(text) } else { Err(text) }
    })
    .await
}

#[tokio::test]
async fn pod_of_run_is_described_with_its_events() {
    let place = Place::new();
    let manifest = pod("web", FOREVER)
        .replace("{name: web}", "{name: web, namespace: shop, labels: {app: web}}")
        .replace("spec:\n", "spec:\n  volumes: [{name: v, emptyDir: {}}]\n")
        + "    env: [{name: A, value: b}]\n    volumeMounts: [{name: v, mountPath: /tmp}]\n    \
           readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1, timeoutSeconds: 30}\n";
    let file = place.file("web.yaml", &manifest);
    let mut running = place.start(&["run", &file]);
    running.line_with("up").await;
    let words = ["Container started", "Ready:          True"];
    for name in ["web", "pod/web", "shop/web"] {
        let text = described(&place, &[name], &words).await;
        for line in [
            "Name:             web",
            "Namespace:        shop",
            "Labels:           app=web",
            "Status:           Running",
            "    State:          Running",
            "    Port:          <none>",
            "    Restart Count:  0",
            "    Readiness:      exec [true] delay=0s timeout=30s period=1s #success=1 #failure=3",
            "      A:  b",
            "    Type:        EmptyDir (a temporary directory that shares a pod's lifetime)",
            "  ContainersReady             True",
            "QoS Class:       BestEffort",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line}: {text}");
        }
    }
    let of_file = out(&place, &["describe", "-f", &file]).await;
    assert!(of_file.starts_with("Name:             web\nNamespace:        shop\n"), "{of_file}");
    // By its id, too.
    let id = out(&place, &["pods", "-q"]).await;
    let text = out(&place, &["describe", id.trim()]).await;
    assert!(text.contains("Container started"), "{text}");
    let json = out(&place, &["describe", "web", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    let shown = &json["pods"][0];
    assert_eq!(shown["pod"]["metadata"]["name"], "web");
    assert_eq!(shown["pod"]["status"]["phase"], "Running");
    let events = shown["events"].as_array().unwrap();
    let started = events.iter().find(|event| event["reason"] == "Started");
    assert_eq!(started.unwrap()["fieldPath"], "spec.containers{main}");
    // The run has no Services, so there is no warning about missing DNS servers of a cluster.
    let warning = events.iter().find(|event| event["type"] == "Warning");
    assert_eq!(warning, None);
    let yaml = out(&place, &["describe", "web", "-o", "yaml"]).await;
    assert!(yaml.contains("phase: Running"), "{yaml}");

    let ended = place.crib(&["describe", "nothing", "web"]).await.exits(1);
    assert_eq!(ended.err, "crib: pod \"nothing\" not found\n");
    assert!(ended.out.starts_with("Name:             web\n"));
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn pod_without_sandbox_is_described_with_the_reason() {
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = pod("web", FOREVER).replace(
        "spec:\n",
        "spec:\n  volumes: [{name: v, hostPath: {path: /nowhere/at/all, type: Directory}}]\n",
    ) + "    volumeMounts: [{name: v, mountPath: /tmp}]\n";
    start(&place, &["web", &place.file("web.yaml", &manifest)]).await;
    let words = ["Warning  FailedMount", "/nowhere/at/all is not a directory"];
    let text = described(&place, &["web"], &words).await;
    assert!(text.contains("Status:           Pending"), "{text}");
    out(&place, &["down", "web"]).await;
}

#[tokio::test]
async fn ended_pod_is_described_with_exit_code() {
    let place = Place::new();
    let _downs = Downs(&place);
    let file = place.file("p.yaml", &pod("p", "exit 3"));
    let started = start(&place, &["first", &file]).await;
    printed(&place, &started, &["→ Failed (main exited)"]).await;
    let words = ["      Exit Code:    3", "Status:           Failed"];
    described(&place, &["p"], &words).await;
    start(&place, &["second", &file]).await;
    let ended = place.crib(&["describe", "p"]).await.exits(1);
    assert_eq!(
        ended.err,
        "crib: \"p\" matches more than one pod: choose one of --run first, --run second\n"
    );
    described(&place, &["p", "--run", "second"], &words).await;
    out(&place, &["down", "--all"]).await;
}

#[tokio::test]
async fn pod_that_can_never_run_is_described() {
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = pod("web", "true")
        .replace("spec:\n", "spec:\n  volumes: [{name: v, emptyDir: {}}]\n")
        + "    volumeMounts: [{name: v, mountPath: /shared}]\n";
    let file = place.file("web.yaml", &manifest);
    let run = ["run", "--name", "web", "--isolation", "process", &file];
    let started = place.crib(&run).await.exits(1);
    printed(&place, &started, &["Terminating (it cannot run)"]).await;
    let reason =
        "nothing can be mounted at /shared, because isolation `process` has no mount namespaces";
    described(&place, &["web"], &["Events:\n", reason]).await;
    out(&place, &["down", "web"]).await;
}

#[tokio::test]
async fn pod_of_plain_runtime_is_described_without_events() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let config = place.file(
        "pod.json",
        r#"{"metadata": {"name": "web", "namespace": "shop", "uid": "u", "attempt": 0}, "labels": {"app": "web"}}"#,
    );
    let container = place.file(
        "container.json",
        r#"{"metadata": {"name": "main"}, "image": {"image": "crib.local/host"}, "command": ["sleep", "1000"]}"#,
    );
    let endpoint = ["--runtime-endpoint", &endpoint];
    let id = out(&place, &["runp", &config, endpoint[0], endpoint[1]]).await;
    let pull = ["pull", "crib.local/host", endpoint[0], endpoint[1]];
    out(&place, &pull).await;
    let create = ["create", id.trim(), &container, &config, endpoint[0], endpoint[1]];
    let created = out(&place, &create).await;
    out(&place, &["start", created.trim(), endpoint[0], endpoint[1]]).await;
    let container_id = format!("    Container ID:   {}", created.trim());
    for name in ["shop/web", id.trim()] {
        let text = out(&place, &["describe", name, endpoint[0], endpoint[1]]).await;
        for line in [
            "Name:         web",
            "Namespace:    shop",
            "Labels:       app=web",
            "Status:       Ready",
            "  main:",
            &container_id,
            "    State:          Running",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line}: {text}");
        }
        let last = text.lines().last().unwrap();
        let (key, value) = last.split_once(' ').unwrap();
        let unknown = "<unknown: only the agent of `crib run` keeps events>";
        assert_eq!((key, value.trim_start()), ("Events:", unknown));
    }
    runtime.stop().await;
}
