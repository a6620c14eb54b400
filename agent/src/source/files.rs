//! Reads the manifests of a directory or a file, and rereads only changed ones.
//!
//! As in Kubernetes 1.36, pkg/kubelet/config/file.go: names that begin with a dot are ignored, entries that are neither files nor
//! links to files are skipped, and a missing path has no pods.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::generated_names::hash;
use api::manifest::static_pod::{self, Location, MAX_BYTES};
use api::manifest::{self, Strictness};
use api::pod::Pod;
use compact::Set;
use jiff::Timestamp;

/// A file that changed this recently may change again without a new time stamp.
const RACY: Duration = Duration::from_secs(2);

/// The maximum number of files of a directory. A kubelet has no limit; the content stays in memory, and every pod has a worker.
const MOST_FILES: usize = 10_000;

/// How manifests are decoded, and which files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestMode {
    /// Files `*.yaml`, `*.yml` and `*.json` with any number of pods. An invalid file keeps its last valid pods.
    Crib(Strictness),
    /// As a kubelet reads static pods: every file, one pod each. An invalid file of a directory has no pod from the next periodic
    /// listing on.
    Kubelet {
        /// The name of the node, which becomes part of the pods' names.
        node_name: String,
        /// Whether the pods may refer to API objects (gate PreventStaticPodAPIReferences).
        may_refer: bool,
    },
}

/// Why the manifests could not be listed. The pods of the last listing stay in force.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The path could not be read.
    #[error("failed to list manifests")]
    Io(#[from] io::Error),
    /// The path refers to a socket, a device or the like.
    #[error("path is not a directory or file")]
    NeitherDirectoryNorFile,
    /// There are too many files.
    #[error("the directory has more than {0} manifests: remove some")]
    TooMany(usize),
    /// The only file is invalid. The reason is in the log.
    #[error("manifest is invalid")]
    Invalid,
}

/// Which files may have changed since they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// All files whose time stamps have changed.
    Unknown,
    /// These files.
    Names(Set<OsString>),
}

/// The manifests of a directory or a file.
#[derive(Debug)]
pub struct ManifestFiles {
    path: PathBuf,
    mode: ManifestMode,
    known: BTreeMap<OsString, ManifestFile>,
    /// Whether the last listing failed: the next one checks all files.
    incomplete: bool,
    /// The number of files read so far.
    reads: usize,
    /// The maximum number of files of a directory.
    most: usize,
}

/// One file: its state when it was read, and its pods.
#[derive(Debug, Default)]
struct ManifestFile {
    stamp: Option<Stamp>,
    content: Content,
    pods: Vec<Pod>,
}

/// The result of reading a file.
#[derive(Debug, Default, PartialEq, Eq)]
enum Content {
    #[default]
    Nothing,
    Bytes(u128),
    Unreadable(String),
}

/// The properties that change with a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// `None` for a file that may still change within the resolution of its time stamps.
    pub(crate) fn of(file: &Metadata, now: Timestamp) -> Option<Self> {
        let changed = Timestamp::from_second(file.ctime()).ok()?;
        let age = Duration::try_from(now.duration_since(changed)).ok()?;
        (age > RACY).then_some(Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

impl ManifestFiles {
    /// The manifests at `path`, without reading any.
    #[must_use]
    pub fn new(path: PathBuf, mode: ManifestMode) -> Self {
        Self { path, mode, known: BTreeMap::new(), incomplete: false, reads: 0, most: MOST_FILES }
    }

    /// The directory or file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the manifests are decoded.
    #[must_use]
    pub fn mode(&self) -> &ManifestMode {
        &self.mode
    }

    /// Reads changed files and returns all pods, in the order of the files' names.
    pub fn list(&mut self, changed: &Changed, now: Timestamp) -> Result<Vec<Pod>, ListError> {
        let everything = std::mem::replace(&mut self.incomplete, true);
        let changed = if everything { &Changed::Unknown } else { changed };
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), "manifest path does not exist; treating it as empty");
                self.known.clear();
                self.incomplete = false;
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        if found.is_dir() {
            self.list_directory(changed, now)?;
        } else if found.is_file() {
            self.list_file(&found, now)?;
        } else {
            return Err(ListError::NeitherDirectoryNorFile);
        }
        self.incomplete = false;
        Ok(self.known.values().flat_map(|manifest| manifest.pods.iter().cloned()).collect())
    }

    /// The path is the only manifest.
    fn list_file(&mut self, found: &Metadata, now: Timestamp) -> Result<(), ListError> {
        let name = OsString::new();
        self.known.retain(|known, _| *known == name);
        let path = self.path.clone();
        self.refresh(&path, &name, Stamp::of(found, now), false);
        let only = self.known.get(&name);
        // A file without a pod is invalid, except one that its author emptied.
        match (&self.mode, only.is_some_and(|only| only.pods.is_empty())) {
            (ManifestMode::Kubelet { .. }, true) => Err(ListError::Invalid),
            (ManifestMode::Kubelet { .. } | ManifestMode::Crib(_), _) => Ok(()),
        }
    }

    fn list_directory(&mut self, changed: &Changed, now: Timestamp) -> Result<(), ListError> {
        let names = match changed {
            Changed::Unknown => {
                let names = self.names()?;
                self.known.retain(|name, _| names.contains(name));
                names
            }
            Changed::Names(names) => names.clone(),
        };
        // Before others are counted, those that are gone are forgotten.
        let mut files = Vec::new();
        for name in &names {
            if !self.is_manifest(name) {
                continue;
            }
            // Follows links: a link to a file is a manifest.
            match fs::metadata(self.path.join(name)) {
                Ok(found) if found.is_file() => files.push((name, Stamp::of(&found, now))),
                Ok(_) | Err(_) => {
                    self.known.remove(name);
                }
            }
        }
        let count = |known: &BTreeMap<OsString, ManifestFile>| {
            let added = files.iter().filter(|(name, _)| !known.contains_key(*name));
            known.len() + added.count()
        };
        if count(&self.known) > self.most {
            // The removal of others may not be known yet.
            let directory = &self.path;
            self.known.retain(|name, _| directory.join(name).is_file());
        }
        if count(&self.known) > self.most {
            return Err(ListError::TooMany(self.most));
        }
        let must = matches!(changed, Changed::Names(_));
        for (name, stamp) in files {
            self.refresh(&self.path.join(name), name, stamp, must);
        }
        Ok(())
    }

    /// The names of all manifests, and of links that may lead to one.
    fn names(&self) -> Result<Set<OsString>, ListError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            // Directories do not count.
            let is_directory = || entry.file_type().is_ok_and(|kind| kind.is_dir());
            if self.is_manifest(&name) && !is_directory() {
                names.push(name);
            }
            if names.len() > self.most {
                return Err(ListError::TooMany(self.most));
            }
        }
        Ok(names.into())
    }

    fn is_manifest(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let ends = |ending: &&str| name.ends_with(ending.as_bytes());
        match self.mode {
            _ if name.starts_with(b".") => false,
            ManifestMode::Crib(_) => [".yaml", ".yml", ".json"].iter().any(ends),
            ManifestMode::Kubelet { .. } => true,
        }
    }

    /// Reads a file, unless its stamp is unchanged; `must`: an event reported a change.
    fn refresh(&mut self, path: &Path, name: &OsStr, stamp: Option<Stamp>, must: bool) {
        let manifest = self.known.entry(name.to_owned()).or_default();
        if !must && stamp.is_some() && manifest.stamp == stamp {
            return;
        }
        self.reads += 1;
        manifest.stamp = stamp;
        let (content, bytes) = match read(path) {
            Ok(bytes) => (Content::Bytes(hash(&bytes)), bytes),
            Err(error) => (Content::Unreadable(error.to_string()), Vec::new()),
        };
        if manifest.content != content {
            match &self.mode {
                ManifestMode::Crib(strictness) => {
                    manifest.take_author(path, &content, bytes, *strictness);
                }
                ManifestMode::Kubelet { node_name, may_refer } => {
                    let before = manifest.pods.clone();
                    let taken = manifest.take_static(
                        path,
                        &content,
                        &bytes,
                        (node_name.as_str(), *may_refer),
                    );
                    if taken && must && manifest.keep_renamed(before) {
                        return;
                    }
                    if !taken && must {
                        // A kubelet ignores such an event (consumeWatchEvent): its next listing ends the pod.
                        manifest.stamp = None;
                        return;
                    }
                    if !taken {
                        manifest.pods.clear();
                    }
                }
            }
            manifest.content = content;
        }
    }
}

impl ManifestFile {
    /// Applies new content, unless it is invalid.
    fn take_author(
        &mut self,
        path: &Path,
        content: &Content,
        bytes: Vec<u8>,
        strictness: Strictness,
    ) {
        let text = match content {
            Content::Unreadable(error) => Err(error.clone()),
            Content::Nothing | Content::Bytes(_) => {
                String::from_utf8(bytes).map_err(|_| "the file is not valid UTF-8".to_owned())
            }
        };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "failed to read manifest; keeping its pods");
                return;
            }
        };
        let parsed = manifest::parse(&path.display().to_string(), &text, strictness);
        for warning in &parsed.warnings {
            tracing::warn!("{warning}");
        }
        for problem in &parsed.problems {
            tracing::error!("{problem}");
        }
        for object in &parsed.objects {
            tracing::error!(path = %path.display(), object = object.full_name(), "ignored object: a pod source accepts only pods; use --objects");
        }
        for workload in &parsed.workloads {
            tracing::error!(path = %path.display(), object = workload.full_name(), "ignored object: a pod source accepts only pods; run it with crib run");
        }
        for other in &parsed.skipped {
            tracing::error!(path = %path.display(), kind = other.kind, name = other.name, "ignored object: a pod source accepts only pods; run it with crib run");
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

    /// Keeps the pods that had another name before an event: a kubelet stores its pods by name, and only its next listing ends the
    /// old ones. Returns whether there are any.
    fn keep_renamed(&mut self, before: Vec<Pod>) -> bool {
        let named: Vec<String> = self.pods.iter().map(Pod::full_name).collect();
        let renamed = before.into_iter();
        let renamed: Vec<Pod> = renamed.filter(|pod| !named.contains(&pod.full_name())).collect();
        let keeps = !renamed.is_empty();
        if keeps {
            self.pods.extend(renamed);
            // The next listing reads the file again.
            (self.stamp, self.content) = (None, Content::Nothing);
        }
        keeps
    }

    /// Applies new content, if it is valid.
    fn take_static(
        &mut self,
        path: &Path,
        content: &Content,
        bytes: &[u8],
        (node_name, may_refer): (&str, bool),
    ) -> bool {
        if let Content::Unreadable(error) = content {
            tracing::error!(path = %path.display(), %error, "failed to read manifest");
            return false;
        }
        let origin = path.display().to_string();
        match static_pod::supported_pod(Location::File(&origin), node_name, may_refer, bytes) {
            Ok(pod) => self.pods = vec![Pod::new(pod).with_origin(&origin)],
            Err(rejected) => {
                tracing::error!(path = %origin, "manifest is rejected: {rejected}");
                return false;
            }
        }
        true
    }
}

/// Reads a file up to the maximum size of a manifest.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() >= MAX_BYTES {
        return Err(io::Error::other("the file has 10 MiB or more"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
