//! Images that exist in no registry: the host's root, and behaviour images.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use image_reference::{Reference, ReferenceError};

use crate::formats::digest::Digest;
use crate::formats::platform::architecture;
use crate::formats::record::{Content, ImageConfig, ImageId, ImageRecord, SCRIPT_LABEL};
use crate::formats::script::{Script, ScriptError};

// The embedded images let a pod run on a machine without network and registry.
//
// `crib.local/host` has the host's own root. `crib.local/behave/SCRIPT` has the same root, and its containers follow a behaviour
// script.

/// The repository of the host's image. Only the tag `latest` exists.
pub(crate) const REPOSITORY: &str = "crib.local/host";
/// The prefix of the repository of a behaviour image; the script follows it. Any tag exists.
const BEHAVE: &str = "crib.local/behave";

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether `reference` names the host's image.
pub(crate) fn is_host_image(reference: &Reference) -> bool {
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

/// The configuration document of the host's image, or of a behaviour image. It is constant for an architecture, and so is the
/// image's ID.
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

/// The record of the image with this document and tag. Its size is the size of its configuration, because the store keeps nothing
/// else of it.
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

/// A behaviour image under a name of its own: `registry.test/app:1=exit-1-after-2s`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedScript {
    /// Its name: a tag.
    pub(crate) name: Reference,
    /// The script that its containers follow.
    pub(crate) script: Script,
}

/// Why an image cannot have a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamedScriptError {
    /// There is no `=`.
    #[error("write IMAGE=SCRIPT, as in registry.test/app:1=exit-1-after-2s")]
    NoScript,
    /// Not a reference.
    #[error("{text:?} is not an image reference: {why}")]
    Reference {
        /// The name as written.
        text: String,
        /// The reason.
        why: ReferenceError,
    },
    /// The name has a digest, which a behaviour image cannot have.
    #[error("image {0} is named by its digest: name it by a tag")]
    Digest(String),
    /// Not a script.
    #[error("image {name}: {why}")]
    Script {
        /// The image's full name.
        name: String,
        /// The reason.
        why: ScriptError,
    },
}

impl NamedScript {
    /// The image called `name` whose containers follow `script`.
    ///
    /// # Errors
    /// [`NamedScriptError`], with the invalid text.
    pub fn new(name: &str, script: &str) -> Result<Self, NamedScriptError> {
        let name: Reference = name
            .parse()
            .map_err(|why| NamedScriptError::Reference { text: name.to_owned(), why })?;
        if name.digest.is_some() {
            return Err(NamedScriptError::Digest(name.to_string()));
        }
        match script.parse() {
            Ok(script) => Ok(Self { name, script }),
            Err(why) => Err(NamedScriptError::Script { name: name.to_string(), why }),
        }
    }
}

impl FromStr for NamedScript {
    type Err = NamedScriptError;

    fn from_str(text: &str) -> Result<Self, NamedScriptError> {
        let (name, script) = text.split_once('=').ok_or(NamedScriptError::NoScript)?;
        Self::new(name, script)
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

    #[test]
    fn named_script_completes_image_name() {
        let named: NamedScript = "app=exit-1".parse().unwrap();
        assert_eq!(named.name.to_string(), "docker.io/library/app:latest");
        assert_eq!(named.script.to_string(), "exit-1");
    }

    #[rstest]
    #[case("app", "write IMAGE=SCRIPT, as in registry.test/app:1=exit-1-after-2s")]
    #[case("APP=run", "\"APP\" is not an image reference: the repository must be in lower case")]
    #[case(
        "app=exit-1/fork-0",
        "image docker.io/library/app:latest: step \"fork-0\": \"0\" is not a number of processes: 1 to 1000"
    )]
    #[case(
        "a.test/app@sha256:0000000000000000000000000000000000000000000000000000000000000000=run",
        "image a.test/app@sha256:0000000000000000000000000000000000000000000000000000000000000000 is named by its digest: name it by a tag"
    )]
    fn malformed_named_script_is_refused(#[case] text: &str, #[case] want: &str) {
        assert_eq!(text.parse::<NamedScript>().unwrap_err().to_string(), want);
    }
}
