//! Watches the directory of plugins' sockets (`plugins_registry`), and has plugins registered and deregistered.
//!
//! The watch is a hint: each event has the directories read again. A socket that was replaced is another one, so that a plugin which
//! was restarted is deregistered and registered again.
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
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::client::Plugin;
use crate::{PluginHandler, PluginInfo};

/// How often the directories are read without an event, and if they cannot be watched.
const RESCAN: Duration = Duration::from_secs(60);
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

/// The first delay before a plugin that was not registered is tried again, and the longest one. Each is twice the one before.
/// Kubernetes 1.36, pkg/util/goroutinemap/exponentialbackoff.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// How deep sockets may be in the directory: a loop of links does not hold the agent up.
const DEPTH: usize = 4;

/// What tells a socket from another one at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    made: (i64, i64),
}

/// What is known of a socket.
struct Socket {
    identity: Identity,
    state: State,
    /// How often its plugin was not registered.
    failures: u32,
}

enum State {
    /// Its plugin is being registered.
    Registering,
    Registered(Registered),
    /// Its registration is tried again then.
    Failed {
        retry_at: Instant,
    },
}

/// A plugin that is registered.
struct Registered {
    plugin: PluginInfo,
    handler: Arc<dyn PluginHandler>,
}

/// The result of a registration.
type Registration = (PathBuf, Identity, Result<Registered, String>);

/// Has plugins registered as long as their sockets are in a directory.
pub struct PluginWatcher {
    directory: PathBuf,
    handlers: Arc<[Arc<dyn PluginHandler>]>,
    sockets: Map<PathBuf, Socket>,
    /// The sockets, and those that were at their paths before, whose plugins are being registered.
    registering: Set<PathBuf>,
    registrations: JoinSet<Registration>,
}

impl PluginWatcher {
    /// A watcher of the directory, which is made. Plugins of other types than those of the handlers are refused.
    #[must_use]
    pub fn new(directory: PathBuf, handlers: Vec<Arc<dyn PluginHandler>>) -> Self {
        let (sockets, registering) = (Map::new(), Set::new());
        let (handlers, registrations) = (handlers.into(), JoinSet::new());
        Self { directory, handlers, sockets, registering, registrations }
    }

    /// Has plugins registered and deregistered, until the future is dropped.
    pub async fn run(mut self) {
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

    /// When a registration is tried again.
    fn retry_at(&self) -> Option<Instant> {
        let sockets = self.sockets.values();
        let retries = sockets.filter_map(|socket| match &socket.state {
            State::Failed { retry_at } => Some(*retry_at),
            State::Registering | State::Registered(_) => None,
        });
        retries.min()
    }

    /// Takes what sockets there are: deregisters plugins whose socket is gone, and registers those of new ones.
    async fn take(&mut self, found: Map<PathBuf, Identity>) {
        let is_there = |path: &PathBuf, socket: &Socket| found.get(path) == Some(&socket.identity);
        let gone: Vec<PathBuf> = self
            .sockets
            .iter()
            .filter(|(path, socket)| !is_there(path, socket))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            // One that is being registered is deregistered when that is over.
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
            // One at a time for each path: an earlier one is deregistered before the next one is registered.
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
    }

    /// Takes the result of a registration. If the socket has gone meanwhile, its plugin is deregistered.
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
    }
}

/// Asks a plugin what it is, has the handler of its type register it, and reports the result to it.
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
            // Whether it hears that or not, its registration is retried.
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
mod tests;
