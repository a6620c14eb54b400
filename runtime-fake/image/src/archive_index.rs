//! What an archive offers: names, and the chain of documents from a name to verified layers.
//!
//! Reads documents through [`Archive`] and decides; it writes nothing.

use std::collections::BTreeMap;

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;

use super::archive::Archive;
use super::digest::Digest;
use super::error::Problem;
use super::limits::Limits;
use super::platform::Platform;
use super::reference::{self, Reference};

/// How deep indexes may nest below `index.json`.
const INDEX_DEPTH: usize = 4;

/// One image that an archive offers.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    /// Full names (`repository:tag`), possibly several.
    pub(crate) names: Vec<Reference>,
    /// Digest of what the name points to: index, manifest, or configuration in a docker archive.
    pub(crate) target: Digest,
    /// Is the target a manifest or an index, so that `repository@target` means this image?
    pub(crate) by_digest: bool,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Oci(Box<Descriptor>),
    Docker(DockerImage),
}

/// One element of a docker archive's `manifest.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

/// An image whose documents are verified. Its layers are still to be.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// Digest of the configuration: the image's id.
    pub(crate) id: Digest,
    /// The configuration's bytes.
    pub(crate) config_bytes: Vec<u8>,
    /// The same, read.
    pub(crate) config: ImageConfiguration,
    /// The manifest, when the archive has one, and its digest.
    pub(crate) manifest: Option<(Digest, Vec<u8>)>,
    /// From the bottom up.
    pub(crate) layers: Vec<LayerSource>,
}

/// Where a layer's bytes are and what they must come to.
#[derive(Debug, Clone)]
pub(crate) struct LayerSource {
    /// Member of the archive.
    pub(crate) member: String,
    /// Digest of the member's bytes, where a document promises one.
    pub(crate) digest: Option<Digest>,
    /// Length of the member's bytes, likewise.
    pub(crate) size: Option<u64>,
    /// Digest of the tar stream in it.
    pub(crate) diff_id: Digest,
}

/// Lists what `archive` offers. `file_name` stands in where an image has no repository.
pub(crate) fn offers(
    archive: &Archive,
    file_name: &str,
    limits: &Limits,
) -> Result<Vec<Offer>, Problem> {
    let mut out = Vec::new();
    let has_index = archive.has("index.json");
    let has_docker = archive.has("manifest.json");
    if !has_index && !has_docker {
        return Err(Problem::NoImages);
    }
    if has_index {
        let index: ImageIndex = json("index.json", &archive.document("index.json", limits)?)?;
        for descriptor in index.manifests() {
            out.push(Offer {
                names: oci_names(descriptor, file_name),
                target: digest(descriptor)?,
                by_digest: true,
                source: Source::Oci(Box::new(descriptor.clone())),
            });
        }
    }
    if has_docker {
        let known = |r: &Reference, out: &[Offer]| out.iter().any(|o| o.names.contains(r));
        let images: Vec<DockerImage> =
            json("manifest.json", &archive.document("manifest.json", limits)?)?;
        let oci = out.clone();
        for image in images {
            let tags = image.repo_tags.clone().unwrap_or_default();
            let mut names: Vec<Reference> = tags.iter().filter_map(|t| t.parse().ok()).collect();
            if names.is_empty() && !has_index {
                names.extend(reference::of_file(file_name, None));
            }
            // `docker save` describes each image in both ways; the index, with its digests, is the better.
            names.retain(|name| !known(name, &oci));
            let target = Digest::of(&docker_config(archive, &image, limits)?);
            out.push(Offer {
                names,
                target,
                by_digest: false,
                source: Source::Docker(image),
            });
        }
    }
    unambiguous(&out)?;
    Ok(out)
}

fn unambiguous(offers: &[Offer]) -> Result<(), Problem> {
    let mut seen: BTreeMap<&Reference, (Digest, Option<&oci_spec::image::Platform>)> =
        BTreeMap::new();
    for offer in offers {
        let platform = match &offer.source {
            Source::Oci(descriptor) => descriptor.platform().as_ref(),
            Source::Docker(_) => None,
        };
        for name in &offer.names {
            let one = (offer.target, platform);
            // One name for several platforms is a multi-platform image without a nested index.
            match seen.insert(name, one) {
                Some(other) if other.0 != one.0 && (other.1.is_none() || other.1 == one.1) => {
                    return Err(Problem::Ambiguous {
                        name: name.to_string(),
                    });
                }
                Some(_) | None => {}
            }
        }
    }
    Ok(())
}

/// The names of an entry of `index.json`: containerd's annotation has the full name, OCI's
/// `org.opencontainers.image.ref.name` a full name or only a tag (image-spec 1.1, annotations.md).
fn oci_names(descriptor: &Descriptor, file_name: &str) -> Vec<Reference> {
    let annotation = |key: &str| {
        descriptor
            .annotations()
            .as_ref()
            .and_then(|a| a.get(key))
            .map(String::as_str)
    };
    let full = annotation("io.containerd.image.name").and_then(|name| name.parse().ok());
    let name = full.or_else(|| match annotation("org.opencontainers.image.ref.name") {
        Some(name) if name.contains(['/', ':']) => name.parse().ok(),
        Some(tag) => reference::of_file(file_name, Some(tag)),
        None => reference::of_file(file_name, None),
    });
    name.into_iter().collect()
}

/// Which of the offers `wanted` names, the one for `platform` if several do.
pub(crate) fn find<'a>(
    offers: &'a [Offer],
    wanted: &Reference,
    platform: &Platform,
) -> Option<&'a Offer> {
    let named = |offer: &&Offer| match &wanted.digest {
        Some(digest) => {
            let repository = offer
                .names
                .iter()
                .any(|name| name.repository == wanted.repository);
            offer.by_digest && repository && offer.target.to_string() == *digest
        }
        None => offer.names.contains(wanted),
    };
    let fits = |offer: &&Offer| match &offer.source {
        Source::Oci(descriptor) => platform.rank(descriptor).is_some(),
        Source::Docker(_) => true,
    };
    let mut all = offers.iter().filter(named);
    let first = all.clone().next();
    all.find(fits).or(first)
}

/// Follows an offer to its configuration and layers, verifying every document on the way.
pub(crate) fn resolve(
    archive: &Archive,
    offer: &Offer,
    platform: &Platform,
    limits: &Limits,
) -> Result<Resolved, Problem> {
    let resolved = match &offer.source {
        Source::Oci(descriptor) => resolve_oci(archive, descriptor, platform, limits)?,
        Source::Docker(image) => resolve_docker(archive, image, limits)?,
    };
    if resolved.layers.len() > limits.layers {
        let (what, limit) = ("the image".to_owned(), limits.layers as u64);
        return Err(Problem::TooMuch {
            what,
            limit,
            unit: "layers",
        });
    }
    Ok(resolved)
}

fn resolve_oci(
    archive: &Archive,
    descriptor: &Descriptor,
    platform: &Platform,
    limits: &Limits,
) -> Result<Resolved, Problem> {
    let mut descriptor = descriptor.clone();
    for _ in 0..=INDEX_DEPTH {
        let bytes = verified(archive, &descriptor, limits)?;
        let name = member_of(&digest(&descriptor)?);
        if is_index(descriptor.media_type()) {
            let index: ImageIndex = json(&name, &bytes)?;
            descriptor = choose(index.manifests(), platform)?.clone();
            continue;
        }
        let manifest: ImageManifest = json(&name, &bytes)?;
        let config_bytes = verified(archive, manifest.config(), limits)?;
        let id = digest(manifest.config())?;
        let config: ImageConfiguration = json(&member_of(&id), &config_bytes)?;
        let diff_ids = diff_ids(&config, manifest.layers().len())?;
        let layers = manifest
            .layers()
            .iter()
            .zip(diff_ids)
            .map(|(descriptor, diff_id)| layer(descriptor, diff_id));
        let layers = layers.collect::<Result<Vec<_>, Problem>>()?;
        let manifest = Some((digest(&descriptor)?, bytes));
        return Ok(Resolved {
            id,
            config_bytes,
            config,
            manifest,
            layers,
        });
    }
    Err(Problem::TooMuch {
        what: "index.json".to_owned(),
        limit: INDEX_DEPTH as u64,
        unit: "nested indexes",
    })
}

fn resolve_docker(
    archive: &Archive,
    image: &DockerImage,
    limits: &Limits,
) -> Result<Resolved, Problem> {
    let config_bytes = docker_config(archive, image, limits)?;
    let id = Digest::of(&config_bytes);
    let config: ImageConfiguration = json(&image.config, &config_bytes)?;
    let diff_ids = diff_ids(&config, image.layers.len())?;
    let layers = image
        .layers
        .iter()
        .zip(diff_ids)
        .map(|(member, diff_id)| LayerSource {
            member: member.clone(),
            digest: member
                .strip_prefix("blobs/sha256/")
                .and_then(|hex| Digest::from_hex(hex).ok()),
            size: None,
            diff_id,
        });
    Ok(Resolved {
        id,
        config_bytes,
        config,
        manifest: None,
        layers: layers.collect(),
    })
}

/// The configuration of a docker archive's image: a member named after its digest must have it.
fn docker_config(
    archive: &Archive,
    image: &DockerImage,
    limits: &Limits,
) -> Result<Vec<u8>, Problem> {
    let bytes = archive.document(&image.config, limits)?;
    let stem = image.config.rsplit('/').next().unwrap_or_default();
    if let Ok(expected) = Digest::from_hex(stem.strip_suffix(".json").unwrap_or(stem)) {
        let actual = Digest::of(&bytes);
        if actual != expected {
            return Err(Problem::DigestDiffers {
                what: image.config.clone(),
                expected,
                actual,
            });
        }
    }
    Ok(bytes)
}

/// The bytes a descriptor points to, once their length and digest are as it says.
fn verified(
    archive: &Archive,
    descriptor: &Descriptor,
    limits: &Limits,
) -> Result<Vec<u8>, Problem> {
    let expected = digest(descriptor)?;
    let what = member_of(&expected);
    if descriptor.size() > limits.document_bytes {
        return Err(Problem::TooMuch {
            what,
            limit: limits.document_bytes,
            unit: "bytes",
        });
    }
    let bytes = archive.document(&what, limits)?;
    if bytes.len() as u64 != descriptor.size() {
        return Err(Problem::SizeDiffers {
            what,
            expected: descriptor.size(),
            actual: bytes.len() as u64,
        });
    }
    let actual = Digest::of(&bytes);
    if actual != expected {
        return Err(Problem::DigestDiffers {
            what,
            expected,
            actual,
        });
    }
    Ok(bytes)
}

/// The manifest that this machine runs best; of several as good, the first.
pub(crate) fn choose<'a>(
    manifests: &'a [Descriptor],
    platform: &Platform,
) -> Result<&'a Descriptor, Problem> {
    let ranked = manifests
        .iter()
        .filter_map(|m| Some((platform.rank(m)?, m)));
    let best = ranked.min_by_key(|(rank, _)| *rank);
    best.map(|(_, manifest)| manifest).ok_or_else(|| {
        let offered = manifests.iter().map(|m| match m.platform() {
            Some(p) => match p.variant() {
                Some(variant) => format!("{}/{}/{variant}", p.os(), p.architecture()),
                None => format!("{}/{}", p.os(), p.architecture()),
            },
            None => "an unnamed platform".to_owned(),
        });
        let offered: Vec<String> = offered.collect();
        let offered = if offered.is_empty() {
            "nothing".to_owned()
        } else {
            offered.join(", ")
        };
        Problem::Platform {
            wanted: platform.architecture.to_owned(),
            offered,
        }
    })
}

fn is_index(kind: &MediaType) -> bool {
    *kind == MediaType::ImageIndex
        || kind.to_string() == "application/vnd.docker.distribution.manifest.list.v2+json"
}

pub(crate) fn diff_ids(config: &ImageConfiguration, layers: usize) -> Result<Vec<Digest>, Problem> {
    let ids = config.rootfs().diff_ids();
    if ids.len() != layers {
        return Err(Problem::LayerCount {
            manifest: layers,
            config: ids.len(),
        });
    }
    let parse = |id: &String| {
        id.parse().map_err(|source| Problem::Digest {
            what: "a layer of the configuration".to_owned(),
            source,
        })
    };
    ids.iter().map(parse).collect()
}

pub(crate) fn digest(descriptor: &Descriptor) -> Result<Digest, Problem> {
    let text = descriptor.digest().to_string();
    text.parse().map_err(|source| Problem::Digest {
        what: "a document of the archive".to_owned(),
        source,
    })
}

/// The layer that a manifest's descriptor and a configuration's diff id describe.
pub(crate) fn layer(descriptor: &Descriptor, diff_id: Digest) -> Result<LayerSource, Problem> {
    let digest = digest(descriptor)?;
    Ok(LayerSource {
        member: member_of(&digest),
        digest: Some(digest),
        size: Some(descriptor.size()),
        diff_id,
    })
}

fn member_of(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

pub(crate) fn json<'de, T: Deserialize<'de>>(what: &str, bytes: &'de [u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|source| Problem::Document {
        what: what.to_owned(),
        source,
    })
}
