//! Rules of the effect of a container's configuration on its processes.

pub(crate) mod command_lookup;
pub(crate) mod multiple_values;
pub(crate) mod repeated_values;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CFG-001": "The process receives the configured command and arguments unchanged.",
        API, tags ["process"], calls [CreateContainer],
        arguments_follow_command, faults [
            "CreateContainer request drop config.args",
            "CreateContainer request set config.args [\"two words\"]",
            "CreateContainer request set config.args [\"two words\", \"\", \"$HOME\", \"$(PATH)\", \"b\", \"a\"]",
            "CreateContainer request set config.args [\"\", \"$(PATH)\", \"$HOME\", \"a\", \"b\", \"b\", \"two words\"]",
        ];
    Must "CRI-CFG-002": "The container has the environment variables of its configuration, unchanged.",
        API, tags ["process"], calls [CreateContainer],
        environment_is_set, faults [
            "CreateContainer request drop config.envs",
            "CreateContainer request set config.envs.value \"eHg=\"",
            "CreateContainer request set config.envs [{\"key\": \"CHECKED\", \"value\": \"YSBiPWM=\"}]",
        ];
    Must "CRI-CFG-003": "The command runs in the configured working directory.",
        API, tags ["process"], calls [CreateContainer],
        working_directory_is_entered, faults ["CreateContainer request drop config.working_dir"];
    Must "CRI-CFG-004": "A mounted host directory is visible in the container, and the container's writes to the directory reach the host.",
        CRITEST, tags ["kubelet", "mount"], calls [CreateContainer],
        mount_is_seen_and_written given [namespaces], faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.readonly true",
        ];
    Must "CRI-CFG-005": "A container cannot write to a read-only mount.",
        CRITEST, tags ["kubelet", "mount", "security"], calls [CreateContainer],
        read_only_mount_is_not_written given [namespaces], faults ["CreateContainer request drop config.mounts.readonly"];
    Must "CRI-CFG-006": "A container cannot write to a read-only root filesystem.",
        CRITEST, tags ["security"], calls [CreateContainer],
        read_only_root_is_not_written given [namespaces], faults [
            "CreateContainer request drop config.linux.security_context.readonly_rootfs",
        ];
    Must "CRI-CFG-007": "The command runs with the configured user and group.",
        CRITEST, tags ["security", "user"], calls [CreateContainer],
        user_and_group_are_set given [users], faults [
            "CreateContainer request drop config.linux.security_context.run_as_user",
            "CreateContainer request drop config.linux.security_context.run_as_group",
        ];
    Must "CRI-CFG-008": "A container with run_as_group but without run_as_user is refused.",
        CRITEST, tags ["security", "user", "input"], calls [CreateContainer],
        group_without_user_is_refused given [pod], faults [
            "CreateContainer request set config.linux.security_context.run_as_user {\"value\": \"0\"}",
        ];
    Must "CRI-CFG-009": "The process has the configured supplemental groups.",
        CRITEST, tags ["security", "user"], calls [CreateContainer],
        supplemental_groups_are_added given [users], faults [
            "CreateContainer request drop config.linux.security_context.supplemental_groups",
        ];
    Must "CRI-CFG-010": "no_new_privs is set on the process if the container's configuration requests it.",
        CRITEST, tags ["security"], calls [CreateContainer],
        no_new_privs_is_set, faults [
            "CreateContainer request drop config.linux.security_context.no_new_privs",
        ];
    Must "CRI-CFG-011": "Dropping ALL capabilities empties the capability bounding set.",
        CRITEST, tags ["security", "capability"], calls [CreateContainer],
        dropped_capabilities_are_gone, faults [
            "CreateContainer request drop config.linux.security_context.capabilities",
        ];
    Must "CRI-CFG-012": "A container has a non-default capability such as NET_ADMIN if its configuration adds the capability, and not otherwise.",
        CRITEST, tags ["security", "capability"], calls [CreateContainer],
        added_capability_is_there, faults [
            "CreateContainer request drop config.linux.security_context.capabilities",
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"ALL\"]}",
        ];
    Must "CRI-CFG-013": "The RuntimeDefault seccomp profile installs a filter, and Unconfined installs none.",
        CRITEST, tags ["security", "seccomp"], calls [CreateContainer],
        seccomp_profile_is_a_filter, faults [
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\": \"RuntimeDefault\"}",
        ];
    Must "CRI-CFG-014": "A container sees no content at a masked path.",
        CRITEST, tags ["security", "mount"], calls [CreateContainer],
        masked_path_is_empty given [namespaces], faults [
            "CreateContainer request drop config.linux.security_context.masked_paths",
        ];
    Must "CRI-CFG-015": "A container cannot write to a path in readonly_paths.",
        CRITEST, tags ["security", "mount"], calls [CreateContainer],
        read_only_path_is_not_written given [namespaces], faults [
            "CreateContainer request drop config.linux.security_context.readonly_paths",
        ];
    Must "CRI-CFG-016": "A container that exceeds its memory limit is killed and reported as OOMKilled with exit code 137.",
        CRITEST, tags ["kubelet", "resources", "exit"], calls [CreateContainer, ContainerStatus],
        memory_limit_kills given [limits, pod], faults [
            "CreateContainer request drop config.linux.resources",
            "ContainerStatus set status.reason \"Error\"",
        ];
    Should "CRI-CFG-017": "UpdateContainerResources of a running container succeeds, and ContainerStatus reports the new limits.",
        KUBELET, tags ["kubelet", "resources"], calls [UpdateContainerResources, ContainerStatus],
        updated_limits_are_in_status given [limits, container], faults [
            "UpdateContainerResources swallow",
            "ContainerStatus drop status.resources",
        ];
};

async fn arguments_follow_command(x: &Context) -> Verdict {
    let mut config = x.script("c", "");
    config.command =
        ["/bin/sh", "-c", "for word; do echo \"<$word>\"; done", "sh"].map(str::to_owned).into();
    config.args = ["two words", "", "$HOME", "$(PATH)", "b", "a", "b"].map(str::to_owned).into();
    let what = "the arguments";
    equal(
        what,
        x.output(config).await?.as_str(),
        "<two words>\n<>\n<$HOME>\n<$(PATH)>\n<b>\n<a>\n<b>\n",
    )
}

async fn environment_is_set(x: &Context) -> Verdict {
    let mut config = x.script("c", "echo \"$CHECKED\"; echo \"${EMPTY-unset}\"; echo \"$LINES_\"");
    for (key, value) in [("CHECKED", " a b=c "), ("EMPTY", ""), ("LINES_", "é\n$x")] {
        config.envs.push(v1::KeyValue { key: key.to_owned(), value: value.into() });
    }
    x.prints(config, "the variables", " a b=c \n\né\n$x\n").await
}

async fn working_directory_is_entered(x: &Context) -> Verdict {
    let mut config = x.script("c", "pwd");
    config.working_dir = "/tmp".to_owned();
    equal("the working directory", x.output(config).await?.as_str(), "/tmp\n")
}

/// A container that mounts a host directory with the file `given` at `/mnt`.
fn with_mount(
    x: &Context,
    text: &str,
    readonly: bool,
) -> Verdict<(v1::ContainerConfig, std::path::PathBuf)> {
    let directory = x.shared.directory.join(x.unique("mount"));
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(directory.join("given"), "from the host\n"))
        .map_err(|error| Outcome::Skipped(format!("no directory to mount: {error}")))?;
    let mut config = x.script("c", text);
    config.mounts.push(v1::Mount {
        host_path: directory.display().to_string(),
        container_path: "/mnt".to_owned(),
        readonly,
        ..Default::default()
    });
    Ok((config, directory))
}

async fn mount_is_seen_and_written(x: &Context) -> Verdict {
    let (config, directory) = with_mount(x, "cat /mnt/given && echo back >/mnt/written", false)?;
    equal("the mounted file", x.output(config).await?.as_str(), "from the host\n")?;
    let written = std::fs::read_to_string(directory.join("written")).unwrap_or_default();
    equal("the file that the container wrote", written.as_str(), "back\n")
}

async fn read_only_mount_is_not_written(x: &Context) -> Verdict {
    let (config, directory) =
        with_mount(x, "cat /mnt/given; echo back >/mnt/written; echo done", true)?;
    equal("the output", x.output(config).await?.as_str(), "from the host\ndone\n")?;
    let written = directory.join("written").exists();
    ensure(!written, "a file in a read-only mount", "not written", "written")
}

async fn read_only_root_is_not_written(x: &Context) -> Verdict {
    let mut config = x.script("c", "touch /written 2>/dev/null && echo written; echo done");
    fixture::security(&mut config).readonly_rootfs = true;
    equal("the output", x.output(config).await?.as_str(), "done\n")
}

async fn user_and_group_are_set(x: &Context) -> Verdict {
    let mut config = x.script("c", "id -u; id -g");
    let security = fixture::security(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 1001 });
    security.run_as_group = Some(v1::Int64Value { value: 1002 });
    equal("the user and the group", x.output(config).await?.as_str(), "1001\n1002\n")
}

async fn group_without_user_is_refused(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.script("c", "true");
    // Group 0 exists everywhere.
    fixture::security(&mut config).run_as_group = Some(v1::Int64Value { value: 0 });
    match pod.create(config).await {
        Ok(id) => refused("StartContainer with a group alone", x.client.start(&id).await).map(drop),
        answer => refused("CreateContainer with a group alone", answer).map(drop),
    }
}

async fn supplemental_groups_are_added(x: &Context) -> Verdict {
    let mut config = x.script("c", "id -G");
    fixture::security(&mut config).supplemental_groups = vec![1234, 5678];
    let output = x.output(config).await?;
    let groups: Vec<&str> = output.split_whitespace().collect();
    let both = groups.contains(&"1234") && groups.contains(&"5678");
    ensure(both, "id -G", "to include 1234 and 5678", groups)
}

/// A line of `/proc/self/status` of a container's command.
async fn of_status(
    x: &Context,
    name: &str,
    change: impl FnOnce(&mut v1::LinuxContainerSecurityContext),
) -> Verdict<String> {
    x.needs_namespaces()?;
    let mut config = x.script("c", "cat /proc/self/status");
    change(fixture::security(&mut config));
    let output = x.output(config).await?;
    let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    match line {
        Some(value) => Ok(value.trim().to_owned()),
        None => failed("/proc/self/status", format!("the line {name}"), output),
    }
}

async fn no_new_privs_is_set(x: &Context) -> Verdict {
    let value = of_status(x, "NoNewPrivs", |security| security.no_new_privs = true).await?;
    equal("NoNewPrivs", value.as_str(), "1")
}

async fn dropped_capabilities_are_gone(x: &Context) -> Verdict {
    let value = of_status(x, "CapBnd", |security| {
        security.capabilities.get_or_insert_default().drop_capabilities = vec!["ALL".to_owned()];
    });
    equal("CapBnd", value.await?.as_str(), "0000000000000000")
}

async fn added_capability_is_there(x: &Context) -> Verdict {
    const NET_ADMIN: u64 = 1 << 12;
    let has = |value: &str| u64::from_str_radix(value, 16).is_ok_and(|set| set & NET_ADMIN != 0);
    let added = of_status(x, "CapEff", |security| {
        security.capabilities.get_or_insert_default().add_capabilities =
            vec!["NET_ADMIN".to_owned()];
    });
    let added = added.await?;
    ensure(has(&added), "CapEff with NET_ADMIN added", "the NET_ADMIN bit set", added)?;
    let default = of_status(x, "CapEff", |_| {}).await?;
    ensure(!has(&default), "CapEff by default", "the NET_ADMIN bit clear", default)
}

async fn seccomp_profile_is_a_filter(x: &Context) -> Verdict {
    use v1::security_profile::ProfileType;
    for (profile, expected) in [(ProfileType::RuntimeDefault, "2"), (ProfileType::Unconfined, "0")]
    {
        let value = of_status(x, "Seccomp", |security| {
            security.seccomp =
                Some(v1::SecurityProfile { profile_type: profile.into(), ..Default::default() });
        });
        let what = format!("Seccomp with {}", profile.as_str_name());
        equal(&what, value.await?.as_str(), expected)?;
    }
    Ok(())
}

async fn masked_path_is_empty(x: &Context) -> Verdict {
    let mut config = x.script("c", "head -c 20 /proc/version 2>/dev/null; echo end");
    fixture::security(&mut config).masked_paths = vec!["/proc/version".to_owned()];
    equal("/proc/version", x.output(config).await?.as_str(), "end\n")
}

async fn read_only_path_is_not_written(x: &Context) -> Verdict {
    let mut config = x.script("c", "touch /tmp/written 2>/dev/null && echo written; echo end");
    fixture::security(&mut config).readonly_paths = vec!["/tmp".to_owned()];
    equal("the output", x.output(config).await?.as_str(), "end\n")
}

async fn memory_limit_kills(x: &Context, pod: Pod) -> Verdict {
    // The shell doubles its variable until the memory limit; without a limit it stops at 256 MiB.
    let text = "v=0123456789abcdef; while [ ${#v} -lt 268435456 ]; do v=$v$v; done";
    let mut config = x.script("c", text);
    config.linux.get_or_insert_default().resources = Some(v1::LinuxContainerResources {
        memory_limit_in_bytes: 32 << 20,
        memory_swap_limit_in_bytes: 32 << 20,
        ..Default::default()
    });
    let id = pod.start(config).await?;
    let status = x.exited(&id).await?;
    equal("the exit code", &status.exit_code, &137)?;
    equal("the reason", status.reason.as_str(), "OOMKilled")
}

async fn updated_limits_are_in_status(x: &Context, id: String) -> Verdict {
    let request = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(v1::LinuxContainerResources {
            memory_limit_in_bytes: 256 << 20,
            cpu_shares: 512,
            ..Default::default()
        }),
        ..Default::default()
    };
    x.client.runtime.clone().update_container_resources(request).await?;
    let status = x.client.container(&id).await?;
    let linux = status.resources.and_then(|resources| resources.linux);
    let seen = linux.map(|linux| (linux.memory_limit_in_bytes, linux.cpu_shares));
    equal("memory limit and CPU shares in ContainerStatus", &seen, &Some((256 << 20, 512)))
}
