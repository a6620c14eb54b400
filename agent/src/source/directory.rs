//! Manifests of a directory or a file, watched with inotify and listed again periodically.
//!
//! An inotify event is a hint which files to read; a listing finds changes without events, such as those of a link's target.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::manifest::Strictness;
use api::pod::Pod;
use async_trait::async_trait;
use compact::Set;
use inotify::{Event, EventMask, EventStream, Inotify, WatchMask};
use tokio::time::Instant;
use tokio_stream::StreamExt;

use super::PodSource;
use super::files::{Changed, ManifestFiles, ManifestMode};
use super::merge::{
    DuplicatePod, DuplicatePolicy, SourceKind, SourcePods, new_duplicates, reject_duplicates,
    small_change,
};
use super::{Distinct, log_duplicates, log_updates};
use crate::clock::{Clock, SystemClock};
use tasks::{blocking, brief};

/// The default relist period of a watched directory.
const RELIST: Duration = Duration::from_secs(20);
/// Relist period without a watch.
const RELIST_UNWATCHED: Duration = Duration::from_secs(1);

/// The maximum number of events before one listing, so that a busy writer does not delay it endlessly.
const BURST: usize = 1000;
/// This many files are read without a noticeable delay.
const FEW: usize = 16;

/// See [`directory`].
pub struct DirectorySource {
    path: PathBuf,
    /// `None` while a cancelled listing still has them.
    files: Option<ManifestFiles>,
    mode: ManifestMode,
    clock: Arc<dyn Clock>,
    merged: SourcePods,
    /// The relist period while the directory is watched.
    period: Duration,
    /// The time of the next full listing; `None`: now.
    relist_at: Option<Instant>,
    /// The last set; `None` before the first.
    reported: Option<Arc<[Pod]>>,
    /// The names and uids of the last set, unless it had duplicates.
    distinct: Option<Distinct>,
    duplicates: Set<DuplicatePod>,
    watch: Option<EventStream<[u8; 4096]>>,
}

/// Creates a source of the `*.yaml`, `*.yml` and `*.json` files in `path`; an unknown field is an error.
#[must_use]
pub fn directory(path: PathBuf) -> DirectorySource {
    DirectorySource::new(path, ManifestMode::Crib(Strictness::Strict))
}

impl DirectorySource {
    /// Creates a source of the manifests at `path`, which is a directory or a file.
    #[must_use]
    pub fn new(path: PathBuf, mode: ManifestMode) -> Self {
        Self {
            path,
            files: None,
            mode,
            clock: Arc::new(SystemClock),
            merged: SourcePods::default(),
            period: RELIST,
            relist_at: None,
            reported: None,
            distinct: None,
            duplicates: Set::new(),
            watch: None,
        }
    }

    /// Sets the relist period.
    #[must_use]
    pub fn relisted_each(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Waits until the manifests may have changed.
    async fn wait_for_change(&mut self) -> Changed {
        let Some(relist_at) = self.relist_at else {
            return Changed::Unknown;
        };
        let Some(events) = &mut self.watch else {
            tokio::time::sleep(RELIST_UNWATCHED).await;
            return Changed::Unknown;
        };
        match tokio::time::timeout_at(relist_at, next_changes(events)).await {
            Ok(Some(changed)) => changed,
            Ok(None) => {
                self.watch = None;
                Changed::Unknown
            }
            Err(_) => Changed::Unknown,
        }
    }

    /// Lists the manifests. `None` if that failed.
    async fn list(&mut self, changed: Changed) -> Option<Vec<Pod>> {
        let mut files = self
            .files
            .take()
            .unwrap_or_else(|| ManifestFiles::new(self.path.clone(), self.mode.clone()));
        let now = self.clock.now();
        if changed == Changed::Unknown {
            self.relist_at = Some(Instant::now() + self.period);
        }
        let few = matches!(&changed, Changed::Names(names) if names.len() <= FEW);
        let work = move || {
            let listed = files.list(&changed, now);
            (files, listed)
        };
        let (files, listed) = if few { brief(work) } else { blocking(work).await };
        self.files = Some(files);
        match listed {
            Ok(pods) => Some(pods),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(path = %self.path.display(), error, "failed to list manifests; keeping the pods");
                None
            }
        }
    }

    /// The pods to run, from those in the manifests.
    fn accept(&mut self, pods: Vec<Pod>) -> Vec<Pod> {
        let (accepted, rejected) = match self.mode {
            ManifestMode::Crib(_) => {
                let before = self.reported.as_deref().unwrap_or_default();
                let distinct = self.distinct.take().zip(small_change(before, &pods));
                self.distinct = distinct.and_then(|(it, (old, new))| it.replaced(old, new));
                if self.distinct.is_some() {
                    return pods;
                }
                let (accepted, rejected) = reject_duplicates(pods, DuplicatePolicy::First);
                if rejected.is_empty() {
                    self.distinct = Distinct::of(&accepted);
                }
                (accepted, rejected)
            }
            ManifestMode::Kubelet { .. } => {
                let (updates, rejected) =
                    self.merged.merge(SourceKind::File, pods, self.clock.now());
                log_updates(&self.name(), &updates);
                (self.merged.pods(), rejected)
            }
        };
        log_duplicates(&new_duplicates(&mut self.duplicates, rejected));
        accepted
    }
}

/// Waits for events, and takes all that have arrived by then. `None`: the watch has ended, or has lost events.
pub(crate) async fn next_changes(events: &mut EventStream<[u8; 4096]>) -> Option<Changed> {
    let mut names = Set::new();
    let mut event = events.next().await;
    for taken in 1.. {
        names.insert(event.and_then(Result::ok).and_then(name_of)?);
        if taken == BURST {
            break;
        }
        // Takes all events that have arrived, so that a burst of changes leads to one listing.
        event = tokio::select! {
            biased;
            event = events.next() => event,
            () = std::future::ready(()) => break,
        };
    }
    // Kubernetes' volumes replace all their files at once through such a link.
    let all = names.iter().any(|name| name.as_bytes().starts_with(b".."));
    Some(if all { Changed::Unknown } else { Changed::Names(names) })
}

/// The file of an event. `None`: the event is about the directory itself, whose removal ends the watch, or reports that events were
/// lost.
fn name_of(event: Event<OsString>) -> Option<OsString> {
    let lost = event.mask.contains(EventMask::Q_OVERFLOW);
    event.name.filter(|_| !lost)
}

/// Watches a directory for files that were written, added or removed; for a file, the directory that it is in.
pub(crate) fn watch(path: &Path) -> io::Result<EventStream<[u8; 4096]>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    let directory = match path.parent() {
        Some(parent) if path.is_file() && parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) if path.is_file() => parent,
        Some(_) | None => path,
    };
    inotify.watches().add(directory, mask)?;
    inotify.into_event_stream([0; 4096])
}

#[async_trait]
impl PodSource for DirectorySource {
    fn name(&self) -> String {
        format!("directory {}", self.path.display())
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        loop {
            let changed = self.wait_for_change().await;
            if self.watch.is_none() {
                // Watch before reading, so that no change in between is missed.
                self.watch = watch(&self.path).ok();
            }
            let Some(pods) = self.list(changed).await else {
                continue;
            };
            let pods = self.accept(pods);
            if self.reported.as_deref() != Some(&pods) {
                let pods = Arc::<[Pod]>::from(pods);
                self.reported = Some(Arc::clone(&pods));
                return Some(pods);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;
    use crate::fixtures::{manifest, put};

    /// Waits for the source's next set and returns the pods' names.
    async fn next(source: &mut DirectorySource) -> Vec<String> {
        let pods = tokio::time::timeout(Duration::from_secs(60), source.next())
            .await
            .expect("no update of the source")
            .unwrap();
        pods.iter().map(|pod| pod.name().to_owned()).collect()
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

    #[tokio::test]
    async fn kubelet_mode_follows_a_single_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("only");
        fs::write(&path, manifest("a")).unwrap();
        let node_name = "n".to_owned();
        let mut source = DirectorySource::new(
            path.clone(),
            ManifestMode::Kubelet { node_name, may_refer: false },
        );
        assert_eq!(next(&mut source).await, ["a-n"]);
        put(dir.path(), "only", &manifest("b"));
        assert_eq!(next(&mut source).await, ["b-n"]);
        fs::remove_file(&path).unwrap();
        assert_eq!(next(&mut source).await, [""; 0]);
    }

    #[tokio::test]
    async fn second_manifest_of_a_name_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a.yaml", &manifest("twin"));
        put(dir.path(), "b.yaml", &manifest("twin"));
        let mut source = directory(dir.path().to_owned());
        assert_eq!(next(&mut source).await, ["twin"]);
        let rejected: Vec<String> = source.duplicates.iter().map(|twin| twin.to_string()).collect();
        let file = |name: &str| dir.path().join(name).display().to_string();
        assert_eq!(
            rejected,
            [format!(
                "{}: pod default/twin is also defined in {}, which is run instead",
                file("b.yaml"),
                file("a.yaml")
            )]
        );
        // The second pod is used once the first is removed.
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        assert_eq!(next(&mut source).await, ["twin"]);
    }
}
