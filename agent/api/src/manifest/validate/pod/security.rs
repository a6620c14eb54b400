//! Security contexts.

use compact::Set;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec, SeccompProfile, Sysctl};

use crate::manifest::validate::pod::windows;
use crate::manifest::validate::{Check, Rule, names};

/// The security context of the pod.
pub(crate) fn of_pod(check: &mut Check, spec: &PodSpec) {
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
        check.range(format!("{field}.supplementalGroups[{index}]"), *group, 0, i64::from(i32::MAX));
    }
    let words: [(&str, &Option<String>, &[&str]); 3] = [
        ("fsGroupChangePolicy", &security.fs_group_change_policy, &["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &security.supplemental_groups_policy, &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &security.se_linux_change_policy, &["Recursive", "MountOption"]),
    ];
    for (name, word, known) in words {
        check.maybe_one_of(format!("{field}.{name}"), word.as_deref(), known);
    }
    seccomp(check, field, security.seccomp_profile.as_ref());
    apparmor(check, field, security.app_armor_profile.as_ref());
    windows::options(check, &format!("{field}.windowsOptions"), security.windows_options.as_ref());
    sysctls(check, spec, security.sysctls.as_deref().unwrap_or_default());
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        check.invalid(format!("{field}.shareProcessNamespace"), true, detail);
    }
}

fn sysctls(check: &mut Check, spec: &PodSpec, sysctls: &[Sysctl]) {
    let mut seen = Set::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let field = format!("spec.securityContext.sysctls[{index}].name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            check.required(&field, "");
        } else if !is_sysctl(name) {
            check.invalid(
                &field,
                name,
                "must be names of lower-case letters, digits, '-' and '_' joined by '.' or '/'",
            );
        } else if seen.contains(name) {
            check.error(Rule::Duplicate, &field, name, "");
        }
        seen.insert(name);
        let dotted = dotted(name);
        let of_node = (spec.host_network == Some(true) && dotted.starts_with("net."))
            || (spec.host_ipc == Some(true) && is_ipc_sysctl(&dotted));
        if of_node {
            let detail = "may not be set when the pod shares that namespace with the node";
            check.invalid(field, name, detail);
        }
    }
}

/// A sysctl's name with dots as separators, as in `net.ipv4.conf.eth0/100.rp_filter`.
fn dotted(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name[at..].starts_with('.')) {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(swap).collect()
}

const IPC_SYSCTLS: &str = "kernel.sem kernel.shmall kernel.shmmax kernel.shmmni kernel.shm_rmid_forced kernel.shm \
    kernel.msgmax kernel.msgmnb kernel.msgmni kernel.msg";

fn is_ipc_sysctl(name: &str) -> bool {
    names::is_among(IPC_SYSCTLS, name) || name.starts_with("fs.mqueue.")
}

fn is_sysctl(name: &str) -> bool {
    let part = |part: &str| names::is_framed(part, names::is_lower, b"-_");
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

fn seccomp(check: &mut Check, field: &str, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    let field = format!("{field}.seccompProfile");
    let file = format!("{field}.localhostProfile");
    match profile.type_.as_str() {
        "" => check.required(format!("{field}.type"), ""),
        kind => check.one_of(
            format!("{field}.type"),
            kind,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None) => check.required(file, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(path)) => check.formed(file, path, names::inner_path),
        (_, Some(path)) => {
            check.invalid(file, path, "can only be set when seccomp type is Localhost")
        }
        (_, None) => {}
    }
}

fn apparmor(check: &mut Check, field: &str, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else { return };
    let field = format!("{field}.appArmorProfile");
    let name = format!("{field}.localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("", _) => check.required(format!("{field}.type"), ""),
        ("Localhost", None) => check.required(name, "must be set when AppArmor type is Localhost"),
        ("Localhost", Some(profile)) => {
            if profile.trim() != profile {
                check.invalid(&name, profile, "must not be padded with whitespace");
            } else if profile.is_empty() {
                check.required(&name, "must be set when AppArmor type is Localhost");
            }
            if profile.len() > 4095 {
                check.error(Rule::TooLong, name, "", "may not be more than 4095 bytes");
            }
        }
        ("RuntimeDefault" | "Unconfined", profile) => {
            if let Some(profile) = profile {
                check.invalid(name, profile, "can only be set when AppArmor type is Localhost");
            }
        }
        (kind, _) => check.one_of(
            format!("{field}.type"),
            kind,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
}

/// The security context of a container.
pub(crate) fn of_container(check: &mut Check, field: &str, container: &Container, spec: &PodSpec) {
    let Some(security) = &container.security_context else {
        return;
    };
    let field = format!("{field}.securityContext");
    for (name, id) in [("runAsUser", security.run_as_user), ("runAsGroup", security.run_as_group)] {
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
    windows::options(check, &format!("{field}.windowsOptions"), security.windows_options.as_ref());
    if security.allow_privilege_escalation == Some(false) {
        if security.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            check.invalid(&field, "", detail);
        }
        let added =
            security.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten());
        for capability in added {
            if capability == "CAP_SYS_ADMIN" {
                let detail = "cannot set `allowPrivilegeEscalation` to false and add CAP_SYS_ADMIN";
                check.invalid(&field, capability, detail);
            }
        }
    }
}
