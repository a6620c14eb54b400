//! Watches the directory of plugins' sockets (`plugins_registry`), and registers and forgets the drivers that they announce.
//!
//! The watch is a hint: each event has the directories read again. A socket that was replaced is another one, so that a driver which
//! was restarted is forgotten and registered again.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/pluginmanager; pkg/volume/csi/csi_plugin.go RegisterPlugin, DeRegisterPlugin.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use compact::{Map, Set};
use inotify::{EventStream, Inotify, WatchMask};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::cluster::VolumeCluster;
use crate::grpc::{Driver, Plugin};
use crate::registry::Registry;
use crate::version::accept;

/// How often the directories are read without an event, and if they cannot be watched.
const RESCAN: Duration = Duration::from_secs(60);
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

/// The first delay before a plugin that was not registered is tried again, and the longest one. Each is twice the one before.
/// Kubernetes 1.36, pkg/util/goroutinemap/exponentialbackoff.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// How deep sockets may be in the directory: a loop of links does not hold the agent up.
const DEPTH: usize = 4;

/// The kind of plugins that are drivers of volumes. Others are left to who knows them.
const KIND: &str = "CSIPlugin";

/// What tells a socket from another one at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    made: (i64, i64),
}

/// What is known of a socket.
#[derive(Debug)]
struct Socket {
    identity: Identity,
    state: State,
    /// How often its plugin was not registered.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its plugin is being asked.
    Asked,
    /// Its driver is registered, or it is no driver.
    Settled,
    /// It is asked again then.
    Failed { retry_at: Instant },
}

/// What came of asking a plugin.
type Registration = (PathBuf, Identity, Result<(), String>);

/// Keeps the registry as the sockets in a directory are.
pub(crate) struct Plugins {
    directory: PathBuf,
    registry: Arc<Registry>,
    cluster: Arc<dyn VolumeCluster>,
    sockets: Map<PathBuf, Socket>,
    /// The sockets, and those that were at their paths before, whose plugins are being asked.
    asked: Set<PathBuf>,
    registrations: JoinSet<Registration>,
}

impl Plugins {
    pub(crate) fn new(
        directory: PathBuf,
        registry: Arc<Registry>,
        cluster: Arc<dyn VolumeCluster>,
    ) -> Self {
        let (sockets, asked) = (Map::new(), Set::new());
        Self { directory, registry, cluster, sockets, asked, registrations: JoinSet::new() }
    }

    /// Registers and forgets drivers, for ever.
    pub(crate) async fn run(mut self) {
        if let Err(error) = fs::create_dir_all(&self.directory) {
            tracing::warn!(path = %self.directory.display(), %error, "failed to create the directory of plugins; will retry");
        }
        let mut watch = None;
        let mut watched = Set::new();
        loop {
            let (sockets, directories) = scan(&self.directory);
            if watch.is_none() || directories != watched {
                watch = watch_all(&directories)
                    .inspect_err(|error| {
                        let path = self.directory.display();
                        tracing::warn!(%path, %error, "failed to watch the directory of plugins; it is read each second");
                    })
                    .ok();
                watched = directories;
                // What came between the reading and the watch is seen now.
                let (again, directories) = scan(&self.directory);
                self.take(again).await;
                if directories != watched {
                    continue;
                }
            } else {
                self.take(sockets).await;
            }
            let now = Instant::now();
            let rescan_at = now + if watch.is_some() { RESCAN } else { RESCAN_UNWATCHED };
            let wake_at = self.retry_at().map_or(rescan_at, |at| at.min(rescan_at));
            tokio::select! {
                () = tokio::time::sleep_until(wake_at) => {}
                Some(Ok(done)) = self.registrations.join_next() => self.registered(done).await,
                event = next(&mut watch) => if event.is_none() {
                    watch = None;
                }
            }
        }
    }

    /// When a plugin is asked again.
    fn retry_at(&self) -> Option<Instant> {
        let states = self.sockets.values().map(|socket| socket.state);
        let retries = states.filter_map(|state| match state {
            State::Failed { retry_at } => Some(retry_at),
            State::Asked | State::Settled => None,
        });
        retries.min()
    }

    /// Takes what sockets there are: forgets drivers whose socket is gone, and asks the plugins of new ones.
    async fn take(&mut self, found: Map<PathBuf, Identity>) {
        let is_there = |path: &PathBuf, socket: &Socket| found.get(path) == Some(&socket.identity);
        let gone: Vec<PathBuf> = self
            .sockets
            .iter()
            .filter(|(path, socket)| !is_there(path, socket))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.sockets.remove(&path);
            self.forget(&path).await;
        }
        let now = Instant::now();
        for (path, identity) in found {
            let known = self.sockets.get(&path);
            let is_due = match known.map(|socket| socket.state) {
                None => true,
                Some(State::Failed { retry_at }) => retry_at <= now,
                Some(State::Asked | State::Settled) => false,
            };
            // One at a time for each path: what an earlier one adds is forgotten before the next one is asked.
            if !is_due || self.asked.contains(&path) {
                continue;
            }
            let failures = known.map_or(0, |socket| socket.failures);
            let socket = Socket { identity, state: State::Asked, failures };
            self.sockets.insert(path.clone(), socket);
            self.asked.insert(path.clone());
            let (registry, cluster) = (Arc::clone(&self.registry), Arc::clone(&self.cluster));
            self.registrations.spawn(tasks::boxed(async move {
                let registered = register(&path, &registry, cluster.as_ref()).await;
                (path, identity, registered)
            }));
        }
    }

    /// Takes what came of asking a plugin. If its socket has gone meanwhile, its driver is forgotten.
    async fn registered(&mut self, done: Registration) {
        let (path, identity, registered) = done;
        self.asked.remove(&path);
        let current = self.sockets.get_mut(&path).filter(|socket| socket.identity == identity);
        let Some(socket) = current else {
            self.forget(&path).await;
            return;
        };
        match registered {
            Ok(()) => socket.state = State::Settled,
            Err(error) => {
                tracing::warn!(socket = %path.display(), %error, "failed to register plugin; will retry");
                let wait = RETRY.saturating_mul(2_u32.saturating_pow(socket.failures));
                socket.failures += 1;
                socket.state = State::Failed { retry_at: Instant::now() + wait.min(RETRY_MAX) };
            }
        }
    }

    /// Forgets the driver that a socket has announced, if there is one.
    async fn forget(&self, socket: &Path) {
        let Some(driver) = self.registry.remove(socket) else {
            return;
        };
        tracing::info!(driver, socket = %socket.display(), "driver is gone");
        if let Err(error) = self.cluster.uninstall(&driver).await {
            tracing::warn!(driver, error, "failed to show that the node does not have the driver");
        }
    }
}

/// Asks a plugin what it is, and registers it if it is a driver of volumes.
async fn register(
    socket: &Path,
    registry: &Registry,
    cluster: &dyn VolumeCluster,
) -> Result<(), String> {
    let mut plugin = Plugin::connect(socket).await.map_err(|error| error.to_string())?;
    let info =
        plugin.info().await.map_err(|error| format!("failed to get plugin info: {error}"))?;
    if info.kind != KIND {
        tracing::info!(socket = %socket.display(), kind = info.kind, "plugin is no driver of volumes");
        return Ok(());
    }
    let registered =
        add(socket, &info.name, &info.endpoint, &info.versions, registry, cluster).await;
    if let Err(problem) = registered {
        registry.remove(socket);
        let told =
            format!("RegisterPlugin error -- plugin registration failed with err: {problem}");
        // It is asked again anyway.
        let _ = plugin.notify(Err(&told)).await;
        return Err(problem);
    }
    if let Err(error) = plugin.notify(Ok(())).await {
        if let Some(driver) = registry.remove(socket) {
            let _ = cluster.uninstall(&driver).await;
        }
        return Err(format!("failed to send registration status: {error}"));
    }
    tracing::info!(driver = info.name, endpoint = %info.endpoint.display(), "registered driver");
    registry.announce();
    Ok(())
}

async fn add(
    socket: &Path,
    name: &str,
    endpoint: &Path,
    versions: &[String],
    registry: &Registry,
    cluster: &dyn VolumeCluster,
) -> Result<(), String> {
    let version = accept(name, versions, registry.version(name))?;
    registry.add(name, endpoint, socket, version);
    let node = Driver::at(endpoint.to_owned()).node(name).await;
    let node = node.map_err(|error| error.to_string())?;
    if node.node_id.is_empty() {
        return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
    }
    cluster.install(&node).await
}

/// The sockets in a directory and those below it, and these directories. What cannot be read has none.
fn scan(root: &Path) -> (Map<PathBuf, Identity>, Set<PathBuf>) {
    let (mut sockets, mut directories) = (Map::new(), Set::new());
    let mut next = vec![(root.to_owned(), 0)];
    while let Some((directory, depth)) = next.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        directories.insert(directory);
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Ok(found) = fs::metadata(entry.path()) else {
                continue;
            };
            if found.is_dir() && depth < DEPTH {
                next.push((entry.path(), depth + 1));
            } else if found.file_type().is_socket() {
                let made = (found.mtime(), found.mtime_nsec());
                sockets.insert(entry.path(), Identity { inode: found.ino(), made });
            }
        }
    }
    (sockets, directories)
}

fn watch_all(directories: &Set<PathBuf>) -> io::Result<EventStream<[u8; 4096]>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    for directory in directories {
        inotify.watches().add(directory, mask)?;
    }
    if directories.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    inotify.into_event_stream([0; 4096])
}

/// Waits for an event; `None`: there will be no other. Without a watch it never returns. Cancel-safe.
async fn next(watch: &mut Option<EventStream<[u8; 4096]>>) -> Option<()> {
    match watch {
        Some(events) => events.next().await?.ok().map(drop),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_below_the_directory_and_told_from_their_successors() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("below")).unwrap();
        fs::write(at("file.sock"), "").unwrap();
        let _hidden = UnixListener::bind(at(".hidden.sock")).unwrap();
        let _below = UnixListener::bind(at("below/b.sock")).unwrap();
        let first = UnixListener::bind(at("a.sock")).unwrap();
        let (sockets, directories) = scan(root.path());
        assert_eq!(directories, Set::from([root.path().to_owned(), at("below")]));
        assert_eq!(sockets.keys().cloned().collect::<Vec<_>>(), [at("a.sock"), at("below/b.sock")]);
        drop(first);
        fs::remove_file(at("a.sock")).unwrap();
        let _second = UnixListener::bind(at("a.sock")).unwrap();
        let (again, _) = scan(root.path());
        assert_ne!(again[&at("a.sock")], sockets[&at("a.sock")]);
        assert_eq!(again[&at("below/b.sock")], sockets[&at("below/b.sock")]);
        let (none, directories) = scan(&at("none"));
        assert!(none.is_empty() && directories.is_empty());
    }
}
