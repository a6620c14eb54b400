//! The zygote: the process that the daemon's keepers are forked from.
//!
//! Forked keepers share the pages of the program, which the linker would write again for each of them after `execve`, and start
//! in a tenth of the time. The daemon cannot fork them itself, because it has threads. The zygote has one thread and does nothing
//! else. It exits when its connection to the daemon closes; its keepers keep running.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::contract::orphan;
use crate::contract::protocol::{Call, Message, Outcome, Request};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::sys::{self, Fork};
use crate::parent::connection::Connection;
use crate::setup::root;

/// The process in which [`serve`] returns.
pub(crate) enum Role {
    /// The zygote, after the daemon has closed its connection.
    Zygote,
    /// A new keeper, with its standard streams in place.
    Keeper,
}

/// Serves the daemon over standard input.
pub(crate) fn serve() -> io::Result<Role> {
    sys::close_inherited();
    let _ = rustix::thread::set_name(c"crib-zygote");
    // Signals from the daemon's terminal must not reach the pods.
    let _ = rustix::process::setsid();
    sys::ignore_children();
    sys::ignore_file_size_signal();
    sys::take_short_turns();
    // Look up, once for all keepers, what they need from the host. If this fails, each keeper looks it up itself.
    let _ = root::cgroups::of_host();
    let _ = orphan::boot();
    let stream = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let mut connection = Connection::new(UnixStream::from(stream))?;
    loop {
        wait(&connection)?;
        let requests = match connection.requests() {
            Ok(requests) => requests.unwrap_or_default(),
            Err(error) if is_end(&error) => return Ok(Role::Zygote),
            Err(error) => return Err(error),
        };
        for (request, descriptors) in requests {
            let result = match answer(&request, descriptors) {
                Ok(Fork::Child) => return Ok(Role::Keeper),
                Ok(Fork::Parent(pid)) => Ok(Outcome::Spawned { pid }),
                Err(failure) => Err(failure),
            };
            let reply = Message::Reply { number: request.number, descriptors: 0, result };
            connection.queue(&reply, Vec::new());
        }
        connection.flush()?;
    }
}

/// Whether an error means that the daemon has exited.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn wait(connection: &Connection) -> io::Result<()> {
    let mut flags = PollFlags::POLLIN;
    flags.set(PollFlags::POLLOUT, connection.wants_to_write());
    let mut descriptors = [PollFd::new(connection.stream.as_fd(), flags)];
    match poll(&mut descriptors, PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn answer(request: &Request, descriptors: Vec<OwnedFd>) -> Step<Fork> {
    let streams = <[OwnedFd; 3]>::try_from(descriptors);
    let (Call::Spawn, Ok([stdin, stdout, stderr])) = (&request.call, streams) else {
        return Err(Failure::new(
            FailureKind::Invalid,
            "the zygote only forks keepers, each with three descriptors",
        ));
    };
    let forked = sys::fork(0).context("fork the pod's keeper")?;
    if forked == Fork::Child {
        // Without its log it cannot report an error.
        let moved = rustix::stdio::dup2_stdin(stdin)
            .and_then(|()| rustix::stdio::dup2_stdout(stdout))
            .and_then(|()| rustix::stdio::dup2_stderr(stderr));
        if moved.is_err() {
            sys::exit(1);
        }
        sys::stop_ignoring_children();
    }
    Ok(forked)
}
