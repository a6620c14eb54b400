//! Selects the isolation by probing the machine. It is never silently weaker than requested.

mod advice;
mod host_files;
mod mapping;
mod restrictions;
mod userns;

use std::{fmt, path::Path, str::FromStr};

use file_tree::private::{self, PrivateError};
use keeper::contract::plan::IsolationMode;
use serde::{Deserialize, Serialize};

pub use host_files::{HostFilesError, ensure_host_files};

use crate::keepers;

/// The requested isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsolationRequest {
    /// The strongest that the machine allows.
    #[default]
    Auto,
    /// Namespaces created by root.
    Root,
    /// Namespaces inside a user namespace.
    Rootless,
    /// Plain processes.
    Process,
}

impl FromStr for IsolationRequest {
    type Err = UnknownIsolation;

    fn from_str(text: &str) -> Result<Self, UnknownIsolation> {
        match text {
            "auto" => Ok(Self::Auto),
            "root" => Ok(Self::Root),
            "rootless" => Ok(Self::Rootless),
            "process" => Ok(Self::Process),
            _ => Err(UnknownIsolation(text.to_owned())),
        }
    }
}

impl fmt::Display for IsolationRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Root => "root",
            Self::Rootless => "rootless",
            Self::Process => "process",
        })
    }
}

/// An unknown isolation.
#[derive(Debug, thiserror::Error)]
#[error("unknown isolation {0:?}: one of auto, root, rootless, process")]
pub struct UnknownIsolation(String);

/// The isolation that the runtime uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// All namespaces, created by root.
    Root,
    /// All namespaces, inside a user namespace.
    Rootless {
        /// The number of ids mapped into it: 1 without subordinate ids.
        ids: u32,
    },
    /// No namespaces.
    Process,
}

impl Isolation {
    pub(crate) const fn mode(self) -> IsolationMode {
        match self {
            Self::Root => IsolationMode::Root,
            Self::Rootless { .. } => IsolationMode::Rootless,
            Self::Process => IsolationMode::Process,
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::Rootless { ids: 1 } => f.write_str("rootless (a single id)"),
            Self::Rootless { ids } => write!(f, "rootless ({ids} ids)"),
            Self::Process => f.write_str("process"),
        }
    }
}

/// The isolation that [`enter`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnteredIsolation {
    /// The isolation.
    pub isolation: Isolation,
    /// Why no stronger isolation is available, if [`IsolationRequest::Auto`] selected [`Isolation::Process`].
    pub reason: Option<String>,
}

impl From<Isolation> for EnteredIsolation {
    fn from(isolation: Isolation) -> Self {
        Self { isolation, reason: None }
    }
}

/// Why the requested isolation is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// A user other than root requested `root`.
    #[error("isolation root needs root, not user {uid}: run as root, or use --isolation rootless")]
    NotRoot {
        /// That user's id.
        uid: u32,
    },
    /// Root lacks privileges that pods need.
    #[error("isolation root is unavailable: {reason}; {remedy}, or use --isolation auto")]
    NoNamespaces {
        /// The step that failed, or the missing capabilities.
        reason: String,
        /// What to change, as far as the cause is known.
        remedy: String,
    },
    /// It is unknown whether pods of an earlier daemon run.
    #[error(
        "failed to determine which pods of an earlier runtime are running: fix this first; no pod was changed"
    )]
    Pods {
        /// The place and the cause.
        source: std::io::Error,
    },
    /// The state directory cannot be made private.
    #[error("failed to make the files of containers private")]
    Private(#[from] PrivateError),
    /// openat2(2) is unavailable, which every isolation needs.
    #[error(
        "the system call openat2 is unavailable, which crib needs in every isolation: allow it in the seccomp filter around this process, or use Linux 5.6 or later"
    )]
    NoOpenat2 {
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Not even plain processes can be set up as containers.
    #[error("isolation process is unavailable: {reason}; {remedy}")]
    NoProcess {
        /// The step that failed.
        reason: String,
        /// What to change, as far as the cause is known.
        remedy: String,
    },
    /// A user namespace is unavailable.
    #[error("isolation rootless is unavailable: {reason}; {remedy}, or use --isolation process")]
    NoUserNamespace {
        /// The operation that failed.
        reason: String,
        /// What to change, as far as the cause is known.
        remedy: String,
    },
}

impl EnterError {
    /// The isolation and why it is unavailable, in a few words.
    fn short_reason(&self) -> String {
        match self {
            Self::NotRoot { uid } => format!("root: this is user {uid}"),
            Self::NoNamespaces { reason, .. } => format!("root: {reason}"),
            Self::NoUserNamespace { reason, remedy } => format!("rootless: {reason}: {remedy}"),
            Self::Pods { .. }
            | Self::Private(_)
            | Self::NoOpenat2 { .. }
            | Self::NoProcess { .. } => self.to_string(),
        }
    }
}

/// Selects the isolation for `request`. The process of an ordinary user, or of root without privileges over namespaces, is moved
/// into a user namespace: the one of an earlier daemon's pods in `state_dir` if any still run, or else a new one. Without a state
/// directory there are no pods.
///
/// # Errors
/// When the machine does not allow exactly what was requested, or, for [`IsolationRequest::Auto`], not even plain processes. When
/// `state_dir` belongs to another user, or its mode cannot be made private.
///
/// Call it before any thread is started: the kernel moves only a single-threaded process.
pub fn enter(
    request: IsolationRequest,
    state_dir: Option<&Path>,
) -> Result<EnteredIsolation, EnterError> {
    // Files created for containers must have exactly the modes given: containers run as other users than this process.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    ensure_openat2()?;
    // Make the state directory private before reading anything in it.
    if let Some(state_dir) = state_dir {
        private::make(state_dir)?;
    }
    let uid = nix::unistd::geteuid().as_raw();
    let isolation = match request {
        IsolationRequest::Process => as_process(state_dir)?,
        IsolationRequest::Root => as_root(uid)?,
        IsolationRequest::Rootless => {
            as_mapped_root(uid).map_or_else(|| rootless(state_dir), Ok)?
        }
        IsolationRequest::Auto => return strongest(uid, state_dir),
    };
    Ok(isolation.into())
}

fn strongest(uid: u32, state_dir: Option<&Path>) -> Result<EnteredIsolation, EnterError> {
    let no_root = match as_root(uid) {
        Ok(isolation) => return Ok(isolation.into()),
        Err(error) => error,
    };
    // Root of a container that lacks privileges for pods may still make user namespaces.
    match as_mapped_root(uid).map_or_else(|| rootless(state_dir), Ok) {
        Err(no_rootless @ EnterError::NoUserNamespace { .. }) => {
            let reason = format!("{}; {}", no_root.short_reason(), no_rootless.short_reason());
            Ok(EnteredIsolation { isolation: as_process(state_dir)?, reason: Some(reason) })
        }
        found => found.map(EnteredIsolation::from),
    }
}

/// Checks that this process may call openat2(2), which even the removal of directories requires.
///
/// # Errors
/// If the call is not allowed.
pub fn ensure_openat2() -> Result<(), EnterError> {
    file_tree::try_open_scoped().map_err(|errno| EnterError::NoOpenat2 { source: errno.into() })
}

/// The weakest isolation. Without a state directory there are no containers to set up.
fn as_process(state_dir: Option<&Path>) -> Result<Isolation, EnterError> {
    if state_dir.is_some() {
        userns::probe(IsolationMode::Process).map_err(|reason| {
            let remedy = remedy(IsolationMode::Process, &reason);
            EnterError::NoProcess { reason, remedy }
        })?;
    }
    Ok(Isolation::Process)
}

/// Moves this process into a user namespace.
fn rootless(state_dir: Option<&Path>) -> Result<Isolation, EnterError> {
    userns::enter(&running_keepers(state_dir)?, state_dir).map_err(|reason| {
        let remedy = remedy(IsolationMode::Rootless, &reason);
        EnterError::NoUserNamespace { reason, remedy }
    })
}

/// The running keepers. A process in another user namespace has no privileges over them.
fn running_keepers(state_dir: Option<&Path>) -> Result<Vec<i32>, EnterError> {
    let running = state_dir.map_or(Ok(Vec::new()), keepers::running);
    running.map_err(|source| EnterError::Pods { source })
}

/// The isolation for root of the machine, or of a container without a user namespace.
fn as_root(uid: u32) -> Result<Isolation, EnterError> {
    if uid != 0 {
        return Err(EnterError::NotRoot { uid });
    }
    let unavailable = |reason: String| {
        let remedy = remedy(IsolationMode::Root, &reason);
        EnterError::NoNamespaces { reason, remedy }
    };
    if own_ids() != mapping::MappedIds::All {
        return Err(unavailable("this is root of a user namespace only".to_owned()));
    }
    userns::probe(IsolationMode::Root).map_err(unavailable)?;
    Ok(Isolation::Root)
}

/// The isolation for root of a user namespace that another process created, if no other namespace is needed.
fn as_mapped_root(uid: u32) -> Option<Isolation> {
    match own_ids() {
        mapping::MappedIds::Count(ids) if uid == 0 => {
            let probed = userns::probe(IsolationMode::Rootless);
            probed.is_ok().then_some(Isolation::Rootless { ids })
        }
        mapping::MappedIds::Count(_) | mapping::MappedIds::All => None,
    }
}

fn remedy(mode: IsolationMode, reason: &str) -> String {
    advice::remedy(mode, reason, &restrictions::of_this_process())
}

/// The ids of this process's user namespace.
fn own_ids() -> mapping::MappedIds {
    match std::fs::read_to_string("/proc/self/uid_map") {
        // A kernel without user namespaces.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => mapping::MappedIds::All,
        map => mapping::mapped_ids(&map.unwrap_or_default()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn short_reason_names_isolation_and_cause() {
        let texts = |reason: &str| (reason.to_owned(), "allow it".to_owned());
        let (reason, remedy) = texts("this process lacks CAP_KILL");
        let no_root = EnterError::NoNamespaces { reason, remedy };
        assert_eq!(no_root.short_reason(), "root: this process lacks CAP_KILL");
        let (reason, remedy) = texts("failed to make namespaces: no space");
        let no_rootless = EnterError::NoUserNamespace { reason, remedy };
        assert_eq!(
            no_rootless.short_reason(),
            "rootless: failed to make namespaces: no space: allow it"
        );
        assert_eq!(EnterError::NotRoot { uid: 1000 }.short_reason(), "root: this is user 1000");
    }

    #[test]
    fn isolation_request_round_trips_as_text() {
        for request in [
            IsolationRequest::Auto,
            IsolationRequest::Root,
            IsolationRequest::Rootless,
            IsolationRequest::Process,
        ] {
            assert_eq!(request.to_string().parse::<IsolationRequest>().unwrap(), request);
        }
        assert!(
            "docker"
                .parse::<IsolationRequest>()
                .unwrap_err()
                .to_string()
                .contains("one of auto, root")
        );
    }
}
