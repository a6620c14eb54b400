//! What the store has, in memory and on disk: records, unpacked layers, documents, holds.
//!
//! ```text
//! images/<id>.json        one record an image          written whole, renamed into place
//! layers/<chain>/fs       an unpacked layer            renamed into place when verified
//! layers/<chain>/layer.json                            what it is and takes
//! blobs/sha256/<digest>   manifests, configurations    written whole, renamed into place
//! holds/<holder>.json     layers a container stands on, whatever becomes of the image
//! empty/                  the root of an image without layers
//! tmp/                    anything unfinished          emptied when the store is opened
//! ```
//! Whatever no record, hold or running pull names is garbage.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::digest::Digest;
use super::disk;
use super::problem::ImageError;
use super::record::{ImageId, ImageRecord, LayerRecord};

/// Where things lie below the store's root.
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
        self.root
            .join("images")
            .join(format!("{}.json", id.0.hex()))
    }
    fn hold(&self, holder: &str) -> PathBuf {
        self.root.join("holds").join(format!("{holder}.json"))
    }

    /// Makes the directories and removes what an earlier daemon left unfinished.
    pub(crate) fn prepare(&self) -> Result<(), ImageError> {
        disk::remove_tree(&self.tmp()).map_err(store("empty", &self.tmp()))?;
        for name in [
            "",
            "tmp",
            "empty",
            "layers",
            "images",
            "holds",
            "blobs",
            "blobs/sha256",
        ] {
            let path = self.root.join(name);
            // Layers hold files with setuid bits: nobody else on the machine is to reach them.
            let mode = if name == "empty" { 0o755 } else { 0o700 };
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(&path);
            made.map_err(store("make directory", &path))?;
        }
        Ok(())
    }
}

/// An adapter for `map_err`.
pub(crate) fn store<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> ImageError + 'a {
    move |source| ImageError::Store {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// Everything the store knows. The caller guards it with one mutex; disk and memory change together.
#[derive(Debug)]
pub(crate) struct Shelf {
    places: Places,
    records: BTreeMap<ImageId, ImageRecord>,
    layers: BTreeMap<Digest, LayerRecord>,
    blob_bytes: BTreeMap<Digest, u64>,
    holds: BTreeMap<String, BTreeSet<Digest>>,
    /// Layers and documents of pulls that are under way, with how many pulls.
    leases: HashMap<Digest, usize>,
    serial: u64,
}

impl Shelf {
    /// Reads what is on disk. Whatever is incomplete, unreadable or of another `style` is dropped:
    /// it can be pulled again.
    pub(crate) fn load(places: Places, style: &str) -> Result<Self, ImageError> {
        let mut shelf = Self {
            places,
            records: BTreeMap::new(),
            layers: BTreeMap::new(),
            blob_bytes: BTreeMap::new(),
            holds: BTreeMap::new(),
            leases: HashMap::new(),
            serial: 0,
        };
        let names = |directory: &str| list(&shelf.places.root.join(directory));
        let (images, layers, blobs, holds) = (
            names("images")?,
            names("layers")?,
            names("blobs/sha256")?,
            names("holds")?,
        );
        let mut garbage = Vec::new();
        for path in layers {
            match (
                digest_of(&path),
                read::<LayerRecord>(&path.join("layer.json")),
            ) {
                (Some(chain), Ok(layer)) if layer.style == style => {
                    shelf.layers.insert(chain, layer);
                }
                (Some(_) | None, Ok(_) | Err(_)) => garbage.push(path),
            }
        }
        for path in blobs {
            match (digest_of(&path), fs::metadata(&path)) {
                (Some(digest), Ok(metadata)) => {
                    shelf.blob_bytes.insert(digest, metadata.len());
                }
                (Some(_) | None, Ok(_) | Err(_)) => garbage.push(path),
            }
        }
        for path in images {
            match read::<ImageRecord>(&path) {
                Ok(record)
                    if shelf.places.image(&record.id) == path && shelf.is_complete(&record) =>
                {
                    shelf.serial = shelf.serial.max(record.serial);
                    shelf.records.insert(record.id, record);
                }
                Ok(_) => garbage.push(path),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "an image record cannot be read, its image is forgotten");
                    garbage.push(path);
                }
            }
        }
        for path in holds {
            let holder = path.file_stem().and_then(|s| s.to_str()).map(str::to_owned);
            match (holder, read(&path)) {
                (Some(holder), Ok(chains)) => {
                    shelf.holds.insert(holder, chains);
                }
                (Some(_) | None, Ok(_) | Err(_)) => garbage.push(path),
            }
        }
        for path in garbage {
            disk::remove_tree(&path).map_err(store("remove", &path))?;
        }
        shelf.settle_names();
        let trash = shelf.collect()?;
        discard(trash)?;
        Ok(shelf)
    }

    fn is_complete(&self, record: &ImageRecord) -> bool {
        record
            .chains()
            .iter()
            .all(|chain| self.layers.contains_key(chain))
            && record
                .blobs
                .iter()
                .all(|blob| self.blob_bytes.contains_key(blob))
    }

    /// A SIGKILL between the two writes that move a name leaves it on two records: the younger has it.
    fn settle_names(&mut self) {
        let mut by_age: Vec<ImageId> = self.records.keys().copied().collect();
        by_age.sort_by_key(|id| std::cmp::Reverse(self.records.get(id).map(|r| r.serial)));
        let mut taken = BTreeSet::new();
        for id in by_age {
            if let Some(record) = self.records.get_mut(&id) {
                record.tags.retain(|tag| taken.insert(tag.clone()));
            }
        }
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &ImageRecord> {
        self.records.values()
    }

    /// The image that an index, a manifest or a configuration of this digest led to.
    pub(crate) fn by_target(&self, target: &Digest) -> Option<&ImageRecord> {
        self.records
            .values()
            .find(|record| record.targets.contains(target))
    }

    pub(crate) fn layer(&self, chain: &Digest) -> Option<&LayerRecord> {
        self.layers.get(chain)
    }

    /// Writes a record, which takes its names from whoever had them.
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
        self.records.insert(record.id, record);
        Ok(())
    }

    fn save(&self, record: &ImageRecord) -> Result<(), ImageError> {
        self.write(&self.places.image(&record.id), record)
    }

    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), ImageError> {
        let bytes = serde_json::to_vec_pretty(value).map_err(|e| store("write", path)(e.into()))?;
        disk::write(path, &bytes, &self.places.tmp()).map_err(store("write", path))
    }

    /// Stores a document whose digest the caller has verified.
    pub(crate) fn put_blob(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), ImageError> {
        if !self.blob_bytes.contains_key(&digest) {
            let path = self.places.blob(&digest);
            disk::write(&path, bytes, &self.places.tmp()).map_err(store("write", &path))?;
            self.blob_bytes.insert(digest, bytes.len() as u64);
        }
        Ok(())
    }

    /// Takes in the finished layer in `from` (`fs` and `layer.json`).
    pub(crate) fn put_layer(
        &mut self,
        chain: Digest,
        layer: LayerRecord,
        from: &Path,
    ) -> Result<(), ImageError> {
        let path = self.places.layer(&chain);
        fs::rename(from, &path).map_err(store("move a layer to", &path))?;
        disk::sync_parent(&path).map_err(store("sync the directory of", &path))?;
        self.layers.insert(chain, layer);
        Ok(())
    }

    /// Forgets an image. The paths returned are to be given to [`discard`] outside the lock.
    #[must_use = "the garbage still has to be discarded"]
    pub(crate) fn remove(&mut self, id: ImageId) -> Result<Vec<PathBuf>, ImageError> {
        if self.records.remove(&id).is_some() {
            let path = self.places.image(&id);
            disk::remove_file(&path).map_err(store("remove", &path))?;
            disk::sync_parent(&path).map_err(store("sync the directory of", &path))?;
        }
        self.collect()
    }

    /// Keeps `digests` from being collected until they are released as often as they were leased.
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

    /// Keeps the layers of a record for `holder`, besides what it holds already, across restarts.
    pub(crate) fn hold(
        &mut self,
        holder: &str,
        mut chains: BTreeSet<Digest>,
    ) -> Result<(), ImageError> {
        chains.extend(self.holds.get(holder).into_iter().flatten());
        // Nothing to keep, as with the host's image.
        if chains.is_empty() || self.holds.get(holder) == Some(&chains) {
            return Ok(());
        }
        // Not forced to the disk: a hold is for a container, which a power cut ends too.
        let path = self.places.hold(holder);
        let bytes = serde_json::to_vec(&chains).map_err(|e| store("write", &path)(e.into()))?;
        disk::replace(&path, &bytes, &self.places.tmp()).map_err(store("write", &path))?;
        self.holds.insert(holder.to_owned(), chains);
        Ok(())
    }

    /// Ends every hold whose holder `stays` does not accept.
    #[must_use = "the garbage still has to be discarded"]
    pub(crate) fn release(
        &mut self,
        stays: impl Fn(&str) -> bool,
    ) -> Result<Vec<PathBuf>, ImageError> {
        let leaving: Vec<String> = self
            .holds
            .keys()
            .filter(|holder| !stays(holder))
            .cloned()
            .collect();
        if leaving.is_empty() {
            return Ok(Vec::new());
        }
        for holder in leaving {
            let path = self.places.hold(&holder);
            disk::remove_file(&path).map_err(store("remove", &path))?;
            self.holds.remove(&holder);
        }
        self.collect()
    }

    /// Bytes and inodes that everything takes on disk.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let bytes = self.layers.values().map(|l| l.disk_bytes).sum::<u64>()
            + self.blob_bytes.values().sum::<u64>();
        let inodes = self.layers.values().map(|l| l.inodes + 3).sum::<u64>()
            + (self.blob_bytes.len() + self.records.len() + self.holds.len()) as u64;
        (bytes, inodes)
    }

    /// Forgets the layers and documents that nothing names, and moves them to where they may be
    /// deleted at leisure.
    pub(crate) fn collect(&mut self) -> Result<Vec<PathBuf>, ImageError> {
        let mut named: BTreeSet<Digest> = self.leases.keys().copied().collect();
        named.extend(self.holds.values().flatten());
        for record in self.records.values() {
            named.extend(record.chains());
            named.extend(&record.blobs);
        }
        let mut garbage = Vec::new();
        for chain in self
            .layers
            .keys()
            .filter(|chain| !named.contains(chain))
            .copied()
            .collect::<Vec<_>>()
        {
            let path = self.places.layer(&chain);
            let to = self
                .places
                .tmp()
                .join(format!("gone-{}-{}", chain.hex(), self.serial));
            self.serial += 1;
            fs::rename(&path, &to).map_err(store("move away", &path))?;
            self.layers.remove(&chain);
            garbage.push(to);
        }
        for blob in self
            .blob_bytes
            .keys()
            .filter(|blob| !named.contains(blob))
            .copied()
            .collect::<Vec<_>>()
        {
            let path = self.places.blob(&blob);
            disk::remove_file(&path).map_err(store("remove", &path))?;
            self.blob_bytes.remove(&blob);
        }
        Ok(garbage)
    }
}

/// Deletes what [`Shelf::remove`], [`Shelf::release`] and [`Shelf::collect`] moved away.
pub(crate) fn discard(garbage: Vec<PathBuf>) -> Result<(), ImageError> {
    for path in garbage {
        disk::remove_tree(&path).map_err(store("remove", &path))?;
    }
    Ok(())
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let entries =
        fs::read_dir(directory).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    entries.map_err(store("list", directory))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn digest_of(path: &Path) -> Option<Digest> {
    Digest::from_hex(path.file_name()?.to_str()?).ok()
}
