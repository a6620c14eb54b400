//! The files of pull records, in `image_manager/pulling` and `image_manager/pulled` of the agent's root directory. Names and format
//! are a kubelet's.

use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use compact::{Map, Set};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::keyring::hex;
use super::records::{PullCredentials, PulledRecord};

/// The version that is written.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Versions that are read; their schemas are equal.
const READ_VERSIONS: [&str; 2] = [API_VERSION, "kubelet.config.k8s.io/v1alpha1"];
/// The prefix of file names.
const PREFIX: &str = "sha256-";
/// The suffix of names of files that are being written.
const UNFINISHED: &str = ".tmp";

/// The directories of the records.
#[derive(Clone, Debug)]
pub(crate) struct RecordFiles {
    pulling: PathBuf,
    pulled: PathBuf,
}

/// The content of the directories.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The images of pulls that did not complete.
    pub(crate) intents: Set<String>,
    /// Records by their image's reference.
    pub(crate) pulled: Map<String, PulledRecord>,
    /// Names of intent files that cannot be read.
    pub(crate) damaged_intents: Set<String>,
    /// Names of record files that cannot be read.
    pub(crate) damaged_pulled: Set<String>,
}

/// ImagePullIntent: a pull that began and has not ended.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntentDocument {
    kind: String,
    api_version: String,
    image: String,
}

/// ImagePulledRecord.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PulledDocument {
    kind: String,
    api_version: String,
    last_updated_time: Option<String>,
    image_ref: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    credential_mapping: Map<String, PullCredentials>,
}

/// A document with a kind.
trait Document: DeserializeOwned + Serialize {
    const KIND: &'static str;
    fn type_meta(&self) -> (&str, &str);
}

impl Document for IntentDocument {
    const KIND: &'static str = "ImagePullIntent";
    fn type_meta(&self) -> (&str, &str) {
        (&self.kind, &self.api_version)
    }
}

impl Document for PulledDocument {
    const KIND: &'static str = "ImagePulledRecord";
    fn type_meta(&self) -> (&str, &str) {
        (&self.kind, &self.api_version)
    }
}

/// The name of an image's file.
pub(crate) fn file_name(image: &str) -> String {
    format!("{PREFIX}{}", hex(&Sha256::digest(image)))
}

impl RecordFiles {
    /// The records below the agent's root directory.
    pub(crate) fn new(root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        Self { pulling: dir.join("pulling"), pulled: dir.join("pulled") }
    }

    /// Reads all records. A damaged one is logged and kept: the next pull of its image overwrites it.
    pub(crate) fn read(&self) -> Found {
        let mut found = Found::default();
        for (name, document) in documents::<IntentDocument>(&self.pulling) {
            match document {
                Some(intent) => drop(found.intents.insert(intent.image)),
                None => drop(found.damaged_intents.insert(name)),
            }
        }
        for (name, document) in documents::<PulledDocument>(&self.pulled) {
            let record = document.and_then(|document| {
                let updated_at = match &document.last_updated_time {
                    Some(time) => time.parse().ok()?,
                    None => Timestamp::UNIX_EPOCH,
                };
                Some(PulledRecord {
                    image_ref: document.image_ref,
                    updated_at,
                    credentials: document.credential_mapping,
                })
            });
            match record {
                Some(record) => drop(found.pulled.insert(record.image_ref.clone(), record)),
                None => drop(found.damaged_pulled.insert(name)),
            }
        }
        found
    }

    /// Records that a pull begins.
    pub(crate) fn write_intent(&self, image: &str) -> io::Result<()> {
        let document = IntentDocument {
            kind: IntentDocument::KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            image: image.to_owned(),
        };
        write(&self.pulling, image, &document)
    }

    /// Records that no pull is in progress.
    pub(crate) fn remove_intent(&self, image: &str) -> io::Result<()> {
        remove(&self.pulling, image)
    }

    /// Replaces the record of an image.
    pub(crate) fn write_pulled(&self, record: &PulledRecord) -> io::Result<()> {
        let document = PulledDocument {
            kind: PulledDocument::KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: Some(record.updated_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            image_ref: record.image_ref.clone(),
            credential_mapping: record.credentials.clone(),
        };
        write(&self.pulled, &record.image_ref, &document)
    }

    /// Removes the record of an image.
    pub(crate) fn remove_pulled(&self, image_ref: &str) -> io::Result<()> {
        remove(&self.pulled, image_ref)
    }
}

/// The documents in a directory by file name; `None` for a damaged one.
fn documents<T: Document>(directory: &Path) -> Vec<(String, Option<T>)> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::error!(directory = %directory.display(), %error, "failed to list pull records");
            return Vec::new();
        }
    };
    let names = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(PREFIX) && !name.ends_with(UNFINISHED));
    names
        .map(|name| {
            let path = directory.join(&name);
            let document = decode(&path)
                .inspect_err(|error| {
                    tracing::error!(path = %path.display(), error, "failed to read pull record");
                })
                .ok();
            (name, document)
        })
        .collect()
}

fn decode<T: Document>(path: &Path) -> Result<T, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let document: T = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let (kind, version) = document.type_meta();
    if kind != T::KIND || !READ_VERSIONS.contains(&version) {
        return Err(format!("unexpected {kind} of {version}"));
    }
    Ok(document)
}

/// Writes a file and renames it into place, so that a crash leaves the old or the new one.
fn write(directory: &Path, image: &str, document: &impl Document) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(file_name(image));
    let unfinished = directory.join(file_name(image) + UNFINISHED);
    let text = serde_json::to_vec(document)?;
    let written = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| io::Write::write_all(&mut file, &text))
        .and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        // The error of the write is the one to return.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

fn remove(directory: &Path, image: &str) -> io::Result<()> {
    match std::fs::remove_file(directory.join(file_name(image))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record(image_ref: &str) -> PulledRecord {
        let mut record = PulledRecord::new(image_ref, Timestamp::UNIX_EPOCH);
        record.add("q.io/a", &PullCredentials::of(None), Timestamp::UNIX_EPOCH);
        record
    }

    #[test]
    fn records_are_read_as_written() {
        let root = tempfile::tempdir().unwrap();
        let files = RecordFiles::new(root.path());
        assert!(files.read().intents.is_empty(), "no directory");
        files.write_intent("q.io/a:1").unwrap();
        files.write_pulled(&record("sha256:1")).unwrap();
        let found = files.read();
        assert!(found.intents.contains("q.io/a:1"));
        assert_eq!(found.pulled["sha256:1"], record("sha256:1"));
        files.remove_intent("q.io/a:1").unwrap();
        files.remove_intent("q.io/a:1").unwrap();
        files.remove_pulled("sha256:1").unwrap();
        let found = files.read();
        assert!(found.intents.is_empty() && found.pulled.is_empty());
        assert!(found.damaged_intents.is_empty() && found.damaged_pulled.is_empty());
    }

    #[test]
    fn records_have_the_format_of_a_kubelet() {
        let root = tempfile::tempdir().unwrap();
        let files = RecordFiles::new(root.path());
        files.write_pulled(&record("sha256:1")).unwrap();
        let path = root.path().join("image_manager/pulled").join(file_name("sha256:1"));
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"1970-01-01T00:00:00Z","imageRef":"sha256:1","credentialMapping":{"q.io/a":{"nodePodsAccessible":true}}}"#
        );
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn damaged_records_are_named_and_others_still_read() {
        let root = tempfile::tempdir().unwrap();
        let files = RecordFiles::new(root.path());
        files.write_pulled(&record("sha256:1")).unwrap();
        let directory = root.path().join("image_manager/pulled");
        let bad = [
            ("sha256-1", "{"),
            (
                "sha256-2",
                r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"a"}"#,
            ),
            (
                "sha256-3",
                r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v9","lastUpdatedTime":null,"imageRef":"a"}"#,
            ),
            (
                "sha256-4",
                r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,"imageRef":"a","more":1}"#,
            ),
        ];
        for (name, text) in bad.into_iter().chain([("sha256-5.tmp", "{"), ("other", "{")]) {
            std::fs::write(directory.join(name), text).unwrap();
        }
        let found = files.read();
        assert!(found.damaged_pulled.iter().eq(bad.iter().map(|(name, _)| name)));
        assert_eq!(found.pulled.len(), 1);
    }
}
