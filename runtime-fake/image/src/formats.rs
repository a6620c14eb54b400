//! The external formats of images: archives and their indexes, OCI documents, tar with its extensions, digests and platforms.

pub(crate) mod archive;
pub(crate) mod archive_index;
pub(crate) mod digest;
pub(crate) mod limits;
pub(crate) mod pax;
pub(crate) mod platform;
pub(crate) mod record;
pub(crate) mod resolve;
pub(crate) mod script;
pub(crate) mod sparse;
pub(crate) mod stream;
pub(crate) mod tar_stream;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

// The documents of an image, as far as they are read here: OCI image specification 1.1, and docker's manifest v2 schema 2,
// whose documents have the same fields.
//
// Unknown fields are ignored, and optional ones may be null, as encoders in Go write them. These types are never serialised: a
// document is stored as received, because its digest is the digest of its bytes.

/// A reference to content (descriptor.md).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    /// Parsed where the content is used: an index may name content with a digest that cannot be verified here.
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    pub(crate) platform: Option<Platform>,
}

/// The platform of an image (image-index.md), in Go's spelling.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    pub(crate) variant: Option<String>,
}

/// Images of several platforms (image-index.md), or the images of a layout (image-layout.md).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// An image: its configuration, and its layers from the bottom up (manifest.md).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// The configuration of an image (config.md).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Configuration {
    pub(crate) config: Option<ContainerDefaults>,
    pub(crate) rootfs: RootFs,
}

/// The field `config` of a configuration: how its containers run by default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ContainerDefaults {
    pub(crate) user: Option<String>,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    /// Paths with empty objects.
    pub(crate) volumes: Option<BTreeMap<String, IgnoredAny>>,
    pub(crate) working_dir: Option<String>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) stop_signal: Option<String>,
}

/// The layers of a configuration.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RootFs {
    /// The digests of the layers' tar streams, from the bottom up.
    pub(crate) diff_ids: Vec<String>,
}
