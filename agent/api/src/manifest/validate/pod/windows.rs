//! The operating system of a pod, and rules for Windows.

use k8s_openapi::api::core::v1::{PodSpec, SecurityContext, WindowsSecurityContextOptions};

use crate::manifest::validate::{Check, names};

/// `spec.os`, and the fields that it excludes.
pub(crate) fn os(check: &mut Check, spec: &PodSpec) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => check.required("spec.os.name", ""),
        "linux" => linux(check, spec),
        "windows" => windows(check, spec),
        other => check.one_of("spec.os", other, &["linux", "windows"]),
    }
}

fn linux(check: &mut Check, spec: &PodSpec) {
    let why = "windows options cannot be set for a linux pod";
    let pod = spec.security_context.as_ref();
    if pod.is_some_and(|pod| pod.windows_options.is_some()) {
        check.forbidden("spec.securityContext.windowsOptions", why);
    }
    for (field, container) in crate::manifest::validate::containers(spec) {
        let own = container.security_context.as_ref();
        if own.is_some_and(|own| own.windows_options.is_some()) {
            check.forbidden(format!("{field}.securityContext.windowsOptions"), why);
        }
    }
}

fn windows(check: &mut Check, spec: &PodSpec) {
    let mut excluded = vec![
        ("spec.hostUsers", spec.host_users.is_some()),
        ("spec.hostPID", spec.host_pid == Some(true)),
        ("spec.hostIPC", spec.host_ipc == Some(true)),
        ("spec.shareProcessNamespace", spec.share_process_namespace.is_some()),
    ];
    if let Some(pod) = &spec.security_context {
        let has_sysctls = pod.sysctls.as_ref().is_some_and(|sysctls| !sysctls.is_empty());
        excluded.extend([
            ("spec.securityContext.appArmorProfile", pod.app_armor_profile.is_some()),
            ("spec.securityContext.seLinuxOptions", pod.se_linux_options.is_some()),
            ("spec.securityContext.seccompProfile", pod.seccomp_profile.is_some()),
            ("spec.securityContext.fsGroup", pod.fs_group.is_some()),
            ("spec.securityContext.fsGroupChangePolicy", pod.fs_group_change_policy.is_some()),
            ("spec.securityContext.sysctls", has_sysctls),
            ("spec.securityContext.runAsUser", pod.run_as_user.is_some()),
            ("spec.securityContext.runAsGroup", pod.run_as_group.is_some()),
            ("spec.securityContext.supplementalGroups", pod.supplemental_groups.is_some()),
            (
                "spec.securityContext.supplementalGroupsPolicy",
                pod.supplemental_groups_policy.is_some(),
            ),
            ("spec.securityContext.seLinuxChangePolicy", pod.se_linux_change_policy.is_some()),
        ]);
    }
    for (field, _) in excluded.into_iter().filter(|(_, set)| *set) {
        check.forbidden(field, NOT_FOR_WINDOWS);
    }
    for (field, container) in crate::manifest::validate::containers(spec) {
        if let Some(own) = &container.security_context {
            windows_container(check, &format!("{field}.securityContext"), own);
        }
    }
}

const NOT_FOR_WINDOWS: &str = "cannot be set for a windows pod";

fn windows_container(check: &mut Check, field: &str, own: &SecurityContext) {
    for (name, set) in [
        ("appArmorProfile", own.app_armor_profile.is_some()),
        ("seLinuxOptions", own.se_linux_options.is_some()),
        ("seccompProfile", own.seccomp_profile.is_some()),
        ("capabilities", own.capabilities.is_some()),
        ("readOnlyRootFilesystem", own.read_only_root_filesystem.is_some()),
        ("privileged", own.privileged.is_some()),
        ("allowPrivilegeEscalation", own.allow_privilege_escalation.is_some()),
        ("procMount", own.proc_mount.is_some()),
        ("runAsUser", own.run_as_user.is_some()),
        ("runAsGroup", own.run_as_group.is_some()),
    ] {
        if set {
            check.forbidden(format!("{field}.{name}"), NOT_FOR_WINDOWS);
        }
    }
}

/// Pods with host processes are host processes as a whole, and have the host's network.
pub(crate) fn host_process(check: &mut Check, spec: &PodSpec) {
    let pod = spec.security_context.as_ref();
    let of_pod = pod.and_then(|pod| pod.windows_options.as_ref()?.host_process);
    let (mut all, mut hosted) = (0, 0);
    for (field, container) in crate::manifest::validate::containers(spec) {
        all += 1;
        let own = container.security_context.as_ref();
        let own = own.and_then(|own| own.windows_options.as_ref()?.host_process);
        if let Some((own, of_pod)) = own.zip(of_pod)
            && own != of_pod
        {
            check.invalid(
                format!("{field}.securityContext.windowsOptions.hostProcess"),
                own,
                "must equal the pod's value, if both are set",
            );
        }
        hosted += usize::from(own.or(of_pod) == Some(true));
    }
    if hosted == 0 {
        return;
    }
    if hosted != all {
        check.invalid("spec", "", "if one container is a host process, all of them must be");
    }
    if spec.host_network != Some(true) {
        check.invalid("spec.hostNetwork", false, "must be true if the pod has host processes");
    }
}

/// The Windows options of a security context.
pub(crate) fn options(
    check: &mut Check,
    field: &str,
    options: Option<&WindowsSecurityContextOptions>,
) {
    let Some(options) = options else { return };
    if let Some(name) = &options.gmsa_credential_spec_name {
        let field = format!("{field}.gmsaCredentialSpecName");
        check.formed(field, name, names::dns_subdomain);
    }
    if let Some(content) = &options.gmsa_credential_spec {
        let field = format!("{field}.gmsaCredentialSpec");
        if content.is_empty() {
            check.invalid(field, "", "must not be empty");
        } else if content.len() > 64 << 10 {
            check.invalid(field, "", "must be at most 64 KiB");
        }
    }
    check.maybe_formed(
        format!("{field}.runAsUserName"),
        options.run_as_user_name.as_deref(),
        user_name,
    );
}

/// `USER` or `DOMAIN\USER`.
fn user_name(text: &str) -> Option<&'static str> {
    let (domain, user) = match text.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, text),
    };
    if text.is_empty() || user.is_empty() {
        Some("the user must not be empty")
    } else if text.bytes().any(|byte| byte.is_ascii_control()) {
        Some("must not contain control characters")
    } else if user.contains('\\') {
        Some("must not contain more than one backslash")
    } else if domain.is_some_and(|domain| domain.len() >= 256) {
        Some("the domain must have less than 256 bytes")
    } else if domain.is_some_and(|domain| !is_net_bios(domain) && !is_domain(domain)) {
        Some("the domain must be a NetBIOS or DNS name")
    } else if user.len() > 104 {
        Some("the user must have at most 104 bytes")
    } else if user.chars().all(|c| matches!(c, '.' | ' ')) {
        Some("the user must not consist only of dots and spaces")
    } else {
        user.contains(['"', '/', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']'])
            .then_some("the user must not contain any of \"/\\:;|=,+*?<>@[]")
    }
}

fn is_net_bios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_domain(domain: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_alphanumeric();
    let fits = |part: &str| part.len() <= 63 && names::is_framed(part, is_alphanumeric, b"-");
    domain.split('.').all(fits)
}
