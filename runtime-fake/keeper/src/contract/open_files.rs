//! The limit of open files: raised for this process at its start, and restored for containers.

use std::sync::OnceLock;

use nix::errno::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The least hard limit for a daemon and a few pods: a daemon
/// that cannot open a pod's files has to leave the pod alone.
const LEAST: u64 = 256;

/// The soft limit at this process's start.
static STARTED_WITH: OnceLock<Option<u64>> = OnceLock::new();

/// Why a daemon cannot have enough open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenFilesError {
    /// The hard limit is too low.
    #[error(
        "this process may open {limit} files, and needs {LEAST} at least: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
    )]
    TooFew {
        /// The hard limit.
        limit: u64,
    },
    /// The limit cannot be read.
    #[error(
        "failed to read the limit of open files: {errno}: allow the system call prlimit64 in the seccomp profile"
    )]
    Unreadable {
        /// What prlimit(2) returned.
        errno: Errno,
    },
}

/// Checks that a daemon can have enough open files.
///
/// # Errors
/// If the hard limit is too low, or cannot be read.
pub fn ensure_open_files() -> Result<(), OpenFilesError> {
    // rustix panics if the system call fails.
    let read = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    check(read.map(|(_, hard)| hard))
}

fn check(hard: Result<u64, Errno>) -> Result<(), OpenFilesError> {
    match hard {
        Ok(limit) if limit < LEAST => Err(OpenFilesError::TooFew { limit }),
        Ok(_) => Ok(()),
        Err(errno) => Err(OpenFilesError::Unreadable { errno }),
    }
}

/// Raises the soft limit of open files to the hard one.
///
/// # Errors
/// If the hard limit is too low, or cannot be read.
pub fn raise_open_files() -> Result<(), OpenFilesError> {
    ensure_open_files()?;
    let now = getrlimit(Resource::Nofile);
    STARTED_WITH.get_or_init(|| now.current);
    let raised = Rlimit { current: now.maximum, ..now };
    // If this fails, the current limit must suffice.
    let _ = setrlimit(Resource::Nofile, raised);
    Ok(())
}

/// The soft limit for processes of containers, if it differs from this process's.
pub fn of_containers() -> Option<u64> {
    let now = getrlimit(Resource::Nofile).current;
    let before = *STARTED_WITH.get()?;
    before.filter(|_| before != now)
}

/// Sets, in a keeper, the limit that its daemon determined for processes of containers.
pub fn given(limit: Option<u64>) {
    if limit.is_some() {
        let _ = STARTED_WITH.set(limit);
    }
}

/// Sets this process's soft limit to the one for containers.
pub fn lower() {
    if let Some(limit) = of_containers() {
        let now = getrlimit(Resource::Nofile);
        let lowered = Rlimit { current: Some(limit), ..now };
        // Cannot fail: the new limit is lower than the current one.
        let _ = setrlimit(Resource::Nofile, lowered);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::enough(Ok(256), "")]
    #[case::unlimited(Ok(u64::MAX), "")]
    #[case::too_few(Ok(255), "this process may open 255 files, and needs 256 at least")]
    #[case::forbidden(
        Err(Errno::EPERM),
        "failed to read the limit of open files: EPERM: Operation not permitted: allow the system call prlimit64"
    )]
    #[case::missing(Err(Errno::ENOSYS), "failed to read the limit of open files: ENOSYS")]
    fn daemon_needs_readable_limit_of_open_files(
        #[case] hard: Result<u64, Errno>,
        #[case] expected: &str,
    ) {
        let error = check(hard).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), !expected.is_empty(), "{error:?}");
        assert!(error.unwrap_or_default().starts_with(expected));
    }
}
