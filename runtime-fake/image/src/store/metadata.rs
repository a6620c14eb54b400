//! The store's metadata, in memory and on disk: image records, unpacked layers, documents, holds.
//!
//! ```text
//! images/<id>.json        an image's record            written whole, renamed into place, after its layers are synced
//! layers/<chain>/fs       an unpacked layer            renamed into place when verified
//! layers/<chain>/layer.json                            its record and usage
//! blobs/sha256/<digest>   manifests, configurations    written whole, renamed into place
//! holds/<holder>.json     layers that a container uses, even if the image is removed
//! empty/                  the root of an image without layers
//! tmp/                    unfinished files             emptied when the store is opened
//! trash/                  removed content              deleted in the background
//! ```
//! Content that no record, hold or running pull names is garbage. A layer counts only if a record names it, so layers without an
//! image record after a power cut are garbage too.
//!
//! An unreadable record or hold may name any content. While one exists, content that was present with it is not garbage. A pull
//! rewrites an image's record.

mod load;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use file_tree::{Trash, private};
use serde::Serialize;

use crate::error::ImageError;
use crate::formats::digest::Digest;
use crate::formats::record::{ImageId, ImageRecord, LayerRecord};

/// The paths below the store's root.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) root: PathBuf,
}

impl Places {
    pub(crate) fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
    pub(crate) fn empty(&self) -> PathBuf {
        self.root.join("empty")
    }
    pub(crate) fn layer(&self, chain: &Digest) -> PathBuf {
        self.root.join("layers").join(chain.hex())
    }
    pub(crate) fn layer_files(&self, chain: &Digest) -> PathBuf {
        self.layer(chain).join("fs")
    }
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }
    fn image(&self, id: &ImageId) -> PathBuf {
        self.root.join("images").join(format!("{}.json", id.0.hex()))
    }
    fn hold(&self, holder: &str) -> PathBuf {
        self.root.join("holds").join(format!("{holder}.json"))
    }

    /// Creates the directories and removes unfinished files of an earlier daemon.
    pub(crate) fn prepare(&self) -> Result<Arc<Trash>, ImageError> {
        let private = |error| store("prepare", &self.root)(io::Error::other(error));
        private::make(&self.root).map_err(private)?;
        let trash = Trash::new(self.root.join("trash"));
        trash.resume().map_err(private)?;
        trash.put(&self.tmp()).map_err(store("empty", &self.tmp()))?;
        for name in ["tmp", "empty", "layers", "images", "holds", "blobs", "blobs/sha256"] {
            let path = self.root.join(name);
            // Layers have files with setuid bits: no other user may reach them.
            let mode = if name == "empty" { 0o755 } else { 0o700 };
            let made = file_tree::directory::make(&path, mode);
            made.map_err(store("make directory", &path))?;
        }
        Ok(Arc::new(trash))
    }
}

/// An adapter for `map_err`.
pub(crate) fn store<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> ImageError + 'a {
    move |source| ImageError::Store { doing, path: path.to_owned(), source }
}

/// The store's metadata. The caller guards it with one mutex; disk and memory change together.
#[derive(Debug)]
pub(crate) struct Metadata {
    places: Places,
    trash: Arc<Trash>,
    records: BTreeMap<ImageId, ImageRecord>,
    layers: BTreeMap<Digest, LayerRecord>,
    blob_bytes: BTreeMap<Digest, u64>,
    holds: BTreeMap<String, BTreeSet<Digest>>,
    /// Layers and documents of running pulls, with the number of pulls.
    leases: HashMap<Digest, usize>,
    serial: u64,
    /// Image records that cannot be read, or whose layers' records cannot be read.
    damaged: BTreeSet<PathBuf>,
    /// Layers and documents that a damaged record may name.
    spared: BTreeSet<Digest>,
    /// Layers whose own record is unreadable. A pull unpacks them again.
    unreadable: BTreeSet<Digest>,
    /// Layers that are synced to disk and survive a power cut.
    durable: BTreeSet<Digest>,
}

impl Metadata {
    /// Whether all of `chains` are synced to disk already.
    pub(crate) fn are_durable(&self, chains: &[Digest]) -> bool {
        chains.iter().all(|chain| self.durable.contains(chain))
    }

    /// Records that `chains` were synced to disk.
    pub(crate) fn set_durable(&mut self, chains: &[Digest]) {
        self.durable.extend(chains);
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &ImageRecord> {
        self.records.values()
    }

    /// The image that was pulled by an index, manifest or configuration with this digest.
    pub(crate) fn by_target(&self, target: &Digest) -> Option<&ImageRecord> {
        self.records.values().find(|record| record.targets.contains(target))
    }

    pub(crate) fn layer(&self, chain: &Digest) -> Option<&LayerRecord> {
        self.layers.get(chain)
    }

    /// Writes a record and removes its names from other records.
    pub(crate) fn put(&mut self, mut record: ImageRecord) -> Result<(), ImageError> {
        self.serial += 1;
        record.serial = self.serial;
        self.save(&record)?;
        let losers: Vec<ImageRecord> = self
            .records
            .values()
            .filter(|other| other.id != record.id && !other.tags.is_disjoint(&record.tags))
            .cloned()
            .collect();
        for mut loser in losers {
            loser.tags.retain(|tag| !record.tags.contains(tag));
            self.save(&loser)?;
            self.records.insert(loser.id, loser);
        }
        self.heal(&self.places.image(&record.id));
        self.records.insert(record.id, record);
        Ok(())
    }

    fn save(&self, record: &ImageRecord) -> Result<(), ImageError> {
        self.write(&self.places.image(&record.id), record)
    }

    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), ImageError> {
        let bytes = serde_json::to_vec_pretty(value).map_err(|e| store("write", path)(e.into()))?;
        write_file(path, &bytes, &self.places.tmp()).map_err(store("write", path))
    }

    /// Stores a document whose digest the caller has verified.
    pub(crate) fn put_blob(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), ImageError> {
        if !self.blob_bytes.contains_key(&digest) {
            let path = self.places.blob(&digest);
            write_file(&path, bytes, &self.places.tmp()).map_err(store("write", &path))?;
            self.blob_bytes.insert(digest, bytes.len() as u64);
        }
        Ok(())
    }

    /// Moves the finished layer in `from` (`fs` and `layer.json`) to its place.
    pub(crate) fn put_layer(
        &mut self,
        chain: Digest,
        layer: LayerRecord,
        from: &Path,
    ) -> Result<(), ImageError> {
        let path = self.places.layer(&chain);
        if self.unreadable.contains(&chain) {
            self.make_room(chain, &path, from)?;
        }
        if from.exists() {
            fs::rename(from, &path).map_err(store("move a layer to", &path))?;
        }
        self.layers.insert(chain, layer);
        Ok(())
    }

    /// Removes the layer at `path`, whose record is unreadable. If containers use its files, which were complete when they
    /// started, the files stay and get the new layer's record.
    fn make_room(&mut self, chain: Digest, path: &Path, new: &Path) -> Result<(), ImageError> {
        if self.holds.values().any(|chains| chains.contains(&chain)) {
            let record = path.join("layer.json");
            self.trash.put(&record).map_err(store("remove", &record))?;
            fs::rename(new.join("layer.json"), &record).map_err(store("write", &record))?;
            self.trash.put(new).map_err(store("remove", new))?;
        } else {
            self.trash.put(path).map_err(store("remove", path))?;
        }
        self.unreadable.remove(&chain);
        Ok(())
    }

    /// Removes an image's record.
    pub(crate) fn remove(&mut self, id: ImageId) -> Result<(), ImageError> {
        if self.records.remove(&id).is_some() {
            let path = self.places.image(&id);
            remove_file(&path).map_err(store("remove", &path))?;
            sync_parent(&path).map_err(store("sync the directory of", &path))?;
        }
        self.collect()
    }

    /// Keeps `digests` from garbage collection until each lease is released.
    pub(crate) fn lease(&mut self, digests: &[Digest]) {
        for digest in digests {
            *self.leases.entry(*digest).or_default() += 1;
        }
    }

    pub(crate) fn release_lease(&mut self, digests: &[Digest]) {
        for digest in digests {
            if let Some(count) = self.leases.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    self.leases.remove(digest);
                }
            }
        }
    }

    /// Keeps the layers `chains` for `holder`, in addition to the layers that it already holds, across restarts.
    pub(crate) fn hold(
        &mut self,
        holder: &str,
        mut chains: BTreeSet<Digest>,
    ) -> Result<(), ImageError> {
        chains.extend(self.holds.get(holder).into_iter().flatten());
        // There is nothing to keep, as with the host's image.
        if chains.is_empty() || self.holds.get(holder) == Some(&chains) {
            return Ok(());
        }
        // No fsync: a hold is for a container, which does not survive a power cut either.
        let path = self.places.hold(holder);
        let bytes = serde_json::to_vec(&chains).map_err(|e| store("write", &path)(e.into()))?;
        replace_file(&path, &bytes, &self.places.tmp()).map_err(store("write", &path))?;
        self.holds.insert(holder.to_owned(), chains);
        Ok(())
    }

    /// Releases every holder that `stays` rejects.
    pub(crate) fn release(&mut self, stays: impl Fn(&str) -> bool) -> Result<(), ImageError> {
        let leaving: Vec<String> =
            self.holds.keys().filter(|holder| !stays(holder)).cloned().collect();
        if leaving.is_empty() {
            return Ok(());
        }
        for holder in leaving {
            let path = self.places.hold(&holder);
            remove_file(&path).map_err(store("remove", &path))?;
            self.holds.remove(&holder);
        }
        self.collect()
    }

    /// The disk usage in bytes and inodes.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let bytes = self.layers.values().map(|l| l.disk_bytes).sum::<u64>()
            + self.blob_bytes.values().sum::<u64>();
        let inodes = self.layers.values().map(|l| l.inodes + 3).sum::<u64>()
            + (self.blob_bytes.len() + self.records.len() + self.holds.len()) as u64;
        (bytes, inodes)
    }

    /// Removes layers and documents without references.
    pub(crate) fn collect(&mut self) -> Result<(), ImageError> {
        let mut named: BTreeSet<Digest> = self.leases.keys().copied().collect();
        named.extend(self.holds.values().flatten());
        named.extend(&self.spared);
        for record in self.records.values() {
            named.extend(record.chains());
            named.extend(&record.blobs);
        }
        for chain in self
            .layers
            .keys()
            .chain(&self.unreadable)
            .filter(|chain| !named.contains(chain))
            .copied()
            .collect::<Vec<_>>()
        {
            let path = self.places.layer(&chain);
            self.trash.put(&path).map_err(store("remove", &path))?;
            self.layers.remove(&chain);
            self.unreadable.remove(&chain);
            self.durable.remove(&chain);
        }
        for blob in
            self.blob_bytes.keys().filter(|blob| !named.contains(blob)).copied().collect::<Vec<_>>()
        {
            let path = self.places.blob(&blob);
            remove_file(&path).map_err(store("remove", &path))?;
            self.blob_bytes.remove(&blob);
        }
        Ok(())
    }
}

/// Replaces `path` by `bytes` atomically: a reader, even after a SIGKILL, finds the old or the new content. The temporary file is
/// made in `temporary`, on the same file system.
fn write_file(path: &Path, bytes: &[u8], temporary: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(temporary)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    sync_parent(path)
}

/// Like [`write_file`], but without fsync, for content that need not survive a power cut.
fn replace_file(path: &Path, bytes: &[u8], temporary: &Path) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(temporary)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Makes renames and removals in the directory of `path` durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes a file, if it exists.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
