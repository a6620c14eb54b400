//! Stores blobs by digest, repositories, and unfinished uploads, in the form of an OCI layout.
//!
//! The directory has `oci-layout`, `blobs/ALGORITHM/DIGITS` and an `index.json` whose entries are named by
//! `org.opencontainers.image.ref.name`, so that a runtime or another tool can read it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;
use sha2::{Digest as _, Sha256, Sha512};

use super::document::{Descriptor, Document};
use super::names::{Manifest, Names};
use super::route::Digest;

/// The annotation that names an index entry: `NAME:TAG` here, or the tag alone in other tools.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with an entry's repository, for entries without a tag.
const REPOSITORY: &str = "dev.crib.repository";
/// The longest accepted manifest, as in other registries.
pub(super) const LONGEST_MANIFEST: usize = 4 << 20;

/// A directory and its indexed contents.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    names: Names,
    uploads: HashMap<String, Upload>,
}

/// An unfinished blob.
#[derive(Debug)]
pub(super) struct Upload {
    /// The file with the bytes received so far.
    pub(super) path: PathBuf,
    /// The number of bytes received.
    pub(super) size: u64,
    /// Their hash so far.
    pub(super) hash: Sha256,
}

impl Store {
    /// Opens the directory `root`, which it creates if it is missing.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        for directory in ["blobs/sha256", "blobs/sha512", "uploads"] {
            file_tree::directory::make(&root.join(directory), 0o777)?;
        }
        // Unfinished uploads of an earlier server are useless: their sessions have ended.
        for entry in fs::read_dir(root.join("uploads"))? {
            fs::remove_file(entry?.path())?;
        }
        let store = Self { root: root.to_owned(), state: Mutex::default() };
        store.read_index()?;
        Ok(store)
    }

    /// The directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock and the change is incomplete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `look` with the names. After a change, the caller must call [`Store::write_index`].
    pub(super) fn names<T>(&self, look: impl FnOnce(&mut Names) -> T) -> T {
        look(&mut self.state().names)
    }

    /// The path of a blob, whether or not it exists.
    pub(super) fn blob_path(&self, digest: &Digest) -> PathBuf {
        let (algorithm, digits) = digest.parts();
        self.root.join("blobs").join(algorithm).join(digits)
    }

    /// The length of a stored blob.
    pub(super) fn blob_size(&self, digest: &Digest) -> Option<u64> {
        let metadata = fs::metadata(self.blob_path(digest)).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    /// A new name and path for an unfinished file.
    pub(super) fn fresh(&self) -> io::Result<(String, PathBuf)> {
        let id = super::random_token()?;
        let path = self.root.join("uploads").join(&id);
        Ok((id, path))
    }

    /// Begins an upload.
    pub(super) fn begin(&self) -> io::Result<String> {
        let (id, path) = self.fresh()?;
        File::create_new(&path)?;
        let (size, hash) = (0, Sha256::new());
        self.state().uploads.insert(id.clone(), Upload { path, size, hash });
        Ok(id)
    }

    /// Takes an upload out of the store: only one request at a time can use it.
    pub(super) fn take(&self, id: &str) -> Option<Upload> {
        self.state().uploads.remove(id)
    }

    /// Returns an upload to the store for the next request.
    pub(super) fn put_back(&self, id: &str, upload: Upload) {
        self.state().uploads.insert(id.to_owned(), upload);
    }

    /// The number of bytes received of an upload.
    pub(super) fn upload_size(&self, id: &str) -> Option<u64> {
        self.state().uploads.get(id).map(|upload| upload.size)
    }

    /// Moves an upload to the blobs if it has the digest. Returns whether it does.
    pub(super) fn finish(&self, upload: &Upload, digest: &Digest) -> io::Result<bool> {
        let found = match digest.parts().0 {
            "sha256" => Digest::of_hash("sha256", &upload.hash.clone().finalize()),
            _ => hash_file(&upload.path, digest)?,
        };
        if found != *digest {
            fs::remove_file(&upload.path)?;
            return Ok(false);
        }
        fs::rename(&upload.path, self.blob_path(digest))?;
        Ok(true)
    }

    /// Copies bytes to the blobs if they have the digest. Returns whether they do.
    pub(super) fn copy_blob(&self, from: impl Read, digest: &Digest) -> io::Result<bool> {
        if self.blob_size(digest).is_some() {
            return Ok(true);
        }
        let (_, path) = self.fresh()?;
        let found = File::create_new(&path).and_then(|to| copy_hashed(from, to, digest));
        if !found.as_ref().is_ok_and(|found| found == digest) {
            // The error of the copy is more useful than one of the removal.
            let removed = fs::remove_file(&path);
            return found.and(removed).map(|()| false);
        }
        fs::rename(&path, self.blob_path(digest))?;
        Ok(true)
    }

    /// Stores bytes as a blob.
    pub(super) fn put_bytes(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = digest_of(bytes);
        self.put_as(bytes, &digest)?;
        Ok(digest)
    }

    fn put_as(&self, bytes: &[u8], digest: &Digest) -> io::Result<()> {
        if self.blob_size(digest).is_none() {
            let (_, path) = self.fresh()?;
            fs::write(&path, bytes)?;
            fs::rename(&path, self.blob_path(digest))?;
        }
        Ok(())
    }

    /// Stores a manifest whose digest has been checked. The caller must then call [`Store::write_index`].
    pub(super) fn put_manifest(
        &self,
        name: &str,
        tag: Option<&str>,
        digest: &Digest,
        media_type: &str,
        bytes: &[u8],
        document: &Document,
    ) -> io::Result<()> {
        self.put_as(bytes, digest)?;
        let manifest = Manifest {
            media_type: media_type.to_owned(),
            size: bytes.len() as u64,
            subject: document.subject(),
            artifact_type: document.artifact_type(),
            annotations: document.annotations.clone(),
        };
        self.names(|names| names.put(name, tag, digest, manifest));
        Ok(())
    }

    /// Writes the names to `index.json`.
    pub(super) fn write_index(&self) -> io::Result<()> {
        let state = self.state();
        let mut entries = Vec::new();
        for (name, repository) in &state.names.0 {
            for (digest, manifest) in &repository.manifests {
                let mut tags = repository.tags.iter().filter(|(_, d)| *d == digest);
                let mut entry = |annotations| {
                    entries.push(json!({
                        "mediaType": manifest.media_type,
                        "digest": digest.as_str(),
                        "size": manifest.size,
                        "annotations": annotations,
                    }));
                };
                let Some((first, _)) = tags.next() else {
                    entry(json!({REPOSITORY: name}));
                    continue;
                };
                for tag in [first].into_iter().chain(tags.map(|(tag, _)| tag)) {
                    entry(json!({REPOSITORY: name, REF_NAME: format!("{name}:{tag}")}));
                }
            }
        }
        let index = json!({"schemaVersion": 2, "manifests": entries});
        fs::write(self.root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        // The lock is held, so that an older index never replaces a newer one.
        let mut file = tempfile::NamedTempFile::new_in(&self.root)?;
        file.write_all(&serde_json::to_vec_pretty(&index)?)?;
        file.persist(self.root.join("index.json"))?;
        Ok(())
    }

    fn read_index(&self) -> io::Result<()> {
        let path = self.root.join("index.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.write_index(),
            Err(error) => return Err(error),
        };
        let index = Document::parse(&bytes).map_err(|error| {
            io::Error::other(format!("{} is not a valid index: {error}", path.display()))
        })?;
        for entry in index.manifests {
            self.read_entry(&entry)?;
        }
        Ok(())
    }

    /// Skips entries without a name or manifest: the directory may be a layout of another tool.
    fn read_entry(&self, entry: &Descriptor) -> io::Result<()> {
        let named = entry.annotations.get(REF_NAME);
        let name = match entry.annotations.get(REPOSITORY) {
            Some(name) => Some(name.clone()),
            None => named.and_then(|named| Some(named.rsplit_once(':')?.0.to_owned())),
        };
        let (Some(name), Ok(digest)) = (name, entry.digest.parse::<Digest>()) else {
            return Ok(());
        };
        let tag = named.and_then(|named| Some(named.rsplit_once(':')?.1));
        let Ok(bytes) = fs::read(self.blob_path(&digest)) else {
            return Ok(());
        };
        let document = Document::parse(&bytes).unwrap_or_default();
        self.put_manifest(&name, tag, &digest, &entry.media_type, &bytes, &document)
    }

    /// The sorted tags of a repository; `None` if it is missing.
    pub(super) fn tags(&self, path: &str, registry: Option<&str>) -> Option<Vec<String>> {
        self.names(|names| {
            let candidates = names.candidates(path, registry);
            if candidates.is_empty() {
                return None;
            }
            let repositories = candidates.into_iter().filter_map(|name| names.0.get(name));
            let tags: BTreeMap<&String, ()> = repositories
                .flat_map(|repository| repository.tags.keys().map(|tag| (tag, ())))
                .collect();
            Some(tags.into_keys().cloned().collect())
        })
    }
}

/// The SHA-256 digest of bytes.
pub(super) fn digest_of(bytes: &[u8]) -> Digest {
    Digest::of_hash("sha256", &Sha256::digest(bytes))
}

/// Whether bytes have this digest, with either algorithm.
pub(super) fn has_digest(bytes: &[u8], digest: &Digest) -> bool {
    let found = match digest.parts().0 {
        "sha256" => Digest::of_hash("sha256", &Sha256::digest(bytes)),
        _ => Digest::of_hash("sha512", &Sha512::digest(bytes)),
    };
    found == *digest
}

/// The digest of a file, with the algorithm of `like`.
pub(super) fn hash_file(path: &Path, like: &Digest) -> io::Result<Digest> {
    copy_hashed(File::open(path)?, io::sink(), like)
}

/// Copies bytes and returns their digest, with the algorithm of `like`.
fn copy_hashed(from: impl Read, to: impl Write, like: &Digest) -> io::Result<Digest> {
    match like.parts().0 {
        "sha256" => Ok(Digest::of_hash("sha256", &hash_copied::<Sha256>(from, to)?)),
        _ => Ok(Digest::of_hash("sha512", &hash_copied::<Sha512>(from, to)?)),
    }
}

/// The SHA-256 digest of everything that `from` contains.
pub(super) fn digest_of_content(from: impl Read) -> io::Result<Digest> {
    let hash = hash_copied::<Sha256>(from, io::sink())?;
    Ok(Digest::of_hash("sha256", &hash))
}

fn hash_copied<H: sha2::Digest>(mut from: impl Read, mut to: impl Write) -> io::Result<Vec<u8>> {
    let mut hash = H::new();
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(hash.finalize().to_vec());
        }
        let piece = chunk.get(..length).unwrap_or_default();
        hash.update(piece);
        to.write_all(piece)?;
    }
}
