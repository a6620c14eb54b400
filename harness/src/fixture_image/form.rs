//! The documents of an OCI layout, with the media types of OCI or of docker.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};

use super::{ImageBuilder, Packing, hex};

/// The source of the documents' media types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// OCI.
    #[default]
    Oci,
    /// Docker's manifest schema version 2.
    Docker,
}

impl Form {
    fn index(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.index.v1+json",
            Self::Docker => "application/vnd.docker.distribution.manifest.list.v2+json",
        }
    }

    fn manifest(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.manifest.v1+json",
            Self::Docker => "application/vnd.docker.distribution.manifest.v2+json",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.config.v1+json",
            Self::Docker => "application/vnd.docker.container.image.v1+json",
        }
    }

    fn layer(self, packing: Packing) -> String {
        match (self, packing) {
            (Self::Oci, packing) => {
                format!("application/vnd.oci.image.layer.v1.tar{}", packing.suffix())
            }
            // Docker uses a dot as the separator.
            (Self::Docker, packing) => {
                let suffix = packing.suffix().replace('+', ".");
                format!("application/vnd.docker.image.rootfs.diff.tar{suffix}")
            }
        }
    }
}

/// The files of a layout, by their paths.
#[derive(Default)]
struct Members(BTreeMap<String, Vec<u8>>);

impl Members {
    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = hex(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()});
        self.0.insert(format!("blobs/sha256/{digest}"), bytes);
        descriptor
    }

    fn document(&mut self, media_type: &str, document: &Value) -> io::Result<Value> {
        Ok(self.blob(media_type, serde_json::to_vec(document)?))
    }

    /// Adds an image and returns the descriptor of its manifest.
    fn image(&mut self, image: &ImageBuilder) -> io::Result<Value> {
        let form = image.form;
        let tars = image.layer_tars()?;
        let config = self.blob(form.config(), image.config_document(&tars)?);
        let mut layers = Vec::new();
        for (layer, tar) in image.layers.iter().zip(&tars) {
            layers.push(self.blob(&form.layer(layer.packing), layer.pack(tar)?));
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": form.manifest(),
            "config": config,
            "layers": layers,
        });
        self.document(form.manifest(), &manifest)
    }

    /// Adds an index of an image and of the same image for other architectures, which come first. The last entry is an attestation
    /// of the build for an unknown platform, as builders write it.
    fn index(&mut self, image: &ImageBuilder) -> io::Result<Value> {
        let mut manifests = Vec::new();
        for image in image.others.iter().chain([image]) {
            let mut entry = self.image(image)?;
            entry["platform"] = json!({"os": "linux", "architecture": image.architecture()});
            manifests.push(entry);
        }
        let statement = ImageBuilder::new(&image.name);
        let mut entry = self.image(&statement)?;
        entry["platform"] = json!({"os": "unknown", "architecture": "unknown"});
        manifests.push(entry);
        let form = image.form;
        let index = json!({"schemaVersion": 2, "mediaType": form.index(), "manifests": manifests});
        self.document(form.index(), &index)
    }
}

/// The files of the layout of an image, by their paths.
pub(super) fn layout(image: &ImageBuilder) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut members = Members::default();
    let mut entry = match image.others.is_empty() {
        true => members.image(image)?,
        false => members.index(image)?,
    };
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": image.name});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    let Members(mut files) = members;
    files.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
    let version = br#"{"imageLayoutVersion":"1.0.0"}"#;
    files.insert("oci-layout".to_owned(), version.to_vec());
    Ok(files)
}
