//! Connects clients of the stream server to the streams of processes and the ports of pods.

pub(super) mod stdio;

use std::fs::File;
use std::io as std_io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use keeper::contract::plan::IsolationMode;
use keeper::contract::protocol::{Call, Outcome};
use keeper::kernel::failure::plain;
use rustix::net::AddressFamily;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::containers::wrong_state;
use super::{Error, Runtime, io};
use crate::container::{ContainerState, LOST_EXIT_CODE};
use crate::id::{ContainerId, SandboxId};
use crate::keeper_client::unexpected;
use crate::sandbox::SandboxState;
use crate::store::StateError;
use crate::streaming::target::{AttachRequest, Duplex, ExecRequest, Session, Size, Target};

use stdio::{ProcessInput, ProcessOutput, Shared, pipe_from_process, pipe_to_process, watch};

/// Timeout for a connection to a port: on a loopback interface, only a program that does not accept causes a delay.
const CONNECTING: Duration = Duration::from_secs(10);
/// How far a client of Attach may lag: the largest pipe that every user may create (pipe(7)).
const BEHIND: usize = 1 << 20;

#[async_trait::async_trait]
impl Target for Runtime {
    async fn exec(&self, request: ExecRequest) -> Result<Session, Error> {
        let wanted = "a process needs a running one";
        let (container, pod) = self.container_and_pod(request.container.as_str(), wanted)?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(&container, wanted));
        }
        let plan = self.exec_plan(&container, request.argv, request.tty)?;
        let id = container.id.as_str();
        if request.tty {
            let exec = pod.keeper.exec(id, plan, Vec::new()).await?;
            let terminal = exec.terminal.ok_or_else(no_terminal)?;
            let terminal = watch(terminal, Interest::READABLE | Interest::WRITABLE)
                .map_err(io("watch a terminal"))?;
            let mut output = ProcessOutput::new(terminal.clone(), exec.exit.over.clone());
            let exit = exec.exit;
            let stdin = request.stdin.then(|| ProcessInput::new(terminal.clone()));
            let resize = Some(resizer(terminal));
            if request.stdout {
                return Ok(Session {
                    stdin: stdin.map(|s| Box::new(s) as _),
                    stdout: Some(Box::new(output)),
                    stderr: None,
                    resize,
                    ended: Box::pin(async move { Ok(exit.code().await) }),
                });
            }
            return Ok(Session {
                stdin: stdin.map(|s| Box::new(s) as _),
                stdout: None,
                stderr: None,
                resize,
                ended: Box::pin(async move {
                    // No client reads its output; drain it, so that the process does not block.
                    let mut chunk = vec![0u8; 4096];
                    while let Ok(1..) = output.read(&mut chunk).await {}
                    Ok(exit.code().await)
                }),
            });
        }
        let (stdin, child_stdin) = if request.stdin {
            let (ours, theirs) = pipe_to_process().map_err(io("make a pipe"))?;
            (Some(ProcessInput::new(ours)), theirs)
        } else {
            (None, null()?)
        };
        let (stdout, child_stdout) = output(request.stdout)?;
        let (stderr, child_stderr) = output(request.stderr)?;
        let exec = pod.keeper.exec(id, plan, vec![child_stdin, child_stdout, child_stderr]).await?;
        let exit = exec.exit;
        let flow = |from: Shared| Box::new(ProcessOutput::new(from, exit.over.clone())) as _;
        Ok(Session {
            stdin: stdin.map(|s| Box::new(s) as _),
            stdout: stdout.map(flow),
            stderr: stderr.map(flow),
            resize: None,
            ended: Box::pin(async move { Ok(exit.code().await) }),
        })
    }

    async fn attach(&self, request: AttachRequest) -> Result<Session, Error> {
        let wanted = "only a running container can be attached to";
        let (container, pod) = self.container_and_pod(request.container.as_str(), wanted)?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(&container, wanted));
        }
        let tty = container.config.tty;
        // A terminal has one output.
        let wants_stderr = request.stderr && !tty;
        let (stdout, their_stdout) = watched(request.stdout)?;
        let (stderr, their_stderr) = watched(wants_stderr)?;
        let call = Call::Attach {
            container: container.id.to_string(),
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: wants_stderr,
        };
        let pipes = their_stdout.into_iter().chain(their_stderr).collect();
        let (outcome, mut came) = pod.keeper.exchange(call, pipes).await?;
        if !matches!(outcome, Outcome::Attached) {
            return Err(unexpected(&outcome).into());
        }
        let interest =
            if tty { Interest::READABLE | Interest::WRITABLE } else { Interest::WRITABLE };
        let input = came
            .pop()
            .map(|fd| watch(fd, interest).map_err(io("watch the container's standard input")))
            .transpose()?;
        let gone = CancellationToken::new();
        let stdin = request.stdin.then(|| -> crate::streaming::target::Writer {
            match &input {
                Some(input) if container.config.stdin => {
                    let flow = ProcessInput::new(input.clone());
                    // With a terminal, or without `stdin_once`, the attach ends when the client closes stdin. Otherwise
                    // the container must see the end of its input (as in containerd and CRI-O).
                    if tty || !container.config.stdin_once {
                        Box::new(flow.on_close(gone.clone()))
                    } else {
                        Box::new(flow)
                    }
                }
                // The container has no standard input, or an earlier client has closed it.
                Some(_) | None => Box::new(tokio::io::sink()),
            }
        });
        let flow = |from: Shared| Box::new(ProcessOutput::new(from, gone.clone())) as _;
        let (stdout, stderr) = (stdout.map(flow), stderr.map(flow));
        let store = self.store.clone();
        Ok(Session {
            stdin,
            stdout,
            stderr,
            resize: input.filter(|_| tty).map(resizer),
            ended: Box::pin(async move {
                let end = store.wait(|state| {
                    let found = state.containers.get(&container.id);
                    found.is_none_or(|c| c.ended())
                });
                // Cancel-safe: a dropped future is not polled again.
                tokio::select! {
                    () = gone.cancelled() => Ok(0),
                    waited = end => {
                        waited?;
                        let state = store.state();
                        let exit = state.containers.get(&container.id).and_then(|c| c.exit.clone());
                        Ok(exit.map_or(LOST_EXIT_CODE, |exit| exit.code))
                    }
                }
            }),
        })
    }

    async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Box<dyn Duplex>, Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(sandbox.as_str())?;
        let Some(pod) = self.pods.get(&sandbox.id) else {
            return Err(StateError::SandboxNotReady {
                id: sandbox.id.clone(),
                wanted: "a connection",
            }
            .into());
        };
        let (outcome, sockets) = pod.keeper.exchange(Call::Sockets, Vec::new()).await?;
        if !matches!(outcome, Outcome::Sockets) {
            return Err(unexpected(&outcome).into());
        }
        // Without its own network namespace a pod has its address on the host's loopback interface.
        let own = if self.config.isolation.mode() == IsolationMode::Process {
            sandbox.addresses.first().copied()
        } else {
            None
        };
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let addresses = own.into_iter().chain(loopback);
        let connected = connect_one(sockets, addresses, port).await;
        connected
            .map(|stream| Box::new(stream) as _)
            .map_err(|error| Error::NoAnswer(plain(&error)))
    }
}

/// Connects one of `sockets` to the first of `addresses` that accepts; otherwise returns the first error.
async fn connect_one(
    sockets: Vec<OwnedFd>,
    addresses: impl Iterator<Item = IpAddr>,
    port: u16,
) -> std_io::Result<TcpStream> {
    let mut first = None;
    for address in addresses {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let of_family =
            |socket: &&OwnedFd| rustix::net::sockopt::socket_domain(socket) == Ok(family);
        // Each address needs a socket of its family.
        let Some(socket) = sockets.iter().find(of_family) else {
            continue;
        };
        let socket = TcpSocket::from_std_stream(socket.try_clone()?.into());
        let connecting = socket.connect(SocketAddr::from((address, port)));
        let error = match tokio::time::timeout(CONNECTING, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => std_io::ErrorKind::TimedOut.into(),
        };
        first.get_or_insert(error);
    }
    Err(first.unwrap_or_else(|| std_io::ErrorKind::AddrNotAvailable.into()))
}

/// Applies sizes to the terminal until the sender is dropped.
fn resizer(terminal: Shared) -> mpsc::Sender<Size> {
    let (sender, mut sizes) = mpsc::channel::<Size>(4);
    tasks::spawn(async move {
        while let Some(size) = sizes.recv().await {
            // A client that does not know its size sends zeros, which confuse programs.
            if size.width == 0 || size.height == 0 {
                continue;
            }
            let size = rustix::termios::Winsize {
                ws_row: size.height,
                ws_col: size.width,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            // Ignore the error of a closed terminal.
            let _ = rustix::termios::tcsetwinsize(terminal.get_ref(), size);
        }
    });
    sender
}

fn no_terminal() -> Error {
    io("open a terminal")(std_io::Error::other("the pod's keeper sent none"))
}

fn null() -> Result<OwnedFd, Error> {
    Ok(File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(io("open /dev/null"))?
        .into())
}

/// Creates a pipe for an output of an exec, if it is requested: our end, and the process's.
fn output(wanted: bool) -> Result<(Option<Shared>, OwnedFd), Error> {
    if !wanted {
        return Ok((None, null()?));
    }
    let (ours, theirs) = pipe_from_process().map_err(io("make a pipe"))?;
    Ok((Some(ours), theirs))
}

/// Creates a pipe for an output of a container, if it is requested: our end, and the keeper's, which does not
/// block.
fn watched(wanted: bool) -> Result<(Option<Shared>, Option<OwnedFd>), Error> {
    if !wanted {
        return Ok((None, None));
    }
    let (ours, theirs) = pipe_from_process().map_err(io("make a pipe"))?;
    rustix::io::ioctl_fionbio(&theirs, true).map_err(|e| io("make a pipe")(e.into()))?;
    // If the user has too many pipes, the pipe stays smaller.
    let _ = rustix::pipe::fcntl_setpipe_size(&theirs, BEHIND);
    Ok((Some(ours), Some(theirs)))
}

impl Runtime {
    /// The container that `id` names, if it is running.
    pub(crate) fn running(&self, id: &str, wanted: &'static str) -> Result<ContainerId, Error> {
        let state = self.store.state();
        let container = state.container(id)?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(container, wanted));
        }
        Ok(container.id.clone())
    }

    /// The sandbox that `id` names, if it is ready.
    pub(crate) fn ready(&self, id: &str, wanted: &'static str) -> Result<SandboxId, Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(id)?;
        if sandbox.state != SandboxState::Ready {
            let id = sandbox.id.clone();
            return Err(StateError::SandboxNotReady { id, wanted }.into());
        }
        Ok(sandbox.id.clone())
    }
}
