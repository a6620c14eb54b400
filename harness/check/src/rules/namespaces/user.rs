//! Rules for pods with their own user namespace.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-NSP-020": "User and group ids of a pod with a user namespace are mapped as configured, for containers and for ExecSync commands; Status reports the feature user_namespaces.",
        CRITEST, tags ["kubelet", "namespaces", "user-namespaces"], calls [RunPodSandbox, CreateContainer, ExecSync, Status],
        ids_are_mapped, faults [
            "RunPodSandbox request drop config.linux.security_context.namespace_options.userns_options",
            "RunPodSandbox request set config.linux.security_context.namespace_options.userns_options.uids.host_id 4000",
            "RunPodSandbox request set config.linux.security_context.namespace_options.userns_options.gids.length 10",
            "Status set runtime_handlers.features.user_namespaces false",
        ];
    Should "CRI-NSP-021": "Containers of a pod with its own user namespace share this namespace, and containers of other pods are not in it.",
        KUBELET, tags ["kubelet", "namespaces", "user-namespaces"], calls [RunPodSandbox, CreateContainer, Status],
        user_namespace_is_of_pod, faults [
            "RunPodSandbox request drop config.linux.security_context.namespace_options.userns_options",
        ];
    Should "CRI-NSP-022": "RunPodSandbox refuses a user namespace that has several mappings, whose mapping omits the container id 0, or whose mode is neither POD nor NODE.",
        CRITEST, tags ["kubelet", "namespaces", "user-namespaces", "input"], calls [RunPodSandbox, Status],
        other_mappings_are_refused, faults [
            "RunPodSandbox request drop config.linux.security_context.namespace_options.userns_options",
            "RunPodSandbox request set config.linux.security_context.namespace_options.userns_options.mode \"NODE\"",
        ];
    Should "CRI-NSP-023": "PodSandboxStatus reports the mode and the mappings of a pod's user namespace.",
        KUBELET, tags ["kubelet", "namespaces", "user-namespaces", "echo"], calls [RunPodSandbox, PodSandboxStatus, Status],
        mapping_is_echoed, faults [
            "PodSandboxStatus drop status.linux.namespaces.options.userns_options",
            "PodSandboxStatus drop status.linux.namespaces.options.userns_options.gids",
            "PodSandboxStatus set status.linux.namespaces.options.userns_options.uids.host_id 1",
        ];
};

/// Container id, host id and length, within the subordinate ids of a rootless runtime.
type Mapping = (u32, u32, u32);
pub(crate) const IDS: Mapping = (0, 2000, 60_000);

/// Whether Status reports support for user namespaces; `None` if it lists no default handler.
async fn user_namespaces(x: &Context) -> Verdict<Option<bool>> {
    x.needs_user_namespaces()?;
    let handlers = x.client.status().await?.runtime_handlers;
    let default = handlers.iter().find(|handler| handler.name.is_empty());
    let features = default.map(|handler| handler.features.unwrap_or_default());
    Ok(features.map(|features| features.user_namespaces))
}

fn no_user_namespaces() -> Outcome {
    Outcome::Unsupported("the default runtime handler has no user namespaces".to_owned())
}

/// Ends the rule if Status does not report support for user namespaces.
pub(crate) async fn needs_user_namespaces(x: &Context) -> Verdict {
    match user_namespaces(x).await? {
        Some(true) => Ok(()),
        Some(false) | None => Err(no_user_namespaces()),
    }
}

fn user_namespace(mode: NamespaceMode, mappings: &[Mapping]) -> v1::UserNamespace {
    let mapping = |&(container_id, host_id, length): &Mapping| v1::IdMapping {
        host_id,
        container_id,
        length,
    };
    let ids: Vec<_> = mappings.iter().map(mapping).collect();
    v1::UserNamespace { mode: mode.into(), uids: ids.clone(), gids: ids }
}

fn sandbox(x: &Context, users: v1::UserNamespace) -> v1::PodSandboxConfig {
    let mut config = x.sandbox();
    fixture::pod_namespaces(&mut config).userns_options = Some(users);
    config
}

/// Runs a pod with its own user namespace.
pub(crate) async fn mapped(x: &Context, mapping: Mapping) -> Verdict<Pod> {
    x.pod_of(sandbox(x, user_namespace(NamespaceMode::Pod, &[mapping]))).await
}

/// Gives a container the namespaces of its pod, as the kubelet does.
pub(crate) fn of_pod(pod: &Pod, mut config: v1::ContainerConfig) -> v1::ContainerConfig {
    let linux = pod.config.linux.clone().unwrap_or_default();
    fixture::security(&mut config).namespace_options =
        linux.security_context.unwrap_or_default().namespace_options;
    config
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn ids_are_mapped(x: &Context) -> Verdict {
    match user_namespaces(x).await? {
        Some(true) => maps_ids(x).await,
        None => Err(no_user_namespaces()),
        // The kubelet refuses pods that need a feature missing in Status.
        Some(false) => match maps_ids(x).await {
            Ok(()) => failed("user_namespaces in Status", "true", "false"),
            Err(skipped @ Outcome::Skipped(_)) => Err(skipped),
            Err(_) => Err(no_user_namespaces()),
        },
    }
}

async fn maps_ids(x: &Context) -> Verdict {
    let pod = mapped(x, IDS).await?;
    let look = "cat /proc/self/uid_map /proc/self/gid_map; id -u; id -g";
    let (inside, outside, length) = IDS;
    let expected = format!("{inside} {outside} {length} {inside} {outside} {length} 0 0");
    let of_container = x.output_in(&pod, of_pod(&pod, x.script("c", look))).await?;
    equal("the ids of a container", &words(&of_container), &expected)?;
    let id = pod.start(of_pod(&pod, x.forever("d"))).await?;
    let of_command = x.client.sh(&id, look).await?;
    equal("the ids of a command of ExecSync", &words(&of_command), &expected)
}

async fn user_namespace_is_of_pod(x: &Context) -> Verdict {
    needs_user_namespaces(x).await?;
    let look = "readlink /proc/self/ns/user";
    let (_, outside, length) = IDS;
    let half = length / 2;
    let first = mapped(x, (0, outside, half)).await?;
    let second = mapped(x, (0, outside + half, half)).await?;
    let plain = x.pod().await?;
    let node = x.pod_of(sandbox(x, user_namespace(NamespaceMode::Node, &[]))).await?;
    let mut seen = Vec::new();
    for pod in [&first, &second, &plain, &node] {
        seen.push(x.output_in(pod, of_pod(pod, x.script("c", look))).await?);
    }
    let id = first.start(of_pod(&first, x.forever("d"))).await?;
    let again = x.client.sh(&id, look).await?;
    let [first, second, plain, node] = seen.as_slice() else {
        return Ok(());
    };
    equal("the user namespace of another container of the pod", &again, first)?;
    equal("the user namespace of a pod in mode NODE", node, plain)?;
    let apart = first != second && first != plain && second != plain;
    ensure(apart, "the user namespaces of two pods and of one without", "to differ", &seen)
}

async fn other_mappings_are_refused(x: &Context) -> Verdict {
    needs_user_namespaces(x).await?;
    let cases: [(&str, NamespaceMode, &[Mapping]); 4] = [
        ("two mappings", NamespaceMode::Pod, &[(0, 2000, 10), (10, 3000, 10)]),
        ("a mapping without the id 0", NamespaceMode::Pod, &[(1, 2000, 10)]),
        ("the mode CONTAINER", NamespaceMode::Container, &[IDS]),
        ("the mode TARGET", NamespaceMode::Target, &[IDS]),
    ];
    for (what, mode, mappings) in cases {
        let answer = x.client.run_pod(sandbox(x, user_namespace(mode, mappings))).await;
        refused(&format!("RunPodSandbox with {what}"), answer)?;
    }
    Ok(())
}

async fn mapping_is_echoed(x: &Context) -> Verdict {
    needs_user_namespaces(x).await?;
    let pod = mapped(x, IDS).await?;
    let linux = x.pod_status(&pod.id).await?.linux.unwrap_or_default();
    let options = linux.namespaces.unwrap_or_default().options.unwrap_or_default();
    let what = "userns_options in PodSandboxStatus";
    equal(what, &options.userns_options, &Some(user_namespace(NamespaceMode::Pod, &[IDS])))
}
