//! The image store: imports, commits, records on disk, names, and single-flight pulls. [`ImageStore`] owns all of them.

pub(crate) mod archives;
pub(crate) mod commit;
pub(crate) mod import;
pub(crate) mod lookup;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod readahead;
pub(crate) mod single_flight;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use file_tree::Trash;
use image_reference::Reference;

use crate::error::{ContentError, ImageError};
use crate::formats::archive::Archive;
use crate::formats::archive_index::{self, ArchivedImage};
use crate::formats::digest::Digest;
use crate::formats::limits::{Budget, Limits};
use crate::formats::platform::Platform;
use crate::formats::record::{Content, ImageId, ImageRecord};
use crate::formats::script::Script;
use crate::formats::tar_stream::{SeekFile, TarReader};
use crate::layer::whiteout::Style;
use crate::local::{self, NamedScript};
use crate::{flatten, layer};

use self::archives::ArchiveList;
use self::commit::Named;
use self::import::{Failure, lock};
use self::metadata::{Metadata, Places, store};
use self::single_flight::SingleFlight;

/// The location of the store, and the permissions of its process.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// The store's root directory; created if missing. The caller ensures that only one daemon uses it.
    pub root: PathBuf,
    /// The process is in a user namespace: whiteouts use `user.overlay.…` attributes, and files only get ids that the
    /// namespace maps.
    pub in_user_namespace: bool,
    /// The process has only one id: all files belong to it.
    pub single_id: bool,
    /// Device nodes of images may be created, because the device cgroup restricts containers to their own devices.
    pub device_nodes: bool,
    /// Archives and layout directories for [`ImageStore::pull`], and directories of these.
    pub archives: Vec<PathBuf>,
    /// Behaviour images, which override images of archives and registries with these names.
    pub scripts: Vec<NamedScript>,
    /// The limits for images.
    pub limits: Limits,
}

impl ImageOptions {
    /// A store at `root` for a process that is root, without archives.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            in_user_namespace: false,
            single_id: false,
            device_nodes: true,
            archives: Vec::new(),
            scripts: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// The source of a container's root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rootfs {
    /// The host's own root, to be used read-only.
    Host,
    /// Directories for overlayfs's `lowerdir`, topmost first; at least one.
    Layers {
        /// Absolute if the store's root is.
        lower: Vec<PathBuf>,
    },
}

/// An embedded image, under one of its names.
struct Embedded {
    tag: String,
    script: Option<Script>,
}

impl Embedded {
    /// Stores its record under its name.
    fn put(self, metadata: &Mutex<Metadata>) -> Result<ImageId, ImageError> {
        let document = local::document(self.script.as_ref());
        let mut record = local::record(&document, self.tag, self.script.as_ref());
        let id = record.id;
        let mut metadata = lock(metadata);
        let present = metadata.by_target(&id.0);
        if present.is_some_and(|present| present.tags.is_superset(&record.tags)) {
            return Ok(id);
        }
        if let Some(present) = present {
            record.tags.extend(present.tags.iter().cloned());
        }
        metadata.put_blob(id.0, &document)?;
        metadata.put(record)?;
        Ok(id)
    }
}

/// The disk usage of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsInfo {
    /// The store's root: a directory on the file system that holds it.
    pub mountpoint: PathBuf,
    /// Bytes of disk blocks of layers, and lengths of documents.
    pub used_bytes: u64,
    /// Files, directories and links.
    pub inodes_used: u64,
}

/// The images of one daemon. All methods may be called from many threads and block on the disk.
#[derive(Debug)]
pub struct ImageStore {
    places: Places,
    style: Style,
    limits: Limits,
    archive_list: ArchiveList,
    scripts: Vec<NamedScript>,
    metadata: Mutex<Metadata>,
    trash: Arc<Trash>,
    images: SingleFlight<Digest>,
    layers: SingleFlight<Digest>,
}

impl ImageStore {
    /// Opens the store, creates it if missing, and removes the unfinished files of an interrupted daemon.
    ///
    /// # Errors
    /// [`ImageError::Store`] when a directory cannot be created or read, or an archive does not exist; [`ImageError::Archive`]
    /// when a file named as an archive is not one.
    pub fn open(options: ImageOptions) -> Result<Self, ImageError> {
        let places = Places { root: options.root };
        let trash = places.prepare()?;
        let tmp = places.tmp();
        let probe = File::open(&tmp).map_err(store("open", &tmp))?;
        let mut style = Style::probe(&probe, options.in_user_namespace, options.single_id);
        style.nodes &= options.device_nodes;
        let archive_list = ArchiveList::new(options.archives, &options.limits)?;
        let metadata = Metadata::load(places.clone(), trash.clone(), &import::style_name(&style))?;
        Ok(Self {
            places,
            style,
            limits: options.limits,
            archive_list,
            scripts: options.scripts,
            metadata: Mutex::new(metadata),
            trash,
            images: SingleFlight::default(),
            layers: SingleFlight::default(),
        })
    }

    /// Every image, by ID.
    pub fn list(&self) -> Vec<ImageRecord> {
        lock(&self.metadata).records().cloned().collect()
    }

    /// The image that `name` refers to: a tag (`nginx`, `nginx:1`), a digest (`nginx@sha256:…`), an ID or an
    /// unambiguous prefix of one (at least 12 digits, or any number after `sha256:`).
    pub fn status(&self, name: &str) -> Option<ImageRecord> {
        let metadata = lock(&self.metadata);
        let records: Vec<&ImageRecord> = metadata.records().collect();
        lookup::find(records.into_iter(), name).cloned()
    }

    /// Ensures that the image is present under the name `reference`, importing it from the archives if necessary. A present image
    /// or layer is not read again; of several concurrent callers one does the work.
    ///
    /// # Errors
    /// [`ImageError::Reference`], [`ImageError::Script`], [`ImageError::NotFound`], [`ImageError::NotFoundUnreadable`],
    /// [`ImageError::Archive`] (then nothing of the image is stored), [`ImageError::Full`] or [`ImageError::Store`].
    pub fn pull(&self, reference: &str) -> Result<ImageId, ImageError> {
        self.find(reference).map_err(|error| error.or_full(&self.places.root))
    }

    fn find(&self, reference: &str) -> Result<ImageId, ImageError> {
        let wanted: Reference = reference
            .parse()
            .map_err(|source| ImageError::Reference { text: reference.to_owned(), source })?;
        if let Some(image) = self.embedded(&wanted)? {
            return image.put(&self.metadata);
        }
        let archives = self.archive_list.archives()?;
        let mut refused = Vec::new();
        for path in &archives {
            let refuse = |source| ImageError::Archive { path: path.clone(), source };
            let scan = match self.archive_list.scan(path, &self.places.tmp(), &self.limits) {
                Ok(scan) => scan,
                Err(problem) => {
                    refused.push(refuse(problem));
                    continue;
                }
            };
            if let Some(archived) = archive_index::find(&scan.images, &wanted, &Platform::here()) {
                return self.import(path, scan.opened, archived, &wanted).map_err(|failure| {
                    match failure {
                        Failure::Archive(problem) => refuse(problem),
                        Failure::Store(error) => error,
                    }
                });
            }
        }
        let (reference, searched, unreadable) = (wanted.to_string(), archives.len(), refused.len());
        Err(match refused.into_iter().next() {
            Some(first) => ImageError::NotFoundUnreadable {
                reference,
                searched,
                unreadable,
                source: Box::new(first),
            },
            None => ImageError::NotFound { reference, searched },
        })
    }

    /// The embedded image that a name refers to, if any.
    fn embedded(&self, wanted: &Reference) -> Result<Option<Embedded>, ImageError> {
        let Some(tag) = wanted.as_tag() else {
            return Ok(None);
        };
        if local::is_host_image(wanted) {
            return Ok(Some(Embedded { tag, script: None }));
        }
        if let Some(named) = self.scripts.iter().find(|named| named.name == *wanted) {
            let script = Some(named.script.clone());
            return Ok(Some(Embedded { tag, script }));
        }
        match local::script(wanted) {
            None => Ok(None),
            Some(Ok(script)) => Ok(Some(Embedded { tag, script: Some(script) })),
            Some(Err(source)) => Err(ImageError::Script { reference: wanted.to_string(), source }),
        }
    }

    fn import(
        &self,
        path: &Path,
        opened: Option<Archive>,
        archived: &ArchivedImage,
        wanted: &Reference,
    ) -> Result<ImageId, Failure> {
        let _guard = self.images.acquire(archived.target);
        let named = Named {
            target: archived.target,
            by_digest: archived.by_digest,
            wanted: wanted.clone(),
        };
        if let Some(id) = self.add_name(&named)? {
            return Ok(id);
        }
        let archive = match opened {
            Some(archive) => archive,
            None => Archive::open(path, &self.places.tmp(), &self.limits)?,
        };
        let image = archive_index::resolve(&archive, archived, &Platform::here(), &self.limits)?;
        self.add(&image, &named, &archive)
    }

    /// Removes an image under all its names. Its layers stay as long as another image, a pull or a holder needs them.
    /// A missing image is not an error (CRI v1, RemoveImage).
    ///
    /// # Errors
    /// [`ImageError::Store`].
    pub fn remove(&self, name: &str) -> Result<(), ImageError> {
        let record = self.status(name);
        let mut metadata = lock(&self.metadata);
        match record {
            Some(record) => metadata.remove(record.id),
            None if metadata.remove_damaged(name)? => metadata.collect(),
            None => Ok(()),
        }
    }

    /// The disk usage of the store.
    pub fn fs_info(&self) -> FsInfo {
        let (used_bytes, inodes_used) = lock(&self.metadata).usage();
        FsInfo { mountpoint: self.places.root.clone(), used_bytes, inodes_used }
    }

    /// The root file system of an image. Its directories exist as long as the image; a container that may outlive its
    /// image [holds](ImageStore::hold) them.
    ///
    /// # Errors
    /// [`ImageError::Absent`].
    pub fn rootfs(&self, name: &str) -> Result<Rootfs, ImageError> {
        let record =
            self.status(name).ok_or_else(|| ImageError::Absent { name: name.to_owned() })?;
        Ok(self.rootfs_of(&record))
    }

    fn rootfs_of(&self, record: &ImageRecord) -> Rootfs {
        match &record.content {
            Content::Host => Rootfs::Host,
            Content::Layers(chains) if chains.is_empty() => {
                Rootfs::Layers { lower: vec![self.places.empty()] }
            }
            Content::Layers(chains) => Rootfs::Layers {
                lower: chains.iter().rev().map(|chain| self.places.layer_files(chain)).collect(),
            },
        }
    }

    /// Like [`ImageStore::rootfs`], and keeps the layers for `holder` (a container's ID: letters, digits, `-`, `_`)
    /// until it releases them, across restarts and the removal of the image.
    ///
    /// # Errors
    /// [`ImageError::Absent`] or [`ImageError::Store`].
    pub fn hold(&self, holder: &str, name: &str) -> Result<Rootfs, ImageError> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        if holder.is_empty() || holder.len() > 200 || !holder.bytes().all(fits) {
            let path = PathBuf::from(holder);
            return Err(store("hold layers for", &path)(std::io::ErrorKind::InvalidInput.into()));
        }
        let mut metadata = lock(&self.metadata);
        let records: Vec<&ImageRecord> = metadata.records().collect();
        let record = lookup::find(records.into_iter(), name).cloned();
        let record = record.ok_or_else(|| ImageError::Absent { name: name.to_owned() })?;
        metadata.hold(holder, record.chains().iter().copied().collect())?;
        Ok(self.rootfs_of(&record))
    }

    /// Copies the layers of [`Rootfs::Layers`] into the directory `into`, created if missing, as one tree: for machines that
    /// cannot mount an overlay. A failed copy does not remove the files that it has created.
    ///
    /// # Errors
    /// [`ImageError::Store`].
    pub fn copy(&self, lower: &[PathBuf], into: &Path) -> Result<(), ImageError> {
        flatten::copy(lower, into, &self.style).map_err(|problem| {
            // Keep the kind, so that a full disk is recognised.
            let kind = if let ContentError::Io { source, .. } = &problem {
                source.kind()
            } else {
                std::io::ErrorKind::Other
            };
            store("copy an image to", into)(std::io::Error::new(kind, problem))
        })
    }

    /// Unpacks the uncompressed layer in `tar` into the empty directory `into`, above the unpacked layers `lowers`:
    /// restores a container's changes to its image.
    pub fn apply_diff(
        &self,
        tar: File,
        lowers: &[PathBuf],
        into: &Path,
    ) -> Result<(), ContentError> {
        let reader = SeekFile::new(tar).map_err(ContentError::io("read the layer".to_owned()))?;
        let reader = TarReader::new(reader, "the layer", self.limits.extension_bytes);
        let budget = Budget::new(&self.limits);
        layer::unpack(reader, into, lowers, &self.style, &budget).map(drop)
    }

    /// Releases the layers of `holder`. An unknown holder is not an error.
    ///
    /// # Errors
    /// [`ImageError::Store`].
    pub fn release(&self, holder: &str) -> Result<(), ImageError> {
        self.release_all_but(|other| other != holder)
    }

    /// Releases the layers of every holder that `stays` rejects: a restarted daemon calls it after it has determined which
    /// containers still exist.
    ///
    /// # Errors
    /// [`ImageError::Store`].
    pub fn release_all_but(&self, stays: impl Fn(&str) -> bool) -> Result<(), ImageError> {
        lock(&self.metadata).release(stays)
    }

    /// Stops the deletion of removed content, which the next [`ImageStore::open`] resumes.
    pub fn close(&self) {
        self.trash.stop();
    }
}
