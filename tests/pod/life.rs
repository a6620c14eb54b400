//! The lifecycle of pods, from a manifest to its removal.

use cri::v1::ContainerState::{ContainerExited, ContainerRunning};
use harness::{Node, WAIT_LIMIT, eventually};

use crate::support::{FOREVER, container_in, containers, lines, manifest, no_pods, ready};

#[tokio::test]
async fn init_containers_run_in_order_before_others() {
    let node = Node::start().await.unwrap();
    let pod = manifest(
        "p",
        "Always",
        &[
            ("init-a", "sleep 0.3; echo a >> /shared/order"),
            ("init-b", "sleep 0.3; echo b >> /shared/order"),
            ("app", &format!("cat /shared/order; {FOREVER}")),
            ("other", &format!("cat /shared/order; {FOREVER}")),
        ],
    );
    node.write_manifest("p.yaml", &pod).unwrap();
    for name in ["app", "other"] {
        let container = ready(&node, "p", name).await;
        assert_eq!(lines(&node, &container).await, ["a", "b", "ready"]);
    }
    let names: Vec<(String, u32)> = containers(&node, "p")
        .await
        .into_iter()
        .map(|(name, attempt, _)| (name, attempt))
        .collect();
    assert_eq!(names[..2], [("init-a".to_owned(), 0), ("init-b".to_owned(), 0)]);
    assert_eq!(names.len(), 4, "{names:?}");
}

#[tokio::test]
async fn removed_manifest_stops_pod_gracefully() {
    let node = Node::start().await.unwrap();
    // The container records the SIGTERM in a directory that remains, because its log is removed with the pod.
    let reported = node.runtime.root().join("told");
    std::fs::create_dir(&reported).unwrap();
    let script =
        "trap 'touch /told/asked; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let pod = manifest("p", "Always", &[("app", script)])
        .replace(
            "volumes: [",
            &format!("volumes: [{{name: told, hostPath: {{path: {}}}}}, ", reported.display()),
        )
        .replace("volumeMounts: [", "volumeMounts: [{name: told, mountPath: /told}, ");
    node.write_manifest("p.yaml", &pod).unwrap();
    ready(&node, "p", "app").await;
    assert!(node.agent_root().join("pods").read_dir().unwrap().next().is_some());
    node.delete_manifest("p.yaml").unwrap();
    no_pods(&node).await;
    assert!(reported.join("asked").exists(), "it was not asked to end");
}

#[tokio::test]
async fn changed_manifest_recreates_pod() {
    let node = Node::start().await.unwrap();
    node.write_manifest("p.yaml", &manifest("p", "Always", &[("app", FOREVER)])).unwrap();
    let before = ready(&node, "p", "app").await;
    let changed = format!("echo changed; {FOREVER}");
    node.write_manifest("p.yaml", &manifest("p", "Always", &[("app", &changed)])).unwrap();
    eventually(WAIT_LIMIT, "the new container", || async {
        let all = containers(&node, "p").await;
        let new =
            all.iter().rev().find(|(_, _, c)| c.id != before.id && c.state() == ContainerRunning);
        match new {
            Some((_, _, container))
                if lines(&node, container).await.contains(&"changed".to_owned()) =>
            {
                Ok(())
            }
            _ => Err((all, node.agent_log())),
        }
    })
    .await;
}

#[tokio::test]
async fn invalid_manifest_does_not_affect_others() {
    let node = Node::start().await.unwrap();
    node.write_manifest(
        "bad.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: 7}\n",
    )
    .unwrap();
    node.write_manifest("worse.yaml", "{{{").unwrap();
    node.write_manifest("good.yaml", &manifest("good", "Always", &[("app", FOREVER)])).unwrap();
    ready(&node, "good", "app").await;
    eventually(WAIT_LIMIT, "the agent to name the bad one", || async {
        let log = node.agent_log();
        if log.contains("bad.yaml") && log.contains("worse.yaml") { Ok(()) } else { Err(log) }
    })
    .await;
    assert!(containers(&node, "bad").await.is_empty());
}

#[tokio::test]
async fn on_failure_policy_restarts_failed_containers_only() {
    let node = Node::start().await.unwrap();
    node.write_manifest("done.yaml", &manifest("done", "OnFailure", &[("app", "echo done")]))
        .unwrap();
    node.write_manifest(
        "fails.yaml",
        &manifest(
            "fails",
            "OnFailure",
            &[("app", "n=$(cat /shared/n || echo 0); echo $((n + 1)) > /shared/n; [ $n -ge 1 ]")],
        ),
    )
    .unwrap();
    node.write_manifest("never.yaml", &manifest("never", "Never", &[("app", "exit 3")])).unwrap();
    // The first restart has no back-off delay, and is sufficient here.
    eventually(WAIT_LIMIT, "the second attempt to succeed", || async {
        let all = containers(&node, "fails").await;
        let last = all.last().cloned();
        match last {
            Some((_, 1, container)) if container.state() == ContainerExited => {
                let status = node.runtime.client.container(&container.id).await.unwrap();
                assert_eq!(status.exit_code, 0);
                Ok(())
            }
            _ => Err((all, node.agent_log())),
        }
    })
    .await;
    for pod in ["done", "never"] {
        container_in(&node, pod, "app", ContainerExited).await;
        assert_eq!(containers(&node, pod).await.len(), 1, "{pod}");
    }
}

#[tokio::test]
async fn failed_pull_starts_no_container() {
    let node = Node::start().await.unwrap();
    let pod = manifest("p", "Always", &[("app", FOREVER), ("other", FOREVER)]);
    let pod = pod.replacen("crib.local/host", "crib.local/not/here:1", 1);
    node.write_manifest("p.yaml", &pod).unwrap();
    ready(&node, "p", "other").await;
    eventually(WAIT_LIMIT, "the agent to name the image", || async {
        let log = node.agent_log();
        if log.contains("crib.local/not/here:1") { Ok(()) } else { Err(log) }
    })
    .await;
    let names: Vec<String> =
        containers(&node, "p").await.into_iter().map(|(name, _, _)| name).collect();
    assert_eq!(names, ["other"]);
    node.delete_manifest("p.yaml").unwrap();
    no_pods(&node).await;
}

#[tokio::test]
async fn twenty_pods_start_concurrently() {
    let node = Node::start().await.unwrap();
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        let pod = manifest(
            name,
            "Never",
            &[("init", "hostname > /shared/name"), ("app", "cat /shared/name")],
        );
        node.write_manifest(&format!("{name}.yaml"), &pod).unwrap();
    }
    for name in &names {
        let app = container_in(&node, name, "app", ContainerExited).await;
        assert_eq!(lines(&node, &app).await, [name.as_str()]);
    }
    for name in &names {
        node.delete_manifest(&format!("{name}.yaml")).unwrap();
    }
    no_pods(&node).await;
}
