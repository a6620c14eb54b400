//! Loads the metadata when the store is opened, and sets unreadable records aside.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use file_tree::{Trash, is_transient};
use serde::de::DeserializeOwned;

use super::{Metadata, Places, store};
use crate::error::ImageError;
use crate::formats::digest::Digest;
use crate::formats::record::{ImageId, ImageRecord, LayerRecord};

impl Metadata {
    /// Loads the metadata from disk. Incomplete content, and layers with another `style`, are removed: they can be
    /// pulled again. Unreadable records are kept but not listed.
    pub(crate) fn load(places: Places, trash: Arc<Trash>, style: &str) -> Result<Self, ImageError> {
        let mut metadata = Self {
            places,
            trash,
            records: BTreeMap::new(),
            layers: BTreeMap::new(),
            blob_bytes: BTreeMap::new(),
            holds: BTreeMap::new(),
            leases: HashMap::new(),
            serial: 0,
            damaged: BTreeSet::new(),
            spared: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            durable: BTreeSet::new(),
        };
        let names = |directory: &str| list(&metadata.places.root.join(directory));
        let (images, layers, blobs, holds) =
            (names("images")?, names("layers")?, names("blobs/sha256")?, names("holds")?);
        let mut garbage = Vec::new();
        for path in layers {
            match (digest_of(&path), read::<LayerRecord>(&path.join("layer.json"))) {
                (Some(chain), Ok(layer)) if layer.style == style => {
                    metadata.layers.insert(chain, layer);
                }
                (Some(chain), Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                    passing(&error, "read", &path)?;
                    tracing::error!(path = %path.display(), %error, "failed to read a layer record; leaving it as it is");
                    metadata.unreadable.insert(chain);
                }
                (Some(_) | None, Ok(_) | Err(_)) => garbage.push(path),
            }
        }
        for path in blobs {
            match (digest_of(&path), fs::metadata(&path)) {
                (Some(digest), Ok(file)) => {
                    metadata.blob_bytes.insert(digest, file.len());
                }
                (Some(_), Err(error)) => passing(&error, "look at", &path)?,
                (None, Ok(_) | Err(_)) => garbage.push(path),
            }
        }
        for path in images {
            match read::<ImageRecord>(&path) {
                Ok(record)
                    if metadata.places.image(&record.id) == path
                        && metadata.is_complete(&record) =>
                {
                    metadata.serial = metadata.serial.max(record.serial);
                    metadata.records.insert(record.id, record);
                }
                Ok(record)
                    if metadata.places.image(&record.id) == path
                        && !record.chains().iter().any(|c| metadata.unreadable.contains(c)) =>
                {
                    garbage.push(path);
                }
                Ok(_) => metadata.keep_damaged(
                    path,
                    "its file has another image's name, or its layers cannot be read",
                ),
                Err(error) => {
                    passing(&error, "read", &path)?;
                    metadata.keep_damaged(path, &error.to_string());
                }
            }
        }
        for path in holds {
            let holder = path.file_stem().and_then(|s| s.to_str()).map(str::to_owned);
            match (holder, read(&path)) {
                (Some(holder), Ok(chains)) => {
                    metadata.holds.insert(holder, chains);
                }
                (Some(holder), Err(error)) => {
                    passing(&error, "read", &path)?;
                    tracing::error!(path = %path.display(), %error, "failed to read the layer lease of a container; keeping all layers");
                    let all = metadata.layers.keys().chain(&metadata.unreadable);
                    metadata.holds.insert(holder, all.copied().collect());
                }
                (None, Ok(_) | Err(_)) => garbage.push(path),
            }
        }
        if !metadata.damaged.is_empty() {
            let there = metadata.layers.keys().chain(&metadata.unreadable);
            metadata.spared = there.chain(metadata.blob_bytes.keys()).copied().collect();
        }
        for path in garbage {
            metadata.trash.put(&path).map_err(store("remove", &path))?;
        }
        metadata.deduplicate_tags();
        metadata.collect()?;
        metadata.durable = metadata.layers.keys().copied().collect();
        Ok(metadata)
    }

    fn keep_damaged(&mut self, path: PathBuf, why: &str) {
        tracing::error!(path = %path.display(), why, "invalid image record: it is kept until the image is pulled again or removed by id");
        self.damaged.insert(path);
    }

    /// Removes `path` from the damaged records. After the last one, no content is spared for them any more.
    pub(super) fn heal(&mut self, path: &Path) {
        if self.damaged.remove(path) && self.damaged.is_empty() {
            self.spared.clear();
        }
    }

    /// Removes an image whose record is unreadable, by its full ID. Returns whether it existed.
    pub(crate) fn remove_damaged(&mut self, name: &str) -> Result<bool, ImageError> {
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let named = |path: &&PathBuf| path.file_stem().is_some_and(|stem| stem == hex);
        let Some(path) = self.damaged.iter().find(named).cloned() else {
            return Ok(false);
        };
        self.trash.put(&path).map_err(store("remove", &path))?;
        self.heal(&path);
        Ok(true)
    }

    fn is_complete(&self, record: &ImageRecord) -> bool {
        record.chains().iter().all(|chain| self.layers.contains_key(chain))
            && record.blobs.iter().all(|blob| self.blob_bytes.contains_key(blob))
    }

    /// A SIGKILL between the two writes that move a name leaves the name on two records; the one with the higher serial keeps it.
    fn deduplicate_tags(&mut self) {
        let mut by_age: Vec<ImageId> = self.records.keys().copied().collect();
        compact::sort_by_key(&mut by_age, |id| {
            std::cmp::Reverse(self.records.get(id).map(|r| r.serial))
        });
        let mut taken = BTreeSet::new();
        for id in by_age {
            if let Some(record) = self.records.get_mut(&id) {
                record.tags.retain(|tag| taken.insert(tag.clone()));
            }
        }
    }
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let entries =
        fs::read_dir(directory).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    entries.map_err(store("list", directory))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Fails on a transient error, so that the store is not opened: such an error does not mean that the file is damaged.
fn passing(error: &io::Error, doing: &'static str, path: &Path) -> Result<(), ImageError> {
    match error.raw_os_error() {
        Some(number) if is_transient(error) => {
            Err(store(doing, path)(io::Error::from_raw_os_error(number)))
        }
        _ => Ok(()),
    }
}

fn digest_of(path: &Path) -> Option<Digest> {
    Digest::from_hex(path.file_name()?.to_str()?).ok()
}
