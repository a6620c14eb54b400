//! The socket `run.sock` in the directory of a `crib run`: other commands query the agent's status of the pods, watch the objects,
//! add an ephemeral container to a pod, scale, restart or roll back an object, or end the run. Each request and each response is
//! one line of JSON; a watch returns a line for each change.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of a symbolic link in the directory of a run whose path is too long for a socket.
const SOCKETS: &str = "sockets";
/// The prefix of the name of the directory that the link points to.
pub const SOCKETS_PREFIX: &str = "crib-sockets-";

/// The path of the socket of the run in this directory.
pub fn path(run: &Path) -> PathBuf {
    directory(run).join("run.sock")
}

/// The path of the runtime's socket of the run in this directory.
pub fn runtime_socket(run: &Path) -> PathBuf {
    directory(run).join("crib.sock")
}

fn directory(run: &Path) -> PathBuf {
    elsewhere(run).unwrap_or_else(|| run.to_owned())
}

/// The directory of a run's sockets, if it is not the run's own directory.
pub fn elsewhere(run: &Path) -> Option<PathBuf> {
    let directory = std::fs::read_link(run.join(SOCKETS)).ok()?;
    directory.file_name()?.to_str()?.starts_with(SOCKETS_PREFIX).then_some(directory)
}

/// Makes the run create its sockets in another directory.
///
/// # Errors
/// Fails if the link cannot be created.
pub fn serve_elsewhere(run: &Path, directory: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(directory, run.join(SOCKETS))
}

/// A request to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Returns the pods.
    Pods,
    /// Returns all objects.
    Objects,
    /// Adds an ephemeral container to a pod; returns the pods.
    AddEphemeralContainer {
        /// The pod's uid.
        pod: String,
        /// The container.
        container: Box<EphemeralContainer>,
    },
    /// Sets the number of pods of an object.
    Scale(Scale),
    /// Replaces the pods of an object, as a change of its pod template does.
    Restart(Restart),
    /// Restores an earlier pod template of a Deployment.
    Undo(Undo),
    /// Returns all objects, and then their changes until the run ends: one [`WatchEvent`] per line.
    Watch,
    /// Ends the pods and the run; returns the pods. Idempotent.
    End,
    /// Kills the pods if they are terminating; returns the pods.
    Kill,
}

/// A new number of pods for an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Such as `apps/v1`.
    pub api_version: String,
    /// Such as `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The number of pods.
    pub replicas: i32,
    /// The expected current number; if the number differs, the request is refused.
    pub current_replicas: Option<i32>,
}

/// An object whose pods are to be replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Such as `apps/v1`.
    pub api_version: String,
    /// Such as `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A Deployment whose earlier pod template is to be restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Undo {
    /// Such as `apps/v1`.
    pub api_version: String,
    /// Such as `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The number of the revision with the pod template.
    pub revision: u64,
}

/// The response of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResponse {
    /// The pods, sorted by namespace and name.
    pub pods: Vec<PodWithEvents>,
    /// All objects as in the API server, sorted by kind, namespace and name, if they were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Value>,
    /// Why the request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A change of an object, as in a watch of an API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "type", content = "object")]
pub enum WatchEvent {
    /// The object exists, or was created.
    Added(Value),
    /// The object was updated to this.
    Modified(Value),
    /// The object was deleted; this is its last state.
    Deleted(Value),
    /// The end of the initial list; changes follow.
    Bookmark,
    /// Why the watch ended although the run continues.
    Error(String),
}

/// A pod and its events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodWithEvents {
    /// The pod, with the agent's status of it.
    #[serde(with = "api::manifest::pod_json")]
    pub pod: Pod,
    /// Sorted by time, oldest first.
    pub events: Vec<RecordedEvent>,
}

/// An event that a kubelet would record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedEvent {
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub kind: String,
    /// The reason, one word.
    pub reason: String,
    /// The message, a sentence.
    pub message: String,
    /// `spec.containers{NAME}`, or empty for the pod.
    pub field_path: String,
    /// The number of occurrences.
    pub count: u32,
    /// The time of the first occurrence.
    pub first_timestamp: Timestamp,
    /// The time of the last occurrence.
    pub last_timestamp: Timestamp,
}

/// A connection to a run, and a pidfd of its process.
#[derive(Debug)]
pub struct RunConnection {
    stream: UnixStream,
    pid: Pid,
    process: OwnedFd,
}

impl RunConnection {
    /// Connects to the run in this directory; `None` if its command has ended, or other users can write to the directory.
    pub fn open(run: &Path) -> io::Result<Option<Self>> {
        // The directory of a run is private. In another one, such as `/tmp` with the socket of a proxy, any user could serve.
        if std::fs::metadata(run).is_ok_and(|found| found.mode() & 0o022 != 0) {
            return Ok(None);
        }
        Self::open_socket(&path(run))
    }

    /// Sends SIGTERM to the runtime of the run in this directory, if it is running; the runtime then removes its pods.
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
        // The process holds the socket while it runs. If it ends between the two steps, its id is reused only after all other ids
        // were used.
        match pidfd_open(peer.pid, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Self { stream, pid: peer.pid, process })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The id of the process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sets the timeout of a request. When it expires, [`Self::call`] fails with [`io::ErrorKind::WouldBlock`].
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Sends a request and returns the response; `None` if the run is already ending.
    pub fn call(&mut self, request: Request) -> io::Result<Option<RunResponse>> {
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        let mut response = String::new();
        let exchanged = self.stream.write_all(&line);
        let exchanged =
            exchanged.and_then(|()| BufReader::new(&self.stream).read_line(&mut response));
        match exchanged {
            Ok(0) => Ok(None),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(None)
            }
            Ok(_) => Ok(Some(serde_json::from_str(&response)?)),
            Err(error) => Err(error),
        }
    }

    /// Watches the objects. Each line of the stream is a [`WatchEvent`]; the stream ends when the run ends.
    pub fn watch(mut self) -> io::Result<UnixStream> {
        let mut line = serde_json::to_vec(&Request::Watch)?;
        line.push(b'\n');
        self.stream.write_all(&line)?;
        Ok(self.stream)
    }

    /// Waits at most this long until the process has ended; returns whether it has.
    pub fn has_ended_within(&self, timeout: Duration) -> io::Result<bool> {
        let mut ended = [PollFd::new(std::os::fd::AsFd::as_fd(&self.process), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut ended, timeout) {
            Ok(count) => Ok(count > 0),
            // The caller polls again.
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_in_directory_of_several_users_belongs_to_no_run() {
        let place = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(path(place.path())).unwrap();
        assert!(RunConnection::open(place.path()).unwrap().is_some());
        for mode in [0o1777, 0o770] {
            std::fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
            assert!(RunConnection::open(place.path()).unwrap().is_none(), "{mode:o}");
        }
    }
}
