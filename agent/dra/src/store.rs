//! The claims of the node, in memory and in the checkpoint. A claim is in the checkpoint before a driver prepares it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::checkpoint::{FILE, decode, encode};
use crate::claims::Claims;

/// The claims and their checkpoint.
#[derive(Debug)]
pub(crate) struct Store {
    claims: Mutex<Claims>,
    file: PathBuf,
}

impl Store {
    /// Reads the claims that an earlier agent or a kubelet has left in this directory. Creates the directory.
    ///
    /// # Errors
    /// The kubelet's error if the file cannot be read, or is corrupt. Without it, prepared claims would never be unprepared.
    pub(crate) fn open(directory: &Path) -> Result<Self, String> {
        let file = directory.join(FILE);
        let failed = |why: String| {
            format!(
                "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint {FILE}: {why} (drain the \
                 node and remove {})",
                file.display()
            )
        };
        let claims = match fs::read_to_string(&file) {
            Ok(text) => decode(&text).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Claims::default(),
            Err(error) => return Err(failed(error.to_string())),
        };
        let store = Self { claims: Mutex::new(claims), file };
        let made = fs::create_dir_all(directory).map_err(|error| error.to_string());
        made.and_then(|()| store.write(&store.claims()))
            .map_err(|error| format!("create ResourceClaim cache: {error}"))?;
        Ok(store)
    }

    /// The current claims. Changes through this guard are not saved.
    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the claims, and then writes the checkpoint.
    ///
    /// # Errors
    /// The error as text if the change failed, or the file cannot be written; `of` is the kubelet's name of the change.
    pub(crate) fn change<T>(
        &self,
        of: &str,
        change: impl FnOnce(&mut Claims) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut claims = self.claims();
        let done = change(&mut claims)?;
        let written = self.write(&claims);
        written.map_err(|error| format!("checkpoint ResourceClaim {of}: {error}"))?;
        Ok(done)
    }

    fn write(&self, claims: &Claims) -> Result<(), String> {
        let text = encode(claims)?;
        replace(&self.file, &text)
            .map_err(|error| format!("could not save checkpoint {FILE}: {error}"))
    }
}

/// Atomically and durably replaces a file: a lost checkpoint would leave devices prepared for good.
pub(crate) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_added_extension("new");
    let mut written = File::options().write(true).create(true).truncate(true).open(&new)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    fs::rename(&new, file)
}
