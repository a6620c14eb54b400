//! The interface from the stream server to the runtime: a process's streams, or a connection into a pod.
//!
//! The server handles SPDY, WebSocket and their channels; an implementation of [`Target`] handles processes and sockets.

use std::pin::Pin;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use crate::{
    id::{ContainerId, SandboxId},
    runtime::Error,
};

/// Columns and rows of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) width: u16,
    pub(crate) height: u16,
}

/// An exec request. It is valid: there is a command and at least one stream, and no stderr with a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecRequest {
    pub(crate) container: ContainerId,
    pub(crate) argv: Vec<String>,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// An attach request. `tty` is the client's view of the container, and only affects the client's own streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachRequest {
    pub(crate) container: ContainerId,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// Output of a process or socket.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// Input of a process or socket.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The streams of a process that one client requested.
///
/// Dropping it means that the client has disconnected. Each stream may be dropped earlier.
pub(crate) struct Session {
    /// Dropping it half-closes it: an exec reads EOF.
    pub(crate) stdin: Option<Writer>,
    /// With a terminal, all output. It ends when the process has ended and its output was read, even if another
    /// process keeps the pipe open.
    pub(crate) stdout: Option<Reader>,
    /// Ends like `stdout`.
    pub(crate) stderr: Option<Reader>,
    /// With a terminal, the sizes of the client's terminal; only the latest matters.
    pub(crate) resize: Option<mpsc::Sender<Size>>,
    /// The exit code of an exec; for an attach, the container's exit code when it ends.
    pub(crate) ended: Pin<Box<dyn Future<Output = Result<i32, Error>> + Send>>,
}

/// A connection into a pod.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The runtime, as the stream server uses it.
#[async_trait::async_trait]
pub(crate) trait Target: Send + Sync + 'static {
    /// Runs an additional process in a running container.
    async fn exec(&self, request: ExecRequest) -> Result<Session, Error>;
    /// Attaches to the streams of a running container's first process, from now on.
    async fn attach(&self, request: AttachRequest) -> Result<Session, Error>;
    /// Connects to a TCP port as a process of the pod would, at its loopback address.
    async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Box<dyn Duplex>, Error>;
}
