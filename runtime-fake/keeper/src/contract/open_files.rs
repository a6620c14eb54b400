//! The limit of open files: raised for this process at its start, and restored for containers.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The least hard limit for a daemon and a few pods: a daemon
/// that cannot open a pod's files has to leave the pod alone.
const LEAST: u64 = 256;

/// The soft limit at this process's start.
static STARTED_WITH: OnceLock<Option<u64>> = OnceLock::new();

/// The hard limit is too low for the daemon to start.
#[derive(Debug, thiserror::Error)]
#[error(
    "this process may open {limit} files, and needs {LEAST} at least: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
)]
pub struct TooFewFiles {
    /// The hard limit.
    limit: u64,
}

/// Checks that a daemon can have enough open files.
///
/// # Errors
/// If the hard limit is too low.
pub fn ensure_open_files() -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::Nofile).maximum.filter(|limit| *limit < LEAST);
    limit.map_or(Ok(()), |limit| Err(TooFewFiles { limit }))
}

/// Raises the soft limit of open files to the hard one.
///
/// # Errors
/// If the hard limit is too low.
pub fn raise_open_files() -> Result<(), TooFewFiles> {
    let now = getrlimit(Resource::Nofile);
    STARTED_WITH.get_or_init(|| now.current);
    ensure_open_files()?;
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

/// Sets this process's soft limit to that of containers.
pub fn lower() {
    if let Some(limit) = of_containers() {
        let now = getrlimit(Resource::Nofile);
        let lowered = Rlimit { current: Some(limit), ..now };
        // Cannot fail: the new limit is lower than the current one.
        let _ = setrlimit(Resource::Nofile, lowered);
    }
}
