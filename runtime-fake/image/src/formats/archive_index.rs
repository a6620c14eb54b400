//! Lists the images of an archive by their names, and resolves one of them.
//!
//! It reads documents through [`Archive`] and writes nothing.

use std::collections::BTreeMap;

use image_reference::Reference;
use serde::Deserialize;

use crate::error::ContentError;
use crate::formats::archive::Archive;
use crate::formats::digest::Digest;
use crate::formats::limits::Limits;
use crate::formats::platform::Platform;
use crate::formats::resolve::{self, LayerSource, Next, Resolved, Walk, json};
use crate::formats::{self, Configuration, Descriptor, Index};

/// Limit on the names of the images of a docker archive.
const NAMES: u64 = 10_000;

/// One image in an archive.
#[derive(Debug, Clone)]
pub(crate) struct ArchivedImage {
    /// Full names (`repository:tag`), possibly several.
    pub(crate) names: Vec<Reference>,
    /// Digest of the document that the name refers to: index, manifest, or configuration in a docker archive.
    pub(crate) target: Digest,
    /// Whether the target is a manifest or an index, so that `repository@target` refers to this image.
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

/// Lists the images in `archive`. `file_name` replaces a missing repository name.
pub(crate) fn list_images(
    archive: &Archive,
    file_name: &str,
    limits: &Limits,
) -> Result<Vec<ArchivedImage>, ContentError> {
    let mut out = Vec::new();
    let has_index = archive.has("index.json");
    let has_docker = archive.has("manifest.json");
    if !has_index && !has_docker {
        return Err(ContentError::NoImages);
    }
    if has_index {
        let index: Index = json("index.json", &archive.document("index.json", limits)?)?;
        for descriptor in &index.manifests {
            out.push(ArchivedImage {
                names: oci_names(descriptor, file_name),
                target: resolve::digest(descriptor)?,
                by_digest: true,
                source: Source::Oci(Box::new(descriptor.clone())),
            });
        }
    }
    if has_docker {
        let known = |r: &Reference, out: &[ArchivedImage]| out.iter().any(|o| o.names.contains(r));
        let images: Vec<DockerImage> =
            json("manifest.json", &archive.document("manifest.json", limits)?)?;
        let tags = images.iter().filter_map(|image| image.repo_tags.as_ref());
        let count = tags.map(|tags| tags.len() as u64).sum();
        ContentError::within("manifest.json", count, NAMES, "names")?;
        let oci = out.clone();
        for image in images {
            let tags = image.repo_tags.clone().unwrap_or_default();
            let mut names: Vec<Reference> = tags.iter().filter_map(|t| t.parse().ok()).collect();
            if names.is_empty() && !has_index {
                names.extend(reference_of_file(file_name, None));
            }
            // `docker save` describes each image in both formats; prefer the index, which has digests.
            names.retain(|name| !known(name, &oci));
            let target = Digest::of(&docker_config(archive, &image, limits)?);
            out.push(ArchivedImage {
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

fn unambiguous(images: &[ArchivedImage]) -> Result<(), ContentError> {
    let mut seen: BTreeMap<&Reference, (Digest, Option<&formats::Platform>)> = BTreeMap::new();
    for archived in images {
        let platform = match &archived.source {
            Source::Oci(descriptor) => descriptor.platform.as_ref(),
            Source::Docker(_) => None,
        };
        for name in &archived.names {
            let one = (archived.target, platform);
            // One name for several platforms is a multi-platform image without a nested index.
            match seen.insert(name, one) {
                Some(other) if other.0 != one.0 && (other.1.is_none() || other.1 == one.1) => {
                    return Err(ContentError::Ambiguous { name: name.to_string() });
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
    let annotation =
        |key: &str| descriptor.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
    let full = annotation("io.containerd.image.name").and_then(|name| name.parse().ok());
    let name = full.or_else(|| match annotation("org.opencontainers.image.ref.name") {
        Some(name) if name.contains(['/', ':']) => name.parse().ok(),
        Some(tag) => reference_of_file(file_name, Some(tag)),
        None => reference_of_file(file_name, None),
    });
    name.into_iter().collect()
}

/// Finds the image that `wanted` names; of several, the one for `platform`.
pub(crate) fn find<'a>(
    images: &'a [ArchivedImage],
    wanted: &Reference,
    platform: &Platform,
) -> Option<&'a ArchivedImage> {
    let named = |archived: &&ArchivedImage| match &wanted.digest {
        Some(digest) => {
            let repository = archived.names.iter().any(|name| name.repository == wanted.repository);
            archived.by_digest && repository && archived.target.to_string() == *digest
        }
        None => archived.names.contains(wanted),
    };
    let fits = |archived: &&ArchivedImage| match &archived.source {
        Source::Oci(descriptor) => platform.rank(descriptor).is_some(),
        Source::Docker(_) => true,
    };
    let mut all = images.iter().filter(named);
    let first = all.clone().next();
    all.find(fits).or(first)
}

/// Resolves an image to its configuration and layers, verifying every document on the way.
pub(crate) fn resolve(
    archive: &Archive,
    archived: &ArchivedImage,
    platform: &Platform,
    limits: &Limits,
) -> Result<Resolved, ContentError> {
    match &archived.source {
        Source::Oci(descriptor) => resolve_oci(archive, descriptor, platform, limits),
        Source::Docker(image) => resolve_docker(archive, image, limits),
    }
}

fn resolve_oci(
    archive: &Archive,
    descriptor: &Descriptor,
    platform: &Platform,
    limits: &Limits,
) -> Result<Resolved, ContentError> {
    let fetch = |descriptor: &Descriptor| {
        let digest = resolve::wanted(descriptor, limits)?;
        let bytes = archive.document(&resolve::member_of(&digest), limits)?;
        resolve::verify(&bytes, descriptor)?;
        Ok((digest, bytes))
    };
    let mut walk = Walk::new(platform);
    let mut next = descriptor.clone();
    loop {
        let (digest, bytes) = fetch(&next)?;
        match walk.read(digest, &next.media_type, bytes)? {
            Next::Document(chosen) => next = *chosen,
            Next::Image(manifest) => {
                let (_, config) = fetch(manifest.config())?;
                return manifest.image(config, limits);
            }
        }
    }
}

fn resolve_docker(
    archive: &Archive,
    image: &DockerImage,
    limits: &Limits,
) -> Result<Resolved, ContentError> {
    let config_bytes = docker_config(archive, image, limits)?;
    let id = Digest::of(&config_bytes);
    let config: Configuration = json(&image.config, &config_bytes)?;
    resolve::check_defaults(&config, limits)?;
    let diff_ids = resolve::diff_ids(&config, image.layers.len(), limits)?;
    let layers = image.layers.iter().zip(diff_ids).map(|(member, diff_id)| LayerSource {
        member: member.clone(),
        digest: member.strip_prefix("blobs/sha256/").and_then(|hex| Digest::from_hex(hex).ok()),
        size: None,
        diff_id,
    });
    Ok(Resolved { id, config_bytes, config, manifest: None, layers: layers.collect() })
}

/// The configuration of an image in a docker archive. If the member is named after a digest, the content must
/// match it.
fn docker_config(
    archive: &Archive,
    image: &DockerImage,
    limits: &Limits,
) -> Result<Vec<u8>, ContentError> {
    let bytes = archive.document(&image.config, limits)?;
    let stem = image.config.rsplit('/').next().unwrap_or_default();
    if let Ok(expected) = Digest::from_hex(stem.strip_suffix(".json").unwrap_or(stem)) {
        ContentError::same_digest(&image.config, expected, Digest::of(&bytes))?;
    }
    Ok(bytes)
}

/// The reference of an image that has only a tag or no name in its archive: `crib.local/<file stem>:<tag>`, with characters that
/// a repository may not contain replaced by dashes.
pub(crate) fn reference_of_file(file_name: &str, tag: Option<&str>) -> Option<Reference> {
    let lower = file_name.to_lowercase();
    let mut stem = lower.as_str();
    for suffix in [".gz", ".tgz", ".zst", ".tar", ".oci"] {
        stem = stem.strip_suffix(suffix).unwrap_or(stem);
    }
    let mut name = String::new();
    for c in stem.chars() {
        let fits = c.is_ascii_lowercase() || c.is_ascii_digit();
        let gap = name.ends_with(['-', '.', '_']);
        match c {
            c if fits => name.push(c),
            '.' | '_' if !gap && !name.is_empty() => name.push(c),
            _ if !gap && !name.is_empty() => name.push('-'),
            _ => {}
        }
    }
    let name = name.trim_end_matches(['-', '.', '_']);
    let name = if name.is_empty() { "image" } else { name };
    format!("crib.local/{name}:{}", tag.unwrap_or("latest")).parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("app.tar", None, "crib.local/app:latest")]
    #[case("App v2.tar.gz", None, "crib.local/app-v2:latest")]
    #[case("--.tar", None, "crib.local/image:latest")]
    #[case("a__b.oci", Some("1.0"), "crib.local/a_b:1.0")]
    #[case("my.app", Some("v1"), "crib.local/my.app:v1")]
    fn archive_file_name_becomes_reference(
        #[case] file: &str,
        #[case] tag: Option<&str>,
        #[case] want: &str,
    ) {
        let name = reference_of_file(file, tag).map(|name| name.to_string());
        assert_eq!(name.as_deref(), Some(want));
    }

    proptest! {
        #[test]
        fn reference_of_file_accepts_any_name(name in "\\PC{0,40}") {
            prop_assert!(reference_of_file(&name, None).is_some(), "{name:?}");
        }
    }
}
