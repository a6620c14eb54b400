//! How many files this process may have open: raised at the start, and the old limit given to containers.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fewer are not enough for a daemon and a few pods: what it then fails to look at it would have to leave alone.
const LEAST: u64 = 256;

/// The soft limit that this process was started with.
static STARTED_WITH: OnceLock<Option<u64>> = OnceLock::new();

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "this process may open {limit} files, and needs {LEAST} at least: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
)]
pub struct TooFewFiles {
    /// The hard limit.
    limit: u64,
}

/// Raises the soft limit of open files to the hard one.
///
/// # Errors
/// When that is too low.
pub fn raise_open_files() -> Result<(), TooFewFiles> {
    let now = getrlimit(Resource::Nofile);
    STARTED_WITH.get_or_init(|| now.current);
    if let Some(limit) = now.maximum.filter(|limit| *limit < LEAST) {
        return Err(TooFewFiles { limit });
    }
    let raised = Rlimit {
        current: now.maximum,
        ..now
    };
    // Whether it works or not: what there is then has to do.
    let _ = setrlimit(Resource::Nofile, raised);
    Ok(())
}

/// The soft limit for processes of containers, where it is another one than this process's.
pub fn of_containers() -> Option<u64> {
    let now = getrlimit(Resource::Nofile).current;
    let before = *STARTED_WITH.get()?;
    before.filter(|_| before != now)
}

/// In a keeper: the limit that its daemon has found for processes of containers.
pub fn given(limit: Option<u64>) {
    if limit.is_some() {
        let _ = STARTED_WITH.set(limit);
    }
}

/// Gives this process the soft limit of containers.
pub fn lower() {
    if let Some(limit) = of_containers() {
        let now = getrlimit(Resource::Nofile);
        let lowered = Rlimit {
            current: Some(limit),
            ..now
        };
        // It is below what there is.
        let _ = setrlimit(Resource::Nofile, lowered);
    }
}
