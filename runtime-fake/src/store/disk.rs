//! Stores records as files: `sandboxes/ID/sandbox.json` and `sandboxes/ID/containers/ID/container.json`. Each is
//! written to a temporary file and renamed, and then appended to, by the one daemon that holds the lock.
//!
//! A missing record means that nothing runs, because the record is written first, unless the keeper's lock is held. An unreadable
//! record may belong to a running pod: it is not changed, and clients see that pod as not ready. If the system cannot read files
//! now, the daemon does not start.
//!
//! Records are not synced to disk: a SIGKILL loses no written data, and a power cut ends the processes that the lost records
//! described. docs/design.md has the measurements.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use file_tree::{Trash, private};
use jiff::Timestamp;
use keeper::contract::liveness::{self, Liveness};
use keeper::contract::orphan;
use keeper::contract::protocol::exit_record;
use serde_json::Value;

use super::{
    damaged,
    document::{Loaded, append, load, save},
    state::{Record, State},
};
use crate::{
    container::Container,
    id::{ContainerId, SandboxId},
    sandbox::Sandbox,
};

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another daemon uses it.
    #[error("the state directory {} is in use by another runtime: stop that one, or give this one another --state-dir", .0.display())]
    InUse(PathBuf),
    /// The process has too few descriptors or too little memory to read the directory.
    #[error("failed to read {}: give the runtime more (ulimit -n, memory) and start it again; no pod was touched", path.display())]
    NoResources {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It cannot be made private.
    #[error("failed to make the state directory private")]
    Private(#[from] private::PrivateError),
    /// It cannot be created or read.
    #[error("failed to {what} {}", path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// An open state directory, with its lock.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    trash: Arc<Trash>,
    _lock: fs::File,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let fail = |what| move |source| OpenError::Io { what, path: path.to_owned(), source };
        // A container's root user owns files below it, which may be set-user-ID programs.
        private::make(path)?;
        private::make(&path.join("sandboxes"))?;
        let lock =
            fs::File::options().create(true).truncate(false).write(true).open(path.join("lock"));
        let lock = lock.map_err(fail("open the lock of"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
            Err(fs::TryLockError::Error(error)) => return Err(fail("lock")(error)),
        }
        let trash = Trash::new(path.join("trash"));
        trash.resume()?;
        Ok(Self { path: path.to_owned(), trash: Arc::new(trash), _lock: lock })
    }

    /// The trash for removed directories.
    pub(crate) fn trash(&self) -> Arc<Trash> {
        self.trash.clone()
    }

    fn remove(&self, directory: &Path) -> io::Result<()> {
        self.trash.put(directory)
    }

    /// Reads all records. An unreadable record is kept, and appears as a pod that is not ready.
    pub(crate) fn read(&self) -> Result<State, OpenError> {
        let mut state = State::default();
        for (name, directory) in list(&self.path.join("sandboxes"))? {
            close(&directory);
            let id = SandboxId::from_record(&name);
            let Some(sandbox) = read_sandbox(id, &directory)? else {
                self.remove(&directory).map_err(fail("remove what is left of", &directory))?;
                continue;
            };
            for (name, of_container) in list(&directory.join("containers"))? {
                let id = ContainerId::from_record(&name);
                match read_container(id, &sandbox.id, &of_container)? {
                    Some(container) => {
                        let container = Arc::new(container);
                        state.containers.insert(container);
                    }
                    None => self
                        .remove(&of_container)
                        .map_err(fail("remove what is left of", &of_container))?,
                }
            }
            state.sandboxes.insert_mut(sandbox.id.clone(), Arc::new(sandbox));
        }
        Ok(state)
    }

    /// Writes a change to the disk.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        match record {
            Record::Sandbox(sandbox) => save(&self.of_sandbox(sandbox), &**sandbox),
            Record::SandboxLife(sandbox) => {
                let path = self.of_sandbox(sandbox);
                append(&path, &sandbox.life()).or_else(|_| save(&path, &**sandbox))
            }
            Record::Container(container) => save(&self.of_container(container), &**container),
            Record::ContainerLife(container) => {
                let path = self.of_container(container);
                append(&path, &container.life()).or_else(|_| save(&path, &**container))
            }
            Record::NoSandbox(id) => self.remove(&sandbox_dir(&self.path, id)),
            Record::NoContainer(container) => {
                let sandbox = &container.sandbox;
                self.remove(&container_dir(&self.path, sandbox, &container.id))?;
                let of_sandbox = sandbox_dir(&self.path, sandbox);
                remove_file(&exit_record(&of_sandbox, container.id.as_str()))
            }
        }
    }

    fn of_sandbox(&self, sandbox: &Sandbox) -> PathBuf {
        sandbox_dir(&self.path, &sandbox.id).join("sandbox.json")
    }

    fn of_container(&self, container: &Container) -> PathBuf {
        container_dir(&self.path, &container.sandbox, &container.id).join("container.json")
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a sandbox's directories private: an earlier version did not.
fn close(sandbox: &Path) {
    let containers = sandbox.join("containers");
    let each = fs::read_dir(&containers).into_iter().flatten().flatten();
    let each = each.map(|entry| entry.path()).filter(|path| {
        let open = |meta: fs::Metadata| meta.is_dir() && meta.mode() & 0o066 != 0;
        fs::symlink_metadata(path).is_ok_and(open)
    });
    for directory in [sandbox.to_owned(), containers.clone()].into_iter().chain(each) {
        match private::close(&directory) {
            Err(error) if directory.is_dir() => {
                tracing::warn!(%error, "failed to close directory to other users");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// A sandbox's directory below a state directory.
pub(crate) fn sandbox_dir(state_dir: &Path, id: &SandboxId) -> PathBuf {
    state_dir.join("sandboxes").join(id.as_str())
}

/// A container's directory below a state directory.
pub(crate) fn container_dir(state_dir: &Path, sandbox: &SandboxId, id: &ContainerId) -> PathBuf {
    sandbox_dir(state_dir, sandbox).join("containers").join(id.as_str())
}

/// The sandbox in `directory`; `None` if there is no record and none of its processes runs.
fn read_sandbox(id: SandboxId, directory: &Path) -> Result<Option<Sandbox>, OpenError> {
    let path = directory.join("sandbox.json");
    let (why, rest) = match load::<Sandbox>(&path).map_err(fail("read", &path))? {
        Loaded::Record(sandbox) if sandbox.id == id => return Ok(Some(sandbox)),
        Loaded::Record(other) => (format!("is of sandbox {}", other.id), Value::Null),
        Loaded::Absent => match liveness::of(directory) {
            Liveness::Ended => return Ok(None),
            Liveness::Running(_) => ("is not there, and its keeper runs".to_owned(), Value::Null),
            Liveness::Unknown(why) => {
                (format!("is not there, and its keeper may run: {why}"), Value::Null)
            }
        },
        Loaded::Damaged { why, rest } => (why, rest),
    };
    tracing::error!(path = %path.display(), why, "failed to read sandbox record: sandbox is NotReady and left unchanged");
    let sandbox = damaged::sandbox(id, &rest, made(directory), why);
    Ok(Some(sandbox))
}

/// The container in `directory`; `None` if there is no record and none of its processes runs.
fn read_container(
    id: ContainerId,
    sandbox: &SandboxId,
    directory: &Path,
) -> Result<Option<Container>, OpenError> {
    let path = directory.join("container.json");
    let (why, rest) = match load::<Container>(&path).map_err(fail("read", &path))? {
        Loaded::Record(container) if container.id == id && container.sandbox == *sandbox => {
            return Ok(Some(container));
        }
        Loaded::Record(other) => {
            (format!("is of container {} in pod {}", other.id, other.sandbox), Value::Null)
        }
        Loaded::Absent if orphan::may_be_running(directory) => {
            ("is not there, and its process runs".to_owned(), Value::Null)
        }
        Loaded::Absent => return Ok(None),
        Loaded::Damaged { why, rest } => (why, rest),
    };
    tracing::error!(path = %path.display(), why, "failed to read container record: container is left unchanged");
    let container = damaged::container(id, sandbox.clone(), &rest, made(directory), why);
    Ok(Some(container))
}

/// When a directory was modified, as an approximation of its creation.
fn made(directory: &Path) -> Timestamp {
    let time = fs::metadata(directory).and_then(|meta| meta.modified());
    time.ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or_default()
}

/// The subdirectories of a directory, which may be missing. Other entries are ignored.
fn list(directory: &Path) -> Result<Vec<(String, PathBuf)>, OpenError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail("list", directory))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail("list", directory))?;
        let kind = entry.file_type().map_err(fail("list", directory))?;
        if let (true, Ok(name)) = (kind.is_dir(), entry.file_name().into_string()) {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

fn fail<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> OpenError + 'a {
    move |source| {
        if file_tree::is_transient(&source) {
            return OpenError::NoResources { path: path.to_owned(), source };
        }
        OpenError::Io { what, path: path.to_owned(), source }
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
