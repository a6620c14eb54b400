//! Rules of the life of pod sandboxes: states, idempotence, codes, and what a pod gives its containers.

use cri::v1;
use cri::v1::{ContainerState, NamespaceMode, PodSandboxState};
use tonic::Code;

use super::sandbox_echo::of_now;
use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, refused, refused_with};
use crate::check::rule::sources::{API, CONTAINERD, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::pod::Pod;

/// An id that no runtime has given.
pub(super) const UNKNOWN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-SBX-001",
        severity: Severity::Must,
        says: "A pod sandbox is ready when RunPodSandbox returns, in its status and in the list.",
        source: CRITEST,
        tags: &["kubelet", "state"],
        calls: &["RunPodSandbox", "PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "PodSandboxStatus set status.state \"SANDBOX_NOTREADY\"",
            "ListPodSandbox set items.state \"SANDBOX_NOTREADY\"",
            "ListPodSandbox drop items",
        ],
        body: |x| Box::pin(sandbox_is_ready_after_run(x)),
    },
    Rule {
        id: "CRI-SBX-002",
        severity: Severity::Must,
        says: "A sandbox is not ready after StopPodSandbox, and its status and its place in the list stay.",
        source: CRITEST,
        tags: &["kubelet", "state"],
        calls: &["StopPodSandbox", "PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "StopPodSandbox swallow",
            "ListPodSandbox if response items.state = \"SANDBOX_NOTREADY\" lose",
            "PodSandboxStatus set status.state \"SANDBOX_READY\"",
        ],
        body: |x| Box::pin(sandbox_is_not_ready_after_stop(x)),
    },
    Rule {
        id: "CRI-SBX-003",
        severity: Severity::Must,
        says: "StopPodSandbox of a stopped sandbox succeeds.",
        source: API,
        tags: &["kubelet", "idempotence"],
        calls: &["StopPodSandbox"],
        faults: &[
            "StopPodSandbox after 1 answer NOT_FOUND",
            "StopPodSandbox after 1 hang",
        ],
        body: |x| Box::pin(second_stop_of_sandbox_succeeds(x)),
    },
    Rule {
        id: "CRI-SBX-004",
        severity: Severity::Must,
        says: "StopPodSandbox of a sandbox that is gone, or never was, succeeds.",
        source: CRITEST,
        tags: &["kubelet", "idempotence"],
        calls: &["StopPodSandbox"],
        faults: &["StopPodSandbox answer NOT_FOUND"],
        body: |x| Box::pin(stop_of_unknown_sandbox_succeeds(x)),
    },
    Rule {
        id: "CRI-SBX-005",
        severity: Severity::Must,
        says: "RemovePodSandbox of a sandbox that is gone, or never was, succeeds.",
        source: API,
        tags: &["kubelet", "idempotence"],
        calls: &["RemovePodSandbox"],
        faults: &[
            "RemovePodSandbox after 1 answer NOT_FOUND",
            "RemovePodSandbox answer INTERNAL",
        ],
        body: |x| Box::pin(remove_of_unknown_sandbox_succeeds(x)),
    },
    Rule {
        id: "CRI-SBX-006",
        severity: Severity::Must,
        says: "A removed sandbox is in no list, and its status is NOT_FOUND.",
        source: CRITEST,
        tags: &["kubelet", "codes"],
        calls: &["RemovePodSandbox", "PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "RemovePodSandbox swallow",
            "PodSandboxStatus recode NOT_FOUND UNKNOWN",
        ],
        body: |x| Box::pin(removed_sandbox_is_gone(x)),
    },
    Rule {
        id: "CRI-SBX-007",
        severity: Severity::Must,
        says: "PodSandboxStatus of an unknown sandbox is NOT_FOUND.",
        source: KUBELET,
        tags: &["kubelet", "codes"],
        calls: &["PodSandboxStatus"],
        faults: &[
            "PodSandboxStatus recode NOT_FOUND INTERNAL",
            "PodSandboxStatus recode NOT_FOUND OK",
        ],
        body: |x| Box::pin(status_of_unknown_sandbox_is_not_found(x)),
    },
    Rule {
        id: "CRI-SBX-008",
        severity: Severity::Must,
        says: "StopPodSandbox ends the containers that run in the sandbox.",
        source: API,
        tags: &["kubelet", "state"],
        calls: &["StopPodSandbox", "ContainerStatus"],
        faults: &[
            "StopPodSandbox swallow",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
        ],
        body: |x| Box::pin(stopped_sandbox_ends_containers(x)),
    },
    Rule {
        id: "CRI-SBX-009",
        severity: Severity::Must,
        says: "RemovePodSandbox removes the sandbox's containers with it, also while they run.",
        source: API,
        tags: &["kubelet", "state"],
        calls: &["RemovePodSandbox", "ListContainers", "ContainerStatus"],
        faults: &[
            "RemovePodSandbox swallow",
            "RemovePodSandbox answer FAILED_PRECONDITION",
        ],
        body: |x| Box::pin(removed_sandbox_removes_containers(x)),
    },
    Rule {
        id: "CRI-SBX-010",
        severity: Severity::Must,
        says: "No container is created in a stopped sandbox.",
        source: KUBELET,
        tags: &["kubelet", "state"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer swallow"],
        body: |x| Box::pin(stopped_sandbox_takes_no_container(x)),
    },
    Rule {
        id: "CRI-SBX-014",
        severity: Severity::Must,
        says: "RunPodSandbox without metadata is refused, and the runtime goes on serving.",
        source: CONTAINERD,
        tags: &["input"],
        calls: &["RunPodSandbox"],
        faults: &[
            "RunPodSandbox request set config.metadata {\"name\": \"a\", \"uid\": \"b\", \"namespace\": \"c\"}",
            "Version answer UNAVAILABLE",
        ],
        body: |x| Box::pin(sandbox_without_metadata_is_refused(x)),
    },
    Rule {
        id: "CRI-SBX-015",
        severity: Severity::Must,
        says: "RunPodSandbox with a runtime handler that is not configured is refused.",
        source: API,
        tags: &["input"],
        calls: &["RunPodSandbox"],
        faults: &["RunPodSandbox request drop runtime_handler"],
        body: |x| Box::pin(unknown_runtime_handler_is_refused(x)),
    },
    Rule {
        id: "CRI-SBX-016",
        severity: Severity::Must,
        says: "The status of a ready sandbox with a network of its own has an address; a kubelet makes the sandbox anew otherwise.",
        source: KUBELET,
        tags: &["kubelet", "network"],
        calls: &["PodSandboxStatus"],
        faults: &[
            "PodSandboxStatus drop status.network",
            "PodSandboxStatus set status.network.ip \"none\"",
        ],
        body: |x| Box::pin(pod_network_has_address(x)),
    },
    Rule {
        id: "CRI-SBX-017",
        severity: Severity::Must,
        says: "Containers of a pod see its hostname.",
        source: CRITEST,
        tags: &["namespaces"],
        calls: &["RunPodSandbox"],
        faults: &["RunPodSandbox request set config.hostname \"other\""],
        body: |x| Box::pin(containers_see_hostname(x)),
    },
    Rule {
        id: "CRI-SBX-018",
        severity: Severity::Must,
        says: "The pod's DNS servers, searches and options are in its containers' /etc/resolv.conf, in their order.",
        source: CRITEST,
        tags: &["network"],
        calls: &["RunPodSandbox"],
        faults: &[
            "RunPodSandbox request drop config.dns_config",
            "RunPodSandbox request drop config.dns_config.searches",
            "RunPodSandbox request drop config.dns_config.options",
            "RunPodSandbox request set config.dns_config.options [\"ndots:7\"]",
            "RunPodSandbox request set config.dns_config.servers [\"192.0.2.53\"]",
            "RunPodSandbox request set config.dns_config.servers [\"192.0.2.54\", \"192.0.2.53\"]",
        ],
        body: |x| Box::pin(containers_see_dns_config(x)),
    },
    Rule {
        id: "CRI-SBX-019",
        severity: Severity::Should,
        says: "Containers of a pod with one process namespace see each other; otherwise a container's command is process 1.",
        source: CRITEST,
        tags: &["namespaces"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.linux.security_context.namespace_options.pid \"NODE\"",
        ],
        body: |x| Box::pin(container_has_process_namespace(x)),
    },
    Rule {
        id: "CRI-SBX-020",
        severity: Severity::Should,
        says: "PodSandboxStatus carries the statuses of the pod's containers and their time, which a kubelet with evented PLEG reads.",
        source: KUBELET,
        tags: &["kubelet", "evented-pleg"],
        calls: &["PodSandboxStatus"],
        faults: &[
            "PodSandboxStatus drop containers_statuses",
            "PodSandboxStatus drop timestamp",
            "PodSandboxStatus set timestamp 1800000000",
        ],
        body: |x| Box::pin(status_carries_container_statuses(x)),
    },
];

async fn sandbox_is_ready_after_run(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    ensure(!pod.id.is_empty(), "the id", "not empty", &pod.id)?;
    x.pod_is(&pod.id, PodSandboxState::SandboxReady).await
}

async fn sandbox_is_not_ready_after_stop(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    x.client.stop_pod(&pod.id).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await
}

async fn second_stop_of_sandbox_succeeds(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    x.client.stop_pod(&pod.id).await?;
    Ok(x.client.stop_pod(&pod.id).await?)
}

async fn stop_of_unknown_sandbox_succeeds(x: &Context) -> Verdict {
    Ok(x.client.stop_pod(UNKNOWN).await?)
}

async fn remove_of_unknown_sandbox_succeeds(x: &Context) -> Verdict {
    x.client.remove_pod(UNKNOWN).await?;
    let pod = x.pod().await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    Ok(x.client.remove_pod(&pod.id).await?)
}

async fn removed_sandbox_is_gone(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    equal(
        "the removed sandbox in the list",
        &x.listed_pod(&pod.id).await?,
        &None,
    )?;
    let answer = x.client.pod(&pod.id).await;
    refused_with(
        "PodSandboxStatus of a removed sandbox",
        answer,
        Code::NotFound,
    )
}

async fn status_of_unknown_sandbox_is_not_found(x: &Context) -> Verdict {
    let answer = x.client.pod(UNKNOWN).await;
    refused_with(
        "PodSandboxStatus of an unknown sandbox",
        answer,
        Code::NotFound,
    )
}

async fn stopped_sandbox_ends_containers(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    x.client.stop_pod(&pod.id).await?;
    x.container_is(&id, ContainerState::ContainerExited).await
}

async fn removed_sandbox_removes_containers(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    x.client.remove_pod(&pod.id).await?;
    equal(
        "the removed sandbox in the list",
        &x.listed_pod(&pod.id).await?,
        &None,
    )?;
    equal(
        "its container in the list",
        &x.listed_container(&id).await?,
        &None,
    )?;
    let answer = x.client.container(&id).await;
    refused_with("ContainerStatus of its container", answer, Code::NotFound)
}

async fn stopped_sandbox_takes_no_container(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    x.client.stop_pod(&pod.id).await?;
    let answer = pod.create(x.forever("c")).await;
    refused("CreateContainer in a stopped sandbox", answer).map(drop)
}

async fn sandbox_without_metadata_is_refused(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.metadata = None;
    refused(
        "RunPodSandbox without metadata",
        x.client.run_pod(config).await,
    )?;
    x.client.version().await?;
    Ok(())
}

async fn unknown_runtime_handler_is_refused(x: &Context) -> Verdict {
    let request = v1::RunPodSandboxRequest {
        config: Some(x.sandbox()),
        runtime_handler: "no-such-handler".to_owned(),
    };
    let answer = x.client.runtime.clone().run_pod_sandbox(request).await;
    refused("RunPodSandbox with an unknown handler", answer).map(drop)
}

async fn pod_network_has_address(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let status = x.pod_status(&pod.id).await?;
    let ip = status.network.unwrap_or_default().ip;
    let parsed = ip.parse::<std::net::IpAddr>().is_ok();
    ensure(parsed, "network.ip", "an address", ip)
}

async fn containers_see_hostname(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    // A kubelet gives the whole name of pods with setHostnameAsFQDN.
    for hostname in ["checked", "checked.example.org"] {
        let mut config = x.sandbox();
        hostname.clone_into(&mut config.hostname);
        let pod = x.pod_of(config).await?;
        let script = x.script("c", "cat /proc/sys/kernel/hostname");
        let output = x.output_in(&pod, script).await?;
        equal("the hostname in a container", output.trim(), hostname)?;
    }
    Ok(())
}

async fn containers_see_dns_config(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut config = x.sandbox();
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["192.0.2.53".to_owned(), "192.0.2.54".to_owned()],
        searches: vec!["a.example".to_owned(), "b.example".to_owned()],
        options: vec!["ndots:7".to_owned(), "timeout:3".to_owned()],
    });
    let pod = x.pod_of(config).await?;
    let text = x
        .output_in(&pod, x.script("c", "cat /etc/resolv.conf"))
        .await?;
    for line in [
        "nameserver 192.0.2.53",
        "nameserver 192.0.2.54",
        "search a.example b.example",
        "options ndots:7 timeout:3",
    ] {
        let found = text.lines().any(|have| have.trim() == line);
        ensure(
            found,
            "/etc/resolv.conf",
            &format!("the line {line:?}"),
            &text,
        )?;
    }
    config_of_client_alone(x).await?;
    let servers = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver "));
    equal(
        "nameservers in /etc/resolv.conf",
        &servers.collect::<Vec<_>>(),
        &vec!["192.0.2.53", "192.0.2.54"],
    )
}

/// With searches alone, as pods with the DNS policy None may have them, nothing of the host's is added.
async fn config_of_client_alone(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.dns_config = Some(v1::DnsConfig {
        searches: vec!["alone.example".to_owned()],
        ..Default::default()
    });
    let pod = x.pod_of(config).await?;
    let script = x.script("c", "cat /etc/resolv.conf");
    let text = x.output_in(&pod, script).await?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    equal("/etc/resolv.conf", &lines, &vec!["search alone.example"])
}

async fn container_has_process_namespace(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let output = x.output(x.script("c", "echo $$")).await?;
    equal(
        "the process id of the command in its own namespace",
        output.trim(),
        "1",
    )?;
    let mut config = x.sandbox();
    crate::fixture::pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    let pod = x.pod_of(config).await?;
    let mut container = x.script("c", "echo $$");
    let security = crate::fixture::security(&mut container);
    security.namespace_options.get_or_insert_default().pid = NamespaceMode::Pod.into();
    let output = x.output_in(&pod, container).await?;
    ensure(
        output.trim() != "1",
        "the process id of the command in the pod's namespace",
        "not 1",
        output,
    )
}

async fn status_carries_container_statuses(x: &Context) -> Verdict {
    let pod: Pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let answer = x.client.pod(&pod.id).await?;
    let ids: Vec<&String> = answer
        .containers_statuses
        .iter()
        .map(|status| &status.id)
        .collect();
    equal("containers_statuses", &ids, &vec![&id])?;
    of_now("timestamp", answer.timestamp)
}
