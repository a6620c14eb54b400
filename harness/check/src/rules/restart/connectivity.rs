//! Rules for running pods after a runtime restart: host ports, port forwarding, resource updates, commands and OOM kills.

use std::net::Ipv4Addr;

use harness::streaming::Transport;
use tokio::io::AsyncReadExt as _;

use crate::prelude::*;
use crate::rules::limits::{MIB, memory_limit, with};
use crate::rules::network::host_port::with_port;
use crate::rules::network::{PORT, response_on_host, serve};
use crate::rules::security::{confined, rights};
use crate::rules::stream::port_forward::ports;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-RST-017": "A host port still forwards to its pod after a runtime restart.",
        KUBELET, tags ["kubelet", "network", RESTART], calls [RunPodSandbox],
        host_port_stays given [restart], faults ["RunPodSandbox request drop config.port_mappings"];
    Must "CRI-RST-018": "After a runtime restart, PortForward reaches a pod that was started before the restart.",
        KUBELET, tags ["kubelet", "stream", RESTART], calls [PortForward],
        ports_are_still_forwarded given [restart], faults [
            "off restarted: PortForward answer NOT_FOUND",
            "off restarted: PortForward drop url",
        ];
    Must "CRI-RST-019": "After a runtime restart, UpdateContainerResources changes the limits of a container that was started before the restart.",
        KUBELET, tags ["kubelet", "resources", "resize", RESTART], calls [UpdateContainerResources, ExecSync],
        limits_are_still_changed given [restart], faults [
            "off restarted: UpdateContainerResources swallow",
            "off restarted: UpdateContainerResources answer INTERNAL",
        ];
    Must "CRI-RST-020": "After a runtime restart, ExecSync commands have the same user, groups, capabilities and seccomp filter as before.",
        KUBELET, tags ["kubelet", "exec", "security", RESTART], calls [ExecSync],
        rights_of_commands_stay given [restart], faults [
            "off restarted: ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo Uid: 0 0 0 0\"]",
            "off restarted: ExecSync answer UNKNOWN",
        ];
    Must "CRI-RST-021": "A container that is OOM-killed after a runtime restart is reported as OOMKilled.",
        KUBELET, tags ["kubelet", "exit", "resources", RESTART], calls [ContainerStatus],
        memory_kill_is_reported given [restart], faults [
            "off restarted: ContainerStatus set status.reason \"Error\"",
            "off restarted: ContainerStatus set status.exit_code 1",
        ];
};

/// Waits until the server in a pod answers at a port of this host.
async fn answers(x: &Context, port: u16, when: &str) -> Verdict {
    let what = format!("the pod's answer at the host port {when} the restart");
    x.until(&what, async || {
        let response = response_on_host(Ipv4Addr::LOCALHOST, port);
        match tokio::time::timeout(x.shared.wait_limit, response).await {
            Ok(Ok(text)) if text == "hello from pod\n" => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await
}

async fn host_port_stays(x: &Context) -> Verdict {
    let (pod, port) = with_port(x, v1::Protocol::Tcp, "").await?;
    serve(x, &pod, "pod").await?;
    answers(x, port, "before").await?;
    x.restart().await?;
    answers(x, port, "after").await
}

/// The answer of a server in a pod over PortForward.
async fn forwarded(x: &Context, pod: &Pod) -> Verdict<String> {
    let ports = ports(x, pod, PORT, Transport::Spdy).await?;
    let (mut ours, theirs) = tokio::io::duplex(4096);
    let mut text = String::new();
    let reading = ours.read_to_string(&mut text);
    let both = async { tokio::join!(ports.carry(PORT, theirs), reading) };
    match tokio::time::timeout(x.shared.wait_limit, both).await {
        Ok((_, Ok(_))) => Ok(text),
        Ok((carried, read)) => failed(
            "the forwarded connection",
            "the server's answer",
            format!("{carried:?}, {read:?}"),
        ),
        Err(_) => failed("the forwarded connection", "to end", "no end"),
    }
}

async fn ports_are_still_forwarded(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    serve(x, &pod, "pod").await?;
    let expected = "hello from pod\n";
    let before = forwarded(x, &pod).await?;
    if before != expected {
        let why = format!("PortForward carries {before:?} before the restart");
        return Err(Outcome::Skipped(why));
    }
    x.restart().await?;
    let after = forwarded(x, &pod).await?;
    let what = "the output of PortForward after the restart";
    equal(what, after.as_str(), expected)
}

async fn limits_are_still_changed(x: &Context) -> Verdict {
    x.needs_limits()?;
    let of = |mebibytes| v1::LinuxContainerResources {
        memory_limit_in_bytes: mebibytes * MIB,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, with(x.forever("c"), of(64))).await?;
    x.restart().await?;
    x.client.update(&id, of(128)).await?;
    let limit = memory_limit(x, &id).await?;
    equal("the memory limit", &limit, &(128 * MIB).to_string())
}

async fn rights_of_commands_stay(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    x.needs_users()?;
    let mut config = x.forever("c");
    let security = confined(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 1234 });
    security.run_as_group = Some(v1::Int64Value { value: 2345 });
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, config).await?;
    let print_status = "cat /proc/self/status";
    let before = rights(&x.client.sh(&id, print_status).await?);
    x.restart().await?;
    let after = rights(&x.client.sh(&id, print_status).await?);
    let what = "the privileges of a command after the restart, compared with before";
    equal(what, &after, &before)
}

async fn memory_kill_is_reported(x: &Context) -> Verdict {
    x.needs_limits()?;
    let text = "echo ready; until [ -e /tmp/go ]; do sleep 0.05; done
        v=0123456789abcdef; while [ ${#v} -lt 268435456 ]; do v=$v$v; done";
    let resources = v1::LinuxContainerResources {
        memory_limit_in_bytes: 32 * MIB,
        memory_swap_limit_in_bytes: 32 * MIB,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, with(x.script("c", text), resources)).await?;
    x.restart().await?;
    x.client.sh(&id, ": >/tmp/go").await?;
    let status = x.exited(&id).await?;
    let seen = (status.exit_code, status.reason.as_str());
    equal("exit code and reason", &seen, &(137, "OOMKilled"))
}
