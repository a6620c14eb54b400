//! The claims of the node, in memory and in the file of state: what is prepared is in the file before a driver is asked to prepare it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::checkpoint::{FILE, decode, encode};
use crate::claims::Claims;

/// The claims, and their file.
#[derive(Debug)]
pub(crate) struct Store {
    claims: Mutex<Claims>,
    file: PathBuf,
}

impl Store {
    /// The claims that an earlier agent or a kubelet has left in this directory, which is made.
    ///
    /// # Errors
    /// In a kubelet's words: the file cannot be read, or is damaged. What it had is prepared, and would never be undone.
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

    /// The claims at present. Changes of them are not in the file.
    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the claims, and then the file.
    ///
    /// # Errors
    /// The change failed, or the file cannot be written, in words; `of` is what a kubelet calls it.
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

/// Replaces a file. It is whole at any time, also after a power cut: devices would stay prepared that nobody knows of.
pub(crate) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_added_extension("new");
    let mut written = File::options().write(true).create(true).truncate(true).open(&new)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    fs::rename(&new, file)
}
