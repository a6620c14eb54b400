//! The client of a keeper: sends numbered calls, and passes its notifications to the store.

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
use keeper::contract::plan::{ExecPlan, ForwardPlan, PodPlan};
use keeper::contract::protocol::{Call, Event, Outcome, SOCKET};
use keeper::kernel::failure::{Failure, FailureKind};

/// A running exec.
pub(crate) struct RunningExec {
    pub(crate) pid: i32,
    pub(crate) exit: Arc<ExecExit>,
    /// The daemon's side of its terminal, if it has one.
    pub(crate) terminal: Option<OwnedFd>,
}

/// The exit of an exec, shared by all its waiters.
#[derive(Debug, Default)]
pub(crate) struct ExecExit {
    /// The exit code, once known.
    code: OnceLock<i32>,
    /// Cancelled when the exec has ended, with or without an observed exit.
    pub(crate) over: CancellationToken,
}

impl ExecExit {
    /// Waits for the exit code; 255 if the exit was not observed.
    pub(crate) async fn code(&self) -> i32 {
        self.over.cancelled().await;
        self.code.get().copied().unwrap_or(LOST_EXIT_CODE)
    }
}

/// Completes an [`ExecExit`], even when it is dropped without a code.
struct ExitNotifier(Arc<ExecExit>);

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

/// A handle to a keeper. Clones share the connection, which ends with the last one.
#[derive(Clone)]
pub(crate) struct KeeperClient {
    queue: Queue,
    deadlines: Deadlines,
}

/// A notification from a keeper.
#[derive(Debug)]
pub(crate) enum Notification {
    Event(Event),
    /// A container's program has started although the caller had given up the start.
    Started {
        container: ContainerId,
        at: jiff::Timestamp,
        /// Its first process, if that is not the created one.
        pid: Option<i32>,
    },
    /// The connection has ended, for this reason.
    Disconnected(String),
}

/// Connects to the socket of the keeper in `directory`, regardless of the length of its path. Does not block: if a keeper that
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

/// Listens on the keeper's socket in `directory`, regardless of the length of its path.
pub(crate) fn listen(directory: &Path) -> io::Result<std_net::UnixListener> {
    let handle = open_path(directory)?;
    std_net::UnixListener::bind(short_path(&handle))
}

fn open_path(directory: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A socket address has room for 107 bytes; the path through an open directory always fits.
fn short_path(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())
}

impl KeeperClient {
    /// Starts the connection over `stream`. Notifications go to `notify`, in the order in which the keeper sent them.
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

    /// Like [`Self::call`], with descriptors in both directions.
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
        let answer = self.queue.send_request(call, descriptors, ended)?;
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // The connection answers every call before it ends.
            Ok(Err(_)) => Err(disconnected("its task has ended")),
            Err(_) => Err(silent(deadline)),
        }
    }

    /// Sets up the pod's namespaces; the keeper keeps `held` open as long as the pod runs.
    pub(crate) async fn set_up(&self, plan: PodPlan, held: Vec<OwnedFd>) -> Result<(), Failure> {
        match self.exchange(Call::Setup(Box::new(plan)), held).await? {
            (Outcome::Setup { .. }, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Notifies the keeper that the pod's network is set up; `sockets` belong to `forward`.
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
        let call = Call::Exec { container: container.to_owned(), plan: Box::new(plan) };
        let exit = Arc::new(ExecExit::default());
        let notifier = ExitNotifier(exit.clone());
        let (outcome, mut came) = self.exchange_for(call, descriptors, Some(notifier)).await?;
        let Outcome::Exec { pid } = outcome else {
            return Err(unexpected(&outcome));
        };
        Ok(RunningExec { pid, exit, terminal: came.pop() })
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
    Failure::new(FailureKind::Disconnected, format!("connection to the pod's keeper failed: {why}"))
}

/// The failure for an answer of the wrong kind.
pub(crate) fn unexpected(outcome: &Outcome) -> Failure {
    Failure::new(
        FailureKind::System,
        format!("the pod's keeper gave an unexpected answer: {outcome:?}"),
    )
}
