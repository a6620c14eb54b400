//! ◆ What a registry reads in a manifest: its type, what it needs, and what it is about.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::route::Digest;

/// An OCI image manifest.
pub(super) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// An OCI image index.
pub(super) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// A manifest of docker's second schema.
pub(super) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The part of a manifest or an index that a registry looks at.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Document {
    /// What it says it is.
    pub(super) media_type: Option<String>,
    /// The image's configuration.
    pub(super) config: Option<Descriptor>,
    /// The image's layers.
    pub(super) layers: Vec<Descriptor>,
    /// An index's manifests.
    pub(super) manifests: Vec<Descriptor>,
    /// The manifest that it says something about.
    pub(super) subject: Option<Descriptor>,
    /// The artifact type, if it is not an image.
    pub(super) artifact_type: Option<String>,
    /// Free words.
    pub(super) annotations: BTreeMap<String, String>,
}

/// A reference to content.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Descriptor {
    /// What it is.
    pub(super) media_type: String,
    /// What was hashed.
    pub(super) digest: String,
    /// How long it is.
    pub(super) size: u64,
    /// Free words.
    pub(super) annotations: BTreeMap<String, String>,
    /// Where else a foreign layer is.
    pub(super) urls: Vec<String>,
}

impl Document {
    /// Reads one.
    ///
    /// # Errors
    /// It is not JSON, or a field has the wrong type.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Its type: what it says, else what its shape says.
    pub(super) fn kind(&self) -> &str {
        match &self.media_type {
            Some(said) if !said.is_empty() => said,
            Some(_) | None if self.config.is_none() && !self.manifests.is_empty() => OCI_INDEX,
            Some(_) | None => OCI_MANIFEST,
        }
    }

    /// The blobs that have to be here for it to be of use. Foreign layers are elsewhere.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let here = |layer: &&Descriptor| layer.urls.is_empty();
        self.config.iter().chain(self.layers.iter().filter(here))
    }

    /// The digest of its subject, where that has the form of one.
    pub(super) fn subject(&self) -> Option<Digest> {
        self.subject.as_ref()?.digest.parse().ok()
    }

    /// What a listing of referrers says that it is: without a type of its own, the one of its configuration.
    pub(super) fn artifact_type(&self) -> Option<String> {
        let own = self.artifact_type.clone();
        own.or_else(|| Some(self.config.as_ref()?.media_type.clone()))
            .filter(|kind| !kind.is_empty())
    }
}

/// Whether a client takes a type, by its `Accept` headers; without any it takes everything.
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
    #![allow(clippy::unwrap_used)]
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
