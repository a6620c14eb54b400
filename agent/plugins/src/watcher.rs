//! Watches the directory of plugins' sockets (`plugins_registry`), and registers and deregisters plugins.
//!
//! The watch is only a hint: each event triggers a scan of the directories. A replaced socket counts as a new one, so that a
//! restarted plugin is deregistered and registered again.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/pluginmanager.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use compact::{Map, Set};
use inotify::{EventStream, Inotify, WatchMask};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::client::Plugin;
use crate::{PluginHandler, PluginInfo};

/// The scan intervals without events: with a watch, and if the directories cannot be watched.
const RESCAN: Duration = Duration::from_secs(60);
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

/// The first delay before a failed registration is retried, and the maximum. The delay doubles each time (Kubernetes 1.36,
/// pkg/util/goroutinemap/exponentialbackoff).
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// The maximum depth of subdirectories, which bounds loops of symbolic links.
const DEPTH: usize = 4;

/// Identifies a socket, so that a replacement at the same path is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    modified_at: (i64, i64),
}

/// The state of a socket.
struct Socket {
    identity: Identity,
    state: State,
    /// The number of failed registrations.
    failures: u32,
}

enum State {
    /// The registration is in progress.
    Registering,
    Registered(Registered),
    /// The registration failed, and is retried at this time.
    Failed {
        retry_at: Instant,
    },
}

/// A registered plugin.
struct Registered {
    plugin: PluginInfo,
    handler: Arc<dyn PluginHandler>,
}

/// The result of a registration.
type Registration = (PathBuf, Identity, Result<Registered, String>);

/// Registers plugins while their sockets are in a directory.
pub struct PluginWatcher {
    directory: PathBuf,
    handlers: Arc<[Arc<dyn PluginHandler>]>,
    sockets: Map<PathBuf, Socket>,
    /// The paths with a registration in progress, including registrations of sockets that were replaced meanwhile.
    registering: Set<PathBuf>,
    registrations: JoinSet<Registration>,
    states: watch::Sender<PluginSockets>,
}

/// The sockets of plugins, and whether the plugin of each is registered.
pub type PluginSockets = Vec<(PathBuf, bool)>;

impl PluginWatcher {
    /// Creates a watcher of the directory, which [`Self::run`] creates. Plugins without a handler for their type are rejected.
    #[must_use]
    pub fn new(directory: PathBuf, handlers: Vec<Arc<dyn PluginHandler>>) -> Self {
        let (sockets, registering) = (Map::new(), Set::new());
        let (handlers, registrations) = (handlers.into(), JoinSet::new());
        let states = watch::Sender::default();
        Self { directory, handlers, sockets, registering, registrations, states }
    }

    /// The sockets found so far, and later changes.
    #[must_use]
    pub fn sockets(&self) -> watch::Receiver<PluginSockets> {
        self.states.subscribe()
    }

    fn publish(&self) {
        let sockets = self.sockets.iter();
        let states = sockets
            .map(|(path, socket)| (path.clone(), matches!(socket.state, State::Registered(_))));
        self.states.send_replace(states.collect());
    }

    /// Registers and deregisters plugins until the future is dropped.
    pub async fn run(mut self) {
        if let Err(error) = fs::create_dir_all(&self.directory) {
            tracing::warn!(path = %self.directory.display(), %error, "failed to create the plugin directory; will retry");
        }
        let mut watch = None;
        let mut watched = Set::new();
        loop {
            let (sockets, directories) = scan(&self.directory);
            if watch.is_none() || directories != watched {
                watch = watch_all(&directories)
                    .inspect_err(|error| {
                        let path = self.directory.display();
                        tracing::warn!(%path, %error, "failed to watch the plugin directory; polling it every second");
                    })
                    .ok();
                watched = directories;
                // Scan again: sockets may have appeared between the first scan and the watch.
                let (again, directories) = scan(&self.directory);
                self.update(again).await;
                if directories != watched {
                    continue;
                }
            } else {
                self.update(sockets).await;
            }
            let now = Instant::now();
            let rescan_at = now + if watch.is_some() { RESCAN } else { RESCAN_UNWATCHED };
            let wake_at = self.retry_at().map_or(rescan_at, |at| at.min(rescan_at));
            tokio::select! {
                () = tokio::time::sleep_until(wake_at) => {}
                Some(ended) = self.registrations.join_next() => if let Some(done) = tasks::output(ended) {
                    self.registered(done).await;
                },
                event = next(&mut watch) => if event.is_none() {
                    watch = None;
                }
            }
        }
    }

    /// The time of the next retry.
    fn retry_at(&self) -> Option<Instant> {
        let sockets = self.sockets.values();
        let retries = sockets.filter_map(|socket| match &socket.state {
            State::Failed { retry_at } => Some(*retry_at),
            State::Registering | State::Registered(_) => None,
        });
        retries.min()
    }

    /// Compares the sockets with the known ones: deregisters plugins whose socket is gone, and registers those of new sockets.
    async fn update(&mut self, found: Map<PathBuf, Identity>) {
        let is_there = |path: &PathBuf, socket: &Socket| found.get(path) == Some(&socket.identity);
        let removed: Vec<PathBuf> = self
            .sockets
            .iter()
            .filter(|(path, socket)| !is_there(path, socket))
            .map(|(path, _)| path.clone())
            .collect();
        for path in removed {
            // If a registration is in progress, its completion deregisters the plugin.
            if let Some(Socket { state: State::Registered(registered), .. }) =
                self.sockets.remove(&path)
            {
                registered.handler.deregister(&registered.plugin).await;
            }
        }
        let now = Instant::now();
        for (path, identity) in found {
            let known = self.sockets.get(&path);
            let is_due = match known.map(|socket| &socket.state) {
                None => true,
                Some(State::Failed { retry_at }) => *retry_at <= now,
                Some(State::Registering | State::Registered(_)) => false,
            };
            // One registration per path at a time: an earlier plugin is deregistered before the next one is registered.
            if !is_due || self.registering.contains(&path) {
                continue;
            }
            let failures = known.map_or(0, |socket| socket.failures);
            let socket = Socket { identity, state: State::Registering, failures };
            self.sockets.insert(path.clone(), socket);
            self.registering.insert(path.clone());
            let handlers = Arc::clone(&self.handlers);
            self.registrations.spawn(tasks::boxed(async move {
                let registered = register(&path, &handlers).await;
                (path, identity, registered)
            }));
        }
        self.publish();
    }

    /// Records the result of a registration. If the socket is gone or was replaced meanwhile, deregisters the plugin.
    async fn registered(&mut self, done: Registration) {
        let (path, identity, registered) = done;
        self.registering.remove(&path);
        let current = self.sockets.get_mut(&path).filter(|socket| socket.identity == identity);
        match (current, registered) {
            (Some(socket), Ok(registered)) => socket.state = State::Registered(registered),
            (Some(socket), Err(error)) => {
                tracing::warn!(socket = %path.display(), error, "failed to register plugin; will retry");
                let wait = RETRY.saturating_mul(2_u32.saturating_pow(socket.failures));
                socket.failures += 1;
                socket.state = State::Failed { retry_at: Instant::now() + wait.min(RETRY_MAX) };
            }
            (None, Ok(registered)) => registered.handler.deregister(&registered.plugin).await,
            (None, Err(_)) => {}
        }
        self.publish();
    }
}

/// Gets a plugin's information, registers it with the handler of its type, and notifies it of the result.
async fn register(
    socket: &Path,
    handlers: &[Arc<dyn PluginHandler>],
) -> Result<Registered, String> {
    let mut client = Plugin::connect(socket).await.map_err(|error| error.to_string())?;
    let plugin =
        client.info().await.map_err(|error| format!("failed to get plugin info: {error}"))?;
    let registered = match handlers.iter().find(|handler| handler.kind() == plugin.kind) {
        Some(handler) => add(handler.as_ref(), &plugin).await.map(|()| handler),
        None => Err(format!(
            "no handler registered for plugin type: {} at socket {}",
            plugin.kind,
            socket.display()
        )),
    };
    match registered {
        Ok(handler) => {
            if let Err(error) = client.notify(Ok(())).await {
                handler.deregister(&plugin).await;
                return Err(format!("failed to send registration status: {error}"));
            }
            Ok(Registered { plugin, handler: Arc::clone(handler) })
        }
        Err(problem) => {
            // The registration is retried even if the notification fails.
            let _ = client.notify(Err(&format!("RegisterPlugin error -- {problem}"))).await;
            Err(problem)
        }
    }
}

async fn add(handler: &dyn PluginHandler, plugin: &PluginInfo) -> Result<(), String> {
    handler
        .validate(plugin)
        .map_err(|problem| format!("plugin validation failed with err: {problem}"))?;
    let registered = handler.register(plugin).await;
    registered.map_err(|problem| format!("plugin registration failed with err: {problem}"))
}

/// The sockets in a directory and its subdirectories, and these directories. Unreadable directories are skipped.
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
                let modified_at = (found.mtime(), found.mtime_nsec());
                sockets.insert(entry.path(), Identity { inode: found.ino(), modified_at });
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

/// Waits for an event; `None` if the stream has ended or failed. Without a watch it never returns. Cancel-safe.
async fn next(watch: &mut Option<EventStream<[u8; 4096]>>) -> Option<()> {
    match watch {
        Some(events) => events.next().await?.ok().map(drop),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
