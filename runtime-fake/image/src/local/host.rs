//! ◆ The embedded images: the host's own root, so that a pod runs on a machine without network and registry.
//!
//! `crib.local/host` runs a command of the host. `crib.local/behave/SCRIPT` acts out a behaviour script on the same root.

use std::collections::{BTreeMap, BTreeSet};

use crate::formats::digest::Digest;
use crate::formats::platform::architecture;
use crate::formats::record::{Content, ImageConfig, ImageId, ImageRecord, SCRIPT_LABEL};
use crate::formats::script::{Script, ScriptError};
use image_reference::Reference;

/// The repository of the host's image. Only the tag `latest` exists.
pub(crate) const REPOSITORY: &str = "crib.local/host";
/// What the repository of an image with a script begins with; the script follows. Any tag exists.
const BEHAVE: &str = "crib.local/behave";

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether `reference` names the host's image.
pub(crate) fn is_meant(reference: &Reference) -> bool {
    let by_tag = reference.repository == REPOSITORY && reference.digest.is_none();
    by_tag && reference.tag.as_deref() == Some("latest")
}

/// The script in an image's name; `None` if it is not the name of such an image.
pub(crate) fn script(reference: &Reference) -> Option<Result<Script, ScriptError>> {
    let text = reference.repository.strip_prefix(BEHAVE)?;
    if reference.digest.is_some() {
        return None;
    }
    match text.strip_prefix('/') {
        Some(script) => Some(script.parse()),
        None if text.is_empty() => Some(text.parse()),
        None => None,
    }
}

/// The configuration document of the host's image, or of the one with a script: constant for an architecture, and so is
/// its ID.
pub(crate) fn document(script: Option<&Script>) -> Vec<u8> {
    let runs = match script {
        None => r#""Cmd":["/bin/sh"]"#.to_owned(),
        Some(script) => format!(r#""Labels":{{"{SCRIPT_LABEL}":"{script}"}}"#),
    };
    let document = format!(
        concat!(
            r#"{{"architecture":"{}","os":"linux","config":{{"Env":["{}"],{},"WorkingDir":"/"}},"#,
            r#""rootfs":{{"type":"layers","diff_ids":[]}}}}"#
        ),
        architecture(),
        PATH,
        runs
    );
    document.into_bytes()
}

/// The record of the image with this document and tag. The size is that of its configuration, which is all that the
/// store keeps of it.
pub(crate) fn record(document: &[u8], tag: String, script: Option<&Script>) -> ImageRecord {
    let id = Digest::of(document);
    let label = |script: &Script| (SCRIPT_LABEL.to_owned(), script.to_string());
    ImageRecord {
        id: ImageId(id),
        tags: BTreeSet::from([tag]),
        digests: BTreeSet::new(),
        size: document.len() as u64,
        pinned: false,
        config: ImageConfig {
            env: vec![PATH.to_owned()],
            cmd: match script {
                None => vec!["/bin/sh".to_owned()],
                Some(_) => Vec::new(),
            },
            working_dir: "/".to_owned(),
            labels: script.map(label).into_iter().collect::<BTreeMap<_, _>>(),
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
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::host(None)]
    #[case::behaves(Some("exit-1/log-5-a-second"))]
    fn record_matches_document(#[case] script: Option<&str>) {
        let script: Option<Script> = script.map(|script| script.parse().unwrap());
        let document = document(script.as_ref());
        let config = serde_json::from_slice(&document).unwrap();
        let record = record(&document, "a.test/b:1".to_owned(), script.as_ref());
        assert_eq!(ImageConfig::of(&config), record.config);
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(document["architecture"], architecture());
        assert_eq!(record.script(), script);
    }

    #[rstest]
    #[case("crib.local/behave/exit-1/run", None)]
    #[case("crib.local/behave/ignore-term/exit-1:v2", Some("exit-1/ignore-term"))]
    #[case("crib.local/behave", None)]
    fn script_is_read_from_name(#[case] name: &str, #[case] want: Option<&str>) {
        let script = script(&name.parse().unwrap()).unwrap();
        assert_eq!(script.ok().map(|script| script.to_string()).as_deref(), want);
    }

    #[rstest]
    #[case::another("crib.local/behaves/exit-1")]
    #[case::elsewhere("docker.io/crib.local/behave/exit-1")]
    #[case::by_digest(
        "crib.local/behave/run@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    )]
    fn other_names_have_no_script(#[case] name: &str) {
        assert_eq!(script(&name.parse().unwrap()), None);
    }
}
