//! Rules of what a container's configuration does to its processes.

use cri::v1;

use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, equal, failed, refused};
use crate::check::rule::sources::{API, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::fixture;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-CFG-001",
        severity: Severity::Must,
        says: "The command is followed by the arguments, each as it was sent.",
        source: API,
        tags: &["process"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.args",
            "CreateContainer request set config.args [\"two words\"]",
        ],
        body: |x| Box::pin(arguments_follow_command(x)),
    },
    Rule {
        id: "CRI-CFG-002",
        severity: Severity::Must,
        says: "Environment variables are set in the container, as they were sent.",
        source: API,
        tags: &["process"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.envs",
            "CreateContainer request set config.envs.value \"eHg=\"",
            "CreateContainer request set config.envs [{\"key\": \"CHECKED\", \"value\": \"YSBiPWM=\"}]",
        ],
        body: |x| Box::pin(environment_is_set(x)),
    },
    Rule {
        id: "CRI-CFG-003",
        severity: Severity::Must,
        says: "The command runs in the working directory.",
        source: API,
        tags: &["process"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.working_dir"],
        body: |x| Box::pin(working_directory_is_entered(x)),
    },
    Rule {
        id: "CRI-CFG-004",
        severity: Severity::Must,
        says: "A mounted directory of the host is seen in the container, and written through.",
        source: CRITEST,
        tags: &["kubelet", "mount"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.readonly true",
        ],
        body: |x| Box::pin(mount_is_seen_and_written(x)),
    },
    Rule {
        id: "CRI-CFG-005",
        severity: Severity::Must,
        says: "Nothing is written through a mount that is read-only.",
        source: CRITEST,
        tags: &["kubelet", "mount", "security"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.mounts.readonly"],
        body: |x| Box::pin(read_only_mount_is_not_written(x)),
    },
    Rule {
        id: "CRI-CFG-006",
        severity: Severity::Must,
        says: "Nothing is written to a root file system that is read-only.",
        source: CRITEST,
        tags: &["security"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.linux.security_context.readonly_rootfs"],
        body: |x| Box::pin(read_only_root_is_not_written(x)),
    },
    Rule {
        id: "CRI-CFG-007",
        severity: Severity::Must,
        says: "The command runs as the user and group that were asked for.",
        source: CRITEST,
        tags: &["security", "user"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.linux.security_context.run_as_user",
            "CreateContainer request drop config.linux.security_context.run_as_group",
        ],
        body: |x| Box::pin(user_and_group_are_set(x)),
    },
    Rule {
        id: "CRI-CFG-008",
        severity: Severity::Must,
        says: "A group without a user is refused.",
        source: CRITEST,
        tags: &["security", "user", "input"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.linux.security_context.run_as_user {\"value\": \"0\"}",
        ],
        body: |x| Box::pin(group_without_user_is_refused(x)),
    },
    Rule {
        id: "CRI-CFG-009",
        severity: Severity::Must,
        says: "Supplemental groups are added to the command's groups.",
        source: CRITEST,
        tags: &["security", "user"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.linux.security_context.supplemental_groups"],
        body: |x| Box::pin(supplemental_groups_are_added(x)),
    },
    Rule {
        id: "CRI-CFG-010",
        severity: Severity::Must,
        says: "no_new_privs is set in the kernel for the command.",
        source: CRITEST,
        tags: &["security"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.linux.security_context.no_new_privs"],
        body: |x| Box::pin(no_new_privs_is_set(x)),
    },
    Rule {
        id: "CRI-CFG-011",
        severity: Severity::Must,
        says: "A container that drops ALL capabilities has none left to gain.",
        source: CRITEST,
        tags: &["security", "capability"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.linux.security_context.capabilities"],
        body: |x| Box::pin(dropped_capabilities_are_gone(x)),
    },
    Rule {
        id: "CRI-CFG-012",
        severity: Severity::Must,
        says: "An added capability is there, and it is not there by default.",
        source: CRITEST,
        tags: &["security", "capability"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.linux.security_context.capabilities",
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"ALL\"]}",
        ],
        body: |x| Box::pin(added_capability_is_there(x)),
    },
    Rule {
        id: "CRI-CFG-013",
        severity: Severity::Must,
        says: "The runtime's default seccomp profile is a filter, and Unconfined is none.",
        source: CRITEST,
        tags: &["security", "seccomp"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.linux.security_context.seccomp",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\": \"RuntimeDefault\"}",
        ],
        body: |x| Box::pin(seccomp_profile_is_a_filter(x)),
    },
    Rule {
        id: "CRI-CFG-014",
        severity: Severity::Must,
        says: "A masked path has no content.",
        source: CRITEST,
        tags: &["security", "mount"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.linux.security_context.masked_paths"],
        body: |x| Box::pin(masked_path_is_empty(x)),
    },
    Rule {
        id: "CRI-CFG-015",
        severity: Severity::Must,
        says: "A path that is to be read-only is not written.",
        source: CRITEST,
        tags: &["security", "mount"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request drop config.linux.security_context.readonly_paths"],
        body: |x| Box::pin(read_only_path_is_not_written(x)),
    },
    Rule {
        id: "CRI-CFG-016",
        severity: Severity::Must,
        says: "A memory limit is the limit of the container's cgroup, and the kernel's kill is told as OOMKilled with 137.",
        source: CRITEST,
        tags: &["kubelet", "resources", "exit"],
        calls: &["CreateContainer", "ContainerStatus"],
        faults: &[
            "CreateContainer request drop config.linux.resources",
            "ContainerStatus set status.reason \"Error\"",
        ],
        body: |x| Box::pin(memory_limit_kills(x)),
    },
    Rule {
        id: "CRI-CFG-017",
        severity: Severity::Should,
        says: "UpdateContainerResources of a running container succeeds, and its status has the new limits.",
        source: KUBELET,
        tags: &["kubelet", "resources"],
        calls: &["UpdateContainerResources", "ContainerStatus"],
        faults: &[
            "UpdateContainerResources swallow",
            "ContainerStatus drop status.resources",
        ],
        body: |x| Box::pin(updated_limits_are_in_status(x)),
    },
];

async fn arguments_follow_command(x: &Context) -> Verdict {
    let mut config = x.script("c", "");
    config.command = ["/bin/sh", "-c", "for word; do echo \"<$word>\"; done", "sh"]
        .map(str::to_owned)
        .into();
    config.args = ["two words", "", "$HOME", "$(PATH)"]
        .map(str::to_owned)
        .into();
    equal(
        "the arguments",
        x.output(config).await?.as_str(),
        "<two words>\n<>\n<$HOME>\n<$(PATH)>\n",
    )
}

async fn environment_is_set(x: &Context) -> Verdict {
    let mut config = x.script(
        "c",
        "echo \"$CHECKED\"; echo \"${EMPTY-unset}\"; echo \"$LINES_\"",
    );
    for (key, value) in [("CHECKED", " a b=c "), ("EMPTY", ""), ("LINES_", "é\n$x")] {
        config.envs.push(v1::KeyValue {
            key: key.to_owned(),
            value: value.into(),
        });
    }
    let output = x.output(config).await?;
    equal("the variables", output.as_str(), " a b=c \n\né\n$x\n")
}

async fn working_directory_is_entered(x: &Context) -> Verdict {
    let mut config = x.script("c", "pwd");
    config.working_dir = "/tmp".to_owned();
    equal(
        "the working directory",
        x.output(config).await?.as_str(),
        "/tmp\n",
    )
}

/// A container with a directory of the host at `/mnt`, which holds the file `given`.
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
    x.needs_namespaces()?;
    let (config, directory) = with_mount(x, "cat /mnt/given && echo back >/mnt/written", false)?;
    equal(
        "the mounted file",
        x.output(config).await?.as_str(),
        "from the host\n",
    )?;
    let written = std::fs::read_to_string(directory.join("written")).unwrap_or_default();
    equal(
        "the file that the container wrote",
        written.as_str(),
        "back\n",
    )
}

async fn read_only_mount_is_not_written(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let (config, directory) = with_mount(
        x,
        "cat /mnt/given; echo back >/mnt/written; echo done",
        true,
    )?;
    equal(
        "the output",
        x.output(config).await?.as_str(),
        "from the host\ndone\n",
    )?;
    let written = directory.join("written").exists();
    ensure(
        !written,
        "a file in a read-only mount",
        "not written",
        "written",
    )
}

async fn read_only_root_is_not_written(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut config = x.script("c", "touch /written 2>/dev/null && echo written; echo done");
    fixture::security(&mut config).readonly_rootfs = true;
    equal("the output", x.output(config).await?.as_str(), "done\n")
}

async fn user_and_group_are_set(x: &Context) -> Verdict {
    x.needs_users()?;
    let mut config = x.script("c", "id -u; id -g");
    let security = fixture::security(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 1001 });
    security.run_as_group = Some(v1::Int64Value { value: 1002 });
    equal(
        "the user and the group",
        x.output(config).await?.as_str(),
        "1001\n1002\n",
    )
}

async fn group_without_user_is_refused(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let mut config = x.script("c", "true");
    // The group that every box has.
    fixture::security(&mut config).run_as_group = Some(v1::Int64Value { value: 0 });
    match pod.create(config).await {
        Ok(id) => refused(
            "StartContainer with a group alone",
            x.client.start(&id).await,
        )
        .map(drop),
        answer => refused("CreateContainer with a group alone", answer).map(drop),
    }
}

async fn supplemental_groups_are_added(x: &Context) -> Verdict {
    x.needs_users()?;
    let mut config = x.script("c", "id -G");
    fixture::security(&mut config).supplemental_groups = vec![1234, 5678];
    let output = x.output(config).await?;
    let groups: Vec<&str> = output.split_whitespace().collect();
    let both = groups.contains(&"1234") && groups.contains(&"5678");
    ensure(both, "id -G", "1234 and 5678 among them", groups)
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
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
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
        security
            .capabilities
            .get_or_insert_default()
            .drop_capabilities = vec!["ALL".to_owned()];
    });
    equal("CapBnd", value.await?.as_str(), "0000000000000000")
}

async fn added_capability_is_there(x: &Context) -> Verdict {
    const NET_ADMIN: u64 = 1 << 12;
    let has = |value: &str| u64::from_str_radix(value, 16).is_ok_and(|set| set & NET_ADMIN != 0);
    let added = of_status(x, "CapEff", |security| {
        security
            .capabilities
            .get_or_insert_default()
            .add_capabilities = vec!["NET_ADMIN".to_owned()];
    });
    let added = added.await?;
    ensure(
        has(&added),
        "CapEff with NET_ADMIN added",
        "the bit of NET_ADMIN",
        added,
    )?;
    let default = of_status(x, "CapEff", |_| {}).await?;
    ensure(
        !has(&default),
        "CapEff by default",
        "not the bit of NET_ADMIN",
        default,
    )
}

async fn seccomp_profile_is_a_filter(x: &Context) -> Verdict {
    use v1::security_profile::ProfileType;
    for (profile, expected) in [
        (ProfileType::RuntimeDefault, "2"),
        (ProfileType::Unconfined, "0"),
    ] {
        let value = of_status(x, "Seccomp", |security| {
            security.seccomp = Some(v1::SecurityProfile {
                profile_type: profile.into(),
                ..Default::default()
            });
        });
        let what = format!("Seccomp with {}", profile.as_str_name());
        equal(&what, value.await?.as_str(), expected)?;
    }
    Ok(())
}

async fn masked_path_is_empty(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut config = x.script("c", "head -c 20 /proc/version 2>/dev/null; echo end");
    fixture::security(&mut config).masked_paths = vec!["/proc/version".to_owned()];
    equal("/proc/version", x.output(config).await?.as_str(), "end\n")
}

async fn read_only_path_is_not_written(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut config = x.script(
        "c",
        "touch /tmp/written 2>/dev/null && echo written; echo end",
    );
    fixture::security(&mut config).readonly_paths = vec!["/tmp".to_owned()];
    equal("the output", x.output(config).await?.as_str(), "end\n")
}

async fn memory_limit_kills(x: &Context) -> Verdict {
    x.needs_limits()?;
    let pod = x.pod().await?;
    // The shell's variable doubles until the limit; without one it ends at 256 MiB.
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

async fn updated_limits_are_in_status(x: &Context) -> Verdict {
    x.needs_limits()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let request = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(v1::LinuxContainerResources {
            memory_limit_in_bytes: 256 << 20,
            cpu_shares: 512,
            ..Default::default()
        }),
        ..Default::default()
    };
    x.client
        .runtime
        .clone()
        .update_container_resources(request)
        .await?;
    let status = x.client.container(&id).await?;
    let linux = status.resources.and_then(|resources| resources.linux);
    let seen = linux.map(|linux| (linux.memory_limit_in_bytes, linux.cpu_shares));
    equal(
        "memory limit and CPU shares in ContainerStatus",
        &seen,
        &Some((256 << 20, 512)),
    )
}
