//! The daemon's end of a keeper's connection: numbered calls, and notifications for the store.

mod connection;
mod deadlines;
#[cfg(test)]
mod tests;

use std::{
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net as std_net,
    },
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{container::LOST_EXIT_CODE, id::ContainerId};
use connection::{Answer, Queue};
pub use deadlines::Deadlines;
use keeper::{
    failure::{Failure, FailureKind},
    plan::{ExecPlan, ForwardPlan, PodPlan},
    protocol::{Call, Event, Outcome, SOCKET},
};

/// An exec: its process, and what becomes of it.
pub(crate) struct RunningExec {
    pub(crate) pid: i32,
    pub(crate) exit: Arc<ExecExit>,
    /// The daemon's side of its terminal, if it has one.
    pub(crate) terminal: Option<OwnedFd>,
}

/// The exit of an exec, shared by all its waiters.
#[derive(Debug, Default)]
pub(crate) struct ExecExit {
    /// The exit code, when it is known.
    code: OnceLock<i32>,
    /// Cancelled when it has ended, known or unknown how.
    pub(crate) over: CancellationToken,
}

impl ExecExit {
    /// Waits for it; 255 stands for an exit that was not observed.
    pub(crate) async fn code(&self) -> i32 {
        self.over.cancelled().await;
        self.code.get().copied().unwrap_or(LOST_EXIT_CODE)
    }
}

/// Completes an [`ExecExit`]. Dropping it without a code completes it, too.
struct ExitNotifier(Arc<ExecExit>);

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

/// A keeper, as the daemon speaks to it. Clones speak to the same one; the connection ends with the last clone.
#[derive(Clone)]
pub(crate) struct KeeperClient {
    queue: Queue,
    deadlines: Deadlines,
}

/// What a keeper sends without a call.
#[derive(Debug)]
pub(crate) enum Notification {
    Event(Event),
    /// The program of a container runs, whose start was given up before the keeper answered.
    Started {
        container: ContainerId,
        at: jiff::Timestamp,
        /// Its first process, where that is another one than was created.
        pid: Option<i32>,
    },
    /// The connection has ended: why.
    Disconnected(String),
}

/// Connects to the socket of the keeper in `directory`, whatever the length of its path. It never waits: where a keeper that
/// does not accept has a full queue, that is an error.
pub(crate) fn connect(directory: &Path) -> io::Result<std_net::UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    let handle = open_path(directory)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(short_path(&handle))?)?;
    Ok(socket.into())
}

/// Listens on the keeper's socket in `directory`, whatever the length of its path.
pub(crate) fn listen(directory: &Path) -> io::Result<std_net::UnixListener> {
    let handle = open_path(directory)?;
    std_net::UnixListener::bind(short_path(&handle))
}

fn open_path(directory: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// A socket address has room for 107 bytes: the way through an open directory is always short enough.
fn short_path(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())
}

impl KeeperClient {
    /// Speaks over `stream`. Notifications go to `notify`, in the order in which the keeper sent them.
    pub(crate) fn start(
        stream: std_net::UnixStream,
        notify: mpsc::UnboundedSender<Notification>,
        deadlines: Deadlines,
    ) -> io::Result<Self> {
        let queue = Queue::start(stream, notify)?;
        Ok(Self { queue, deadlines })
    }

    /// Makes a call and waits for its answer until its deadline.
    pub(crate) async fn call(&self, call: Call) -> Result<Outcome, Failure> {
        let (outcome, _) = self.exchange(call, Vec::new()).await?;
        Ok(outcome)
    }

    /// [`Self::call`] with descriptors either way.
    pub(crate) async fn exchange(
        &self,
        call: Call,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Failure> {
        self.exchange_for(call, descriptors, None).await
    }

    async fn exchange_for(
        &self,
        call: Call,
        descriptors: Vec<OwnedFd>,
        ended: Option<ExitNotifier>,
    ) -> Result<Answer, Failure> {
        let deadline = self.deadlines.of(&call);
        let answer = self.queue.ask(call, descriptors, ended)?;
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // The connection answers every call before it ends.
            Ok(Err(_)) => Err(disconnected("its task has ended")),
            Err(_) => Err(silent(deadline)),
        }
    }

    /// Makes the pod's namespaces; `held` are kept open as long as it lives.
    pub(crate) async fn set_up(&self, plan: PodPlan, held: Vec<OwnedFd>) -> Result<(), Failure> {
        match self.exchange(Call::Setup(Box::new(plan)), held).await? {
            (Outcome::Setup { .. }, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Tells that the pod has its network; `sockets` are those that `forward` is about.
    pub(crate) async fn connected(
        &self,
        forward: Option<ForwardPlan>,
        sockets: Vec<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        let (outcome, _) = self.exchange(Call::Connected { forward }, sockets).await?;
        Ok(outcome)
    }

    /// Runs a process in a container; `descriptors` become its stdin, stdout and stderr, unless it has a terminal.
    pub(crate) async fn exec(
        &self,
        container: &str,
        plan: ExecPlan,
        descriptors: Vec<OwnedFd>,
    ) -> Result<RunningExec, Failure> {
        let call = Call::Exec {
            container: container.to_owned(),
            plan: Box::new(plan),
        };
        let exit = Arc::new(ExecExit::default());
        let notifier = ExitNotifier(exit.clone());
        let (outcome, mut came) = self.exchange_for(call, descriptors, Some(notifier)).await?;
        let Outcome::Exec { pid } = outcome else {
            return Err(unexpected(&outcome));
        };
        Ok(RunningExec {
            pid,
            exit,
            terminal: came.pop(),
        })
    }
}

fn silent(deadline: Duration) -> Failure {
    Failure::new(
        FailureKind::Silent,
        format!(
            "the pod's keeper did not answer within {deadline:?}: stop the pod sandbox, which ends it"
        ),
    )
}

fn disconnected(why: &str) -> Failure {
    Failure::new(
        FailureKind::Disconnected,
        format!("the connection to the pod's keeper failed: {why}"),
    )
}

/// The failure for an answer to another question.
pub(crate) fn unexpected(outcome: &Outcome) -> Failure {
    Failure::new(
        FailureKind::System,
        format!("the pod's keeper gave an unexpected answer: {outcome:?}"),
    )
}
