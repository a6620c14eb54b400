//! Keeps the connection to a pod's keeper as long as the pod runs, and reconnects after a failure or a restart.
//!
//! ```text
//! (spawned) ──▶ connected ──connection fails──▶ looking ──connected──▶ asking ──State──▶ connected
//! (recovered) ─────────────────────────────────▶ │  ▲                    │
//!                                                │  └──connection fails──┘
//!                                                └──the keeper has ended──▶ lost
//! ```
//!
//! A keeper is lost only if it has certainly ended: nothing listens on its socket, and its lock is free. Any other failure (a
//! full queue, no descriptors, no permission, no answer) is retried; meanwhile its pod is reported as not ready and not changed.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use keeper::contract::liveness::{self, Liveness};
use keeper::contract::orphan;
use keeper::contract::protocol::{Call, ContainerState as Seen, Event, Outcome, VERSION};
use keeper::kernel::failure::{FailureKind, plain};
use tokio::sync::{mpsc, oneshot};

use super::{
    Error, blocking,
    cleanup::{destroy_cgroups, mark_lost},
    pods::{Pod, Pods},
};
use crate::{
    container::{ContainerEvent, ContainerState},
    id::{ContainerId, SandboxId},
    keeper_client::{KeeperClient, Notification, connect, listen},
    store::{Change, Store},
};

/// The first and the longest delay between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// Failed attempts before a ready pod is reported as not ready: a keeper that ends closes its connection first.
const UNREPORTED_ATTEMPTS: u32 = 6;

/// The outcome of an attempt to reach a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeeperRecovery {
    /// The keeper runs, and the store has its state.
    Adopted,
    /// The keeper has ended, and the store records that.
    Ended,
}

/// The connection to one pod's keeper.
pub(super) struct KeeperLink {
    pub(super) id: SandboxId,
    pub(super) directory: PathBuf,
    pub(super) store: Store,
    pub(super) pods: Arc<Pods>,
}

type Notifications = mpsc::UnboundedReceiver<Notification>;

impl Pods {
    /// Starts a keeper for a sandbox whose directory exists.
    pub(crate) async fn spawn(
        self: &Arc<Self>,
        id: &SandboxId,
        directory: &Path,
        store: &Store,
    ) -> Result<Arc<Pod>, Error> {
        let fail = super::io("start the pod's keeper");
        let listener: OwnedFd = listen(directory).map_err(&fail)?.into();
        // Connect before the keeper listens: the answer to the first call confirms that it does.
        let stream = connect(directory).map_err(&fail)?;
        let (lock, log) = liveness::files(directory).map_err(&fail)?;
        let streams = [listener, lock.into(), log.into()];
        let pid = self.zygote().spawn(streams).await?;
        liveness::note(directory, pid).map_err(&fail)?;
        let (notify, notifications) = mpsc::unbounded_channel();
        let keeper = KeeperClient::start(stream, notify, self.deadlines()).map_err(fail)?;
        let pod = Arc::new(Pod::new(keeper));
        self.insert(id, pod.clone());
        tasks::spawn(self.keeper_link(id, directory, store).follow(notifications));
        Ok(pod)
    }

    /// Looks for an earlier daemon's keeper, retrying as long as needed.
    pub(crate) fn recover(
        self: &Arc<Self>,
        id: &SandboxId,
        directory: &Path,
        store: &Store,
    ) -> oneshot::Receiver<KeeperRecovery> {
        let (found, outcome) = oneshot::channel();
        tasks::spawn(self.keeper_link(id, directory, store).recover(found));
        outcome
    }

    fn keeper_link(
        self: &Arc<Self>,
        id: &SandboxId,
        directory: &Path,
        store: &Store,
    ) -> KeeperLink {
        KeeperLink {
            id: id.clone(),
            directory: directory.to_owned(),
            store: store.clone(),
            pods: self.clone(),
        }
    }
}

impl KeeperLink {
    /// Follows a keeper that was just started, until it has ended.
    pub(super) async fn follow(self, mut notifications: Notifications) {
        loop {
            self.apply_notifications(&mut notifications).await;
            self.pods.forget(&self.id);
            match self.reconnect(UNREPORTED_ATTEMPTS).await {
                Some(found) => notifications = found,
                None => return,
            }
        }
    }

    /// Looks for an earlier daemon's keeper and follows it. `found` receives the outcome.
    pub(super) async fn recover(self, found: oneshot::Sender<KeeperRecovery>) {
        // Not ready until the keeper has answered. Recorded here, so that it cannot overwrite the answer.
        let why = Err("it has not answered yet".to_owned());
        let change = Change::Keeper(self.id.clone(), why);
        let _ = self.store.apply(change).await;
        let notifications = self.reconnect(0).await;
        let outcome = match notifications {
            Some(_) => KeeperRecovery::Adopted,
            None => KeeperRecovery::Ended,
        };
        // The waiting task may have given up.
        let _ = found.send(outcome);
        if let Some(notifications) = notifications {
            self.follow(notifications).await;
        }
    }

    /// Applies a keeper's notifications to the store until the connection ends.
    async fn apply_notifications(&self, notifications: &mut Notifications) {
        while let Some(notification) = notifications.recv().await {
            match notification {
                Notification::Event(Event::Exited { container, exit }) => {
                    let id = ContainerId::from_record(&container);
                    let change = Change::Container(id, ContainerEvent::Exited(exit));
                    // The container may have been removed meanwhile.
                    let _ = self.store.apply(change).await;
                }
                Notification::Event(Event::ExecExited { .. }) => {}
                Notification::Started { container, at, pid } => {
                    if let Some(pid) = pid {
                        let of_container =
                            self.directory.join("containers").join(container.as_str());
                        let _ = orphan::note(&of_container, pid);
                    }
                    let change = Change::Container(container, ContainerEvent::Started(at));
                    let _ = self.store.apply(change).await;
                }
                Notification::Disconnected(why) => {
                    tracing::debug!(sandbox = self.id.short(), why, "keeper connection closed");
                    return;
                }
            }
        }
    }

    /// Connects to the keeper and brings the store up to date; `None` if the keeper has ended. The first `unreported`
    /// failed attempts are not reported.
    async fn reconnect(&self, unreported: u32) -> Option<Notifications> {
        let (mut pause, longest) = PAUSES;
        for attempt in 0.. {
            let directory = self.directory.clone();
            let why = match blocking(move || try_connect(&directory)).await {
                ConnectOutcome::Ended => {
                    destroy_cgroups(&self.id, &self.store).await;
                    mark_lost(&self.id, &self.directory, &self.store).await;
                    return None;
                }
                ConnectOutcome::Failed(why) => why,
                ConnectOutcome::Connected(stream) => match self.adopt(stream).await {
                    Ok(notifications) => {
                        self.record_reachability(Ok(())).await;
                        return Some(notifications);
                    }
                    Err(why) => why,
                },
            };
            if attempt >= unreported {
                self.record_reachability(Err(why)).await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        None
    }

    async fn record_reachability(&self, reached: Result<(), String>) {
        if let Err(why) = &reached {
            tracing::warn!(sandbox = self.id.short(), why, "failed to reach keeper");
        }
        let _ = self.store.apply(Change::Keeper(self.id.clone(), reached)).await;
    }

    /// Requests the state of the keeper at the other end of `stream`, and applies it to the store.
    async fn adopt(&self, stream: std::os::unix::net::UnixStream) -> Result<Notifications, String> {
        // Take the state first: containers created later belong to the new connection.
        let state = self.store.state();
        let (notify, notifications) = mpsc::unbounded_channel();
        let keeper = KeeperClient::start(stream, notify, self.pods.deadlines())
            .map_err(|error| plain(&error))?;
        let containers = loop {
            match keeper.call(Call::State).await {
                Ok(Outcome::State { version, .. }) if version > VERSION => {
                    return Err(format!(
                        "it speaks version {version} of the keeper's protocol, and this runtime knows versions up to \
                         {VERSION}: use a newer runtime"
                    ));
                }
                Ok(Outcome::State { containers, .. }) => break containers,
                Ok(other) => return Err(format!("it gave an unexpected answer: {other:?}")),
                // It may be stopped. Keep waiting on this connection: another one would not be faster.
                Err(failure) if failure.kind == FailureKind::Silent => {
                    self.record_reachability(Err("it does not answer".to_owned())).await;
                }
                Err(failure) => return Err(failure.to_string()),
            }
        };
        for container in state.containers_of(&self.id).filter(|c| !c.ended()) {
            let seen = containers.iter().find(|seen| seen.container == container.id.as_str());
            for change in changes(&container.id, container.state, seen) {
                let _ = self.store.apply(change).await;
            }
        }
        // No client has received the ID of a container that was being created.
        let known_to_client = |id: &str| {
            let known = state.containers.get(id);
            known.is_some_and(|c| c.state != ContainerState::Creating)
        };
        for seen in containers.iter().filter(|c| !known_to_client(&c.container)) {
            let container = seen.container.clone();
            let _ = keeper.call(Call::Forget { container }).await;
        }
        self.pods.insert(&self.id, Arc::new(Pod::new(keeper)));
        Ok(notifications)
    }
}

/// The outcome of an attempt to connect.
enum ConnectOutcome {
    Connected(std::os::unix::net::UnixStream),
    /// The keeper has certainly ended.
    Ended,
    Failed(String),
}

fn try_connect(directory: &Path) -> ConnectOutcome {
    match connect(directory) {
        Ok(stream) => ConnectOutcome::Connected(stream),
        Err(error) => classify_failure(&error, liveness::of(directory)),
    }
}

/// Classifies a failed connection: the keeper has ended only if both the error and its lock prove it.
fn classify_failure(error: &io::Error, liveness: Liveness) -> ConnectOutcome {
    let nothing_listens =
        matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
    let why = format!("failed to connect to its socket: {}", plain(error));
    match liveness {
        Liveness::Ended if nothing_listens => ConnectOutcome::Ended,
        Liveness::Ended | Liveness::Running(_) => ConnectOutcome::Failed(why),
        Liveness::Unknown(more) => ConnectOutcome::Failed(format!("{why}; {more}")),
    }
}

/// The changes to a container since its record was written.
fn changes(id: &ContainerId, recorded: ContainerState, seen: Option<&Seen>) -> Vec<Change> {
    let event = |event| Change::Container(id.clone(), event);
    match (recorded, seen) {
        // No client has received its ID.
        (ContainerState::Creating, _) => vec![Change::RemoveContainer(id.clone())],
        (_, Some(Seen { exit: Some(exit), .. })) => {
            vec![event(ContainerEvent::Exited(exit.clone()))]
        }
        (ContainerState::Created, Some(Seen { started: Some(at), .. })) => {
            vec![event(ContainerEvent::Started(*at))]
        }
        (_, Some(_)) => Vec::new(),
        (_, None) => vec![event(ContainerEvent::Lost(Timestamp::now()))],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
    };

    use rstest::rstest;

    use super::*;
    use crate::{keeper_client::Deadlines, runtime::Program, store, store::State};

    /// Keepers' answers to the first call, [`Call::State`], by protocol version. Add new versions; never remove one.
    const BEFORE_VERSIONS: &str = r#"{"reply":{"number":1,"descriptors":0,"result":{"Ok":{"state":{"pid":7,"containers":[]}}}}}"#;
    const FIRST: &str = r#"{"reply":{"number":1,"descriptors":0,"result":{"Ok":{"state":{"version":1,"pid":7,"containers":[]}}}}}"#;
    const NEWER: &str = r#"{"reply":{"number":1,"descriptors":0,"result":{"Ok":{"state":{"version":2,"pid":7,"containers":[],"more":1}}}}}"#;
    /// The request that all of them answer.
    const ASKED: &str = r#"{"number":1,"descriptors":0,"call":"state"}"#;

    #[rstest]
    #[case::before_there_were_versions(BEFORE_VERSIONS, None)]
    #[case::first(FIRST, None)]
    #[case::newer(
        NEWER,
        Some(
            "it speaks version 2 of the keeper's protocol, and this runtime knows versions up to 1: use a newer runtime"
        )
    )]
    #[tokio::test]
    async fn keepers_are_adopted_unless_newer(
        #[case] answer: &'static str,
        #[case] refused: Option<&str>,
    ) {
        let place = tempfile::tempdir().unwrap();
        let (directory, _) = store::open(place.path()).unwrap();
        let link = KeeperLink {
            id: SandboxId::random(),
            directory: place.path().to_owned(),
            store: Store::start(directory, State::default()),
            pods: Arc::new(Pods::new(Program::own(), Deadlines::default())),
        };
        let (ours, mut keepers) = UnixStream::pair().unwrap();
        let keeper = std::thread::spawn(move || {
            let mut length = [0; 4];
            keepers.read_exact(&mut length).unwrap();
            let mut asked = vec![0; u32::from_le_bytes(length).try_into().unwrap()];
            keepers.read_exact(&mut asked).unwrap();
            let length = u32::try_from(answer.len()).unwrap().to_le_bytes();
            keepers.write_all(&length).unwrap();
            keepers.write_all(answer.as_bytes()).unwrap();
            // The keeper then reads nothing, unless the connection ends.
            let rest = keepers.read(&mut [0]).unwrap();
            (asked, rest)
        });
        let adopted = link.adopt(ours).await;
        assert_eq!(adopted.as_ref().err().map(String::as_str), refused);
        assert_eq!(link.pods.get(&link.id).is_some(), refused.is_none());
        link.pods.forget(&link.id);
        drop(adopted);
        let (asked, rest) = tasks::spawn_blocking(|| keeper.join().unwrap()).await.unwrap();
        assert_eq!(String::from_utf8(asked).unwrap(), ASKED);
        assert_eq!(rest, 0, "a newer keeper is told nothing more");
    }

    #[rstest]
    #[case::nothing_listens(libc::ECONNREFUSED, Liveness::Ended, true)]
    #[case::no_socket(libc::ENOENT, Liveness::Ended, true)]
    #[case::full_queue(libc::EAGAIN, Liveness::Ended, false)]
    #[case::no_descriptors(libc::EMFILE, Liveness::Ended, false)]
    #[case::no_permission(libc::EACCES, Liveness::Ended, false)]
    #[case::it_lives(libc::ECONNREFUSED, Liveness::Running(7), false)]
    #[case::socket_removed(libc::ENOENT, Liveness::Running(7), false)]
    #[case::lock_unreadable(libc::ECONNREFUSED, Liveness::Unknown(String::new()), false)]
    fn keeper_has_ended_only_if_socket_and_lock_agree(
        #[case] errno: i32,
        #[case] liveness: Liveness,
        #[case] ended: bool,
    ) {
        let error = io::Error::from_raw_os_error(errno);
        assert_eq!(matches!(classify_failure(&error, liveness), ConnectOutcome::Ended), ended);
    }
}
