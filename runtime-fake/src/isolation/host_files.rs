//! Checks the files that every isolation needs. A chroot, or a mount namespace made by hand, may lack them.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// A file that every isolation needs is missing.
#[derive(Debug, thiserror::Error)]
pub enum HostFilesError {
    /// There is no procfs.
    #[error("/proc is not mounted: mount it (mount -t proc proc /proc)")]
    NoProc,
    /// There is no `/dev/null`.
    #[error(
        "/dev/null does not exist: create it (mknod -m 666 /dev/null c 1 3), or mount the host's /dev"
    )]
    NoNull,
    /// `/dev/null` exists but cannot be opened.
    #[error("failed to open /dev/null: {error}")]
    Null {
        /// Why it cannot be opened.
        error: io::Error,
    },
}

/// Checks `/proc` and `/dev/null`: without them, later errors do not name the cause.
///
/// # Errors
/// If one of them is missing, or `/dev/null` cannot be opened.
pub fn ensure_host_files() -> Result<(), HostFilesError> {
    ensure_below(Path::new("/"))
}

fn ensure_below(root: &Path) -> Result<(), HostFilesError> {
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    // Other errors have other causes, such as a seccomp profile.
    if fs::symlink_metadata(root.join("proc/self")).is_err_and(|error| missing(&error)) {
        return Err(HostFilesError::NoProc);
    }
    match File::options().read(true).write(true).open(root.join("dev/null")) {
        Ok(_) => Ok(()),
        Err(error) if missing(&error) => Err(HostFilesError::NoNull),
        Err(error) => Err(HostFilesError::Null { error }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::all(&["proc/self", "dev/null"], "")]
    #[case::empty_proc(&["proc", "dev/null"], "/proc is not mounted: ")]
    #[case::no_proc(&["dev/null"], "/proc is not mounted: ")]
    #[case::empty_dev(&["proc/self", "dev"], "/dev/null does not exist: ")]
    #[case::no_dev(&["proc/self"], "/dev/null does not exist: ")]
    #[case::directory(&["proc/self", "dev/null/x"], "failed to open /dev/null: Is a directory")]
    fn missing_host_file_is_named(#[case] files: &[&str], #[case] expected: &str) {
        let root = tempfile::tempdir().unwrap();
        for file in files.iter().map(|file| root.path().join(file)) {
            match file.file_name().and_then(|name| name.to_str()) {
                Some("null") => {
                    fs::create_dir_all(file.parent().unwrap()).unwrap();
                    File::create(file).unwrap();
                }
                _ => fs::create_dir_all(file).unwrap(),
            }
        }
        let error = ensure_below(root.path()).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), !expected.is_empty(), "{error:?}");
        assert!(error.as_deref().unwrap_or_default().starts_with(expected), "{error:?}");
    }

    #[test]
    fn this_host_has_all_files() {
        ensure_host_files().unwrap();
    }
}
