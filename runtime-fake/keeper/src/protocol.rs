//! What the daemon and a keeper say to each other: one JSON document a frame (see [`super::frame`]).
//!
//! The daemon sends [`Request`]s, in any number at once; the keeper answers each with one [`Message::Reply`] of the same number,
//! not necessarily in order, and tells of exits by [`Event`]s in between.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    plan::{ExecPlan, ForwardPlan, LaunchPlan, PodPlan, UserIds},
};

/// The version of this protocol. A daemon speaks with keepers of its own version and of all before it: what is added since
/// version 0 is optional, or only said to keepers that know it. One that is newer it leaves alone.
pub const VERSION: u32 = 1;

/// A numbered call of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the daemon, repeated in the reply.
    pub number: u64,
    /// How many file descriptors came along with this frame.
    #[serde(default)]
    pub descriptors: usize,
    /// What is to be done.
    pub call: Call,
}

/// What a keeper can do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Fork a keeper, whose standard streams come along: its listening socket, its lock file, its log. For the zygote only.
    Spawn,
    /// Make the pod's namespaces. Once, first. Descriptors that come along are held open as long as the pod lives.
    Setup(Box<PodPlan>),
    /// The pod has its network: set the kernel parameters of it, and forward the host's ports, whose listening sockets
    /// come along. Once, at most.
    Connected {
        /// Where what comes in on which socket goes; none when there are no host ports.
        forward: Option<ForwardPlan>,
    },
    /// Bring a container up to its barrier: everything but the last `execve`.
    Create {
        /// The container's id.
        container: String,
        /// How it is set up.
        plan: Box<LaunchPlan>,
    },
    /// Let a created container go.
    Start {
        /// The container's id.
        container: String,
        /// criu makes its processes, which takes longer.
        #[serde(default)]
        restored: bool,
    },
    /// Send a signal to a container's first process, if it still runs.
    Signal {
        /// The container's id.
        container: String,
        /// The signal's number.
        signal: i32,
    },
    /// Run a further process in a running container. Three descriptors come along: its stdin, stdout and stderr. With a
    /// terminal there are none; the terminal's comes with the answer.
    Exec {
        /// The container's id.
        container: String,
        /// What is run.
        plan: Box<ExecPlan>,
    },
    /// Start a criu that dumps a container's processes when it is asked over the socket that comes along.
    Dump {
        /// The container's id.
        container: String,
        /// Where criu is.
        program: PathBuf,
    },
    /// Kill all of an exec.
    KillExec {
        /// What [`Outcome::Exec`] said.
        pid: i32,
    },
    /// Also give what a running container writes to the pipes that come along: one for each output that is wanted.
    Attach {
        /// The container's id.
        container: String,
        /// A way to its standard input is wanted.
        stdin: bool,
        /// A pipe for its standard output comes along.
        stdout: bool,
        /// A pipe for its standard error comes along.
        stderr: bool,
    },
    /// Make TCP sockets in the pod's network namespace.
    Sockets,
    /// Close the container's log file and open it again under its path.
    ReopenLog {
        /// The container's id.
        container: String,
    },
    /// Forget a container, killing it first if it has not ended.
    Forget {
        /// The container's id.
        container: String,
    },
    /// What became of every container known here.
    State,
    /// Kill everything, then end.
    Shutdown,
}

/// What a keeper sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The answer to a request.
    Reply {
        /// The request's number.
        number: u64,
        /// How many file descriptors came along with this frame.
        #[serde(default)]
        descriptors: usize,
        /// How it went.
        result: Result<Outcome, Failure>,
    },
    /// Something happened.
    Event(Event),
}

/// A call's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing more to say.
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
        /// Since when.
        at: Timestamp,
        /// Its first process, as the daemon sees it, where that is another one than was created.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
    /// The exec's process runs.
    Exec {
        /// Its process id, as the daemon sees it.
        pid: i32,
    },
    /// criu waits for what it is asked for.
    Dump {
        /// The container's first process, as the daemon sees it.
        pid: i32,
    },
    /// What the container writes goes to the pipes too. The terminal's descriptor comes along where there is one, else
    /// that of the pipe to the container's standard input, if it was wanted and can be had.
    Attached,
    /// The sockets come along, one for each address family that the box has.
    Sockets,
    /// All containers.
    State {
        /// The version of the protocol that the keeper speaks: [`VERSION`]. Keepers of before there were versions name none.
        #[serde(default)]
        version: u32,
        /// The keeper's process id.
        pid: i32,
        /// In no particular order.
        containers: Vec<ContainerState>,
    },
}

/// A container as its keeper knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerState {
    /// Its id.
    pub container: String,
    /// Its first process; 0 when it has ended.
    pub pid: i32,
    /// Since when its program runs.
    pub started: Option<Timestamp>,
    /// How it ended.
    pub exit: Option<Exit>,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 + signal number after a signal.
    pub code: i32,
    /// When its end was seen.
    pub at: Timestamp,
    /// When its program began to run, if it did.
    #[serde(default)]
    pub started: Option<Timestamp>,
    /// Why it could not be started, when that is how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    /// The kernel killed it because its memory was used up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
}

/// An event that a keeper reports without being asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A container has ended and its output is in its log.
    Exited {
        /// The container's id.
        container: String,
        /// How.
        exit: Exit,
    },
    /// An exec has ended.
    ExecExited {
        /// What [`Outcome::Exec`] said.
        pid: i32,
        /// The exit code; 128 + signal number after a signal.
        code: i32,
    },
}

/// Where a keeper leaves what must outlive it, in the sandbox's directory.
#[must_use]
pub fn exit_record(sandbox_dir: &std::path::Path, container: &str) -> PathBuf {
    sandbox_dir.join(format!("{container}.exit"))
}

/// The name of the keeper's socket in the sandbox's directory.
pub const SOCKET: &str = "keeper.sock";
