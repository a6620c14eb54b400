//! Commits an image whose documents are verified to the store: its layers, its record, its names.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::ImageError;
use crate::formats::digest::Digest;
use crate::formats::limits::Limits;
use crate::formats::record::{Content, ImageConfig, ImageId, ImageRecord};
use crate::formats::resolve::{LayerSource, Resolved};
use crate::store::ImageStore;
use crate::store::import::{self, Failure, Importer, Source, lock};
use crate::store::metadata::{Metadata, store};
use image_reference::Reference;

/// The name of an image, and the document that it refers to.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// Digest of the document that the name refers to: index, manifest, or configuration.
    pub(crate) target: Digest,
    /// Whether the target is a manifest or an index, so that `repository@target` refers to this image.
    pub(crate) by_digest: bool,
    /// The requested name.
    pub(crate) wanted: Reference,
}

impl Named {
    /// Adds the names to the record. A pull by tag adds the tag; a pull by digest adds none (critest, "pull image by digest").
    /// Both add the digest, if it is the digest of a manifest or an index.
    fn give(&self, record: &mut ImageRecord) {
        record.tags.extend(self.wanted.as_tag());
        if self.by_digest {
            let digest = format!("{}@{}", self.wanted.repository, self.target);
            record.digests.insert(digest);
        }
    }
}

impl ImageStore {
    /// The limits for images.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The store's root directory.
    pub(crate) fn root(&self) -> &Path {
        &self.places.root
    }

    /// The directory for unfinished files, on the store's file system. It is emptied when the store is opened.
    pub(crate) fn spool(&self) -> PathBuf {
        self.places.tmp()
    }

    /// The configuration of an image, byte for byte.
    ///
    /// # Errors
    /// [`ImageError::Store`].
    pub fn configuration(&self, record: &ImageRecord) -> Result<Vec<u8>, ImageError> {
        let path = self.places.blob(&record.id.0);
        std::fs::read(&path).map_err(store("read", &path))
    }

    /// Adds the name to the image if it is present already; otherwise returns `None`.
    ///
    /// # Errors
    /// [`ImageError::Store`].
    pub(crate) fn add_name(&self, named: &Named) -> Result<Option<ImageId>, ImageError> {
        let mut metadata = lock(&self.metadata);
        let Some(record) = metadata.by_target(&named.target).cloned() else {
            return Ok(None);
        };
        let mut changed = record.clone();
        named.give(&mut changed);
        if changed != record {
            metadata.put(changed)?;
        }
        Ok(Some(record.id))
    }

    /// The layers of an image that are not present, from the bottom up.
    pub(crate) fn missing_layers(&self, image: &Resolved) -> Vec<LayerSource> {
        let metadata = lock(&self.metadata);
        let chains = import::chains(&image.layers);
        let both = image.layers.iter().zip(chains);
        both.filter(|(_, chain)| metadata.layer(chain).is_none())
            .map(|(layer, _)| layer.clone())
            .collect()
    }

    /// Imports the missing layers of `image` from `source`, and commits the image. Of several concurrent callers with the same
    /// origin one does the work.
    ///
    /// # Errors
    /// See [`Failure`]. Then nothing of the image is stored.
    pub(crate) fn commit_image(
        &self,
        image: &Resolved,
        named: &Named,
        source: &dyn Source,
    ) -> Result<ImageId, Failure> {
        let _guard = self.images.acquire(import::flight_key(source, &named.target));
        match self.add_name(named)? {
            Some(id) => Ok(id),
            None => self.add(image, named, source),
        }
    }

    /// [`Self::commit_image`] for a caller that holds the image's guard and has checked that the image is not present.
    pub(crate) fn add(
        &self,
        image: &Resolved,
        named: &Named,
        source: &dyn Source,
    ) -> Result<ImageId, Failure> {
        let chains = import::chains(&image.layers);
        let manifest = image.manifest.as_ref();
        let blobs: BTreeSet<Digest> =
            manifest.iter().map(|(digest, _)| *digest).chain([image.id]).collect();
        let leased: Vec<Digest> = chains.iter().chain(&blobs).copied().collect();
        let _lease = Lease::take(&self.metadata, leased);
        let importer = Importer {
            places: &self.places,
            metadata: &self.metadata,
            flights: &self.layers,
            style: &self.style,
            limits: &self.limits,
        };
        // Open the directory first: syncfs(2) reports write errors since the file was opened.
        let root = &self.places.root;
        let disk = File::open(root).map_err(store("open", root))?;
        importer.layers(source, image, &chains)?;
        self.force(&disk, &chains)?;
        let mut metadata = lock(&self.metadata);
        metadata.put_blob(image.id, &image.config_bytes)?;
        if let Some((digest, bytes)) = manifest {
            metadata.put_blob(*digest, bytes)?;
        }
        let files: u64 =
            chains.iter().filter_map(|chain| metadata.layer(chain)).map(|l| l.file_bytes).sum();
        let documents = image.config_bytes.len() + manifest.map_or(0, |(_, bytes)| bytes.len());
        let mut targets = BTreeSet::from([image.id, named.target]);
        targets.extend(manifest.map(|(digest, _)| *digest));
        // The same image may be present under other names, from another source.
        let known = metadata.records().find(|record| record.id.0 == image.id).cloned();
        let mut record = known.unwrap_or_else(|| ImageRecord {
            id: ImageId(image.id),
            tags: BTreeSet::new(),
            digests: BTreeSet::new(),
            size: files + documents as u64,
            pinned: false,
            config: ImageConfig::of(&image.config),
            content: Content::Layers(chains.clone()),
            targets: BTreeSet::new(),
            blobs: BTreeSet::new(),
            serial: 0,
        });
        record.targets.extend(targets);
        record.blobs.extend(blobs);
        named.give(&mut record);
        metadata.put(record)?;
        Ok(ImageId(image.id))
    }
}

impl ImageStore {
    /// Syncs layers to disk before a record names them, so that the layers of a record are complete even after a power cut. One
    /// `syncfs` for the whole file system takes less time than an `fsync` for each file.
    fn force(&self, disk: &File, chains: &[Digest]) -> Result<(), ImageError> {
        if lock(&self.metadata).are_durable(chains) {
            return Ok(());
        }
        let root = &self.places.root;
        rustix::fs::syncfs(disk)
            .map_err(|error| store("force layers to the disk in", root)(error.into()))?;
        lock(&self.metadata).set_durable(chains);
        Ok(())
    }
}

/// Keeps the content of a running pull from garbage collection until the image's record names it.
struct Lease<'a> {
    metadata: &'a Mutex<Metadata>,
    digests: Vec<Digest>,
}

impl<'a> Lease<'a> {
    fn take(metadata: &'a Mutex<Metadata>, digests: Vec<Digest>) -> Self {
        lock(metadata).lease(&digests);
        Self { metadata, digests }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut metadata = lock(self.metadata);
        metadata.release_lease(&self.digests);
        // After a success there is nothing to collect; after a failure, this removes the layers already imported.
        let collected = metadata.collect();
        drop(metadata);
        if let Err(error) = collected {
            tracing::warn!(%error, "failed to remove layers of a failed pull; the next start removes them");
        }
    }
}
