//! The messages between the daemon and a keeper: one JSON document a frame (see [`super::frame`]).
//!
//! The daemon may have any number of [`Request`]s in flight. The keeper answers each with one [`Message::Reply`] of the same
//! number, not necessarily in order, and reports exits as [`Event`]s in between.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::contract::plan::{ExecPlan, ForwardPlan, LaunchPlan, PodPlan, UserIds};
use crate::kernel::failure::Failure;

/// The version of this protocol. A daemon speaks to keepers of its own version and of all earlier ones: additions after version 0
/// are optional, or sent only to keepers that support them. A daemon leaves keepers of newer versions alone.
pub const VERSION: u32 = 1;

/// A numbered call of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the daemon and repeated in the reply.
    pub number: u64,
    /// The number of file descriptors sent with this frame.
    #[serde(default)]
    pub descriptors: usize,
    /// The requested operation.
    pub call: Call,
}

/// The operations of a keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Fork a keeper. Its standard streams are sent with the call: its listening socket, its lock file, its log. For
    /// the zygote only.
    Spawn,
    /// Make the pod's namespaces. Sent once, first. The keeper holds descriptors sent with the call open as long as the pod runs.
    Setup(Box<PodPlan>),
    /// Reports that the pod's network is set up. The keeper sets the network kernel parameters and forwards the host ports, whose
    /// listening sockets are sent with the call. Sent at most once.
    Connected {
        /// The destination of each socket's traffic; none without host ports.
        forward: Option<ForwardPlan>,
    },
    /// Bring a container up to its barrier: everything except the final `execve`.
    Create {
        /// The container's id.
        container: String,
        /// How to set it up.
        plan: Box<LaunchPlan>,
    },
    /// Open the barrier of a created container.
    Start {
        /// The container's id.
        container: String,
        /// criu restores the processes, which takes longer.
        #[serde(default)]
        restored: bool,
    },
    /// Send a signal to a container's first process, if it is still running.
    Signal {
        /// The container's id.
        container: String,
        /// The signal's number.
        signal: i32,
    },
    /// Run another process in a running container. Three descriptors are sent with the call: its stdin, stdout and stderr. With a
    /// terminal none is sent; the answer contains the terminal's descriptor.
    Exec {
        /// The container's id.
        container: String,
        /// The process to run.
        plan: Box<ExecPlan>,
    },
    /// Start a criu that dumps a container's processes when the daemon requests it over the socket sent with the call.
    Dump {
        /// The container's id.
        container: String,
        /// The path of criu.
        program: PathBuf,
    },
    /// Kill an exec's process and its descendants.
    KillExec {
        /// The pid from [`Outcome::Exec`].
        pid: i32,
    },
    /// Also copy a running container's output to the pipes sent with the call: one for each requested stream.
    Attach {
        /// The container's id.
        container: String,
        /// The client writes to the container's standard input.
        stdin: bool,
        /// A pipe for its standard output is sent with the call.
        stdout: bool,
        /// A pipe for its standard error is sent with the call.
        stderr: bool,
    },
    /// Make TCP sockets in the pod's network namespace.
    Sockets,
    /// Close the container's log file and open it again under its path.
    ReopenLog {
        /// The container's id.
        container: String,
    },
    /// Kill a container if it is still running, and forget it.
    Forget {
        /// The container's id.
        container: String,
    },
    /// Report the state of every known container.
    State,
    /// Kill all processes, then exit.
    Shutdown,
}

/// A message of a keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The answer to a request.
    Reply {
        /// The request's number.
        number: u64,
        /// The number of file descriptors sent with this frame.
        #[serde(default)]
        descriptors: usize,
        /// The call's outcome, or its failure.
        result: Result<Outcome, Failure>,
    },
    /// An event.
    Event(Event),
}

/// A call's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The call succeeded without further data.
    Done,
    /// A keeper was forked.
    Spawned {
        /// Its process id, as the daemon sees it.
        pid: i32,
    },
    /// The pod is set up.
    Setup {
        /// The keeper's process id, as the daemon sees it.
        pid: i32,
    },
    /// The container waits at its barrier.
    Created {
        /// Its first process, as the daemon sees it.
        pid: i32,
        /// The user that it runs as.
        user: UserIds,
    },
    /// The container's program runs.
    Started {
        /// When it started.
        at: Timestamp,
        /// The pid of its first process, as the daemon sees it, if it differs from the pid of `Created`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
    /// The exec's process runs.
    Exec {
        /// Its process id, as the daemon sees it.
        pid: i32,
    },
    /// criu is ready for requests.
    Dump {
        /// The container's first process, as the daemon sees it.
        pid: i32,
    },
    /// The keeper copies the container's output to the pipes. The answer contains the terminal's descriptor or, without a
    /// terminal, the pipe to the container's standard input, if the client requested it and it is available.
    Attached,
    /// The sockets are sent with the answer, one for each address family that the host supports.
    Sockets,
    /// The state of all containers.
    State {
        /// The version of the protocol that the keeper speaks: [`VERSION`]. Keepers of version 0 send none.
        #[serde(default)]
        version: u32,
        /// The keeper's process id.
        pid: i32,
        /// In no particular order.
        containers: Vec<ContainerState>,
    },
}

/// A container's state in its keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerState {
    /// Its id.
    pub container: String,
    /// The pid of its first process; 0 after its exit.
    pub pid: i32,
    /// When its program started.
    pub started: Option<Timestamp>,
    /// Its exit, after it has exited.
    pub exit: Option<Exit>,
}

/// A container's exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 + signal number after a signal.
    pub code: i32,
    /// When the keeper reaped it.
    pub at: Timestamp,
    /// When its program started, if it did.
    #[serde(default)]
    pub started: Option<Timestamp>,
    /// Why it failed to start, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    /// The kernel's OOM killer killed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
}

/// An event that a keeper reports on its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A container has exited, and its output is in its log.
    Exited {
        /// The container's id.
        container: String,
        /// Its exit.
        exit: Exit,
    },
    /// An exec has exited.
    ExecExited {
        /// The pid from [`Outcome::Exec`].
        pid: i32,
        /// The exit code; 128 + signal number after a signal.
        code: i32,
    },
}

/// The path of the exit record, which outlives the keeper, in the sandbox's directory.
#[must_use]
pub fn exit_record(sandbox_dir: &std::path::Path, container: &str) -> PathBuf {
    sandbox_dir.join(format!("{container}.exit"))
}

/// The name of the keeper's socket in the sandbox's directory.
pub const SOCKET: &str = "keeper.sock";
