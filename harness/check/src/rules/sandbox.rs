//! Rules for the lifecycle of pod sandboxes: states, idempotence, codes, and a pod's hostname and DNS in its containers.

pub(crate) mod echo;
pub(crate) mod handlers;
pub(crate) mod killed_process;
pub(crate) mod names;
pub(crate) mod retries;

use crate::prelude::*;
use crate::rules::sandbox::echo::of_now;

/// An id that no runtime has assigned.
pub(crate) const UNKNOWN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-001": "When RunPodSandbox returns, PodSandboxStatus and ListPodSandbox report the sandbox as ready.",
        CRITEST, tags ["kubelet", "state"], calls [RunPodSandbox, PodSandboxStatus, ListPodSandbox],
        sandbox_is_ready_after_run given [pod], faults [
            "PodSandboxStatus set status.state \"SANDBOX_NOTREADY\"",
            "ListPodSandbox set items.state \"SANDBOX_NOTREADY\"",
            "ListPodSandbox drop items",
        ];
    Must "CRI-SBX-002": "After StopPodSandbox, PodSandboxStatus and ListPodSandbox still report the sandbox, with the state SANDBOX_NOTREADY.",
        CRITEST, tags ["kubelet", "state"], calls [StopPodSandbox, PodSandboxStatus, ListPodSandbox],
        sandbox_is_not_ready_after_stop given [pod], faults [
            "StopPodSandbox swallow",
            "ListPodSandbox if response items.state = \"SANDBOX_NOTREADY\" lose",
            "PodSandboxStatus set status.state \"SANDBOX_READY\"",
        ];
    Must "CRI-SBX-003": "StopPodSandbox of a stopped sandbox succeeds.",
        API, tags ["kubelet", "idempotence"], calls [StopPodSandbox],
        second_stop_of_sandbox_succeeds given [pod], faults [
            "StopPodSandbox after 1 answer NOT_FOUND",
            "StopPodSandbox after 1 hang",
        ];
    Must "CRI-SBX-004": "StopPodSandbox of an unknown sandbox succeeds.",
        CRITEST, tags ["kubelet", "idempotence"], calls [StopPodSandbox],
        stop_of_unknown_sandbox_succeeds, faults ["StopPodSandbox answer NOT_FOUND"];
    Must "CRI-SBX-005": "RemovePodSandbox of a removed or unknown sandbox succeeds.",
        API, tags ["kubelet", "idempotence"], calls [RemovePodSandbox],
        remove_of_unknown_sandbox_succeeds, faults [
            "RemovePodSandbox after 1 answer NOT_FOUND",
            "RemovePodSandbox answer INTERNAL",
        ];
    Must "CRI-SBX-006": "ListPodSandbox omits a removed sandbox, and PodSandboxStatus of a removed sandbox returns NOT_FOUND.",
        CRITEST, tags ["kubelet", "codes"], calls [RemovePodSandbox, PodSandboxStatus, ListPodSandbox],
        removed_sandbox_is_gone given [pod], faults [
            "RemovePodSandbox swallow",
            "PodSandboxStatus recode NOT_FOUND UNKNOWN",
        ];
    Must "CRI-SBX-007": "PodSandboxStatus of an unknown sandbox returns NOT_FOUND.",
        KUBELET, tags ["kubelet", "codes"], calls [PodSandboxStatus],
        status_of_unknown_sandbox_is_not_found, faults [
            "PodSandboxStatus recode NOT_FOUND INTERNAL",
            "PodSandboxStatus recode NOT_FOUND OK",
        ];
    Must "CRI-SBX-008": "StopPodSandbox stops the running containers of the sandbox.",
        API, tags ["kubelet", "state"], calls [StopPodSandbox, ContainerStatus],
        stopped_sandbox_ends_containers given [pod, container], faults [
            "StopPodSandbox swallow",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-SBX-009": "RemovePodSandbox removes the sandbox with its containers, even running ones.",
        API, tags ["kubelet", "state"], calls [RemovePodSandbox, ListContainers, ContainerStatus],
        removed_sandbox_removes_containers given [pod, container], faults [
            "RemovePodSandbox swallow",
            "RemovePodSandbox answer FAILED_PRECONDITION",
        ];
    Must "CRI-SBX-010": "CreateContainer in a stopped sandbox is refused.",
        KUBELET, tags ["kubelet", "state"], calls [CreateContainer],
        stopped_sandbox_takes_no_container given [pod], faults ["CreateContainer swallow"];
    Must "CRI-SBX-014": "RunPodSandbox without metadata is refused, and the runtime keeps serving.",
        CONTAINERD, tags ["input"], calls [RunPodSandbox],
        sandbox_without_metadata_is_refused, faults [
            "RunPodSandbox request set config.metadata {\"name\": \"a\", \"uid\": \"b\", \"namespace\": \"c\"}",
            "Version answer UNAVAILABLE",
        ];
    Must "CRI-SBX-015": "RunPodSandbox with an unknown runtime handler is refused.",
        API, tags ["input"], calls [RunPodSandbox],
        unknown_runtime_handler_is_refused, faults ["RunPodSandbox request drop runtime_handler"];
    Must "CRI-SBX-016": "PodSandboxStatus reports an IP address, neither unspecified nor loopback, for each ready sandbox with its own network namespace; the kubelet recreates a sandbox without an address.",
        KUBELET, tags ["kubelet", "network"], calls [PodSandboxStatus],
        pod_network_has_address given [namespaces, pod], faults [
            "PodSandboxStatus drop status.network",
            "PodSandboxStatus set status.network.ip \"none\"",
            "PodSandboxStatus set status.network.ip \"0.0.0.0\"",
            "PodSandboxStatus set status.network.ip \"127.0.0.1\"",
            "PodSandboxStatus set status.network.additional_ips [{\"ip\": \"::\"}]",
        ];
    Must "CRI-SBX-017": "Containers have the pod's hostname.",
        CRITEST, tags ["namespaces"], calls [RunPodSandbox],
        containers_see_hostname given [namespaces], faults ["RunPodSandbox request set config.hostname \"other\""];
    Must "CRI-SBX-018": "A container's /etc/resolv.conf has the pod's DNS servers, search domains and options in the configured order, and no entry of the host.",
        CRITEST, tags ["network"], calls [RunPodSandbox],
        containers_see_dns_config given [namespaces], faults [
            "RunPodSandbox request drop config.dns_config",
            "RunPodSandbox request drop config.dns_config.searches",
            "RunPodSandbox request drop config.dns_config.options",
            "RunPodSandbox request set config.dns_config.options [\"ndots:7\"]",
            "RunPodSandbox request set config.dns_config.servers [\"192.0.2.53\"]",
            "RunPodSandbox request set config.dns_config.servers [\"192.0.2.54\", \"192.0.2.53\"]",
        ];
    Should "CRI-SBX-019": "A container's command is process 1 if the container has its own PID namespace, but not if the containers of the pod share a PID namespace.",
        CRITEST, tags ["namespaces"], calls [CreateContainer],
        container_has_process_namespace given [namespaces], faults [
            "CreateContainer request set config.linux.security_context.namespace_options.pid \"NODE\"",
        ];
    Should "CRI-SBX-020": "PodSandboxStatus includes the container statuses and a current timestamp, which a kubelet with evented PLEG reads.",
        KUBELET, tags ["kubelet", "evented-pleg"], calls [PodSandboxStatus],
        status_carries_container_statuses, faults [
            "PodSandboxStatus drop containers_statuses",
            "PodSandboxStatus drop timestamp",
            "PodSandboxStatus set timestamp 1800000000",
        ];
};

async fn sandbox_is_ready_after_run(x: &Context, pod: Pod) -> Verdict {
    ensure(!pod.id.is_empty(), "the id", "not empty", &pod.id)?;
    x.pod_is(&pod.id, PodSandboxState::SandboxReady).await
}

async fn sandbox_is_not_ready_after_stop(x: &Context, pod: Pod) -> Verdict {
    x.client.stop_pod(&pod.id).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await
}

async fn second_stop_of_sandbox_succeeds(x: &Context, pod: Pod) -> Verdict {
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

async fn removed_sandbox_is_gone(x: &Context, pod: Pod) -> Verdict {
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    equal("the removed sandbox in the list", &x.listed_pod(&pod.id).await?, &None)?;
    let answer = x.client.pod(&pod.id).await;
    refused_with("PodSandboxStatus of a removed sandbox", answer, Code::NotFound)
}

async fn status_of_unknown_sandbox_is_not_found(x: &Context) -> Verdict {
    let answer = x.client.pod(UNKNOWN).await;
    refused_with("PodSandboxStatus of an unknown sandbox", answer, Code::NotFound)
}

async fn stopped_sandbox_ends_containers(x: &Context, pod: Pod, id: String) -> Verdict {
    x.client.stop_pod(&pod.id).await?;
    x.container_is(&id, ContainerState::ContainerExited).await
}

async fn removed_sandbox_removes_containers(x: &Context, pod: Pod, id: String) -> Verdict {
    x.client.remove_pod(&pod.id).await?;
    equal("the removed sandbox in the list", &x.listed_pod(&pod.id).await?, &None)?;
    equal("its container in the list", &x.listed_container(&id).await?, &None)?;
    let answer = x.client.container(&id).await;
    refused_with("ContainerStatus of its container", answer, Code::NotFound)
}

async fn stopped_sandbox_takes_no_container(x: &Context, pod: Pod) -> Verdict {
    x.client.stop_pod(&pod.id).await?;
    let answer = pod.create(x.forever("c")).await;
    refused("CreateContainer in a stopped sandbox", answer).map(drop)
}

async fn sandbox_without_metadata_is_refused(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.metadata = None;
    refused("RunPodSandbox without metadata", x.client.run_pod(config).await)?;
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

async fn pod_network_has_address(x: &Context, pod: Pod) -> Verdict {
    let status = x.pod_status(&pod.id).await?;
    let network = status.network.unwrap_or_default();
    let more = network.additional_ips.iter().map(|one| &one.ip);
    for ip in [&network.ip].into_iter().chain(more) {
        let parsed = ip.parse::<std::net::IpAddr>();
        let reached = parsed.is_ok_and(|ip| !ip.is_unspecified() && !ip.is_loopback());
        ensure(reached, "an address of the pod", "neither unspecified nor loopback", ip)?;
    }
    Ok(())
}

async fn containers_see_hostname(x: &Context) -> Verdict {
    // The kubelet sends the FQDN of pods with setHostnameAsFQDN.
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
    let mut config = x.sandbox();
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["192.0.2.53".to_owned(), "192.0.2.54".to_owned()],
        searches: vec!["a.example".to_owned(), "b.example".to_owned()],
        options: vec!["ndots:7".to_owned(), "timeout:3".to_owned()],
    });
    let pod = x.pod_of(config).await?;
    let text = x.output_in(&pod, x.script("c", "cat /etc/resolv.conf")).await?;
    for line in [
        "nameserver 192.0.2.53",
        "nameserver 192.0.2.54",
        "search a.example b.example",
        "options ndots:7 timeout:3",
    ] {
        let found = text.lines().any(|have| have.trim() == line);
        ensure(found, "/etc/resolv.conf", &format!("the line {line:?}"), &text)?;
    }
    config_of_client_alone(x).await?;
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver "));
    let what = "nameservers in /etc/resolv.conf";
    equal(what, &servers.collect::<Vec<_>>(), &vec!["192.0.2.53", "192.0.2.54"])
}

/// If only searches are configured, as dnsPolicy None allows, nothing from the host's /etc/resolv.conf is added.
async fn config_of_client_alone(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.dns_config =
        Some(v1::DnsConfig { searches: vec!["alone.example".to_owned()], ..Default::default() });
    let pod = x.pod_of(config).await?;
    let script = x.script("c", "cat /etc/resolv.conf");
    let text = x.output_in(&pod, script).await?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    equal("/etc/resolv.conf", &lines, &vec!["search alone.example"])
}

async fn container_has_process_namespace(x: &Context) -> Verdict {
    let output = x.output(x.script("c", "echo $$")).await?;
    equal("the process id of the command in its own namespace", output.trim(), "1")?;
    let mut config = x.sandbox();
    harness::fixture::pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    let pod = x.pod_of(config).await?;
    let mut container = x.script("c", "echo $$");
    let security = harness::fixture::security(&mut container);
    security.namespace_options.get_or_insert_default().pid = NamespaceMode::Pod.into();
    let output = x.output_in(&pod, container).await?;
    let what = "the process id of the command in the pod's namespace";
    ensure(output.trim() != "1", what, "not 1", output)
}

async fn status_carries_container_statuses(x: &Context) -> Verdict {
    let pod: Pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let answer = x.client.pod(&pod.id).await?;
    let ids: Vec<&String> = answer.containers_statuses.iter().map(|status| &status.id).collect();
    equal("containers_statuses", &ids, &vec![&id])?;
    of_now("timestamp", answer.timestamp)
}
