//! A directory of manifests, watched with inotify and relisted periodically.
//!
//! As in Kubernetes 1.36, pkg/kubelet/config/file.go: names that begin with a dot are ignored, files of more than 10 MB are
//! rejected, a missing directory has no pods. A file that cannot be read or parsed is reported once and keeps its previous
//! pods; the other files are not affected.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt;

use super::PodSource;
use crate::blocking::blocking;
use crate::manifest::{self, Strictness};
use crate::pod::Pod;

/// Relist period while the directory is watched.
const RELIST: Duration = Duration::from_secs(20);
/// Relist period without a watch.
const RELIST_UNWATCHED: Duration = Duration::from_secs(1);
/// The largest manifest, in bytes.
const MAX_BYTES: u64 = 10 * 1024 * 1024;

/// See [`directory`].
pub struct DirectorySource {
    files: Files,
    reported: bool,
    watch: Option<EventStream<[u8; 4096]>>,
}

/// Creates a source of the `*.yaml`, `*.yml` and `*.json` files in `path`; an unknown field is an error.
#[must_use]
pub fn directory(path: PathBuf) -> DirectorySource {
    let files = Files {
        path,
        strictness: Strictness::Strict,
        known: BTreeMap::new(),
    };
    DirectorySource {
        files,
        reported: false,
        watch: None,
    }
}

/// The manifests of a directory.
#[derive(Clone)]
struct Files {
    path: PathBuf,
    strictness: Strictness,
    known: BTreeMap<String, Manifest>,
}

/// One file: its last content, and the pods of its last valid content.
#[derive(Clone, Debug, Default, PartialEq)]
struct Manifest {
    content: Content,
    pods: Vec<Pod>,
}

/// The result of reading a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Content {
    #[default]
    Nothing,
    Text(String),
    Unreadable(String),
}

impl Files {
    /// Reads the directory. Returns whether its pods changed.
    fn read(&mut self) -> bool {
        let names = match list(&self.path) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), "manifest directory does not exist; treating it as empty");
                Vec::new()
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "failed to list manifest directory; keeping its pods");
                return false;
            }
        };
        let before = self.pods();
        self.known.retain(|name, _| names.contains(name));
        for name in names {
            let path = self.path.join(&name);
            let content = match read(&path) {
                Ok(text) => Content::Text(text),
                Err(error) => Content::Unreadable(error.to_string()),
            };
            let manifest = self.known.entry(name).or_default();
            if manifest.content != content {
                manifest.take(&path, content, self.strictness);
            }
        }
        self.pods() != before
    }

    fn pods(&self) -> Vec<Pod> {
        self.known
            .values()
            .flat_map(|manifest| manifest.pods.clone())
            .collect()
    }
}

impl Manifest {
    fn take(&mut self, path: &Path, content: Content, strictness: Strictness) {
        match &content {
            Content::Nothing => {}
            Content::Unreadable(error) => {
                tracing::warn!(path = %path.display(), %error, "failed to read manifest; keeping its pods");
            }
            Content::Text(text) => {
                let parsed = manifest::parse(&path.display().to_string(), text, strictness);
                for warning in &parsed.warnings {
                    tracing::warn!("{warning}");
                }
                for problem in &parsed.problems {
                    tracing::error!("{problem}");
                }
                // A file is briefly empty while an editor writes it; that must not terminate its pods.
                if text.trim().is_empty() {
                    tracing::warn!(path = %path.display(), "manifest is empty; keeping its pods");
                } else if parsed.problems.is_empty() {
                    self.pods = parsed.pods;
                } else {
                    tracing::error!(path = %path.display(), "manifest is invalid; keeping its pods");
                }
            }
        }
        self.content = content;
    }
}

/// Lists the manifests in a directory, sorted by name.
fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        let manifest = [".yaml", ".yml", ".json"]
            .iter()
            .any(|ending| name.ends_with(ending));
        if manifest && !name.starts_with('.') && path.join(&name).is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = fs::File::open(path)?
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)?;
    if length as u64 > MAX_BYTES {
        return Err(io::Error::other("the file is larger than 10 MB"));
    }
    Ok(text)
}

/// Watches a directory for files that were written, added or removed.
fn watch(path: &Path) -> io::Result<EventStream<[u8; 4096]>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    inotify.watches().add(path, mask)?;
    inotify.into_event_stream([0; 4096])
}

impl DirectorySource {
    /// Sets how unknown fields are treated.
    #[must_use]
    pub fn with_strictness(mut self, strictness: Strictness) -> Self {
        self.files.strictness = strictness;
        self
    }

    /// Waits until the directory may have changed.
    async fn wait_for_change(&mut self) {
        let Some(events) = &mut self.watch else {
            return tokio::time::sleep(RELIST_UNWATCHED).await;
        };
        match tokio::time::timeout(RELIST, events.next()).await {
            // An event without a name is about the directory itself, whose removal ends the watch: create a new one.
            Ok(Some(Ok(event))) if event.name.is_some() => {}
            Ok(_) => self.watch = None,
            Err(_) => {}
        }
    }
}

#[async_trait]
impl PodSource for DirectorySource {
    fn name(&self) -> String {
        format!("directory {}", self.files.path.display())
    }

    async fn next(&mut self) -> Option<Vec<Pod>> {
        loop {
            if self.reported {
                self.wait_for_change().await;
            }
            if self.watch.is_none() {
                // Watch before reading, so that no change in between is missed.
                self.watch = watch(&self.files.path).ok();
            }
            let mut files = self.files.clone();
            let (files, changed) = blocking(move || {
                let changed = files.read();
                (files, changed)
            })
            .await;
            self.files = files;
            if changed || !self.reported {
                self.reported = true;
                return Some(self.files.pods());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn manifest(name: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: app\n    image: crib.local/host\n"
        )
    }

    /// Waits for the source's next set and returns the pods' names.
    async fn next(source: &mut DirectorySource) -> Vec<String> {
        let pods = tokio::time::timeout(Duration::from_secs(60), source.next())
            .await
            .expect("no update of the source")
            .unwrap();
        pods.iter().map(|pod| pod.name().to_owned()).collect()
    }

    fn put(dir: &Path, name: &str, text: &str) {
        let hidden = dir.join(format!(".{name}.new"));
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, dir.join(name)).unwrap();
    }

    #[tokio::test]
    async fn source_follows_added_changed_and_removed_files() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "b.yaml", &manifest("b"));
        fs::write(dir.path().join(".hidden.yaml"), manifest("hidden")).unwrap();
        fs::write(dir.path().join("notes.txt"), "no manifest").unwrap();
        let mut source = directory(dir.path().to_owned());
        assert_eq!(next(&mut source).await, ["b"]);
        put(dir.path(), "a.yml", &manifest("a"));
        assert_eq!(next(&mut source).await, ["a", "b"]);
        fs::write(dir.path().join("b.yaml"), manifest("c")).unwrap();
        assert_eq!(next(&mut source).await, ["a", "c"]);
        fs::remove_file(dir.path().join("a.yml")).unwrap();
        assert_eq!(next(&mut source).await, ["c"]);
    }

    #[tokio::test]
    async fn invalid_file_keeps_its_last_pods() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a.yaml", &manifest("a"));
        let mut source = directory(dir.path().to_owned());
        assert_eq!(next(&mut source).await, ["a"]);
        put(dir.path(), "a.yaml", "kind: [");
        put(dir.path(), "b.yaml", &manifest("b"));
        assert_eq!(next(&mut source).await, ["a", "b"]);
        put(dir.path(), "a.yaml", &manifest("better"));
        assert_eq!(next(&mut source).await, ["better", "b"]);
    }

    #[tokio::test]
    async fn missing_directory_has_no_pods_until_created() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("manifests");
        let mut source = directory(dir.clone());
        assert_eq!(next(&mut source).await, [""; 0]);
        fs::create_dir(&dir).unwrap();
        put(&dir, "a.yaml", &manifest("a"));
        assert_eq!(next(&mut source).await, ["a"]);
        file_tree::remove(&dir).unwrap();
        assert_eq!(next(&mut source).await, [""; 0]);
    }

    #[test]
    fn oversized_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.yaml");
        fs::File::create(&path)
            .unwrap()
            .set_len(MAX_BYTES + 1)
            .unwrap();
        assert_eq!(
            read(&path).unwrap_err().to_string(),
            "the file is larger than 10 MB"
        );
    }
}
