//! Rules for processes of ordinary users: /etc/resolv.conf, terminals, users and groups.

use crate::prelude::*;
use crate::rules::content::{image, script};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-039": "Every user can read /etc/resolv.conf.",
        KUBELET, tags ["kubelet", "dns", "user"], calls [RunPodSandbox, CreateContainer],
        name_servers_are_read given [namespaces, users], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo denied; exit 1\"]",
            "RunPodSandbox request drop config.dns_config",
        ];
    Should "CRI-SEC-040": "Every user can open a new terminal with /dev/ptmx.",
        CONTAINERD, tags ["tty", "user"], calls [CreateContainer],
        terminal_is_opened given [namespaces, users], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo denied; exit 1\"]",
        ];
    Should "CRI-SEC-041": "The terminal of a container belongs to the container's user.",
        CONTAINERD, tags ["tty", "user"], calls [CreateContainer],
        terminal_is_own given [namespaces, users], faults [
            "CreateContainer request drop config.tty",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"exit 8\"]",
        ];
    Must "CRI-SEC-042": "run_as_group is the primary group of the process, even if run_as_username sets the user.",
        KUBELET, tags ["kubelet", "user"], calls [CreateContainer],
        group_goes_with_name given [namespaces, users], faults [
            "CreateContainer request drop config.linux.security_context.run_as_group",
            "CreateContainer request drop config.linux.security_context.run_as_username",
        ];
    Should "CRI-SEC-044": "A container of an image whose numeric USER is out of range does not run as root (CVE-2024-40635).",
        CONTAINERD, tags ["user", "security", "input"], calls [PullImage, CreateContainer],
        large_number_is_not_root given [namespaces, users], faults [
            "CreateContainer request set config.linux.security_context.run_as_user.value 0",
        ];
};

async fn large_number_is_not_root(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image.user("4294967296:4294967296")).await?;
    let pod = x.pod().await?;
    let config = script(x, &image, "id -u");
    // The container is refused, or runs as another user.
    let Ok(id) = pod.create(config).await else {
        return Ok(());
    };
    if x.client.start(&id).await.is_err() {
        return Ok(());
    }
    x.exited(&id).await?;
    let lines: Vec<String> = x.lines(&pod).into_iter().map(|line| line.text).collect();
    let is_root = lines.iter().any(|line| line == "0");
    let what = "the user of a container of an image with USER 4294967296";
    ensure(!is_root, what, "not root", lines)
}

/// A container whose script runs as an ordinary user.
fn of_user(x: &Context, text: &str) -> v1::ContainerConfig {
    let mut config = x.script("c", text);
    let security = fixture::security(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 1234 });
    security.run_as_group = Some(v1::Int64Value { value: 1234 });
    config
}

async fn name_servers_are_read(x: &Context) -> Verdict {
    let mut sandbox = x.sandbox();
    sandbox.dns_config =
        Some(v1::DnsConfig { servers: vec!["10.11.12.13".to_owned()], ..Default::default() });
    let pod = x.pod_of(sandbox).await?;
    let text = "cat /etc/resolv.conf || echo denied";
    let output = x.output_in(&pod, of_user(x, text)).await?;
    let read = output.contains("10.11.12.13");
    let what = "/etc/resolv.conf, read by user 1234";
    ensure(read, what, "the pod's name server", output)
}

async fn terminal_is_opened(x: &Context) -> Verdict {
    let text = "(exec 3<>/dev/ptmx && echo opened) || echo denied";
    let output = x.output(of_user(x, text)).await?;
    let what = "the result of opening /dev/ptmx as user 1234";
    equal(what, output.as_str(), "opened\n")
}

async fn terminal_is_own(x: &Context) -> Verdict {
    let text = "[ -t 0 ] || exit 9; [ -O /proc/self/fd/0 ] || exit 8; exit 5";
    let pod = x.pod().await?;
    let mut config = of_user(x, text);
    config.stdin = true;
    config.tty = true;
    let id = pod.start(config).await?;
    let status = x.exited(&id).await?;
    let what = "the exit code of a container that checks its terminal's owner";
    equal(what, &status.exit_code, &5)
}

async fn group_goes_with_name(x: &Context) -> Verdict {
    let mut config = x.script("c", "id -u; id -g");
    let security = fixture::security(&mut config);
    "nobody".clone_into(&mut security.run_as_username);
    security.run_as_group = Some(v1::Int64Value { value: 2345 });
    let output = x.output(config).await?;
    let mut lines = output.lines();
    let seen = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let is_nobody = seen.0 != "0";
    ensure(is_nobody, "the user named nobody", "an ordinary one", &output)?;
    equal("the primary group", seen.1, "2345")
}
