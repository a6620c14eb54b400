//! The group of a pod's volumes (`fsGroup`).

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use api::pod::Pod;

use super::error::{VolumeError, failed};

/// The group, if the pod has one.
pub(super) fn of_pod(pod: &Pod) -> Result<Option<u32>, VolumeError> {
    let security = pod.spec().security_context.as_ref();
    let group = security.and_then(|security| security.fs_group);
    group.map(|group| u32::try_from(group).map_err(|_| VolumeError::Group { group })).transpose()
}

/// Gives a volume to a group.
pub(super) fn give(path: &Path, group: u32, readonly: bool) -> Result<(), VolumeError> {
    file_tree::give_to_group(path, group, readonly)
        .map_err(|error| not_given(error, Some(("fsGroup", group)), "set the group of", path))
}

/// Gives a volume that the agent does not create to a group. As in a kubelet, files that its file system does not give stay as they
/// are (Kubernetes 1.36, pkg/volume/volume_linux.go changeFilePermission). Counts its files in `visited` meanwhile.
pub(super) fn give_if_possible(
    path: &Path,
    group: u32,
    readonly: bool,
    visited: &AtomicU64,
) -> Result<(), VolumeError> {
    let refused = file_tree::give_to_group_if_possible(path, group, readonly, visited)
        .map_err(|error| not_given(error, Some(("fsGroup", group)), "set the group of", path))?;
    if let Some(error) = refused {
        tracing::warn!(path = %path.display(), group, %error, "failed to give some files of a volume to its group");
    }
    Ok(())
}

/// The error of giving a volume to the id in a field.
pub(super) fn not_given(
    error: io::Error,
    wanted: Option<(&'static str, u32)>,
    action: &'static str,
    path: &Path,
) -> VolumeError {
    match wanted {
        // The kernel returns EINVAL for an id that is not in the user namespace.
        Some((field, id)) if error.kind() == io::ErrorKind::InvalidInput => {
            VolumeError::UnmappedId { field, id }
        }
        Some(_) | None => failed(action, path)(error),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::unmapped(22, Some(("fsGroup", 7)), Some("fsGroup 7 is not mapped"))]
    #[case::no_id(22, None, None)]
    #[case::another_error(28, Some(("fsGroup", 7)), None)]
    fn unmapped_id_is_of_manifest(
        #[case] errno: i32,
        #[case] wanted: Option<(&'static str, u32)>,
        #[case] expected: Option<&str>,
    ) {
        let error = io::Error::from_raw_os_error(errno);
        let error = not_given(error, wanted, "write", Path::new("/v"));
        assert_eq!(error.is_of_manifest(), expected.is_some());
        let expected = expected.unwrap_or("failed to write /v");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
