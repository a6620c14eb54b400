//! The archives named by the options, and the images in them. An archive is read again only when it has changed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use crate::error::{ContentError, ImageError};
use crate::formats::archive::{self, Archive};
use crate::formats::archive_index::{self, ArchivedImage};
use crate::formats::limits::Limits;

/// Identifies a file's content for change detection: device, inode, length, modification time.
type Fingerprint = Vec<(u64, u64, u64, i64, i64)>;

/// The images of each archive, with the fingerprint that it had when it was read.
type Known = HashMap<PathBuf, (Fingerprint, Arc<Vec<ArchivedImage>>)>;

/// The archives named by the options.
#[derive(Debug)]
pub(crate) struct ArchiveList {
    /// Archives, layouts, and directories of them.
    paths: Vec<PathBuf>,
    /// Cached results.
    read: Mutex<Known>,
}

/// A scanned archive: its images, and the archive itself if it had to be opened.
pub(crate) struct Scan {
    pub(crate) images: Arc<Vec<ArchivedImage>>,
    pub(crate) opened: Option<Archive>,
}

impl ArchiveList {
    /// # Errors
    /// When a path does not exist, is neither a file nor a directory, or is a file other than a tar file; most likely the option
    /// is mistyped.
    pub(crate) fn new(paths: Vec<PathBuf>, limits: &Limits) -> Result<Self, ImageError> {
        for path in &paths {
            let find = || crate::store::metadata::store("find the image archive", path);
            let looked = fs::metadata(path).map_err(find())?;
            if !looked.is_file() && !looked.is_dir() {
                return Err(find()(io::Error::other("it is neither a file nor a directory")));
            }
            if looked.is_file() {
                archive::probe(path, limits)
                    .map_err(|source| ImageError::Archive { path: path.clone(), source })?;
            }
        }
        Ok(Self { paths, read: Mutex::default() })
    }

    /// The archives that exist now.
    pub(crate) fn archives(&self) -> Result<Vec<PathBuf>, ImageError> {
        let mut out = Vec::new();
        for path in &self.paths {
            out.extend(archives_in(path).map_err(crate::store::metadata::store("list", path))?);
        }
        Ok(out)
    }

    /// The images in the archive at `path`.
    pub(crate) fn scan(
        &self,
        path: &Path,
        spool: &Path,
        limits: &Limits,
    ) -> Result<Scan, ContentError> {
        let fingerprint = fingerprint(path);
        let known = |known: &Known| {
            known
                .get(path)
                .filter(|(then, _)| *then == fingerprint)
                .map(|(_, images)| images.clone())
        };
        // Only whole entries are ever inserted, so a poisoned lock is harmless.
        if let Some(images) = known(&self.read.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Scan { images, opened: None });
        }
        let archive = Archive::open(path, spool, limits)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let images = Arc::new(archive_index::list_images(&archive, &name, limits)?);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(path.to_owned(), (fingerprint, images.clone()));
        Ok(Scan { images, opened: Some(archive) })
    }
}

/// The archives and layouts at `path`: `path` itself, unless it is a directory of them. Reads none of them.
///
/// # Errors
/// If the directory cannot be listed.
pub fn archives_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() || is_layout(path) {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?.path();
        if is_layout(&entry) || (entry.is_file() && is_named_like_an_archive(&entry)) {
            found.push(entry);
        }
    }
    found.sort();
    Ok(found)
}

fn is_layout(path: &Path) -> bool {
    path.is_dir() && (path.join("index.json").is_file() || path.join("manifest.json").is_file())
}

fn is_named_like_an_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".oci"].iter().any(|suffix| name.ends_with(suffix))
}

fn fingerprint(path: &Path) -> Fingerprint {
    let one = |path: &Path| {
        let m = fs::metadata(path).ok()?;
        Some((m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec()))
    };
    let documents = ["index.json", "manifest.json"].map(|name| path.join(name));
    std::iter::once(path).chain(documents.iter().map(PathBuf::as_path)).filter_map(one).collect()
}
