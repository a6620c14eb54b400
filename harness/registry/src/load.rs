//! Loads images into a registry: OCI layouts, OCI archives and
//! docker archives, compressed or not, or a directory of them.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use image_reference::{Reference, ReferenceError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::archive::{Content, members, normal, too_long, unless_cancelled};
use super::document::{DOCKER_MANIFEST, Descriptor, Document};
use super::route::Digest;
use super::store::{LONGEST_MANIFEST, REF_NAME, Store, digest_of, digest_of_content};

mod archive;

/// The annotation in which docker and containerd write the full name.
const FULL_NAME: &str = "io.containerd.image.name";

/// The maximum nesting of indexes. One is usual, and two occur.
const LEVELS: usize = 8;

/// The maximum number of manifests and indexes for one name: an image for each platform, with its attestations, has dozens.
const DOCUMENTS: usize = 1000;

/// The maximum number of names in one archive or layout: each is stored, and pulled by `crib load`.
const NAMES: usize = 10_000;

/// Why an image cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read or written.
    #[error("failed to read the image {path}")]
    Io {
        /// The image.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file or directory is not an image.
    #[error(
        "{path} is neither an OCI layout nor an OCI or docker archive: it has no index.json and no manifest.json"
    )]
    NoImage {
        /// The path.
        path: PathBuf,
    },
    /// It is not an archive, or is truncated.
    #[error("{path} is not a complete tar archive")]
    NoArchive {
        /// The path.
        path: PathBuf,
    },
    /// The directory contains no image.
    #[error(
        "the directory {path} contains no image: give an OCI layout, or a directory with archives (*.tar, *.tar.gz, *.tgz) or layouts"
    )]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// The image is invalid.
    #[error("the image {path} is broken: {problem}")]
    Broken {
        /// The image.
        path: PathBuf,
        /// The error.
        problem: String,
    },
    /// The image has no name.
    #[error("the image {path} has no name: give it one, {path}=NAME:TAG")]
    NoName {
        /// The image.
        path: PathBuf,
    },
    /// One name was given for several images.
    #[error("{path} has {count} images: load it without a name")]
    Several {
        /// The archive.
        path: PathBuf,
        /// The number of images.
        count: usize,
    },
    /// The name breaks the grammar.
    #[error("{name:?} is not a valid image name")]
    BadName {
        /// The name.
        name: String,
        /// The cause.
        source: ReferenceError,
    },
}

/// Loads the images at `path`, and returns the names by which they can be pulled. Fails soon after `cancelled` is cancelled.
pub(super) fn load(
    store: &Store,
    path: &Path,
    name: Option<&str>,
    cancelled: &CancellationToken,
) -> Result<Vec<String>, LoadError> {
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    unless_cancelled(cancelled).map_err(io)?;
    let metadata = fs::metadata(path).map_err(io)?;
    let loader = |source| Loader { store, path, source, cancelled };
    let names = if !metadata.is_dir() {
        // Opening a FIFO blocks until there is a writer, and a device may have no end.
        if !metadata.is_file() {
            return Err(io(io::Error::other("it is neither a file nor a directory")));
        }
        let members = members(path, store.root(), cancelled).map_err(|error| {
            // Kernel errors have an errno. Of the others, these kinds are about the archive's content; the rest mean that the file
            // is not an archive.
            let ours = [io::ErrorKind::AlreadyExists, io::ErrorKind::FileTooLarge];
            match error.raw_os_error() {
                Some(_) => io(error),
                None if ours.contains(&error.kind()) => {
                    LoadError::Broken { path: path.to_owned(), problem: error.to_string() }
                }
                None => LoadError::NoArchive { path: path.to_owned() },
            }
        })?;
        loader(Source::Members(members)).load(name)?
    } else if path.join("index.json").is_file() {
        loader(Source::Directory).load(name)?
    } else {
        let mut names = Vec::new();
        for image in images_in(path).map_err(io)? {
            names.extend(load(store, &image, name, cancelled)?);
        }
        if names.is_empty() {
            return Err(LoadError::Empty { path: path.to_owned() });
        }
        names
    };
    store.write_index().map_err(io)?;
    Ok(names)
}

/// The archives and layouts in a directory, sorted.
fn images_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let archive = [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end));
        if archive || path.join("index.json").is_file() {
            images.push(path);
        }
    }
    images.sort();
    Ok(images)
}

/// The source of an image's files.
enum Source {
    Directory,
    Members(HashMap<String, Content>),
}

struct Loader<'a> {
    store: &'a Store,
    path: &'a Path,
    source: Source,
    cancelled: &'a CancellationToken,
}

/// An entry of a docker archive's manifest.json.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Loader<'_> {
    /// Whether a file of this name exists.
    fn has(&self, name: &str) -> bool {
        match &self.source {
            Source::Directory => self.path.join(name).is_file(),
            Source::Members(members) => members.contains_key(&normal(Path::new(name))),
        }
    }

    /// The content of a file; `None` if it is missing.
    fn open(&self, name: &str) -> Result<Option<Content>, LoadError> {
        match &self.source {
            Source::Directory => {
                let file = Some(self.path.join(name)).filter(|path| path.is_file());
                let content = file.map(|file| Content::of_file(&file, self.cancelled));
                content.transpose().map_err(|error| self.io(error))
            }
            Source::Members(members) => Ok(members.get(&normal(Path::new(name))).cloned()),
        }
    }

    fn io(&self, source: io::Error) -> LoadError {
        LoadError::Io { path: self.path.to_owned(), source }
    }

    fn broken(&self, problem: String) -> LoadError {
        LoadError::Broken { path: self.path.to_owned(), problem }
    }

    /// Reads a document of limited size; `None` if it is missing.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, LoadError> {
        let Some(mut content) = self.open(name)? else { return Ok(None) };
        if content.size() > LONGEST_MANIFEST as u64 {
            return Err(self.broken(too_long(name).to_string()));
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).map_err(|error| self.io(error))?;
        Ok(Some(bytes))
    }

    fn load(&self, name: Option<&str>) -> Result<Vec<String>, LoadError> {
        let saved: Vec<Saved> = match self.read("manifest.json")? {
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| self.broken(format!("manifest.json: {error}")))?,
            None => Vec::new(),
        };
        if let Some(bytes) = self.read("index.json")? {
            let index = Document::parse(&bytes)
                .map_err(|error| self.broken(format!("index.json: {error}")))?;
            return self.load_index(&index, &saved, name);
        }
        if saved.is_empty() {
            return Err(LoadError::NoImage { path: self.path.to_owned() });
        }
        self.one_name(name, saved.len())?;
        if name.is_none() {
            let tags = saved.iter().filter_map(|image| image.repo_tags.as_ref());
            self.limit_names(tags.map(Vec::len).sum())?;
        }
        let mut names = Vec::new();
        for image in &saved {
            names.extend(self.load_saved(image, name)?);
        }
        Ok(names)
    }

    fn one_name(&self, name: Option<&str>, count: usize) -> Result<(), LoadError> {
        if name.is_some() && count > 1 {
            return Err(LoadError::Several { path: self.path.to_owned(), count });
        }
        Ok(())
    }

    fn limit_names(&self, count: usize) -> Result<(), LoadError> {
        match count > NAMES {
            true => Err(self.broken(format!("it has more than {NAMES} names"))),
            false => Ok(()),
        }
    }

    fn load_index(
        &self,
        index: &Document,
        saved: &[Saved],
        name: Option<&str>,
    ) -> Result<Vec<String>, LoadError> {
        let mut entries: Vec<&Descriptor> = index.manifests.iter().collect();
        // Some tools add a second name by repeating the entry.
        let distinct: BTreeSet<&str> = entries.iter().map(|entry| entry.digest.as_str()).collect();
        self.one_name(name, distinct.len())?;
        if name.is_some() {
            entries.truncate(1);
        }
        let mut named = Vec::new();
        for entry in entries {
            let said = entry.annotations.get(FULL_NAME);
            let said = said.or_else(|| {
                let named = entry.annotations.get(REF_NAME);
                // Many tools write only the tag, which names no repository.
                named.filter(|named| named.contains(['/', ':']))
            });
            let all = match (name, said) {
                (Some(name), _) => vec![name.to_owned()],
                (None, Some(said)) => vec![said.clone()],
                (None, None) => self.saved_names(entry, saved)?,
            };
            if all.is_empty() {
                return Err(LoadError::NoName { path: self.path.to_owned() });
            }
            self.limit_names(named.len() + all.len())?;
            named.extend(all.into_iter().map(|name| (name, entry)));
        }
        named.into_iter().map(|(name, entry)| self.put_named(&name, entry)).collect()
    }

    /// The names that manifest.json has for the image of an index.json entry.
    fn saved_names(&self, entry: &Descriptor, saved: &[Saved]) -> Result<Vec<String>, LoadError> {
        let (_, bytes) = self.document(entry)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let same = saved.iter().find(|image| {
            let digits = image.config.rsplit('/').next().unwrap_or_default();
            let digits = digits.trim_end_matches(".json");
            !digits.is_empty() && text.contains(digits)
        });
        let tags = same.or_else(|| saved.first().filter(|_| saved.len() == 1));
        Ok(tags.and_then(|image| image.repo_tags.clone()).unwrap_or_default())
    }

    fn put_named(&self, name: &str, entry: &Descriptor) -> Result<String, LoadError> {
        let reference = parse(name)?;
        self.put(&reference.repository, reference.tag.as_deref(), entry, 0, &mut BTreeSet::new())?;
        Ok(reference.full)
    }

    fn document(&self, entry: &Descriptor) -> Result<(Digest, Vec<u8>), LoadError> {
        let digest: Digest = entry
            .digest
            .parse()
            .map_err(|()| self.broken(format!("invalid digest {:?}", entry.digest)))?;
        let bytes = self
            .read(&member_of(&digest))?
            .ok_or_else(|| self.broken(format!("it has no blob {digest}")))?;
        Ok((digest, bytes))
    }

    /// Stores a manifest or an index with all content that it refers to. `above` is the number of indexes above it. `done` contains
    /// the stored documents, because several indexes may refer to the same document.
    fn put(
        &self,
        repository: &str,
        tag: Option<&str>,
        entry: &Descriptor,
        above: usize,
        done: &mut BTreeSet<Digest>,
    ) -> Result<(), LoadError> {
        let (digest, bytes) = self.document(entry)?;
        if above > LEVELS {
            return Err(self.broken(format!("more than {LEVELS} indexes are nested")));
        }
        let document = Document::parse(&bytes)
            .map_err(|error| self.broken(format!("the manifest {digest}: {error}")))?;
        self.copy(&digest)?;
        // Inserted before its children are stored, which is safe: a document cannot refer to itself.
        done.insert(digest.clone());
        if done.len() > DOCUMENTS {
            return Err(self.broken(format!("one name leads to more than {DOCUMENTS} manifests")));
        }
        for child in &document.manifests {
            let here = child.digest.parse().is_ok_and(|digest| self.has(&member_of(&digest)));
            // An archive of one platform may contain the index of all platforms: skip the missing ones.
            if here && !child.digest.parse().is_ok_and(|digest| done.contains(&digest)) {
                self.put(repository, None, child, above + 1, done)?;
            }
        }
        for blob in document.blobs() {
            let blob = blob
                .digest
                .parse()
                .map_err(|()| self.broken(format!("invalid digest {:?}", blob.digest)))?;
            self.copy(&blob)?;
        }
        let kind = match entry.media_type.as_str() {
            "" => document.kind(),
            said => said,
        };
        self.store
            .put_manifest(repository, tag, &digest, kind, &bytes, &document)
            .map_err(|error| self.io(error))
    }

    fn copy(&self, digest: &Digest) -> Result<(), LoadError> {
        let from = self
            .open(&member_of(digest))?
            .ok_or_else(|| self.broken(format!("it has no blob {digest}")))?;
        match self.store.copy_blob(from, digest) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.broken(format!("its blob {digest} has another digest"))),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Creates a manifest for an image of a docker archive, which contains none.
    fn load_saved(&self, image: &Saved, name: Option<&str>) -> Result<Vec<String>, LoadError> {
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => image.repo_tags.clone().unwrap_or_default(),
        };
        if names.is_empty() {
            return Err(LoadError::NoName { path: self.path.to_owned() });
        }
        let config =
            self.descriptor(&image.config, |_| "application/vnd.docker.container.image.v1+json")?;
        let layers: Result<Vec<Value>, LoadError> =
            image.layers.iter().map(|layer| self.descriptor(layer, layer_type)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": config,
            "layers": layers?,
        });
        let bytes = manifest.to_string().into_bytes();
        let digest = digest_of(&bytes);
        let mut full = Vec::new();
        for name in names {
            let reference = parse(&name)?;
            self.store
                .put_manifest(
                    &reference.repository,
                    reference.tag.as_deref(),
                    &digest,
                    DOCKER_MANIFEST,
                    &bytes,
                    &Document::default(),
                )
                .map_err(|error| self.io(error))?;
            full.push(reference.full);
        }
        Ok(full)
    }

    fn descriptor(
        &self,
        member: &str,
        kind: impl Fn([u8; 4]) -> &'static str,
    ) -> Result<Value, LoadError> {
        let content =
            self.open(member)?.ok_or_else(|| self.broken(format!("it has no file {member:?}")))?;
        let describe = || -> io::Result<Value> {
            let digest = digest_of_content(content.clone())?;
            self.store.copy_blob(content.clone(), &digest)?;
            let mut magic = [0; 4];
            let _ = content.clone().read(&mut magic)?;
            let size = content.size();
            Ok(json!({"mediaType": kind(magic), "size": size, "digest": digest.as_str()}))
        };
        describe().map_err(|error| self.io(error))
    }
}

/// The media type of a layer, detected by its first bytes.
fn layer_type(magic: [u8; 4]) -> &'static str {
    match magic {
        [0x1f, 0x8b, ..] => "application/vnd.docker.image.rootfs.diff.tar.gzip",
        [0x28, 0xb5, 0x2f, 0xfd] => "application/vnd.docker.image.rootfs.diff.tar.zstd",
        _ => "application/vnd.docker.image.rootfs.diff.tar",
    }
}

fn member_of(digest: &Digest) -> String {
    let (algorithm, digits) = digest.parts();
    format!("blobs/{algorithm}/{digits}")
}

/// A full image name.
pub(super) struct ImageName {
    /// `docker.io/library/busybox` for `busybox`.
    pub(super) repository: String,
    /// The tag; `latest` if the name has neither tag nor digest.
    pub(super) tag: Option<String>,
    full: String,
}

/// Parses and normalizes an image name as container runtimes do: `busybox` becomes `docker.io/library/busybox:latest`.
pub(super) fn parse(name: &str) -> Result<ImageName, LoadError> {
    let reference: Reference =
        name.parse().map_err(|source| LoadError::BadName { name: name.to_owned(), source })?;
    Ok(ImageName {
        full: reference.to_string(),
        repository: reference.repository,
        tag: reference.tag,
    })
}
