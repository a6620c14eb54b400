//! Manifests, and queries of the runtime for their pods.

use std::collections::HashMap;

use cri::v1::{Container, ContainerFilter, ContainerState, PodSandboxFilter};
use harness::{Node, WAIT_LIMIT, cri_log, eventually};

/// A pod with the given containers, each a name and a shell script; names that begin with `init` are init containers. All share an
/// emptyDir at /shared.
pub(crate) fn manifest(name: &str, policy: &str, containers: &[(&str, &str)]) -> String {
    let list = |init: bool| {
        let chosen = containers.iter().filter(|(name, _)| name.starts_with("init") == init);
        chosen
            .map(|(name, script)| {
                format!(
                    "  - name: {name}\n    image: crib.local/host\n    command: [sh, -c, {script:?}]\n    \
                     volumeMounts: [{{name: shared, mountPath: /shared}}]\n"
                )
            })
            .collect::<String>()
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: {policy}\n  \
         terminationGracePeriodSeconds: 600\n  volumes: [{{name: shared, emptyDir: {{}}}}]\n  initContainers:\n{}  \
         containers:\n{}",
        list(true),
        list(false)
    )
    .replace("  initContainers:\n  containers:", "  containers:")
}

/// A script that runs until SIGTERM.
pub(crate) const FOREVER: &str =
    "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done";

/// The containers of a pod in order of creation, with their names and attempts.
pub(crate) async fn containers(node: &Node, pod: &str) -> Vec<(String, u32, Container)> {
    let filter = ContainerFilter {
        label_selector: HashMap::from([("io.kubernetes.pod.name".to_owned(), pod.to_owned())]),
        ..Default::default()
    };
    let mut listed = node.runtime.client.containers(filter).await.unwrap_or_default();
    listed.sort_by_key(|container| container.created_at);
    let named = listed.into_iter().map(|container| {
        let metadata = container.metadata.clone().unwrap();
        (metadata.name, metadata.attempt, container)
    });
    named.collect()
}

/// Waits until a container of a pod is in a state, and returns it.
pub(crate) async fn container_in(
    node: &Node,
    pod: &str,
    name: &str,
    state: ContainerState,
) -> Container {
    eventually(WAIT_LIMIT, &format!("{pod}/{name} to be {state:?}"), || async {
        let all = containers(node, pod).await;
        let found =
            all.iter().rev().find(|(n, _, container)| n == name && container.state() == state);
        match found {
            Some((_, _, container)) => Ok(container.clone()),
            None => Err((all, node.agent_log())),
        }
    })
    .await
}

/// Waits for a line in a container's log.
pub(crate) async fn line(node: &Node, container: &Container, text: &str) {
    eventually(WAIT_LIMIT, &format!("the line {text:?}"), || async {
        let lines = lines(node, container).await;
        if lines.iter().any(|line| line == text) { Ok(()) } else { Err(lines) }
    })
    .await;
}

/// The lines of a container's log.
pub(crate) async fn lines(node: &Node, container: &Container) -> Vec<String> {
    let status = node.runtime.client.container(&container.id).await.unwrap();
    let lines = cri_log::lines(&std::fs::read(&status.log_path).unwrap_or_default());
    lines.into_iter().map(|line| line.text).collect()
}

/// Waits until neither the runtime nor the agent has anything left of any pod.
pub(crate) async fn no_pods(node: &Node) {
    eventually(WAIT_LIMIT, "every pod to be gone", || async {
        let pods = node.runtime.client.pods(PodSandboxFilter::default()).await.unwrap();
        let directories: Vec<_> = std::fs::read_dir(node.agent_root().join("pods"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        if pods.is_empty() && directories.is_empty() {
            Ok(())
        } else {
            Err((pods, directories, node.agent_log()))
        }
    })
    .await;
}

/// Waits until the container `name` of a pod runs [`FOREVER`] and handles SIGTERM: the first process of a PID namespace ignores
/// signals without a handler.
pub(crate) async fn ready(node: &Node, pod: &str, name: &str) -> Container {
    let container = container_in(node, pod, name, ContainerState::ContainerRunning).await;
    line(node, &container, "ready").await;
    container
}
