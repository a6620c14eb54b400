//! Imports the layers of a resolved image into the store: each is verified and unpacked once.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{ContentError, ImageError};
use crate::formats::archive::Archive;
use crate::formats::digest::Digest;
use crate::formats::limits::{Budget, Limits};
use crate::formats::record::LayerRecord;
use crate::formats::resolve::{LayerSource, Resolved};
use crate::formats::stream::{Counting, Decoder, Hashing, Metered};
use crate::formats::tar_stream::{Sequential, TarReader};
use crate::layer::{self, whiteout::Style};
use crate::store::metadata::{Metadata, Places};
use crate::store::readahead;
use crate::store::single_flight::SingleFlight;

/// Provides the content of layers.
pub(crate) trait Source {
    /// Opens a layer for reading from its start.
    fn open(&self, layer: &LayerSource) -> Result<Opened<'_>, ContentError>;

    /// The server that provides the content; empty for a file of this machine.
    fn origin(&self) -> String {
        String::new()
    }
}

/// The key under which one import of this content at a time runs. It differs between origins: a server may hold content back, and
/// must not delay imports of the same content from another server.
pub(crate) fn flight_key(source: &dyn Source, content: &Digest) -> Digest {
    let origin = source.origin();
    match origin.is_empty() {
        true => *content,
        false => Digest::of(format!("{origin} {content}").as_bytes()),
    }
}

/// The content of a layer, compressed or not.
pub(crate) struct Opened<'a> {
    pub(crate) reader: Box<dyn Read + Send + 'a>,
    /// Its length.
    pub(crate) size: u64,
    /// The reader reaches its end only if the content has the promised digest, so it need not be hashed again.
    pub(crate) verified: bool,
    /// Interrupts a blocked read from another thread, when the content is no longer needed.
    pub(crate) abandon: Box<dyn FnOnce() + 'a>,
}

impl Source for Archive {
    fn open(&self, layer: &LayerSource) -> Result<Opened<'_>, ContentError> {
        let blob = self.blob(&layer.member)?;
        Ok(Opened {
            size: blob.size(),
            reader: Box::new(blob),
            verified: false,
            // Reading a file does not block for long.
            abandon: Box::new(|| {}),
        })
    }
}

/// The context of an import.
pub(crate) struct Importer<'a> {
    pub(crate) places: &'a Places,
    pub(crate) metadata: &'a Mutex<Metadata>,
    pub(crate) flights: &'a SingleFlight<Digest>,
    pub(crate) style: &'a Style,
    pub(crate) limits: &'a Limits,
}

/// Why an import failed: because of the archive, or of the store.
pub(crate) enum Failure {
    Archive(ContentError),
    Store(ImageError),
}

impl From<ContentError> for Failure {
    fn from(problem: ContentError) -> Self {
        Self::Archive(problem)
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::Store(error)
    }
}

/// Locks the metadata. It is consistent between any two statements of its methods, and these do not panic: a poisoned lock means
/// a bug elsewhere, and the store can continue to serve.
pub(crate) fn lock(metadata: &Mutex<Metadata>) -> MutexGuard<'_, Metadata> {
    metadata.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The chain IDs of layers, from the bottom up.
pub(crate) fn chains(layers: &[LayerSource]) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::with_capacity(layers.len());
    for layer in layers {
        let chain = chains.last().map_or(layer.diff_id, |below| below.chain(&layer.diff_id));
        chains.push(chain);
    }
    chains
}

impl Importer<'_> {
    /// Imports every missing layer of `image`. The caller holds leases on `chains`.
    pub(crate) fn layers(
        &self,
        source: &dyn Source,
        image: &Resolved,
        chains: &[Digest],
    ) -> Result<(), Failure> {
        let budget = Budget::new(self.limits);
        let mut lowers: Vec<PathBuf> = Vec::new();
        for (layer, chain) in image.layers.iter().zip(chains) {
            let _guard = self.flights.acquire(flight_key(source, chain));
            let present = lock(self.metadata).layer(chain).is_some();
            if !present {
                self.layer(source, layer, chain, &lowers, &budget)?;
            }
            lowers.insert(0, self.places.layer_files(chain));
        }
        Ok(())
    }

    fn layer(
        &self,
        source: &dyn Source,
        layer: &LayerSource,
        chain: &Digest,
        lowers: &[PathBuf],
        budget: &Budget,
    ) -> Result<(), Failure> {
        let scratch = Scratch::new(&self.places.tmp())?;
        let usage = self.unpack(source, layer, lowers, budget, &scratch.0.join("fs"))?;
        let record = LayerRecord {
            diff_id: layer.diff_id,
            style: style_name(self.style),
            file_bytes: usage.file_bytes,
            disk_bytes: usage.disk_bytes,
            inodes: usage.inodes,
        };
        let path = scratch.0.join("layer.json");
        let bytes = serde_json::to_vec_pretty(&record).map_err(|e| ContentError::Io {
            doing: "describe a layer".to_owned(),
            source: e.into(),
        })?;
        fs::write(&path, bytes).map_err(ContentError::io(format!("write {}", path.display())))?;
        let mut metadata = lock(self.metadata);
        // An import from another origin may have been faster.
        if metadata.layer(chain).is_none() {
            metadata.put_layer(*chain, record, &scratch.0)?;
        }
        Ok(())
    }

    fn unpack(
        &self,
        source: &dyn Source,
        layer: &LayerSource,
        lowers: &[PathBuf],
        budget: &Budget,
        into: &Path,
    ) -> Result<layer::Usage, ContentError> {
        let what = format!("layer {}", layer.member);
        fs::create_dir(into)
            .map_err(ContentError::io(format!("make directory {}", into.display())))?;
        let Opened { reader, size, verified, abandon } = source.open(layer)?;
        ContentError::same_size(&what, layer.size.unwrap_or(size), size)?;
        let (counted, counter) = Counting::new(reader);
        // The source has verified the compressed bytes: hash only the tar stream.
        let (packed, packed_digester): (Box<dyn Read + Send + '_>, _) = if verified {
            (Box::new(counted), None)
        } else {
            let (hashing, digester) = Hashing::new(counted);
            (Box::new(hashing), Some(digester))
        };
        let decoder = Decoder::new(packed, &what)?;
        let plain = decoder.is_plain();
        let compressed = (!plain).then(|| counter.clone());
        // Without compression, blob and tar stream are the same bytes: hash them once.
        let (usage, digester) = readahead::reading(decoder, abandon, |unpacked| {
            let metered = Metered::new(unpacked, budget, compressed, &what);
            let (unpacked, digester): (Box<dyn Read + '_>, _) = match &packed_digester {
                Some(digester) if plain => (Box::new(metered), digester.clone()),
                Some(_) | None => {
                    let (hashing, digester) = Hashing::new(metered);
                    (Box::new(hashing), digester)
                }
            };
            let tar = TarReader::new(Sequential(unpacked), &what, self.limits.extension_bytes);
            let usage = layer::unpack(tar, into, lowers, self.style, budget);
            (usage, digester)
        })
        .map_err(ContentError::io("start a thread that decompresses"))?;
        let usage = match (usage, layer.digest) {
            (
                Err(
                    problem @ (ContentError::Header { .. }
                    | ContentError::Truncated { .. }
                    | ContentError::Compressed { .. }),
                ),
                Some(digest),
            ) if !verified => {
                // If the stream is broken because its content has another digest, report that instead.
                self.check_whole(source, layer, &what, digest)?;
                return Err(problem);
            }
            (usage, _) => usage?,
        };
        if let (Some(expected), Some(digester)) = (layer.digest, &packed_digester) {
            let actual = digester.digest();
            if actual != expected || counter.bytes() != size {
                return Err(ContentError::DigestDiffers { what, expected, actual });
            }
        }
        let what = format!("{what}, decompressed,");
        ContentError::same_digest(what, layer.diff_id, digester.digest())?;
        Ok(usage)
    }

    /// Hashes a whole member.
    fn check_whole(
        &self,
        source: &dyn Source,
        layer: &LayerSource,
        what: &str,
        expected: Digest,
    ) -> Result<(), ContentError> {
        let (mut hashing, digester) = Hashing::new(source.open(layer)?.reader);
        let mut buffer = vec![0; 64 << 10];
        while hashing.read(&mut buffer).map_err(ContentError::io(format!("read {what}")))? > 0 {}
        ContentError::same_digest(what, expected, digester.digest())
    }
}

/// The name of a layer style in records. It must not change: a layer with another style is discarded.
pub(crate) fn style_name(style: &Style) -> String {
    let Style {
        owners,
        prefix,
        devices,
        // A layer without its device nodes need not be unpacked again.
        nodes: _,
    } = style;
    format!("Style {{ owners: {owners:?}, prefix: {prefix:?}, devices: {devices} }}")
}

/// A directory that is removed when the import ends, unless it was moved to its place.
struct Scratch(PathBuf);

impl Scratch {
    fn new(tmp: &Path) -> Result<Self, ContentError> {
        let made = tempfile::Builder::new().prefix("layer-").tempdir_in(tmp);
        let dir =
            made.map_err(ContentError::io(format!("make a directory in {}", tmp.display())))?;
        Ok(Self(dir.keep()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = file_tree::remove(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "failed to remove an unfinished layer; the next start removes it");
        }
    }
}
