//! From a reference to verified documents: an index, the manifest for this machine in it, its configuration.

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;
use tokio_stream::StreamExt as _;

use crate::platform::Platform;
use crate::{Digest, LayerSource, Limits, Problem, Reference, Resolved, archive_index};

use super::session::{Document, Session, blob_doing};
use crate::error::PullError;

/// How deep indexes may nest.
const INDEX_DEPTH: usize = 4;

/// What a manifest says about itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Form {
    #[serde(default)]
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    config: Option<serde::de::IgnoredAny>,
}

/// What the reference names, and its digest.
pub(crate) async fn named(
    session: &Session,
    reference: &Reference,
    limits: &Limits,
) -> Result<(Document, Digest), PullError> {
    let wanted = match (&reference.digest, &reference.tag) {
        (Some(digest), _) => digest.as_str(),
        (None, Some(tag)) => tag.as_str(),
        (None, None) => "latest",
    };
    // Before anything is asked for: what cannot be verified is of no use.
    let expected = reference.digest.as_deref().map(|digest| {
        digest.parse::<Digest>().map_err(|source| {
            let what = "the reference".to_owned();
            session.peer.content(Problem::Digest { what, source })
        })
    });
    let expected = expected.transpose()?;
    let document = session.manifest(wanted, limits.document_bytes).await?;
    let actual = Digest::of(&document.bytes);
    match expected {
        Some(expected) if expected != actual => {
            let what = format!("manifest {wanted}");
            Err(session.peer.content(Problem::DigestDiffers {
                what,
                expected,
                actual,
            }))
        }
        Some(_) | None => Ok((document, actual)),
    }
}

/// Follows the document to the image for this machine, verifying each on the way.
pub(crate) async fn image(
    session: &Session,
    document: Document,
    digest: Digest,
    limits: &Limits,
) -> Result<Resolved, PullError> {
    let refuse = |problem| session.peer.content(problem);
    let (mut document, mut digest) = (document, digest);
    for _ in 0..=INDEX_DEPTH {
        let name = format!("manifest {digest}");
        if is_index(&document, &name).map_err(refuse)? {
            let index: ImageIndex = archive_index::json(&name, &document.bytes).map_err(refuse)?;
            let chosen =
                archive_index::choose(index.manifests(), &Platform::here()).map_err(refuse)?;
            digest = archive_index::digest(chosen).map_err(refuse)?;
            document = session
                .manifest(&digest.to_string(), limits.document_bytes)
                .await?;
            verify(&document.bytes, chosen, limits).map_err(refuse)?;
            continue;
        }
        let manifest: ImageManifest =
            archive_index::json(&name, &document.bytes).map_err(refuse)?;
        let id = check_kinds(&manifest)
            .and_then(|()| archive_index::digest(manifest.config()))
            .map_err(refuse)?;
        let config_bytes = config(session, manifest.config(), &id, limits).await?;
        let read = |document: Document| {
            let config: ImageConfiguration =
                archive_index::json(&format!("configuration {id}"), &config_bytes)?;
            let layers = layers(&manifest, &config, limits)?;
            Ok(Resolved {
                id,
                config,
                config_bytes,
                manifest: Some((digest, document.bytes)),
                layers,
            })
        };
        return read(document).map_err(refuse);
    }
    let (what, limit) = (format!("index {digest}"), INDEX_DEPTH as u64);
    Err(refuse(Problem::TooMuch {
        what,
        limit,
        unit: "nested indexes",
    }))
}

/// Manifest or index? What could be read as both is neither (distribution-spec GHSA-mc8v-mgrf-8f4m).
fn is_index(document: &Document, name: &str) -> Result<bool, Problem> {
    let form: Form = archive_index::json(name, &document.bytes)?;
    let kind = form.media_type.as_deref().unwrap_or(&document.media_type);
    let unsupported = |what: &str| {
        Err(Problem::Unsupported {
            what: format!("{name}, {what},"),
        })
    };
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

/// Only container images are unpacked; other things are kept in registries as well.
fn check_kinds(manifest: &ImageManifest) -> Result<(), Problem> {
    let kind = manifest.config().media_type().to_string();
    let images = [
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.docker.container.image.v1+json",
    ];
    if !images.contains(&kind.as_str()) {
        let what = format!(
            "an artifact with a configuration of type {kind}, which is no container image,"
        );
        return Err(Problem::Unsupported { what });
    }
    let encrypted = manifest
        .layers()
        .iter()
        .find(|layer| layer.media_type().to_string().ends_with("+encrypted"));
    match encrypted {
        Some(layer) => Err(Problem::Unsupported {
            what: format!("layer {}, which is encrypted,", layer.digest()),
        }),
        None => Ok(()),
    }
}

fn layers(
    manifest: &ImageManifest,
    config: &ImageConfiguration,
    limits: &Limits,
) -> Result<Vec<LayerSource>, Problem> {
    let layers = manifest.layers();
    if layers.len() > limits.layers {
        let (what, limit) = ("the image".to_owned(), limits.layers as u64);
        return Err(Problem::TooMuch {
            what,
            limit,
            unit: "layers",
        });
    }
    let bytes = layers
        .iter()
        .try_fold(0u64, |sum, layer| sum.checked_add(layer.size()));
    if bytes.is_none_or(|bytes| bytes > limits.unpacked_bytes) {
        let (what, limit) = ("the image".to_owned(), limits.unpacked_bytes);
        return Err(Problem::TooMuch {
            what,
            limit,
            unit: "bytes",
        });
    }
    let diff_ids = archive_index::diff_ids(config, layers.len())?;
    let both = layers.iter().zip(diff_ids);
    both.map(|(layer, diff_id)| archive_index::layer(layer, diff_id))
        .collect()
}

async fn config(
    session: &Session,
    descriptor: &Descriptor,
    id: &Digest,
    limits: &Limits,
) -> Result<Vec<u8>, PullError> {
    // One byte too many is enough to know that it is the wrong one.
    let limit = descriptor.size().min(limits.document_bytes);
    let mut failures = 0;
    let bytes = loop {
        match small_blob(session, id, limit).await {
            Ok(bytes) => break bytes,
            Err(error) => session.again(&mut failures, error).await?,
        }
    };
    verify(&bytes, descriptor, limits).map_err(|problem| session.peer.content(problem))?;
    Ok(bytes)
}

/// The bytes of a blob, and no more than one chunk after `limit`.
async fn small_blob(session: &Session, id: &Digest, limit: u64) -> Result<Vec<u8>, PullError> {
    let doing = blob_doing(&id.to_string());
    let (_, mut stream) = session.blob(id, 0).await?;
    let mut bytes = Vec::new();
    while bytes.len() as u64 <= limit {
        match tokio::time::timeout(session.peer.patience, stream.next()).await {
            Err(_) => return Err(session.peer.stalled(&doing)),
            Ok(Some(Err(error))) => return Err(session.peer.broken_off(&error, &doing)),
            Ok(Some(Ok(chunk))) => bytes.extend_from_slice(&chunk),
            Ok(None) => break,
        }
    }
    Ok(bytes)
}

/// Are these the bytes that the descriptor promises?
fn verify(bytes: &[u8], descriptor: &Descriptor, limits: &Limits) -> Result<(), Problem> {
    let expected = archive_index::digest(descriptor)?;
    let what = format!("document {expected}");
    if descriptor.size() > limits.document_bytes {
        return Err(Problem::TooMuch {
            what,
            limit: limits.document_bytes,
            unit: "bytes",
        });
    }
    let actual = bytes.len() as u64;
    if actual != descriptor.size() {
        return Err(Problem::SizeDiffers {
            what,
            expected: descriptor.size(),
            actual,
        });
    }
    let actual = Digest::of(bytes);
    if actual != expected {
        return Err(Problem::DigestDiffers {
            what,
            expected,
            actual,
        });
    }
    Ok(())
}
