//! Records as files: `sandboxes/ID/sandbox.json` and `sandboxes/ID/containers/ID/container.json`, each written to a
//! temporary file and renamed, by the one daemon that holds the lock.
//!
//! They are not forced to the disk: a SIGKILL loses nothing that was written, and what a power cut loses described
//! processes that the same power cut ended. ARCHITECTURE.md has the figures.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Serialize, de::DeserializeOwned};

use super::state::{Record, State};
use crate::{
    container::Container,
    id::{ContainerId, SandboxId},
    keeper::protocol::exit_record,
    sandbox::Sandbox,
};

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another daemon has it.
    #[error("the state directory {} is in use by another runtime: stop that one, or give this one another --state-dir", .0.display())]
    InUse(PathBuf),
    /// It cannot be made or read.
    #[error("failed to {what} {}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// An open state directory; the lock goes with it.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    _lock: fs::File,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let fail = |what| {
            move |source| OpenError::Io {
                what,
                path: path.to_owned(),
                source,
            }
        };
        let make = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(path.join("sandboxes"));
        make.map_err(fail("make the state directory"))?;
        let lock = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"));
        let lock = lock.map_err(fail("open the lock of"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(fs::TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(fail("lock")(error)),
        }
    }

    /// Everything that can be read. A record that cannot is said, and its remains are taken away.
    pub(crate) fn read(&self) -> Result<State, OpenError> {
        let mut state = State::default();
        let sandboxes = self.path.join("sandboxes");
        let entries = fs::read_dir(&sandboxes).map_err(|source| OpenError::Io {
            what: "list",
            path: sandboxes.clone(),
            source,
        })?;
        for directory in entries.flatten().map(|entry| entry.path()) {
            let Some(sandbox) = load::<Sandbox>(&directory.join("sandbox.json")) else {
                // Either nobody was told of it, or its record was spoiled: then its keeper may still run.
                if let Err(error) = crate::recovery::kill_and_wait(&directory) {
                    tracing::error!(directory = %directory.display(), %error, "failed to kill a keeper");
                    continue;
                }
                let _ = fs::remove_dir_all(&directory);
                continue;
            };
            for entry in fs::read_dir(directory.join("containers"))
                .into_iter()
                .flatten()
                .flatten()
            {
                match load::<Container>(&entry.path().join("container.json")) {
                    Some(container) => drop(
                        state
                            .containers
                            .insert(container.id.clone(), Arc::new(container)),
                    ),
                    None => drop(fs::remove_dir_all(entry.path())),
                }
            }
            state
                .sandboxes
                .insert(sandbox.id.clone(), Arc::new(sandbox));
        }
        Ok(state)
    }

    /// Makes the disk agree with a change.
    pub(super) fn keep(&self, record: &Record) -> io::Result<()> {
        match record {
            Record::Sandbox(sandbox) => save(
                &sandbox_dir(&self.path, &sandbox.id).join("sandbox.json"),
                &**sandbox,
            ),
            Record::Container(container) => save(
                &container_dir(&self.path, &container.sandbox, &container.id)
                    .join("container.json"),
                &**container,
            ),
            Record::NoSandbox(id) => remove(&sandbox_dir(&self.path, id)),
            Record::NoContainer(container) => remove(&container_dir(
                &self.path,
                &container.sandbox,
                &container.id,
            ))
            .and_then(|()| {
                remove(&exit_record(
                    &sandbox_dir(&self.path, &container.sandbox),
                    container.id.as_str(),
                ))
            }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A sandbox's directory below a state directory.
pub(crate) fn sandbox_dir(state_dir: &Path, id: &SandboxId) -> PathBuf {
    state_dir.join("sandboxes").join(id.as_str())
}

/// A container's directory below a state directory.
pub(crate) fn container_dir(state_dir: &Path, sandbox: &SandboxId, id: &ContainerId) -> PathBuf {
    sandbox_dir(state_dir, sandbox)
        .join("containers")
        .join(id.as_str())
}

fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = fs::read(path).ok()?;
    let record = serde_json::from_slice(&bytes);
    record
        .map_err(|error| tracing::error!(path = %path.display(), %error, "a record cannot be read"))
        .ok()
}

fn save(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("json.tmp");
    // Environments hold secrets.
    let mut file = fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    fs::rename(&temporary, path)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    removed.or_else(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    })
}
