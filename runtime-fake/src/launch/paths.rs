//! Rejects paths that no file can have: pure.

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext};

use crate::launch::invalid::{Invalid, invalid};

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
