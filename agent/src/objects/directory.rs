//! The objects in the documents of a directory, watched with inotify and read again periodically.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::manifest::{Object, Strictness, parse};
use compact::Map;
use file_tree::named_text;
use inotify::EventStream;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use super::{ObjectMap, ObjectStore};
use crate::source::directory::watch;
use tasks::blocking;

/// How often the directory is read again while it is watched, and without a watch.
const RELIST: Duration = Duration::from_secs(20);
const RELIST_UNWATCHED: Duration = Duration::from_secs(1);

/// The largest document that is read, bytes. The API server takes objects of 1.5 MiB.
const LARGEST: u64 = 16 << 20;

/// The `*.yaml`, `*.yml` and `*.json` files of a directory. An invalid file keeps the objects that it had.
#[derive(Debug)]
pub struct ObjectsDirectory {
    path: PathBuf,
    files: Map<PathBuf, ObjectsFile>,
    watch: Option<EventStream<[u8; 4096]>>,
}

/// A file as it was read last.
#[derive(Clone, Debug, Default)]
struct ObjectsFile {
    text: String,
    objects: Vec<Object>,
}

impl ObjectsDirectory {
    /// The files at `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, files: Map::new(), watch: None }
    }

    /// Reads all files. Their objects replace those of `others` that have their names.
    pub async fn read(&mut self, others: &ObjectMap) -> ObjectMap {
        if self.watch.is_none() {
            // Watch before reading, so that no change in between is missed.
            self.watch = watch(&self.path).ok();
        }
        let (path, before) = (self.path.clone(), std::mem::take(&mut self.files));
        self.files = blocking(move || read_all(&path, before)).await;
        let mut objects = others.clone();
        objects.extend(self.files.values().flat_map(|file| file.objects.clone()));
        objects
    }

    /// Keeps a store up to date. Never returns.
    pub async fn follow(mut self, others: ObjectMap, store: &ObjectStore) {
        let mut shown = None;
        loop {
            let objects = self.read(&others).await;
            if shown.as_ref() != Some(&objects) {
                store.set(objects.clone());
                shown = Some(objects);
            }
            self.changed().await;
        }
    }

    /// Waits until files may have changed.
    async fn changed(&mut self) {
        match &mut self.watch {
            None => tokio::time::sleep(RELIST_UNWATCHED).await,
            // The watch ends with the directory.
            Some(events) => match timeout(RELIST, events.next()).await {
                Ok(Some(Ok(event))) if event.name.is_some() => {}
                Ok(_) => self.watch = None,
                Err(_) => {}
            },
        }
    }
}

fn read_all(path: &Path, mut before: Map<PathBuf, ObjectsFile>) -> Map<PathBuf, ObjectsFile> {
    let listed = list(path);
    let files = match listed {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "failed to list objects; keeping them");
            return before;
        }
    };
    let files = files.into_iter().map(|file| {
        let known = before.remove(&file).unwrap_or_default();
        let read = read_one(&file, known);
        (file, read)
    });
    files.collect()
}

fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let extension = path.extension().unwrap_or_default().as_encoded_bytes();
        if !name.starts_with(b".") && matches!(extension, b"yaml" | b"yml" | b"json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The objects of a file, or those that it had if it is invalid.
fn read_one(path: &Path, known: ObjectsFile) -> ObjectsFile {
    let name = path.display().to_string();
    let text = match named_text::read_text_nonblocking(path, LARGEST) {
        Ok(text) => text,
        Err(error) => {
            tracing::warn!(file = name, %error, "failed to read objects; keeping those that the file had");
            return known;
        }
    };
    if text == known.text {
        return known;
    }
    let parsed = parse(&name, &text, Strictness::Strict);
    for problem in &parsed.problems {
        tracing::warn!(%problem, "invalid objects; keeping those that the file had");
    }
    for warning in &parsed.warnings {
        tracing::warn!(%warning, "field has no effect");
    }
    if !parsed.pods.is_empty() || !parsed.workloads.is_empty() {
        tracing::warn!(file = name, "ignoring pods among the objects: put them into --manifests");
    }
    ObjectsFile {
        text,
        objects: match parsed.problems.is_empty() {
            true => parsed.objects,
            false => known.objects,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::fixtures::put;

    fn map(name: &str, value: &str) -> String {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: {value}}}\n"
        )
    }

    #[test]
    fn fifo_and_endless_device_do_not_keep_other_files_from_being_read() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("a.yaml");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("b.json")).unwrap();
        put(dir.path(), "c.yaml", &map("m", "one"));
        let read = read_all(dir.path(), Map::new());
        let objects: Vec<usize> = read.values().map(|file| file.objects.len()).collect();
        assert_eq!(objects, [0, 0, 1]);
    }

    #[tokio::test]
    async fn store_follows_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("objects");
        let store = Arc::new(ObjectStore::default());
        let follower = Arc::clone(&store);
        let directory = ObjectsDirectory::new(path.clone());
        let task = tasks::spawn(async move {
            directory.follow(ObjectMap::default(), &follower).await;
        });
        let mut changes = store.changes();
        let has = |name: &str, value: Option<&str>| {
            let map = store.current().config_map("default", name);
            let data = map.and_then(|map| map.data.clone()).unwrap_or_default();
            data.get("a").map(String::as_str) == value
        };
        let mut wait = async |name: &str, value: Option<&str>| {
            let reached = async {
                while !has(name, value) {
                    changes.changed().await.unwrap();
                }
            };
            timeout(Duration::from_secs(60), reached).await.unwrap();
        };
        fs::create_dir(&path).unwrap();
        put(&path, "a.yaml", &map("m", "one"));
        wait("m", Some("one")).await;
        put(&path, "a.yaml", &map("m", "two"));
        wait("m", Some("two")).await;
        // One that is invalid keeps what it had; another file shows that it was read.
        put(&path, "a.yaml", "kind: [");
        put(&path, "b.yml", &map("other", "three"));
        wait("other", Some("three")).await;
        assert!(has("m", Some("two")));
        fs::remove_file(path.join("a.yaml")).unwrap();
        wait("m", None).await;
        task.abort();
    }
}
