//! ◆ The embedded image `crib.local/host`: the host's own root, so that a pod runs on a machine without network and
//! registry.

use std::collections::BTreeSet;

use super::digest::Digest;
use super::platform::architecture;
use super::record::{Content, ImageConfig, ImageId, ImageRecord};
use image_reference::Reference;

/// Its repository. Only the tag `latest` exists.
pub(crate) const REPOSITORY: &str = "crib.local/host";

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether `reference` names the embedded image.
pub(crate) fn is_meant(reference: &Reference) -> bool {
    let by_tag = reference.repository == REPOSITORY && reference.digest.is_none();
    by_tag && reference.tag.as_deref() == Some("latest")
}

/// Its configuration document, constant for an architecture, and so is its ID.
pub(crate) fn document() -> Vec<u8> {
    let document = format!(
        concat!(
            r#"{{"architecture":"{}","os":"linux","config":{{"Env":["{}"],"Cmd":["/bin/sh"],"WorkingDir":"/"}},"#,
            r#""rootfs":{{"type":"layers","diff_ids":[]}}}}"#
        ),
        architecture(),
        PATH
    );
    document.into_bytes()
}

/// Its record. The size is that of its configuration, which is all that the store keeps of it.
pub(crate) fn record(document: &[u8]) -> ImageRecord {
    let id = Digest::of(document);
    ImageRecord {
        id: ImageId(id),
        tags: BTreeSet::from([format!("{REPOSITORY}:latest")]),
        digests: BTreeSet::new(),
        size: document.len() as u64,
        pinned: false,
        config: ImageConfig {
            env: vec![PATH.to_owned()],
            cmd: vec!["/bin/sh".to_owned()],
            working_dir: "/".to_owned(),
            ..ImageConfig::default()
        },
        content: Content::Host,
        targets: BTreeSet::from([id]),
        blobs: BTreeSet::from([id]),
        serial: 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn host_record_matches_document() {
        let document = document();
        let config: oci_spec::image::ImageConfiguration =
            serde_json::from_slice(&document).unwrap();
        assert_eq!(ImageConfig::of(&config), record(&document).config);
        assert_eq!(config.architecture().to_string(), architecture());
    }
}
