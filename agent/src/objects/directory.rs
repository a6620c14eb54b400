//! The objects in the documents of a directory, watched with inotify and listed again periodically.
//!
//! An inotify event is a hint which files to read; a listing reads the files whose time stamps changed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::generated_names::hash;
use api::manifest::{Strictness, parse};
use compact::{Map, Set};
use file_tree::named_text;
use inotify::EventStream;
use jiff::Timestamp;
use tasks::blocking;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{ObjectMap, ObjectStore};
use crate::clock::{Clock as _, SystemClock};
use crate::source::directory::{next_changes, watch};
use crate::source::files::{Changed, Stamp};

/// The period of listings while the directory is watched, followed by the period without a watch.
const RELIST: Duration = Duration::from_secs(20);
const RELIST_UNWATCHED: Duration = Duration::from_secs(1);

/// The maximum size of a document, bytes. The API server accepts objects up to 1.5 MiB.
const LARGEST: u64 = 16 << 20;

/// Why a directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TooLarge {
    /// It has too many files.
    #[error("{} has more than {most} manifests: merge them into fewer files", .path.display())]
    Files {
        /// The directory.
        path: PathBuf,
        /// The maximum number of files.
        most: usize,
    },
    /// Its files are too large.
    #[error("the manifests in {} have more than {mib} MiB together: remove unused objects", .path.display())]
    Bytes {
        /// The directory.
        path: PathBuf,
        /// The maximum size in MiB.
        mib: u64,
    },
}

/// The `*.yaml`, `*.yml` and `*.json` files of a directory. If a file becomes invalid, its previous objects stay.
#[derive(Debug)]
pub struct ObjectsDirectory {
    path: PathBuf,
    files: Files,
    watch: Option<EventStream<[u8; 4096]>>,
    /// The time of the next listing; `None`: now.
    relist_at: Option<Instant>,
    /// Whether the objects returned last are the current ones of the files.
    is_current: bool,
}

/// The files as last read.
#[derive(Debug, Default)]
struct Files {
    known: Map<OsString, Box<ObjectsFile>>,
    /// Whether the last refresh was interrupted: the next one checks all files.
    incomplete: bool,
    /// The number of files read so far.
    reads: usize,
    limits: Limits,
}

/// The limits of the data in memory.
#[derive(Clone, Copy, Debug)]
struct Limits {
    files: usize,
    bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { files: 100_000, bytes: 256 << 20 }
    }
}

/// A file as last read.
#[derive(Debug, Default)]
struct ObjectsFile {
    /// `None`: the file is read again in any case.
    stamp: Option<Stamp>,
    /// The hash of its text; `None` before it was read.
    content: Option<u128>,
    bytes: u64,
    objects: ObjectMap,
}

impl ObjectsDirectory {
    /// The files at `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, files: Files::default(), watch: None, relist_at: None, is_current: false }
    }

    /// Reads all files. Their objects replace those of `others` with the same names.
    ///
    /// # Errors
    ///
    /// If the files exceed the limits.
    pub async fn read(&mut self, others: &ObjectMap) -> Result<ObjectMap, TooLarge> {
        self.is_current = false;
        let objects = self.refresh(others, Changed::Unknown).await?;
        Ok(objects.unwrap_or_default())
    }

    /// Keeps a store up to date that has the objects of [`ObjectsDirectory::read`], if that was called. Never returns.
    pub async fn follow(mut self, others: ObjectMap, store: &ObjectStore) {
        loop {
            let changed = self.changed().await;
            match self.refresh(&others, changed).await {
                Ok(Some(objects)) => store.set(objects),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, "failed to read objects; keeping the known ones");
                }
            }
        }
    }

    /// Reads the files that changed. `None`: the objects are those returned last. It can be dropped at any time, which ends the
    /// reading; the next call reads everything.
    async fn refresh(
        &mut self,
        others: &ObjectMap,
        changed: Changed,
    ) -> Result<Option<ObjectMap>, TooLarge> {
        if self.watch.is_none() {
            // Watch before reading, so that no change in between is missed.
            self.watch = watch(&self.path).ok();
        }
        if changed == Changed::Unknown {
            self.relist_at = Some(Instant::now() + RELIST);
        }
        let unread = Files { incomplete: true, ..Files::default() };
        let mut files = std::mem::replace(&mut self.files, unread);
        let was_current = std::mem::replace(&mut self.is_current, false);
        let (path, others, now) = (self.path.clone(), others.clone(), SystemClock.now());
        let stop = CancellationToken::new();
        let _stops_when_dropped = stop.clone().drop_guard();
        let (files, objects) = blocking(move || {
            let differs = files.refresh(&path, changed, now, &stop);
            let objects =
                differs.map(|differs| (differs || !was_current).then(|| files.merged(others)));
            (files, objects)
        })
        .await;
        self.files = files;
        self.is_current = objects.is_ok();
        objects
    }

    /// Waits until files may have changed.
    async fn changed(&mut self) -> Changed {
        let Some(relist_at) = self.relist_at else {
            return Changed::Unknown;
        };
        let Some(events) = &mut self.watch else {
            tokio::time::sleep(RELIST_UNWATCHED).await;
            return Changed::Unknown;
        };
        match timeout_at(relist_at, next_changes(events)).await {
            Ok(Some(changed)) => changed,
            // The watch ends with the directory.
            Ok(None) => {
                self.watch = None;
                Changed::Unknown
            }
            Err(_) => Changed::Unknown,
        }
    }
}

impl Files {
    /// Reads the files that changed, until `stop` is cancelled. Returns whether their objects changed.
    fn refresh(
        &mut self,
        path: &Path,
        changed: Changed,
        now: Timestamp,
        stop: &CancellationToken,
    ) -> Result<bool, TooLarge> {
        let everything = std::mem::replace(&mut self.incomplete, true);
        let before = self.known.len();
        let (names, must): (Vec<OsString>, bool) = match changed {
            Changed::Names(names) if !everything => (self.without_removed(path, names), true),
            Changed::Names(_) | Changed::Unknown => match self.list(path)? {
                Ok(names) => (names.into_iter().collect(), false),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "failed to list objects; keeping them");
                    return Ok(false);
                }
            },
        };
        let mut differs = self.known.len() != before;
        let mut bytes: u64 = self.known.values().map(|file| file.bytes).sum();
        let mut added = Vec::new();
        for name in names {
            if stop.is_cancelled() {
                return Ok(differs);
            }
            let file = path.join(&name);
            // Taken before the file is read: a change in between makes the next one differ.
            let stamp = fs::metadata(&file).ok().and_then(|found| Stamp::of(&found, now));
            if let Some(known) = self.known.get_mut(&name) {
                if !must && stamp.is_some() && known.stamp == stamp {
                    continue;
                }
                bytes -= known.bytes;
                differs |= known.read(&file, stamp);
                bytes += known.bytes;
            } else {
                let mut new = Box::<ObjectsFile>::default();
                differs |= new.read(&file, stamp);
                bytes += new.bytes;
                added.push((name, new));
            }
            self.reads += 1;
            if bytes > self.limits.bytes {
                let mib = self.limits.bytes >> 20;
                return Err(TooLarge::Bytes { path: path.to_owned(), mib });
            }
            if self.known.len() + added.len() > self.limits.files {
                return Err(self.too_many(path));
            }
        }
        if !added.is_empty() {
            // All in one step: an insertion moves all entries after it.
            self.known = std::mem::take(&mut self.known).into_iter().chain(added).collect();
        }
        self.incomplete = false;
        Ok(differs)
    }

    /// Removes files that no longer exist from the known ones, and returns the others.
    fn without_removed(&mut self, path: &Path, names: Set<OsString>) -> Vec<OsString> {
        let is_removed = |name: &OsString| {
            fs::symlink_metadata(path.join(name))
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let names = names.into_iter().filter(|name| is_manifest(name));
        let (removed, present): (Vec<OsString>, Vec<OsString>) = names.partition(is_removed);
        if !removed.is_empty() {
            let removed: Set<OsString> = removed.into_iter().collect();
            self.known.retain(|name, _| !removed.contains(name));
        }
        present
    }

    /// The names of all files. Removes all other files from the known ones.
    fn list(&mut self, path: &Path) -> Result<io::Result<Set<OsString>>, TooLarge> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.known.clear();
                return Ok(Ok(Set::new()));
            }
            Err(error) => return Ok(Err(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = match entry {
                Ok(entry) => entry.file_name(),
                Err(error) => return Ok(Err(error)),
            };
            if is_manifest(&name) {
                names.push(name);
            }
            if names.len() > self.limits.files {
                return Err(self.too_many(path));
            }
        }
        let names: Set<OsString> = names.into_iter().collect();
        self.known.retain(|name, _| names.contains(name));
        Ok(Ok(names))
    }

    fn too_many(&self, path: &Path) -> TooLarge {
        TooLarge::Files { path: path.to_owned(), most: self.limits.files }
    }

    /// The objects of all files, in the order of the files' names, and the other objects that they do not replace.
    fn merged(&self, mut others: ObjectMap) -> ObjectMap {
        let files: Vec<&ObjectMap> = self.known.values().map(|file| &file.objects).collect();
        others.merge_files(&files);
        others
    }
}

fn is_manifest(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let ends = |ending: &&str| name.ends_with(ending.as_bytes());
    !name.starts_with(b".") && [".yaml", ".yml", ".json"].iter().any(ends)
}

impl ObjectsFile {
    /// Reads the file. Returns whether its objects changed; they stay if the file is invalid.
    fn read(&mut self, path: &Path, stamp: Option<Stamp>) -> bool {
        let name = path.display().to_string();
        let text = match named_text::read_text_nonblocking(path, LARGEST) {
            Ok(text) => text,
            Err(error) => {
                self.stamp = None;
                tracing::warn!(file = name, %error, "failed to read objects; keeping those that the file had");
                return false;
            }
        };
        self.stamp = stamp;
        let content = Some(hash(text.as_bytes()));
        if self.content == content {
            return false;
        }
        (self.content, self.bytes) = (content, text.len() as u64);
        let parsed = parse(&name, &text, Strictness::Strict);
        for problem in &parsed.problems {
            tracing::warn!(%problem, "invalid objects; keeping those that the file had");
        }
        for warning in &parsed.warnings {
            tracing::warn!(%warning, "field has no effect");
        }
        if !parsed.pods.is_empty() || !parsed.workloads.is_empty() {
            tracing::warn!(
                file = name,
                "ignored pods in the objects directory; move them to --manifests"
            );
        }
        if !parsed.problems.is_empty() {
            return false;
        }
        let mut objects = ObjectMap::default();
        objects.extend(parsed.objects);
        let differs = self.objects != objects;
        self.objects = objects;
        differs
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use proptest::prelude::*;
    use rstest::rstest;
    use tokio::time::timeout;

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
        let mut files = Files::default();
        assert!(refresh(&mut files, dir.path(), Changed::Unknown));
        let objects = files.known.values().map(|file| file.objects.json().len());
        assert_eq!(objects.collect::<Vec<_>>(), [0, 0, 1]);
    }

    /// As many files as a debug build reads quickly. The order of the objects differs from that of the files.
    const MANY: usize = 300;

    fn many() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..MANY {
            let object = map(&format!("m{}", MANY - number), "one");
            fs::write(dir.path().join(format!("{number:03}.yaml")), object).unwrap();
        }
        dir
    }

    fn refresh(files: &mut Files, path: &Path, changed: Changed) -> bool {
        files.refresh(path, changed, SystemClock.now(), &CancellationToken::new()).unwrap()
    }

    fn name(name: &str) -> Changed {
        Changed::Names([OsString::from(name)].into_iter().collect())
    }

    #[test]
    fn only_changed_files_are_read_again() {
        let (dir, mut files) = (many(), Files::default());
        // Late enough for the time stamps to count as settled.
        let later = SystemClock.now() + Duration::from_secs(3600);
        let stop = CancellationToken::new();
        let mut read = |changed| {
            let differs = files.refresh(dir.path(), changed, later, &stop).unwrap();
            let objects = files.merged(ObjectMap::default()).json().len();
            (differs, files.reads, objects)
        };
        assert_eq!(read(Changed::Unknown), (true, MANY, MANY));
        assert_eq!(read(Changed::Unknown), (false, MANY, MANY));
        put(dir.path(), "007.yaml", &map("m293", "another"));
        assert_eq!(read(Changed::Unknown), (true, MANY + 1, MANY));
        assert_eq!(read(name("007.yaml")), (false, MANY + 2, MANY));
        put(dir.path(), "new.yaml", &map("new", "one"));
        assert_eq!(read(name("new.yaml")), (true, MANY + 3, MANY + 1));
        fs::remove_file(dir.path().join("000.yaml")).unwrap();
        assert_eq!(read(name("000.yaml")), (true, MANY + 3, MANY));
        assert_eq!(read(name("notes.txt")), (false, MANY + 3, MANY));
    }

    #[test]
    fn cancellation_ends_the_reading() {
        let (dir, mut files) = (many(), Files::default());
        let stop = CancellationToken::new();
        stop.cancel();
        files.refresh(dir.path(), Changed::Unknown, SystemClock.now(), &stop).unwrap();
        assert_eq!((files.reads, files.incomplete), (0, true));
    }

    #[tokio::test]
    async fn reading_after_a_dropped_one_has_everything() {
        let dir = many();
        let mut directory = ObjectsDirectory::new(dir.path().to_owned());
        let others = ObjectMap::default();
        drop(timeout(Duration::ZERO, directory.read(&others)).await);
        let objects = directory.read(&others).await.unwrap();
        assert_eq!(objects.json().len(), MANY);
    }

    #[rstest]
    #[case::files(Limits { files: MANY - 1, bytes: 1 << 20 }, "has more than 299 manifests")]
    #[case::bytes(Limits { files: MANY, bytes: 1000 }, "have more than 0 MiB together")]
    fn directory_over_a_limit_is_an_error(#[case] limits: Limits, #[case] expected: &str) {
        let dir = many();
        let mut files = Files { limits, ..Files::default() };
        let stop = CancellationToken::new();
        let read = files.refresh(dir.path(), Changed::Unknown, SystemClock.now(), &stop);
        let error = read.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        // With fewer files, the directory is read, although no event named all files.
        for number in 5..MANY {
            fs::remove_file(dir.path().join(format!("{number:03}.yaml"))).unwrap();
        }
        refresh(&mut files, dir.path(), name("005.yaml"));
        assert_eq!(files.known.len(), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Each step writes or removes a file, and reads the named files or everything. Objects in different files share names.
        #[test]
        fn incremental_read_yields_the_same_objects_as_full_read(
            steps in proptest::collection::vec((0..4_u8, 0..3_u8, any::<bool>()), 1..10),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut files, mut shown) = (Files::default(), ObjectMap::default());
            for (file, object, is_named) in steps {
                let file = format!("{file}.yaml");
                match object {
                    0 => drop(fs::remove_file(dir.path().join(&file))),
                    _ => put(dir.path(), &file, &map(&format!("m{object}"), &file)),
                }
                let changed = if is_named { name(&file) } else { Changed::Unknown };
                if refresh(&mut files, dir.path(), changed) {
                    shown = files.merged(ObjectMap::default());
                }
                let mut all = Files::default();
                refresh(&mut all, dir.path(), Changed::Unknown);
                prop_assert_eq!(&shown, &all.merged(ObjectMap::default()));
            }
        }
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
        // An invalid file keeps its previous objects; another file shows that it was read.
        put(&path, "a.yaml", "kind: [");
        put(&path, "b.yml", &map("other", "three"));
        wait("other", Some("three")).await;
        assert!(has("m", Some("two")));
        fs::remove_file(path.join("a.yaml")).unwrap();
        wait("m", None).await;
        task.abort();
    }
}
