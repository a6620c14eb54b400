//! Mounts image layers with overlayfs.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
};

use crate::contract::plan::IsolationMode;
use crate::kernel::failure::{Failure, FailureKind, plain};

/// Mounts `lower`, topmost first, below the writable layer `layer`, at `at`.
pub(crate) fn writable(
    isolation: IsolationMode,
    lower: &[PathBuf],
    layer: &Path,
    at: &Path,
    label: Option<&str>,
) -> Result<(), Errno> {
    let upper = format!(
        ",upperdir={},workdir={}",
        layer.join("upper").display(),
        layer.join("work").display()
    );
    mount_overlay(isolation, lower, &upper, at, label)
}

/// Mounts `lower`, at least two layers, topmost first, read-only at `at`, which is created.
pub(crate) fn read_only(
    isolation: IsolationMode,
    lower: &[PathBuf],
    at: &Path,
    label: Option<&str>,
) -> Result<(), Errno> {
    mount_overlay(isolation, lower, "", at, label)
}

/// The mount option that gives all files of a file system one SELinux label; empty without a label. Quoted, because
/// labels contain commas.
pub(crate) fn context(label: Option<&str>) -> String {
    label.map_or_else(String::new, |label| format!(",context=\"{label}\""))
}

/// The failure for which the daemon copies the image: overlayfs does not work, or not with so many layers. The latter says nothing
/// about other images.
pub(crate) fn failure(count: usize, error: Errno) -> Failure {
    let kind = match error == Errno::TOOBIG {
        true => FailureKind::TooManyLayers,
        false => FailureKind::NoOverlay,
    };
    let reason = plain(&error.into());
    let message =
        format!("failed to put the layers of the image together ({count} layers): {reason}");
    Failure::new(kind, message)
}

fn mount_overlay(
    isolation: IsolationMode,
    lower: &[PathBuf],
    upper: &str,
    at: &Path,
    label: Option<&str>,
) -> Result<(), Errno> {
    // mount(2) takes one page of options: paths relative to the layers' common directory keep them short.
    let shared = lower.first().and_then(|first| {
        first.ancestors().skip(1).find(|parent| lower.iter().all(|l| l.starts_with(parent)))
    });
    let relative = |l: &PathBuf| {
        shared.and_then(|parent| l.strip_prefix(parent).ok()).unwrap_or(l).display().to_string()
    };
    let user = if isolation == IsolationMode::Rootless { ",userxattr" } else { "" };
    let names: Vec<String> = lower.iter().map(relative).collect();
    let context = context(label);
    let options = format!("lowerdir={}{upper}{user}{context}", names.join(":"));
    check_length(options.len(), rustix::param::page_size())?;
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::process::chdir(shared.unwrap_or(Path::new("/")))?;
    let mounted = mount("overlay", at, "overlay", MountFlags::empty(), Some(options.as_c_str()));
    rustix::process::chdir("/")?;
    mounted
}

/// mount(2) ignores options beyond one page. Without them it may succeed: with fewer layers, and read-only.
fn check_length(length: usize, page: usize) -> Result<(), Errno> {
    if length < page { Ok(()) } else { Err(Errno::TOOBIG) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::layers_of_one_image(Errno::TOOBIG, FailureKind::TooManyLayers)]
    #[case::no_overlayfs(Errno::NODEV, FailureKind::NoOverlay)]
    #[case::refused(Errno::INVAL, FailureKind::NoOverlay)]
    fn only_failures_of_overlayfs_itself_affect_other_images(
        #[case] error: Errno,
        #[case] expected: FailureKind,
    ) {
        assert_eq!(failure(70, error).kind, expected);
    }

    #[rstest]
    #[case::fits(4095, 4096, Ok(()))]
    #[case::without_its_end(4096, 4096, Err(Errno::TOOBIG))]
    #[case::large_page(4096, 65536, Ok(()))]
    fn options_beyond_a_page_are_not_passed_to_mount(
        #[case] length: usize,
        #[case] page: usize,
        #[case] expected: Result<(), Errno>,
    ) {
        assert_eq!(check_length(length, page), expected);
    }
}
