//! ◆ Rejects paths that no file can have, and decides the path of a container's log. Pure.

use std::num::NonZeroU64;
use std::path::{Component, Path};

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext};
use keeper::contract::plan::LogPlan;

use crate::launch::{Invalid, invalid, paths};

/// The kernel's limits on paths and names (`PATH_MAX` with its NUL, `NAME_MAX`).
const LONGEST_PATH: usize = 4095;
const LONGEST_NAME: usize = 255;

/// Validates every path of a container that is looked up unchanged. Mounts, devices and logs have checks of their
/// own.
pub(super) fn check(
    config: &ContainerConfig,
    context: &LinuxContainerSecurityContext,
) -> Result<(), Invalid> {
    path("working_dir", &config.working_dir)?;
    // As in runc. An empty one means the image's.
    if !config.working_dir.is_empty() && !config.working_dir.starts_with('/') {
        return invalid(format!("working_dir {:?} is not an absolute path", config.working_dir));
    }
    for masked in &context.masked_paths {
        path("masked_paths", masked)?;
    }
    for read_only in &context.readonly_paths {
        path("readonly_paths", read_only)?;
    }
    Ok(())
}

/// Checks that a path can exist.
pub(super) fn path(field: &str, path: &str) -> Result<(), Invalid> {
    if path.contains('\0') {
        return invalid(format!("{field} {path:?} has a NUL byte, which no path can hold"));
    }
    if path.len() > LONGEST_PATH || path.split('/').any(|name| name.len() > LONGEST_NAME) {
        return invalid(format!(
            "{field} is too long: a path has at most {LONGEST_PATH} bytes, a name in it {LONGEST_NAME}"
        ));
    }
    Ok(())
}

/// Joins `path` to `directory`, which it must not leave.
pub(super) fn log(
    directory: &str,
    path: &str,
    max: Option<NonZeroU64>,
) -> Result<Option<LogPlan>, Invalid> {
    paths::path("log_path", path)?;
    if directory.is_empty() || path.is_empty() {
        return Ok(None);
    }
    // The keeper opens the file and has another working directory than the daemon.
    if !Path::new(directory).is_absolute() {
        return invalid(format!(
            "log_directory {directory:?} of the sandbox is not an absolute path"
        ));
    }
    if Path::new(path)
        .components()
        .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return invalid(format!("log_path {path:?} leads out of the sandbox's log directory"));
    }
    paths::path("log_path (below log_directory)", &format!("{directory}/{path}"))?;
    Ok(Some(LogPlan { directory: directory.into(), path: path.into(), max }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none("", None)]
    #[case::usual("/srv/a b/é", None)]
    #[case::longest_name(&"x".repeat(255), None)]
    #[case::longer_name(&format!("/a/{}", "x".repeat(256)), Some("too long"))]
    #[case::longest_path(&"/abc".repeat(1023), None)]
    #[case::longer_path(&"/abc".repeat(1024), Some("too long"))]
    #[case::nul("/a\0b", Some("NUL byte"))]
    fn path_length_and_nul_are_checked(#[case] text: &str, #[case] complaint: Option<&str>) {
        let refused = path("working_dir", text).err().map(|error| error.0);
        match complaint {
            None => assert_eq!(refused, None),
            Some(complaint) => assert!(refused.unwrap().contains(complaint)),
        }
    }

    #[rstest]
    #[case::directory(|c: &mut ContainerConfig, _: &mut LinuxContainerSecurityContext| c.working_dir = "\0".into())]
    #[case::relative_directory(|c: &mut ContainerConfig, _: &mut LinuxContainerSecurityContext| c.working_dir = "srv".into())]
    #[case::masked(|_: &mut ContainerConfig, s: &mut LinuxContainerSecurityContext| s.masked_paths = vec!["\0".into()])]
    #[case::read_only(|_: &mut ContainerConfig, s: &mut LinuxContainerSecurityContext| s.readonly_paths = vec!["\0".into()])]
    fn every_path_field_is_checked(
        #[case] set: fn(&mut ContainerConfig, &mut LinuxContainerSecurityContext),
    ) {
        let (mut config, mut context) = Default::default();
        check(&config, &context).unwrap();
        set(&mut config, &mut context);
        check(&config, &context).unwrap_err();
    }
}
