//! ◆ Resolves a document to an image: an index, the manifest for this machine in it, its configuration.
//!
//! [`Walk::read`] returns the next document to fetch; its caller fetches it from an archive or a registry.

use serde::Deserialize;

use crate::error::ContentError;
use crate::formats::digest::Digest;
use crate::formats::limits::Limits;
use crate::formats::platform::Platform;
use crate::formats::{self, Configuration, Descriptor, Index};

/// Limit on nested indexes.
const INDEX_DEPTH: u64 = 4;

/// An image whose documents are verified, but not yet its layers.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// Digest of the configuration: the image's ID.
    pub(crate) id: Digest,
    /// The configuration's bytes.
    pub(crate) config_bytes: Vec<u8>,
    /// The parsed configuration.
    pub(crate) config: Configuration,
    /// The manifest, if there is one, and its digest.
    pub(crate) manifest: Option<(Digest, Vec<u8>)>,
    /// From the bottom up.
    pub(crate) layers: Vec<LayerSource>,
}

/// A layer, with the digests and length that its content must match.
#[derive(Debug, Clone)]
pub(crate) struct LayerSource {
    /// Member of the archive.
    pub(crate) member: String,
    /// Digest of the member's bytes, if a document promises one.
    pub(crate) digest: Option<Digest>,
    /// Length of the member's bytes, if a document promises one.
    pub(crate) size: Option<u64>,
    /// Digest of the tar stream in it.
    pub(crate) diff_id: Digest,
}

/// The next document to fetch.
pub(crate) enum Next {
    /// This manifest of an index, or a further index.
    Document(Box<Descriptor>),
    /// The configuration of this manifest.
    Image(Box<Manifest>),
}

/// A manifest whose configuration is not fetched yet.
pub(crate) struct Manifest {
    digest: Digest,
    bytes: Vec<u8>,
    read: formats::Manifest,
}

/// Walks from a document to the manifest for a platform.
pub(crate) struct Walk<'a> {
    platform: &'a Platform,
    indexes: u64,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(platform: &'a Platform) -> Self {
        Self { platform, indexes: 0 }
    }

    /// Reads a document, whose digest the caller has verified. `media_type` is used if the document does not have its
    /// own.
    pub(crate) fn read(
        &mut self,
        digest: Digest,
        media_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Next, ContentError> {
        let name = format!("manifest {digest}");
        if !is_index(media_type, &name, &bytes)? {
            let read: formats::Manifest = json(&name, &bytes)?;
            check_kinds(&read)?;
            return Ok(Next::Image(Box::new(Manifest { digest, bytes, read })));
        }
        self.indexes += 1;
        let what = format!("index {digest}");
        ContentError::within(what, self.indexes, INDEX_DEPTH, "nested indexes")?;
        let index: Index = json(&name, &bytes)?;
        let chosen = choose(&index.manifests, self.platform)?.clone();
        Ok(Next::Document(Box::new(chosen)))
    }
}

impl Manifest {
    /// The configuration to fetch.
    pub(crate) fn config(&self) -> &Descriptor {
        &self.read.config
    }

    /// Resolves the image with its configuration, which the caller has fetched and verified.
    pub(crate) fn image(
        self,
        config_bytes: Vec<u8>,
        limits: &Limits,
    ) -> Result<Resolved, ContentError> {
        let id = digest(self.config())?;
        let config: Configuration = json(&format!("configuration {id}"), &config_bytes)?;
        let layers = &self.read.layers;
        check_defaults(&config, limits)?;
        let diff_ids = diff_ids(&config, layers.len(), limits)?;
        let sizes = layers.iter().map(|layer| layer.size);
        let bytes = sizes.fold(0u64, u64::saturating_add);
        ContentError::within("the image", bytes, limits.unpacked_bytes, "bytes")?;
        let layers = layers.iter().zip(diff_ids).map(|(layer, diff_id)| {
            let digest = digest(layer)?;
            Ok(LayerSource {
                member: member_of(&digest),
                digest: Some(digest),
                size: Some(layer.size),
                diff_id,
            })
        });
        Ok(Resolved {
            id,
            config,
            config_bytes,
            layers: layers.collect::<Result<_, ContentError>>()?,
            manifest: Some((self.digest, self.bytes)),
        })
    }
}

/// The digest in a descriptor; fails if the document is too large to fetch.
pub(crate) fn wanted(descriptor: &Descriptor, limits: &Limits) -> Result<Digest, ContentError> {
    let digest = digest(descriptor)?;
    let what = format!("document {digest}");
    ContentError::within(what, descriptor.size, limits.document_bytes, "bytes")?;
    Ok(digest)
}

/// Checks that the bytes match a descriptor.
pub(crate) fn verify(bytes: &[u8], descriptor: &Descriptor) -> Result<(), ContentError> {
    let expected = digest(descriptor)?;
    let what = format!("document {expected}");
    ContentError::same_size(&what, descriptor.size, bytes.len() as u64)?;
    ContentError::same_digest(what, expected, Digest::of(bytes))
}

/// The manifest that this machine runs best; among equals, the first.
fn choose<'a>(
    manifests: &'a [Descriptor],
    platform: &Platform,
) -> Result<&'a Descriptor, ContentError> {
    let ranked = manifests.iter().filter_map(|m| Some((platform.rank(m)?, m)));
    let best = ranked.min_by_key(|(rank, _)| *rank);
    best.map(|(_, manifest)| manifest).ok_or_else(|| {
        let offered = manifests.iter().map(|m| match &m.platform {
            Some(p) => match &p.variant {
                Some(variant) => format!("{}/{}/{variant}", p.os, p.architecture),
                None => format!("{}/{}", p.os, p.architecture),
            },
            None => "an unnamed platform".to_owned(),
        });
        let offered: Vec<String> = offered.collect();
        let offered = if offered.is_empty() { "nothing".to_owned() } else { offered.join(", ") };
        ContentError::Platform { wanted: platform.architecture.to_owned(), offered }
    })
}

/// The type fields of a manifest.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Form {
    #[serde(default)]
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    config: Option<serde::de::IgnoredAny>,
}

/// Whether the document is an index rather than a manifest. A document that could be read as both is refused
/// (distribution-spec GHSA-mc8v-mgrf-8f4m).
fn is_index(media_type: &str, name: &str, bytes: &[u8]) -> Result<bool, ContentError> {
    let form: Form = json(name, bytes)?;
    let kind = form.media_type.as_deref().unwrap_or(media_type);
    let unsupported =
        |what: &str| Err(ContentError::Unsupported { what: format!("{name}, {what},") });
    if form.schema_version == 1 {
        return unsupported("which has docker's schema 1 and cannot be verified");
    }
    match (form.manifests.is_some(), form.config.is_some(), kind) {
        (true, true, _) => unsupported("which is index and manifest at once"),
        (true, false, "application/vnd.oci.image.manifest.v1+json") => {
            unsupported("which calls itself a manifest and is an index")
        }
        (false, true, "application/vnd.oci.image.index.v1+json") => {
            unsupported("which calls itself an index and is a manifest")
        }
        (true, false, _) => Ok(true),
        (false, _, _) => Ok(false),
    }
}

/// Refuses artifacts that are not container images, which registries also hold.
fn check_kinds(manifest: &formats::Manifest) -> Result<(), ContentError> {
    let kind = manifest.config.media_type.as_str();
    let images = [
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.docker.container.image.v1+json",
    ];
    if !images.contains(&kind) {
        let what = format!(
            "an artifact with a configuration of type {kind}, which is no container image,"
        );
        return Err(ContentError::Unsupported { what });
    }
    let encrypted = manifest.layers.iter().find(|layer| layer.media_type.ends_with("+encrypted"));
    match encrypted {
        Some(layer) => Err(ContentError::Unsupported {
            what: format!("layer {}, which is encrypted,", layer.digest),
        }),
        None => Ok(()),
    }
}

/// Checks the length of the settings for containers, without the labels, which only the image's record has.
pub(crate) fn check_defaults(config: &Configuration, limits: &Limits) -> Result<(), ContentError> {
    let Some(defaults) = &config.config else {
        return Ok(());
    };
    let lists =
        [&defaults.env, &defaults.entrypoint, &defaults.cmd].into_iter().flatten().flatten();
    let texts =
        [&defaults.user, &defaults.working_dir, &defaults.stop_signal].into_iter().flatten();
    let volumes = defaults.volumes.iter().flat_map(|volumes| volumes.keys());
    let bytes: usize = lists.chain(texts).chain(volumes).map(String::len).sum();
    let what = "the environment, command and volumes of the image's configuration";
    ContentError::within(what, bytes as u64, limits.defaults_bytes, "bytes")
}

/// The diff IDs in an image's configuration.
pub(crate) fn diff_ids(
    config: &Configuration,
    layers: usize,
    limits: &Limits,
) -> Result<Vec<Digest>, ContentError> {
    ContentError::within("the image", layers as u64, limits.layers as u64, "layers")?;
    let ids = &config.rootfs.diff_ids;
    if ids.len() != layers {
        return Err(ContentError::LayerCount { manifest: layers, config: ids.len() });
    }
    let parse = |id: &String| {
        id.parse().map_err(|source| ContentError::Digest {
            what: "a layer of the configuration".to_owned(),
            source,
        })
    };
    ids.iter().map(parse).collect()
}

pub(crate) fn digest(descriptor: &Descriptor) -> Result<Digest, ContentError> {
    let what = || "a descriptor".to_owned();
    descriptor.digest.parse().map_err(|source| ContentError::Digest { what: what(), source })
}

/// The archive member of the blob with this digest.
pub(crate) fn member_of(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

pub(crate) fn json<'de, T: Deserialize<'de>>(
    what: &str,
    bytes: &'de [u8],
) -> Result<T, ContentError> {
    serde_json::from_slice(bytes)
        .map_err(|source| ContentError::Document { what: what.to_owned(), source })
}
