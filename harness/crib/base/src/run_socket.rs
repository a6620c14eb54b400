//! The socket `run.sock` in the directory of a `crib run`: other commands ask there what the agent knows of its pods, watch its
//! objects, add an ephemeral container to a pod, scale an object, or ask for the end of the run. One line of JSON each way; a watch has a line for
//! each change.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of a link in the directory of a run whose path is too long for sockets.
const SOCKETS: &str = "sockets";
/// What the name of the directory begins with that it leads to.
pub const SOCKETS_PREFIX: &str = "crib-sockets-";

/// Where a run with this directory serves.
pub fn path(run: &Path) -> PathBuf {
    directory(run).join("run.sock")
}

/// Where the runtime of a run with this directory serves.
pub fn runtime_socket(run: &Path) -> PathBuf {
    directory(run).join("crib.sock")
}

fn directory(run: &Path) -> PathBuf {
    elsewhere(run).unwrap_or_else(|| run.to_owned())
}

/// The directory of the sockets of a run, if it is not the run's own.
pub fn elsewhere(run: &Path) -> Option<PathBuf> {
    let directory = std::fs::read_link(run.join(SOCKETS)).ok()?;
    directory.file_name()?.to_str()?.starts_with(SOCKETS_PREFIX).then_some(directory)
}

/// Has a run serve in another directory.
///
/// # Errors
/// If the link cannot be made.
pub fn serve_elsewhere(run: &Path, directory: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(directory, run.join(SOCKETS))
}

/// What a run is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Its pods.
    Pods,
    /// All of its objects.
    Objects,
    /// Its pods, with another ephemeral container in one of them.
    AddEphemeralContainer {
        /// The pod's uid.
        pod: String,
        /// The container.
        container: Box<EphemeralContainer>,
    },
    /// Another number of pods for an object.
    Scale(Scale),
    /// All of its objects, and then their changes until the run ends: a [`WatchEvent`] a line.
    Watch,
    /// Its pods, and then to end them and itself. Asking again changes nothing.
    End,
    /// Its pods, and then, where they are ending, to kill them.
    Kill,
}

/// How many pods an object is to have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The number of pods.
    pub replicas: i32,
    /// The number that it is to have now; another one refuses the request.
    pub current_replicas: Option<i32>,
}

/// What it answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The pods, in the order of namespaces and names.
    pub pods: Vec<PodAnswer>,
    /// All objects as an API server has them, by kind, namespace and name, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Value>,
    /// Why the request was refused, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A change of an object, as an API server tells it to watchers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "type", content = "object")]
pub enum WatchEvent {
    /// The object exists, or is new.
    Added(Value),
    /// It has changed to this.
    Modified(Value),
    /// It is gone, and was this.
    Deleted(Value),
    /// All objects that there were have been told: what follows are changes.
    Bookmark,
    /// Why no more is told, though the run goes on.
    Error(String),
}

/// A pod, and what happened to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodAnswer {
    /// With the status that the agent has of it.
    #[serde(with = "api::manifest::pod_json")]
    pub pod: Pod,
    /// The oldest first.
    pub events: Vec<EventAnswer>,
}

/// What a kubelet would record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventAnswer {
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub kind: String,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// `spec.containers{NAME}`, or empty for the pod as a whole.
    pub field_path: String,
    /// How often it happened.
    pub count: u32,
    /// When it first happened.
    pub first_timestamp: Timestamp,
    /// When it last happened.
    pub last_timestamp: Timestamp,
}

/// A connection to a run, whose process it also knows.
#[derive(Debug)]
pub struct RunConnection {
    stream: UnixStream,
    pid: Pid,
    process: OwnedFd,
}

impl RunConnection {
    /// Connects to the run with this directory; `None` if its command has ended.
    pub fn open(run: &Path) -> io::Result<Option<Self>> {
        Self::open_socket(&path(run))
    }

    /// Asks the runtime of the run with this directory to end itself and its pods, if it serves.
    pub fn end_runtime(run: &Path) -> io::Result<()> {
        let Some(runtime) = Self::open_socket(&runtime_socket(run))? else {
            return Ok(());
        };
        match pidfd_send_signal(&runtime.process, Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open_socket(socket: &Path) -> io::Result<Option<Self>> {
        let stream = match UnixStream::connect(socket) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            stream => stream?,
        };
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        // The process listens for as long as it lives. Should it end between the two steps, another process can have its id
        // only after all others were used.
        match pidfd_open(peer.pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self { stream, pid: peer.pid, process })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How long an answer may take; after that, asking fails with [`io::ErrorKind::WouldBlock`].
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Asks; `None` if the run is ending already.
    pub fn ask(&mut self, request: Request) -> io::Result<Option<Answer>> {
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        let mut answer = String::new();
        let asked = self.stream.write_all(&line);
        let asked = asked.and_then(|()| BufReader::new(&self.stream).read_line(&mut answer));
        match asked {
            Ok(0) => Ok(None),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(None)
            }
            Ok(_) => Ok(Some(serde_json::from_str(&answer)?)),
            Err(error) => Err(error),
        }
    }

    /// Watches the objects. Each line of the stream is a [`WatchEvent`]; the run ends it.
    pub fn watch(mut self) -> io::Result<UnixStream> {
        let mut line = serde_json::to_vec(&Request::Watch)?;
        line.push(b'\n');
        self.stream.write_all(&line)?;
        Ok(self.stream)
    }

    /// Waits until the process has ended, for this long at most; says whether it has.
    pub fn has_ended_within(&self, patience: Duration) -> io::Result<bool> {
        let mut ended = [PollFd::new(std::os::fd::AsFd::as_fd(&self.process), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut ended, patience) {
            Ok(count) => Ok(count > 0),
            // It is asked again.
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}
