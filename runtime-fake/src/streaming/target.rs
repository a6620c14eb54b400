//! What the stream server asks of the runtime: a process's streams, or a connection into a pod.
//!
//! The server knows SPDY, WebSocket and their channels; an implementation of [`Target`] knows processes and sockets.

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

/// What a client asked to be run in a container. It is well-formed: there is a command and at least one stream, and
/// none for stderr with a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecRequest {
    pub(crate) container: ContainerId,
    pub(crate) argv: Vec<String>,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// Which streams of a container a client asked for. `tty` is what the client believes of the container: it counts for the
/// client's own streams only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachRequest {
    pub(crate) container: ContainerId,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// A way for bytes out of a process or socket.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// A way for bytes into a process or socket.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The streams of a process, for one client: those that it asked for.
///
/// Dropping it says that the client is gone. Every stream may be dropped on its own before that.
pub(crate) struct Session {
    /// Dropped, it is half-closed: an exec reads the end of its input.
    pub(crate) stdin: Option<Writer>,
    /// With a terminal, everything. It ends when the process has ended and what it wrote was read, whoever else still
    /// holds the pipe.
    pub(crate) stdout: Option<Reader>,
    /// Ends like `stdout`.
    pub(crate) stderr: Option<Reader>,
    /// With a terminal, sizes of the client's; only the latest counts.
    pub(crate) resize: Option<mpsc::Sender<Size>>,
    /// The exit code of an exec; of an attach, that of the container, when that ends.
    pub(crate) ended: Pin<Box<dyn Future<Output = Result<i32, Error>> + Send>>,
}

/// A connection into a pod.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// What streams are streams of.
#[async_trait::async_trait]
pub(crate) trait Target: Send + Sync + 'static {
    /// Runs a further process in a running container.
    async fn exec(&self, request: ExecRequest) -> Result<Session, Error>;
    /// Joins the streams of a running container's first process: what it writes from now on.
    async fn attach(&self, request: AttachRequest) -> Result<Session, Error>;
    /// Connects to a TCP port as a process of the pod would, at its loopback address.
    async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Box<dyn Duplex>, Error>;
}
