//! Security contexts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec, SeccompProfile};

use super::{Check, Rule, duplicate, names};

/// The security context of the pod.
pub(super) fn of_pod(check: &mut Check, spec: &PodSpec) {
    let Some(security) = &spec.security_context else {
        return;
    };
    let field = "spec.securityContext";
    for (name, id) in [
        ("fsGroup", security.fs_group),
        ("runAsUser", security.run_as_user),
        ("runAsGroup", security.run_as_group),
    ] {
        if let Some(id) = id {
            check.range(format!("{field}.{name}"), id, 0, i64::from(i32::MAX));
        }
    }
    for (index, group) in security.supplemental_groups.iter().flatten().enumerate() {
        check.range(
            format!("{field}.supplementalGroups[{index}]"),
            *group,
            0,
            i64::from(i32::MAX),
        );
    }
    let words: [(&str, &Option<String>, &[&str]); 3] = [
        (
            "fsGroupChangePolicy",
            &security.fs_group_change_policy,
            &["Always", "OnRootMismatch"],
        ),
        (
            "supplementalGroupsPolicy",
            &security.supplemental_groups_policy,
            &["Merge", "Strict"],
        ),
        (
            "seLinuxChangePolicy",
            &security.se_linux_change_policy,
            &["Recursive", "MountOption"],
        ),
    ];
    for (name, word, known) in words {
        check.maybe_one_of(format!("{field}.{name}"), word.as_deref(), known);
    }
    seccomp(check, field, security.seccomp_profile.as_ref());
    apparmor(check, field, security.app_armor_profile.as_ref());
    let mut seen = BTreeSet::new();
    for (index, sysctl) in security.sysctls.iter().flatten().enumerate() {
        let field = format!("{field}.sysctls[{index}].name");
        if sysctl.name.is_empty() {
            check.required(field, "");
            continue;
        }
        if !is_sysctl(&sysctl.name) {
            check.invalid(
                &field,
                &sysctl.name,
                "must be names of lower-case letters, digits, '-' and '_' joined by '.' or '/'",
            );
        }
        let name = sysctl.name.replace('/', ".");
        let of_node = (spec.host_network == Some(true) && name.starts_with("net."))
            || (spec.host_ipc == Some(true) && is_ipc_sysctl(&name));
        if of_node {
            check.invalid(
                &field,
                &sysctl.name,
                "may not be set when the pod shares that namespace with the node",
            );
        }
        duplicate(check, &mut seen, field, &name);
    }
}

fn is_ipc_sysctl(name: &str) -> bool {
    name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn is_sysctl(name: &str) -> bool {
    let part = |part: &str| {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes
            .first()
            .zip(bytes.last())
            .is_some_and(|(first, last)| alphanumeric(*first) && alphanumeric(*last))
            && bytes
                .iter()
                .all(|byte| alphanumeric(*byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

fn seccomp(check: &mut Check, field: &str, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    let field = format!("{field}.seccompProfile");
    let file = format!("{field}.localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("", _) => check.required(format!("{field}.type"), ""),
        ("Localhost", None) => check.required(file, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(path)) => check.formed(file, path, names::inner_path),
        (kind, path) => {
            check.one_of(
                format!("{field}.type"),
                kind,
                &["Localhost", "RuntimeDefault", "Unconfined"],
            );
            if path.is_some() {
                check.invalid(
                    file,
                    path.unwrap_or_default(),
                    "can only be set when seccomp type is Localhost",
                );
            }
        }
    }
}

fn apparmor(check: &mut Check, field: &str, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else { return };
    let field = format!("{field}.appArmorProfile");
    let name = format!("{field}.localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("", _) => check.required(format!("{field}.type"), ""),
        ("Localhost", None | Some("")) => {
            check.required(name, "must be set when AppArmor type is Localhost")
        }
        ("Localhost", Some(profile)) => {
            if profile.trim() != profile {
                check.invalid(name, profile, "must not be padded with whitespace");
            } else if profile.len() > 4095 {
                check.error(Rule::TooLong, name, "", "may not be more than 4095 bytes");
            }
        }
        (kind, profile) => {
            check.one_of(
                format!("{field}.type"),
                kind,
                &["Localhost", "RuntimeDefault", "Unconfined"],
            );
            if let Some(profile) = profile {
                check.invalid(
                    name,
                    profile,
                    "can only be set when AppArmor type is Localhost",
                );
            }
        }
    }
}

/// The security context of a container.
pub(super) fn of_container(check: &mut Check, field: &str, container: &Container, spec: &PodSpec) {
    let Some(security) = &container.security_context else {
        return;
    };
    let field = format!("{field}.securityContext");
    for (name, id) in [
        ("runAsUser", security.run_as_user),
        ("runAsGroup", security.run_as_group),
    ] {
        if let Some(id) = id {
            check.range(format!("{field}.{name}"), id, 0, i64::from(i32::MAX));
        }
    }
    if let Some(mount) = security.proc_mount.as_deref() {
        let field = format!("{field}.procMount");
        check.one_of(&field, mount, &["Default", "Unmasked"]);
        if mount == "Unmasked" && spec.host_users != Some(false) {
            check.invalid(field, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    seccomp(check, &field, security.seccomp_profile.as_ref());
    apparmor(check, &field, security.app_armor_profile.as_ref());
    if security.allow_privilege_escalation == Some(false) {
        if security.privileged == Some(true) {
            check.invalid(
                &field,
                "",
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = security
            .capabilities
            .iter()
            .flat_map(|capabilities| capabilities.add.iter().flatten());
        for capability in added {
            if capability == "CAP_SYS_ADMIN" {
                check.invalid(
                    &field,
                    capability,
                    "cannot set `allowPrivilegeEscalation` to false and add CAP_SYS_ADMIN",
                );
            }
        }
    }
}
