//! Rules of what still reaches a pod after a restart of the runtime: connections, changed limits, commands, and the kernel's kill.

use std::net::Ipv4Addr;

use cri::v1;
use tokio::io::AsyncReadExt as _;

use super::host_port::with_port;
use super::limits::{MIB, memory_limit, update, with};
use super::network::{PORT, said, serve};
use super::port_forward::ports;
use super::security::rights;
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal, failed};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{RESTART, Rule, Severity};
use crate::fixture;
use crate::pod::Pod;
use crate::streaming::Transport;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-RST-017",
        severity: Severity::Must,
        says: "The host port of a pod leads to it also after a restart of the runtime.",
        source: KUBELET,
        tags: &["kubelet", "network", RESTART],
        calls: &["RunPodSandbox"],
        faults: &["RunPodSandbox request drop config.port_mappings"],
        body: |x| Box::pin(host_port_stays(x)),
    },
    Rule {
        id: "CRI-RST-018",
        severity: Severity::Must,
        says: "PortForward reaches a pod that ran before a restart of the runtime.",
        source: KUBELET,
        tags: &["kubelet", "stream", RESTART],
        calls: &["PortForward"],
        faults: &[
            "off restarted: PortForward answer NOT_FOUND",
            "off restarted: PortForward drop url",
        ],
        body: |x| Box::pin(ports_are_still_forwarded(x)),
    },
    Rule {
        id: "CRI-RST-019",
        severity: Severity::Must,
        says: "UpdateContainerResources changes a container that ran before a restart of the runtime.",
        source: KUBELET,
        tags: &["kubelet", "resources", "resize", RESTART],
        calls: &["UpdateContainerResources", "ExecSync"],
        faults: &[
            "off restarted: UpdateContainerResources swallow",
            "off restarted: UpdateContainerResources answer INTERNAL",
        ],
        body: |x| Box::pin(limits_are_still_changed(x)),
    },
    Rule {
        id: "CRI-RST-020",
        severity: Severity::Must,
        says: "A command of ExecSync has the user and the rights of its container also after a restart of the runtime.",
        source: KUBELET,
        tags: &["kubelet", "exec", "security", RESTART],
        calls: &["ExecSync"],
        faults: &[
            "off restarted: ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo Uid: 0 0 0 0\"]",
            "off restarted: ExecSync answer UNKNOWN",
        ],
        body: |x| Box::pin(rights_of_commands_stay(x)),
    },
    Rule {
        id: "CRI-RST-021",
        severity: Severity::Must,
        says: "A container that is killed for its memory after a restart of the runtime is told to be OOMKilled.",
        source: KUBELET,
        tags: &["kubelet", "exit", "resources", RESTART],
        calls: &["ContainerStatus"],
        faults: &[
            "off restarted: ContainerStatus set status.reason \"Error\"",
            "off restarted: ContainerStatus set status.exit_code 1",
        ],
        body: |x| Box::pin(memory_kill_is_told(x)),
    },
];

/// Waits until the server in a pod answers at a port of this host.
async fn answers(x: &Context, port: u16, when: &str) -> Verdict {
    let what = format!("the pod's answer at the host port {when} the restart");
    x.until(&what, async || {
        let said = said(Ipv4Addr::LOCALHOST, port);
        match tokio::time::timeout(x.shared.patience, said).await {
            Ok(Ok(text)) if text == "hello from pod\n" => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await
}

async fn host_port_stays(x: &Context) -> Verdict {
    x.needs_restart()?;
    let (pod, port) = with_port(x, v1::Protocol::Tcp, "").await?;
    serve(x, &pod, "pod").await?;
    answers(x, port, "before").await?;
    x.restart().await?;
    answers(x, port, "after").await
}

/// What a server in a pod says over PortForward.
async fn forwarded(x: &Context, pod: &Pod) -> Verdict<String> {
    let ports = ports(x, pod, PORT, Transport::Spdy).await?;
    let (mut ours, theirs) = tokio::io::duplex(4096);
    let mut text = String::new();
    let reading = ours.read_to_string(&mut text);
    let both = async { tokio::join!(ports.carry(PORT, theirs), reading) };
    match tokio::time::timeout(x.shared.patience, both).await {
        Ok((_, Ok(_))) => Ok(text),
        Ok((carried, read)) => failed(
            "the forwarded connection",
            "what the server says",
            format!("{carried:?}, {read:?}"),
        ),
        Err(_) => failed("the forwarded connection", "to end", "no end"),
    }
}

async fn ports_are_still_forwarded(x: &Context) -> Verdict {
    x.needs_restart()?;
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
    let what = "what comes over PortForward after the restart";
    equal(what, after.as_str(), expected)
}

async fn limits_are_still_changed(x: &Context) -> Verdict {
    x.needs_restart()?;
    x.needs_limits()?;
    let of = |mebibytes| v1::LinuxContainerResources {
        memory_limit_in_bytes: mebibytes * MIB,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), of(64))).await?;
    x.logged(&pod, "ready").await?;
    x.restart().await?;
    update(x, &id, of(128)).await?;
    let limit = memory_limit(x, &id).await?;
    equal("the limit of memory", &limit, &(128 * MIB).to_string())
}

async fn rights_of_commands_stay(x: &Context) -> Verdict {
    x.needs_restart()?;
    x.needs_namespaces()?;
    x.needs_users()?;
    let mut config = x.forever("c");
    let security = fixture::security(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 1234 });
    security.run_as_group = Some(v1::Int64Value { value: 2345 });
    security.no_new_privs = true;
    security.seccomp = Some(v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
        ..Default::default()
    });
    let pod = x.pod().await?;
    let id = pod.start(config).await?;
    x.logged(&pod, "ready").await?;
    let tell = "cat /proc/self/status";
    let before = rights(&x.client.sh(&id, tell).await?);
    x.restart().await?;
    let after = rights(&x.client.sh(&id, tell).await?);
    let what = "the rights of a command after the restart, beside those before it";
    equal(what, &after, &before)
}

async fn memory_kill_is_told(x: &Context) -> Verdict {
    x.needs_restart()?;
    x.needs_limits()?;
    let text = "echo ready; until [ -e /tmp/go ]; do sleep 0.05; done
        v=0123456789abcdef; while [ ${#v} -lt 268435456 ]; do v=$v$v; done";
    let resources = v1::LinuxContainerResources {
        memory_limit_in_bytes: 32 * MIB,
        memory_swap_limit_in_bytes: 32 * MIB,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.script("c", text), resources)).await?;
    x.logged(&pod, "ready").await?;
    x.restart().await?;
    x.client.sh(&id, ": >/tmp/go").await?;
    let status = x.exited(&id).await?;
    let seen = (status.exit_code, status.reason.as_str());
    equal("exit code and reason", &seen, &(137, "OOMKilled"))
}
