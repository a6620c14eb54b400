//! Rules of what a process of another user than root can do: read what every pod has, and use terminals.

use crate::prelude::*;
use crate::rules::content::{image, script};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-039": "A process of any user reads /etc/resolv.conf.",
        KUBELET, tags ["kubelet", "dns", "user"], calls [RunPodSandbox, CreateContainer],
        name_servers_are_read given [namespaces, users], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo denied; exit 1\"]",
            "RunPodSandbox request drop config.dns_config",
        ];
    Should "CRI-SEC-040": "A process of any user opens a new terminal by /dev/ptmx.",
        CONTAINERD, tags ["tty", "user"], calls [CreateContainer],
        terminal_is_opened given [namespaces, users], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo denied; exit 1\"]",
        ];
    Should "CRI-SEC-041": "The terminal of a container is its user's own.",
        CONTAINERD, tags ["tty", "user"], calls [CreateContainer],
        terminal_is_own given [namespaces, users], faults [
            "CreateContainer request drop config.tty",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"exit 8\"]",
        ];
    Must "CRI-SEC-042": "A group that is asked for with the name of a user is the primary one of the process.",
        KUBELET, tags ["kubelet", "user"], calls [CreateContainer],
        group_goes_with_name given [namespaces, users], faults [
            "CreateContainer request drop config.linux.security_context.run_as_group",
            "CreateContainer request drop config.linux.security_context.run_as_username",
        ];
    Should "CRI-SEC-044": "An image whose user is a number that no user can have does not run as root (CVE-2024-40635).",
        CONTAINERD, tags ["user", "security", "input"], calls [PullImage, CreateContainer],
        large_number_is_not_root given [namespaces, users], faults [
            "CreateContainer request set config.linux.security_context.run_as_user.value 0",
        ];
};

async fn large_number_is_not_root(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image.user("4294967296:4294967296")).await?;
    let pod = x.pod().await?;
    let config = script(x, &image, "id -u");
    // It is refused, or runs as another user.
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
    let what = "/etc/resolv.conf as the user 1234 reads it";
    ensure(read, what, "the pod's name server", output)
}

async fn terminal_is_opened(x: &Context) -> Verdict {
    let text = "(exec 3<>/dev/ptmx && echo opened) || echo denied";
    let output = x.output(of_user(x, text)).await?;
    let what = "what opening /dev/ptmx as the user 1234 comes to";
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
    let what = "the exit code of a container that looks whose its terminal is";
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
