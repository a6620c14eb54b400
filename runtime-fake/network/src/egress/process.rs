//! The process that keeps a program running, or relays itself, as long as the daemon or a pod needs it, and serves the pods' DNS.
//!
//! It is the first process of a process namespace, so that the program never outlives it. The daemon and every pod's keeper hold
//! the write end of its FIFO; it ends when all are closed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ipnet::Ipv4Net;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::{
    fs::OFlags,
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    dns,
    program::{Program, has_default_route},
    relay,
};
use crate::links::within;

/// `RTMGRP_IPV4_ROUTE` of linux/rtnetlink.h: changes of routes.
const ROUTE_CHANGES: u32 = 0x40;
/// Timeout for the program to configure its interface. It takes some milliseconds.
const READY_WITHIN: Duration = Duration::from_secs(8);
/// The longest part of the program's messages that is reported.
const MESSAGE: u64 = 2048;
/// The report when pods can reach other hosts.
pub(super) const READY: &str = "ready";

/// Runs the process: `FIFO NAME PATH`, or `FIFO crib BRIDGE SUBNET…`, with the network namespace as standard input.
/// Standard output receives [`READY`] or an error message.
pub(super) fn run(arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let arguments: Vec<OsString> = arguments.collect();
    let [fifo, name, rest @ ..] = &arguments[..] else {
        return Err(io::Error::other("expected FIFO NAME ARGUMENT…"));
    };
    let program = name.to_str().and_then(Program::named);
    let program = program.ok_or_else(|| io::Error::other("unknown program"))?;
    let fifo = PathBuf::from(fifo);
    let _ = rustix::thread::set_name(c"crib-egress");
    // Signals from the daemon's terminal must not reach this process.
    let _ = rustix::process::setsid();
    let users = open_users(&fifo)?;
    let netns = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let served = match (program, rest) {
        (Program::Crib, [bridge, subnets @ ..]) => {
            serve_own(bridge, subnets, netns.as_fd(), &users)
        }
        (Program::Pasta | Program::Slirp4netns, [path]) => {
            serve_program(program, path, netns.as_fd(), &users)
        }
        _ => Err(io::Error::other("expected other arguments for this program")),
    };
    if events(&[(users.as_fd(), PollFlags::empty())], Some(Instant::now()))?[0] {
        let _ = fs::remove_file(&fifo);
        let _ = fs::remove_file(super::log_of(&fifo));
    }
    served
}

/// Relays for the pods of the bridge, until nothing uses the process.
fn serve_own(
    bridge: &OsString,
    subnets: &[OsString],
    netns: BorrowedFd<'_>,
    users: &File,
) -> io::Result<()> {
    let bridge = bridge.to_string_lossy();
    let subnets = subnets.iter().map(|subnet| {
        let subnet: Option<Ipv4Net> = subnet.to_str()?.parse().ok();
        subnet.map(|subnet| (subnet.network(), subnet.prefix_len()))
    });
    let subnets: Option<Vec<_>> = subnets.collect();
    let subnets = subnets.ok_or_else(|| io::Error::other("expected IPv4 subnets"))?;
    let ended = relay::start(netns, &bridge, &subnets)?;
    dns::serve(netns)?;
    report(READY);
    wait_for_end(ended.as_fd(), users)
}

/// Runs an installed program, until it ends or nothing uses it.
fn serve_program(
    program: Program,
    path: &OsString,
    netns: BorrowedFd<'_>,
    users: &File,
) -> io::Result<()> {
    let mut child = Command::new(path)
        .args(program.arguments("/proc/self/fd/0"))
        .env_clear()
        .current_dir("/")
        .stdin(netns.try_clone_to_owned()?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let served = serve(program, &mut child, netns, users);
    let _ = child.kill();
    let _ = child.wait();
    served
}

/// Reports when pods can reach other hosts, and returns when the program has ended or nothing uses it.
fn serve(
    program: Program,
    child: &mut Child,
    netns: BorrowedFd<'_>,
    users: &File,
) -> io::Result<()> {
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let routes = within(Some(netns), || -> io::Result<Socket> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, ROUTE_CHANGES))?;
        socket.set_non_blocking(true)?;
        Ok(socket)
    })??;
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let table = within(Some(netns), || fs::read_to_string("/proc/thread-self/net/route"))??;
        if has_default_route(&table, program) {
            break;
        }
        let happened = events(
            &[
                (ended.as_fd(), PollFlags::POLLIN),
                (users.as_fd(), PollFlags::empty()),
                (routes.as_fd(), PollFlags::POLLIN),
            ],
            Some(deadline),
        )?;
        match happened[..] {
            [true, ..] => return Err(io::Error::other(error_output(child))),
            [_, true, _] => return Ok(()),
            [_, _, true] => drain(&routes),
            _ => {
                return Err(io::Error::other("it did not configure its interface in time"));
            }
        }
    }
    dns::serve(netns)?;
    report(READY);
    discard(child);
    wait_for_end(ended.as_fd(), users)
}

/// Opens the read end of the FIFO. The kernel reports that all writers have closed only to a reader that had one, and the daemon
/// may have ended before this open. So it briefly opens a write end too.
fn open_users(fifo: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let users = File::options().read(true).custom_flags(flags).open(fifo)?;
    drop(File::options().write(true).custom_flags(flags).open(fifo)?);
    Ok(users)
}

/// Waits until the program or relay has ended, or nothing uses it.
fn wait_for_end(ended: BorrowedFd<'_>, users: &File) -> io::Result<()> {
    let either = [(ended, PollFlags::POLLIN), (users.as_fd(), PollFlags::empty())];
    events(&either, None).map(drop)
}

/// Waits for any of the events, and returns which happened; none after `deadline`. The end of a pipe always counts.
fn events(
    descriptors: &[(BorrowedFd<'_>, PollFlags)],
    deadline: Option<Instant>,
) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|(descriptor, flags)| PollFd::new(*descriptor, *flags)).collect();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = match left {
            Some(left) => PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        match poll(&mut polled, timeout) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled.iter().map(|fd| fd.any().unwrap_or(true)).collect()),
        }
    }
}

/// Discards the pending notifications of route changes.
fn drain(routes: &Socket) {
    let mut buffer = Vec::with_capacity(64 * 1024);
    while routes.recv(&mut buffer, 0).is_ok() {
        buffer.clear();
    }
}

/// Writes the report to the daemon, and closes the pipe.
fn report(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
    let _ = io::stdout().flush();
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// Reports why the process ends.
pub(super) fn report_failure(error: &io::Error) {
    report(&error.to_string());
}

/// The messages of a program that has ended, in one line.
fn error_output(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.take(MESSAGE).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    match lines.is_empty() {
        true => "it ended without a message".to_owned(),
        false => lines.join(", "),
    }
}

/// Reads and discards the program's further output, so that it never blocks on a full pipe.
fn discard(child: &mut Child) {
    if let Some(mut stderr) = child.stderr.take() {
        let _ = std::thread::Builder::new()
            .name("messages".to_owned())
            .spawn(move || io::copy(&mut stderr, &mut io::sink()));
    }
}
