//! Merges the security contexts of pod and container: the container's setting wins.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/security_context.go, pkg/securitycontext/util.go.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use crate::observed::ContainerId;
use crate::pod::Pod;
use crate::spec::{
    ContainerSecurity, ImageUser, NamespaceMode, Namespaces, Node, SecurityProfile, Selinux,
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
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

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
    /// The image's user is a name, which could be root's.
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

/// The namespace modes of a pod, or of a container that joins `target`.
pub(super) fn namespaces(pod: &Pod, target: Option<&ContainerId>) -> Namespaces {
    let spec = pod.spec();
    let node_if = |host: Option<bool>| {
        if host == Some(true) {
            NamespaceMode::Node
        } else {
            NamespaceMode::Pod
        }
    };
    // With a shared process namespace, there is nothing to join.
    let pid = if spec.host_pid == Some(true) {
        NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else if target.is_some() {
        NamespaceMode::Target
    } else {
        NamespaceMode::Container
    };
    Namespaces {
        network: node_if(spec.host_network),
        pid,
        ipc: node_if(spec.host_ipc),
        target_id: match pid {
            NamespaceMode::Target => target.map(ToString::to_string).unwrap_or_default(),
            NamespaceMode::Pod | NamespaceMode::Container | NamespaceMode::Node => String::new(),
        },
        user: None,
    }
}

/// Supplementary groups of the pod: fsGroup, then `supplementalGroups`.
pub(super) fn supplemental_groups(pod: &PodSecurityContext) -> Vec<i64> {
    let mut groups: Vec<i64> = pod.fs_group.into_iter().collect();
    groups.extend(pod.supplemental_groups.iter().flatten());
    groups
}

pub(super) fn strict_groups(pod: &PodSecurityContext) -> bool {
    pod.supplemental_groups_policy.as_deref() == Some("Strict")
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

/// Builds the security settings of a container.
pub(super) fn of_container(
    pod: &Pod,
    container: &Container,
    image_user: &ImageUser,
    target: Option<&ContainerId>,
    node: &Node,
) -> Result<ContainerSecurity, UserError> {
    let shared = pod.spec().security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(shared.run_as_user);
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        not_root(pod, container, run_as_user, image_user)?;
    }
    let (user, username) = match (run_as_user, image_user) {
        (Some(user), _) => (Some(user), String::new()),
        (None, ImageUser::Unset) => (Some(0), String::new()),
        (None, ImageUser::Id(id)) => (Some(*id), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let privileged = own.privileged == Some(true);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| -> Vec<String> {
        if unmasked {
            Vec::new()
        } else {
            paths.iter().map(|path| (*path).to_owned()).collect()
        }
    };
    let capabilities = own.capabilities.clone().unwrap_or_default();
    Ok(ContainerSecurity {
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        privileged,
        namespaces: namespaces(pod, target),
        selinux: own
            .se_linux_options
            .as_ref()
            .or(shared.se_linux_options.as_ref())
            .map(selinux),
        run_as_user: user,
        run_as_group: own.run_as_group.or(shared.run_as_group),
        run_as_username: username,
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental_groups(&shared),
        strict_supplemental_groups: strict_groups(&shared),
        no_new_privs: no_new_privs(&own),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp(
            own.seccomp_profile
                .as_ref()
                .or(shared.seccomp_profile.as_ref()),
            node,
        )),
        apparmor: own
            .app_armor_profile
            .as_ref()
            .or(shared.app_armor_profile.as_ref())
            .map(apparmor)
            .or_else(|| annotated_apparmor(pod, container)),
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
        (None, ImageUser::Id(_)) => Ok(()),
        (None, ImageUser::Name(user)) => Err(UserError::ImageNamesUser {
            user: user.clone(),
            pod,
            container,
        }),
    }
}

fn seccomp(profile: Option<&SeccompProfile>, node: &Node) -> SecurityProfile {
    match profile.map(|profile| (profile.type_.as_str(), profile.localhost_profile.as_deref())) {
        Some(("RuntimeDefault", _)) => SecurityProfile::RuntimeDefault,
        Some(("Localhost", Some(file))) => {
            SecurityProfile::Localhost(node.seccomp_root.join(file).to_string_lossy().into_owned())
        }
        None if node.seccomp_default => SecurityProfile::RuntimeDefault,
        Some(_) | None => SecurityProfile::Unconfined,
    }
}

fn apparmor(profile: &AppArmorProfile) -> SecurityProfile {
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", Some(name)) => SecurityProfile::Localhost(name.to_owned()),
        ("Unconfined", _) => SecurityProfile::Unconfined,
        _ => SecurityProfile::RuntimeDefault,
    }
}

/// The AppArmor profile of the annotation that was used before Kubernetes 1.30.
fn annotated_apparmor(pod: &Pod, container: &Container) -> Option<SecurityProfile> {
    let key = format!(
        "container.apparmor.security.beta.kubernetes.io/{}",
        container.name
    );
    let (_, value) = pod.annotations().find(|(name, _)| *name == key)?;
    match value {
        "runtime/default" => Some(SecurityProfile::RuntimeDefault),
        "unconfined" => Some(SecurityProfile::Unconfined),
        other => other
            .strip_prefix("localhost/")
            .map(|name| SecurityProfile::Localhost(name.to_owned())),
    }
}
