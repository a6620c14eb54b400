//! ◆ Parses a manifest: its type, its blobs, and its subject.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::route::Digest;

/// An OCI image manifest.
pub(super) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// An OCI image index.
pub(super) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// A docker manifest, schema version 2.
pub(super) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The fields of a manifest or an index that a registry reads.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Document {
    /// Its media type, if it has one.
    pub(super) media_type: Option<String>,
    /// The image's configuration.
    pub(super) config: Option<Descriptor>,
    /// The image's layers.
    pub(super) layers: Vec<Descriptor>,
    /// An index's manifests.
    pub(super) manifests: Vec<Descriptor>,
    /// The manifest that it refers to (OCI `subject`).
    pub(super) subject: Option<Descriptor>,
    /// The artifact type, unless it is an image.
    pub(super) artifact_type: Option<String>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// A reference to content.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Descriptor {
    /// Its media type.
    pub(super) media_type: String,
    /// The content's digest.
    pub(super) digest: String,
    /// The content's length.
    pub(super) size: u64,
    /// Annotations.
    pub(super) annotations: BTreeMap<String, String>,
    /// Other URLs from which a foreign layer can be downloaded.
    pub(super) urls: Vec<String>,
}

impl Document {
    /// Parses a manifest.
    ///
    /// # Errors
    /// It is not JSON, or a field has the wrong type.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The media type: the field, or else the type implied by the structure.
    pub(super) fn kind(&self) -> &str {
        match &self.media_type {
            Some(said) if !said.is_empty() => said,
            Some(_) | None if self.config.is_none() && !self.manifests.is_empty() => OCI_INDEX,
            Some(_) | None => OCI_MANIFEST,
        }
    }

    /// The blobs that the registry must store for the manifest. Foreign layers are elsewhere.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let here = |layer: &&Descriptor| layer.urls.is_empty();
        self.config.iter().chain(self.layers.iter().filter(here))
    }

    /// The digest of the subject, if it is well-formed.
    pub(super) fn subject(&self) -> Option<Digest> {
        self.subject.as_ref()?.digest.parse().ok()
    }

    /// The artifact type in a listing of referrers: the field, or else the configuration's media type.
    pub(super) fn artifact_type(&self) -> Option<String> {
        let own = self.artifact_type.clone();
        own.or_else(|| Some(self.config.as_ref()?.media_type.clone()))
            .filter(|kind| !kind.is_empty())
    }
}

/// Whether a client's `Accept` headers allow a type; without such headers, all types are allowed.
pub(super) fn accepts<'a>(headers: impl Iterator<Item = &'a str>, kind: &str) -> bool {
    let mut some = false;
    for range in headers.flat_map(|header| header.split(',')) {
        some = true;
        let range = range.split(';').next().unwrap_or_default().trim();
        let family = range.strip_suffix("/*");
        if range == kind || range == "*/*" || family.is_some_and(|f| kind.starts_with(f)) {
            return true;
        }
    }
    !some
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        r#"{"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}"#,
        DOCKER_MANIFEST
    )]
    #[case(r#"{"manifests":[{}]}"#, OCI_INDEX)]
    #[case(r#"{"config":{},"layers":[]}"#, OCI_MANIFEST)]
    #[case(r#"{"mediaType":"","manifests":[{}]}"#, OCI_INDEX)]
    fn document_kind_is_read_from_media_type_or_fields(#[case] text: &str, #[case] kind: &str) {
        assert_eq!(Document::parse(text.as_bytes()).unwrap().kind(), kind);
    }

    #[rstest]
    #[case("")]
    #[case("[]x")]
    #[case("7")]
    #[case(r#"{"layers":7}"#)]
    fn document_rejects_malformed_json(#[case] text: &str) {
        Document::parse(text.as_bytes()).unwrap_err();
    }

    #[test]
    fn foreign_layers_are_not_required() {
        let text = r#"{"config":{"digest":"c"},"layers":[{"digest":"a"},{"digest":"b","urls":["http://x"]}]}"#;
        let document = Document::parse(text.as_bytes()).unwrap();
        let blobs: Vec<&str> = document.blobs().map(|blob| blob.digest.as_str()).collect();
        assert_eq!(blobs, ["c", "a"]);
    }

    #[rstest]
    #[case(&[], true)]
    #[case(&["*/*"], true)]
    #[case(&["application/*"], true)]
    #[case(&["text/html, application/vnd.oci.image.index.v1+json;q=0.5"], true)]
    #[case(&["text/html", "application/vnd.oci.image.index.v1+json"], true)]
    #[case(&["application/vnd.oci.image.manifest.v1+json"], false)]
    #[case(&["text/*"], false)]
    fn accept_header_matches_media_type(#[case] headers: &[&str], #[case] taken: bool) {
        assert_eq!(accepts(headers.iter().copied(), OCI_INDEX), taken);
    }
}
