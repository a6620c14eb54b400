//! ◆ Merges the security contexts of pod and container: the container's setting wins.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/security_context.go, pkg/securitycontext/util.go.

use std::path::{Component, Path, PathBuf};

use api::pod::Pod;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use crate::observed::ContainerId;
use crate::pod_spec::spec::namespaces::{self, NamespaceError};
use crate::pod_spec::spec::{
    ContainerSecurity, ImageUser, NamespaceMode, Node, PodGrants, SecurityProfile, Selinux,
};

/// Paths hidden from containers whose `procMount` is Default.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Read-only paths of such containers.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Why a container with `runAsNonRoot` must not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// The container's own user is root.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    AskedForRoot {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The image's user is root.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})"
    )]
    ImageIsRoot {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The image's user is not a valid id.
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({user}). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive (pod: {pod:?}, container: {container})"
    )]
    ImageIsInvalid {
        /// The user's id.
        user: i64,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The image's user is a name, which may be an alias of root.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
    )]
    ImageNamesUser {
        /// The user's name.
        user: String,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
}

/// Why a container's security settings cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// Its user is not allowed.
    #[error(transparent)]
    User(#[from] UserError),
    /// Its pod cannot have its namespaces.
    #[error(transparent)]
    Namespaces(#[from] NamespaceError),
    /// A seccomp profile of the node without a file.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfile,
    /// An AppArmor profile of the node without a name.
    #[error("missing localhost apparmor profile name")]
    AppArmorProfile,
    /// The policy for supplemental groups does not exist.
    #[error(transparent)]
    Groups(#[from] GroupsPolicyError),
}

/// The policy for supplemental groups does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported supplementalGroupsPolicy: {policy}")]
pub struct GroupsPolicyError {
    policy: String,
}

/// Whether the groups of the image's /etc/group are ignored.
pub(super) fn strict_groups(pod: &PodSecurityContext) -> Result<bool, GroupsPolicyError> {
    match pod.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(false),
        Some("Strict") => Ok(true),
        Some(policy) => Err(GroupsPolicyError { policy: policy.to_owned() }),
    }
}

pub(super) fn selinux(options: &SELinuxOptions) -> Selinux {
    let text = |option: &Option<String>| option.clone().unwrap_or_default();
    Selinux {
        user: text(&options.user),
        role: text(&options.role),
        kind: text(&options.type_),
        level: text(&options.level),
    }
}

/// Checks `runAsNonRoot`.
pub(super) fn check_user(
    pod: &Pod,
    container: &Container,
    image_user: &ImageUser,
) -> Result<(), UserError> {
    let shared = pod.spec().security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        let user = own.run_as_user.or(shared.run_as_user);
        not_root(pod, container, user, image_user)?;
    }
    Ok(())
}

/// Builds the security settings of a container.
pub(super) fn of_container(
    pod: &Pod,
    container: &Container,
    image_user: &ImageUser,
    target: Option<&ContainerId>,
    grants: &PodGrants,
    node: &Node,
) -> Result<ContainerSecurity, SecurityError> {
    let shared = pod.spec().security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(shared.run_as_user);
    let profile = own.seccomp_profile.as_ref();
    let seccomp = seccomp(profile.or(shared.seccomp_profile.as_ref()), node)?;
    let profile = own.app_armor_profile.as_ref();
    let apparmor = match profile.or(shared.app_armor_profile.as_ref()) {
        Some(profile) => Some(apparmor(profile)?),
        None => annotated_apparmor(pod, container),
    };
    let mut namespaces = namespaces::of_pod(pod, node, grants.user_namespace.as_ref())?;
    // With a shared process namespace, there is nothing to join.
    if let Some(target) = target.filter(|_| namespaces.pid == NamespaceMode::Container) {
        namespaces.pid = NamespaceMode::Target;
        namespaces.target_id = target.to_string();
    }
    let mut groups: Vec<i64> = shared.fs_group.into_iter().collect();
    groups.extend(shared.supplemental_groups.iter().flatten());
    groups.extend(&grants.supplemental_groups);
    let (user, username) = match (run_as_user, image_user) {
        (Some(user), _) => (Some(user), String::new()),
        (None, ImageUser::Unset) => (Some(0), String::new()),
        (None, ImageUser::Id(id)) => (Some(*id), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let privileged = own.privileged == Some(true);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str], more: &[String]| -> Vec<String> {
        let paths = paths.iter().map(|path| (*path).to_owned()).chain(more.iter().cloned());
        if unmasked { Vec::new() } else { paths.collect() }
    };
    let capabilities = own.capabilities.clone().unwrap_or_default();
    Ok(ContainerSecurity {
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        privileged,
        namespaces,
        selinux: own.se_linux_options.as_ref().or(shared.se_linux_options.as_ref()).map(selinux),
        run_as_user: user,
        run_as_group: own.run_as_group.or(shared.run_as_group),
        run_as_username: username,
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups,
        strict_supplemental_groups: strict_groups(&shared)?,
        no_new_privs: no_new_privs(&own),
        masked_paths: paths(&MASKED, &node.masked_paths),
        readonly_paths: paths(&READ_ONLY, &[]),
        seccomp: Some(seccomp),
        apparmor,
    })
}

/// Privilege escalation is allowed by default, and always for a privileged container.
fn no_new_privs(own: &SecurityContext) -> bool {
    own.allow_privilege_escalation == Some(false)
}

fn not_root(
    pod: &Pod,
    container: &Container,
    user: Option<i64>,
    image: &ImageUser,
) -> Result<(), UserError> {
    let (pod, container) = (pod.long_name(), container.name.clone());
    match (user, image) {
        (Some(0), _) => Err(UserError::AskedForRoot { pod, container }),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Unset | ImageUser::Id(0)) => {
            Err(UserError::ImageIsRoot { pod, container })
        }
        (None, ImageUser::Id(user)) if i32::try_from(*user).map_or(true, |user| user < 0) => {
            Err(UserError::ImageIsInvalid { user: *user, pod, container })
        }
        (None, ImageUser::Id(_)) => Ok(()),
        (None, ImageUser::Name(user)) => {
            Err(UserError::ImageNamesUser { user: user.clone(), pod, container })
        }
    }
}

fn seccomp(
    profile: Option<&SeccompProfile>,
    node: &Node,
) -> Result<SecurityProfile, SecurityError> {
    let Some(profile) = profile else {
        return Ok(if node.seccomp_default {
            SecurityProfile::RuntimeDefault
        } else {
            SecurityProfile::Unconfined
        });
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(SecurityProfile::RuntimeDefault),
        "Localhost" => {
            let file = profile.localhost_profile.as_deref();
            let file = file.filter(|file| !file.is_empty());
            let file = file.ok_or(SecurityError::SeccompProfile)?;
            let names = Path::new(file).components();
            let inner = names.filter(|name| matches!(name, Component::Normal(_)));
            let path = node.seccomp_root.join(inner.collect::<PathBuf>());
            Ok(SecurityProfile::Localhost(path.to_string_lossy().into_owned()))
        }
        _ => Ok(SecurityProfile::Unconfined),
    }
}

fn apparmor(profile: &AppArmorProfile) -> Result<SecurityProfile, SecurityError> {
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", Some(name)) => Ok(SecurityProfile::Localhost(name.to_owned())),
        ("Localhost", None) => Err(SecurityError::AppArmorProfile),
        ("Unconfined", _) => Ok(SecurityProfile::Unconfined),
        _ => Ok(SecurityProfile::RuntimeDefault),
    }
}

/// The AppArmor profile of the annotation that was used before Kubernetes 1.30.
fn annotated_apparmor(pod: &Pod, container: &Container) -> Option<SecurityProfile> {
    let key = format!("container.apparmor.security.beta.kubernetes.io/{}", container.name);
    let (_, value) = pod.annotations().find(|(name, _)| *name == key)?;
    match value {
        "runtime/default" => Some(SecurityProfile::RuntimeDefault),
        "unconfined" => Some(SecurityProfile::Unconfined),
        other => {
            other.strip_prefix("localhost/").map(|name| SecurityProfile::Localhost(name.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    const COUNTERS: &str = "/sys/devices/system/cpu/cpu0/thermal_throttle";

    #[rstest]
    #[case::usual("Default", true)]
    #[case::unmasked("Unmasked", false)]
    fn counters_of_cpus_are_masked_with_the_usual_paths(#[case] mount: &str, #[case] want: bool) {
        let container = json!({"name": "c", "securityContext": {"procMount": mount}});
        let spec = json!({"containers": [container]});
        let pod = fixtures::pod(json!({"metadata": {"name": "p"}, "spec": spec}));
        let mut node = Node::new("n", "/r", "/l");
        node.masked_paths = vec![COUNTERS.to_owned()];
        let container = &pod.spec().containers[0];
        let grants = PodGrants::default();
        let made = of_container(&pod, container, &ImageUser::Unset, None, &grants, &node).unwrap();
        for path in ["/proc/kcore", COUNTERS] {
            assert_eq!(made.masked_paths.iter().any(|masked| masked == path), want, "{path}");
        }
    }
}
