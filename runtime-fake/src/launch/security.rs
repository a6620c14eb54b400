//! ◆ Decides the security context: users, masked and read-only paths, and rejected requests. Pure.

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext, SupplementalGroupsPolicy};
use keeper::contract::plan::UserPlan;

use super::ImageDefaults;
use super::Invalid;
use crate::launch::invalid;

/// Paths of `/proc` and `/sys` that reveal or change too much: the paths that containerd 2 masks, and `interrupts`, as in a
/// kubelet.
pub(super) const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// Paths of `/proc` that are read-only.
pub(super) const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Rejects a request that the kernel cannot satisfy, so that no container runs with less protection than
/// requested.
pub(super) fn check(context: &LinuxContainerSecurityContext) -> Result<(), Invalid> {
    if context.run_as_group.is_some()
        && context.run_as_user.is_none()
        && context.run_as_username.is_empty()
    {
        return invalid("run_as_group is set without run_as_user or run_as_username");
    }
    Ok(())
}

/// The security context of a container whose client sets none. An empty one would leave `/proc` unmasked.
pub(crate) fn default_context() -> LinuxContainerSecurityContext {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    LinuxContainerSecurityContext {
        masked_paths: owned(&MASKED),
        readonly_paths: owned(&READ_ONLY),
        ..LinuxContainerSecurityContext::default()
    }
}

/// The masked and the read-only paths. A client that sets a security context lists them: empty lists mean
/// `procMount: Unmasked` (Kubernetes, as in containerd). Without a security context the defaults apply.
pub(super) fn protected_paths(config: &ContainerConfig) -> (Vec<String>, Vec<String>) {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.clone());
    let context = context.unwrap_or_else(default_context);
    (context.masked_paths, context.readonly_paths)
}

/// The user that runs the container.
pub(super) fn user(
    context: &LinuxContainerSecurityContext,
    image: &ImageDefaults,
) -> Result<UserPlan, Invalid> {
    let id = |field: &str, value: i64| {
        u32::try_from(value)
            .map_err(|_| Invalid(format!("{field} {value} is not an id: 0 to 4294967295")))
    };
    let (image_user, image_group) =
        image.user.split_once(':').map_or((image.user.as_str(), None), |(u, g)| (u, Some(g)));
    let own_group =
        context.run_as_group.as_ref().map(|g| id("run_as_group", g.value)).transpose()?;
    let (user, group) = match (&context.run_as_user, context.run_as_username.as_str()) {
        (Some(uid), _) => (id("run_as_user", uid.value)?.to_string(), None),
        (None, "") => (image_user.to_owned(), image_group.map(ToOwned::to_owned)),
        (None, name) => (name.to_owned(), None),
    };
    let groups = context
        .supplemental_groups
        .iter()
        .map(|g| id("supplemental_groups", *g))
        .collect::<Result<_, _>>()?;
    let Ok(policy) = SupplementalGroupsPolicy::try_from(context.supplemental_groups_policy) else {
        return invalid(format!(
            "supplemental_groups_policy is Merge or Strict, not {}",
            context.supplemental_groups_policy
        ));
    };
    Ok(UserPlan {
        user,
        group: own_group.map(|g| g.to_string()).or(group),
        additional_gids: groups,
        merge_groups: policy == SupplementalGroupsPolicy::Merge,
    })
}
