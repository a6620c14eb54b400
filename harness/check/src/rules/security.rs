//! Rules for the privileges of a container's processes: users, groups, capabilities, sysctls, devices.

pub(crate) mod capability_sets;
pub(crate) mod host_names;
pub(crate) mod ordinary_user;
pub(crate) mod privileges;
pub(crate) mod seccomp;
pub(crate) mod user_access;

use cri::v1::SupplementalGroupsPolicy;
use harness::cri_log::Stream;

use crate::images::programs;
use crate::prelude::*;
use crate::rules::image::{add, pull};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SEC-001": "The command runs as the user named in run_as_username.",
        CRITEST, tags ["kubelet", "user"], calls [CreateContainer],
        user_is_found_by_name given [users], faults [
            "CreateContainer request drop config.linux.security_context.run_as_username",
        ];
    Must "CRI-SEC-002": "A privileged container has every capability and no seccomp filter; an unprivileged container does not have SYS_ADMIN.",
        CRITEST, tags ["kubelet", "capabilities"], calls [CreateContainer],
        privileged_container_has_all, faults [
            "CreateContainer request drop config.linux.security_context.privileged",
            "CreateContainer request set config.linux.security_context.privileged true",
        ];
    Must "CRI-SEC-003": "Adding ALL adds every capability, and dropping one capability drops no other.",
        CRITEST, tags ["kubelet", "capabilities"], calls [CreateContainer],
        capabilities_are_added_and_dropped, faults [
            "CreateContainer request drop config.linux.security_context.capabilities",
            "CreateContainer request set config.linux.security_context.capabilities {\"drop_capabilities\": [\"ALL\"]}",
        ];
    Must "CRI-SEC-004": "An ExecSync command has the user, groups, capabilities and seccomp filter of its container.",
        CRITEST, tags ["kubelet", "capabilities", "exec"], calls [ExecSync],
        commands_have_rights_of_container given [namespaces, pod], faults [
            "ExecSync drop stdout",
            "ExecSync set stdout \"Q2FwRWZmOgkwCg==\"",
        ];
    Must "CRI-SEC-007": "The sysctls of a pod are set for its containers.",
        CRITEST, tags ["kubelet", "sysctl"], calls [RunPodSandbox, CreateContainer],
        kernel_settings_are_set given [namespaces], faults [
            "RunPodSandbox request drop config.linux.sysctls",
            "RunPodSandbox request set config.linux.sysctls.kernel.shm_rmid_forced \"0\"",
            "RunPodSandbox request set config.linux.sysctls.fs.mqueue.msg_max \"50\"",
            "RunPodSandbox request set config.linux.sysctls.net.ipv4.ip_unprivileged_port_start \"1024\"",
        ];
    May "CRI-SEC-045": "Unprivileged programs in a pod with its own network can ping and can bind ports below 1024, unless the pod's sysctls forbid this.",
        CONTAINERD, tags ["sysctl", "network"], calls [RunPodSandbox],
        low_ports_and_pings_are_free given [namespaces], faults [
            "RunPodSandbox request set config.linux.sysctls.net.ipv4.ip_unprivileged_port_start \"1024\"",
            "RunPodSandbox request set config.linux.sysctls.net.ipv4.ping_group_range \"1 0\"",
        ];
    Should "CRI-SEC-008": "Containers and ExecSync commands have the user's groups from the image's /etc/group with supplemental_groups_policy Merge, but not with Strict; ContainerStatus reports user and groups.",
        CRITEST, tags ["kubelet", "user"], calls [CreateContainer, ExecSync, ContainerStatus, Status],
        policy_of_groups_is_kept given [users], faults [
            "CreateContainer request drop config.linux.security_context.supplemental_groups_policy",
            "CreateContainer request set config.linux.security_context.supplemental_groups_policy \"Strict\"",
            "ExecSync if request cmd = \"id -G\" set stdout \"MTAwMAo=\"",
            "ContainerStatus drop status.user",
            "ContainerStatus set status.user.linux.uid \"7\"",
            "ContainerStatus set status.user.linux.gid \"7\"",
            "ContainerStatus drop status.user.linux.supplemental_groups",
            "Status drop features",
            "Status set features.supplemental_groups_policy false",
        ];
    Must "CRI-SEC-009": "A host device is available in the container at its container_path.",
        KUBELET, tags ["kubelet", "device"], calls [CreateContainer],
        device_is_given given [namespaces], faults [
            "CreateContainer request drop config.devices",
            "CreateContainer request set config.devices.container_path \"/dev/other\"",
        ];
    Must "CRI-SEC-010": "For containers and ExecSync commands, masked paths have no content, and read-only paths cannot be written to.",
        CRITEST, tags ["kubelet", "exec"], calls [CreateContainer, ExecSync],
        paths_are_kept_from_commands given [namespaces, pod], faults [
            "CreateContainer request drop config.linux.security_context.masked_paths",
            "CreateContainer request drop config.linux.security_context.readonly_paths",
        ];
    May "CRI-SEC-012": "A non-root container has the requested ambient capabilities.",
        API, tags ["capabilities", "user"], calls [CreateContainer],
        ambient_capabilities_are_given given [users], faults [
            "CreateContainer request drop config.linux.security_context.capabilities.add_ambient_capabilities",
        ];
};

const SYS_ADMIN: u64 = 1 << 21;
const CHOWN: u64 = 1;
const KILL: u64 = 1 << 5;

/// A set of capabilities, or another number, in the text of `/proc/self/status`.
pub(crate) fn number(status: &str, name: &str) -> Verdict<u64> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    match value.map(|value| u64::from_str_radix(value.trim(), 16)) {
        Some(Ok(number)) => Ok(number),
        _ => failed("/proc/self/status", format!("a number for {name}"), status),
    }
}

pub(crate) async fn status_of(
    x: &Context,
    change: impl FnOnce(&mut v1::LinuxContainerSecurityContext),
) -> Verdict<String> {
    output_with(x, "cat /proc/self/status", change).await
}

/// The output of a script with a changed security context.
pub(crate) async fn output_with(
    x: &Context,
    script: &str,
    change: impl FnOnce(&mut v1::LinuxContainerSecurityContext),
) -> Verdict<String> {
    x.needs_namespaces()?;
    let mut sandbox = x.sandbox();
    let mut config = x.script("c", script);
    let security = fixture::security(&mut config);
    change(security);
    let of_pod = sandbox.linux.get_or_insert_default();
    // Some runtimes allow privileged containers only in privileged pods.
    of_pod.security_context.get_or_insert_default().privileged = security.privileged;
    let pod = x.pod_of(sandbox).await?;
    x.output_in(&pod, config).await
}

async fn user_is_found_by_name(x: &Context) -> Verdict {
    let mut config = x.script("c", "id -un; id -u");
    "nobody".clone_into(&mut fixture::security(&mut config).run_as_username);
    x.prints(config, "the user", "nobody\n65534\n").await
}

async fn privileged_container_has_all(x: &Context) -> Verdict {
    let all = status_of(x, |security| security.privileged = true).await?;
    let set = number(&all, "CapEff")?;
    let holds = set & SYS_ADMIN != 0 && set.count_ones() > 30;
    ensure(holds, "CapEff of a privileged container", "every capability", format!("{set:x}"))?;
    equal("Seccomp of a privileged container", &number(&all, "Seccomp")?, &0)?;
    let default = status_of(x, |_| {}).await?;
    let set = number(&default, "CapEff")?;
    ensure(set & SYS_ADMIN == 0, "CapEff of another container", "not SYS_ADMIN", format!("{set:x}"))
}

async fn capabilities_are_added_and_dropped(x: &Context) -> Verdict {
    let all = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        capabilities.add_capabilities = vec!["ALL".to_owned()];
    });
    let all = number(&all.await?, "CapEff")?;
    let has = all & SYS_ADMIN != 0;
    ensure(has, "CapEff with ALL added", "SYS_ADMIN too", format!("{all:x}"))?;
    let without = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        capabilities.drop_capabilities = vec!["CHOWN".to_owned()];
    });
    let without = number(&without.await?, "CapEff")?;
    let holds = without & CHOWN == 0 && without & KILL != 0;
    ensure(holds, "CapEff with CHOWN dropped", "KILL and not CHOWN", format!("{without:x}"))
}

async fn ambient_capabilities_are_given(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        security.run_as_user = Some(v1::Int64Value { value: 65534 });
        let capabilities = security.capabilities.get_or_insert_default();
        // Ambient capabilities must be in the permitted set, too.
        capabilities.add_capabilities = vec!["KILL".to_owned()];
        capabilities.add_ambient_capabilities = vec!["KILL".to_owned()];
    });
    let ambient = number(&status.await?, "CapAmb")?;
    let has = ambient & KILL != 0;
    ensure(has, "CapAmb", "KILL", format!("{ambient:x}"))
}

/// The lines about privileges in `/proc/self/status`.
pub(crate) fn rights(status: &str) -> Vec<String> {
    const NAMES: [&str; 9] = [
        "Uid:",
        "Gid:",
        "Groups:",
        "CapInh:",
        "CapPrm:",
        "CapEff:",
        "CapBnd:",
        "NoNewPrivs:",
        "Seccomp:",
    ];
    let ours = |line: &&str| NAMES.iter().any(|name| line.starts_with(name));
    let lines = status.lines().filter(ours);
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Sets `no_new_privs` and the default seccomp profile of a container; returns its security context for further changes.
pub(crate) fn confined(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    let security = fixture::security(config);
    security.no_new_privs = true;
    security.seccomp = Some(v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
        ..Default::default()
    });
    security
}

async fn commands_have_rights_of_container(x: &Context, pod: Pod) -> Verdict {
    let script = "cat /proc/self/status; echo end; while :; do sleep 1000; done";
    let mut config = x.script("c", script);
    let security = confined(&mut config);
    security.capabilities.get_or_insert_default().drop_capabilities = words(&["CHOWN", "KILL"]);
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    let of_container = rights(&lines.collect::<String>());
    let of_command = rights(&x.client.sh(&id, "cat /proc/self/status").await?);
    ensure(of_container.len() >= 8, "/proc/self/status", "8 lines", &of_container)?;
    equal("the privileges of the command", &of_command, &of_container)
}

pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn kernel_settings_are_set(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    let linux = config.linux.get_or_insert_default();
    let settings = [
        ("kernel.shm_rmid_forced", "1"),
        ("fs.mqueue.msg_max", "100"),
        ("net.ipv4.ip_unprivileged_port_start", "77"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    linux.sysctls.extend(settings);
    let pod = x.pod_of(config).await?;
    let files = "kernel/shm_rmid_forced fs/mqueue/msg_max net/ipv4/ip_unprivileged_port_start";
    let show = x.script("c", &format!("cd /proc/sys; cat {files}"));
    let output = x.output_in(&pod, show).await?;
    let what = "kernel.shm_rmid_forced, fs.mqueue.msg_max and net.ipv4.ip_unprivileged_port_start";
    equal(what, output.as_str(), "1\n100\n77\n")
}

async fn low_ports_and_pings_are_free(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let show = "cd /proc/sys/net/ipv4; cat ip_unprivileged_port_start ping_group_range";
    let output = x.output_in(&pod, x.script("c", show)).await?;
    let found: Vec<&str> = output.split_whitespace().collect();
    let what = "net.ipv4.ip_unprivileged_port_start, and the first group of ping_group_range";
    equal(what, &found.get(..2).unwrap_or(&found), &["0", "0"].as_slice())
}

async fn policy_of_groups_is_kept(x: &Context) -> Verdict {
    let status = x.client.status().await?;
    let none = Outcome::Unsupported("Status reports no supplemental_groups_policy".to_owned());
    let features = status.features.unwrap_or_default();
    match (features.supplemental_groups_policy, keeps_policy(x).await) {
        (true, kept) => kept,
        // The kubelet refuses pods that need a feature missing in Status.
        (false, Ok(())) => failed("supplemental_groups_policy in Status", "true", "false"),
        (false, Err(_)) => Err(none),
    }
}

/// Prints the supplementary groups, from which `id -G` does not distinguish the primary one.
const SUPPLEMENTARY: &str = "while read -r name ids; do case $name in Groups:) echo \"$ids\" ;; esac; done </proc/self/status";

async fn keeps_policy(x: &Context) -> Verdict {
    let base =
        programs(&["sh", "id", "sleep"]).map_err(|error| Outcome::Skipped(error.to_string()))?;
    let accounts = Layer::new().file("etc/passwd", 0o644, "member:x:1000:1000::/:/bin/sh\n").file(
        "etc/group",
        0o644,
        "of-image:x:50000:member\n",
    );
    let (image, _) = add(x, "1", |image| image.layer(base).layer(accounts))?;
    pull(x, &image).await?;
    for (policy, expected) in [
        (SupplementalGroupsPolicy::Merge, vec![1000, 1234, 50000]),
        (SupplementalGroupsPolicy::Strict, vec![1000, 1234]),
    ] {
        let mut config = x.script("c", "id -G; echo end; sleep 1000");
        image.clone_into(&mut config.image.get_or_insert_default().image);
        let security = fixture::security(&mut config);
        security.run_as_user = Some(v1::Int64Value { value: 1000 });
        security.supplemental_groups = vec![1234];
        security.set_supplemental_groups_policy(policy);
        let pod = x.pod().await?;
        let id = pod.start(config).await?;
        x.logged(&pod, "end").await?;
        let lines = x.lines(&pod);
        // Lines on standard error may come first.
        let line = lines.iter().find(|line| line.stream == Stream::Stdout);
        let line = line.map_or("", |line| line.text.as_str());
        let what = format!("the groups with policy {}", policy.as_str_name());
        equal(&what, &groups_in(line), &expected)?;
        let of_command = groups_in(&x.client.sh(&id, "id -G").await?);
        let what = format!("the groups of a command with policy {}", policy.as_str_name());
        equal(&what, &of_command, &expected)?;
        // With its primary group among them, a process cannot drop that group to gain access (CVE-2023-25173).
        let supplementary = x.client.sh(&id, SUPPLEMENTARY).await?;
        let what = format!("its supplementary groups with policy {}", policy.as_str_name());
        equal(&what, &groups_in(&supplementary), &expected)?;
        let user = x.client.container(&id).await?.user.unwrap_or_default();
        let user = user.linux.unwrap_or_default();
        let mut named = user.supplemental_groups;
        named.push(user.gid);
        named.sort_unstable();
        named.dedup();
        let what = format!("user and groups in ContainerStatus ({})", policy.as_str_name());
        equal(&what, &(user.uid, named), &(1000, expected))?;
    }
    Ok(())
}

/// The groups that `id -G` prints, each once.
pub(crate) fn groups_in(line: &str) -> Vec<i64> {
    let ids = line.split_whitespace();
    let mut groups: Vec<i64> = ids.filter_map(|id| id.parse().ok()).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

async fn device_is_given(x: &Context) -> Verdict {
    let mut config = x.script("c", "test -c /dev/checked && echo device; echo end");
    config.devices.push(v1::Device {
        container_path: "/dev/checked".to_owned(),
        host_path: "/dev/null".to_owned(),
        permissions: "rw".to_owned(),
    });
    x.prints(config, "the output", "device\nend\n").await
}

async fn paths_are_kept_from_commands(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    let security = fixture::security(&mut config);
    security.masked_paths =
        words(&["/proc/version", "/proc/irq", "/proc/no-such-file", "/proc/version", "/proc/irq"]);
    security.readonly_paths = words(&["/tmp", "/etc/passwd", "/proc/no-such-file", "/tmp"]);
    let id = pod.start(config).await?;
    let script = "cat /proc/version 2>/dev/null; ls /proc/irq; touch /tmp/written 2>/dev/null && echo written
        (echo >>/etc/passwd) 2>/dev/null && echo written to a file; echo end";
    let output = x.client.sh(&id, script).await?;
    equal("the output of a command that uses the paths", output.as_str(), "end\n")
}
