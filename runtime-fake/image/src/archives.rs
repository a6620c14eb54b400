//! Which archives there are and what they offer, looked at again only when they change.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::archive::Archive;
use super::archive_index::{self, Offer};
use super::error::{ImageError, Problem};
use super::limits::Limits;

/// Enough of a file's status to notice that it is another one: device, inode, length, time.
type Fingerprint = Vec<(u64, u64, u64, i64, i64)>;

/// What archives offered when they looked like this.
type Known = HashMap<PathBuf, (Fingerprint, Arc<Vec<Offer>>)>;

/// The archives named by the options.
#[derive(Debug)]
pub(crate) struct ArchiveList {
    /// Archives, layouts, and directories of these.
    paths: Vec<PathBuf>,
    /// What was read before.
    read: Mutex<Known>,
}

/// One archive looked at: its offers, and the archive itself if it had to be opened.
pub(crate) struct Scan {
    pub(crate) offers: Arc<Vec<Offer>>,
    pub(crate) opened: Option<Archive>,
}

impl ArchiveList {
    /// # Errors
    /// A path that does not exist: most likely a slip of whoever started the daemon.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Result<Self, ImageError> {
        for path in &paths {
            let looked = fs::metadata(path);
            looked.map_err(super::metadata::store("find the image archive", path))?;
        }
        Ok(Self {
            paths,
            read: Mutex::default(),
        })
    }

    /// The archives there are now.
    pub(crate) fn archives(&self) -> Result<Vec<PathBuf>, ImageError> {
        let mut out = Vec::new();
        for path in &self.paths {
            if !path.is_dir() || is_layout(path) {
                out.push(path.clone());
                continue;
            }
            let entries =
                fs::read_dir(path).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
            let mut entries: Vec<PathBuf> =
                entries.map_err(super::metadata::store("list", path))?;
            entries.retain(|entry| {
                is_layout(entry) || (entry.is_file() && is_named_like_an_archive(entry))
            });
            entries.sort();
            out.extend(entries);
        }
        Ok(out)
    }

    /// What the archive at `path` offers.
    pub(crate) fn scan(&self, path: &Path, spool: &Path, limits: &Limits) -> Result<Scan, Problem> {
        let fingerprint = fingerprint(path);
        let known = |known: &Known| {
            known
                .get(path)
                .filter(|(then, _)| *then == fingerprint)
                .map(|(_, offers)| offers.clone())
        };
        // Only whole entries are ever inserted, so a panic elsewhere does no harm.
        if let Some(offers) = known(&self.read.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Scan {
                offers,
                opened: None,
            });
        }
        let archive = Archive::open(path, spool, limits)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let offers = Arc::new(archive_index::offers(&archive, &name, limits)?);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(path.to_owned(), (fingerprint, offers.clone()));
        Ok(Scan {
            offers,
            opened: Some(archive),
        })
    }
}

fn is_layout(path: &Path) -> bool {
    path.is_dir() && (path.join("index.json").is_file() || path.join("manifest.json").is_file())
}

fn is_named_like_an_archive(path: &Path) -> bool {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".oci"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

fn fingerprint(path: &Path) -> Fingerprint {
    let one = |path: &Path| {
        let m = fs::metadata(path).ok()?;
        Some((m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec()))
    };
    let documents = ["index.json", "manifest.json"].map(|name| path.join(name));
    std::iter::once(path)
        .chain(documents.iter().map(PathBuf::as_path))
        .filter_map(one)
        .collect()
}
