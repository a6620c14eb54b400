//! Terminals. A process opens its own terminal in its container's devpts, and sends the master side to the keeper.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Gid, Uid},
    pty::OpenptFlags,
    termios::{Winsize, tcsetwinsize},
};

use crate::contract::frame::{Receiver, send};
use crate::contract::plan::MountPlan;
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};

/// A terminal's size until its first client sets one: the kernel's default of 0 by 0 confuses programs.
const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
/// The device that creates terminals (Linux, Documentation/admin-guide/devices.txt).
const MULTIPLEXER: (u32, u32) = (5, 2);
/// The major numbers of the terminals that it creates.
const TERMINALS: std::ops::RangeInclusive<u32> = 136..=143;

/// A socket pair for sending a terminal to the keeper: the keeper's end, which is non-blocking, and the process's end.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Receives the master side of a terminal from the socket `socket`.
pub(crate) fn receive(socket: OwnedFd) -> Step<OwnedFd> {
    let mut receiver = Receiver::default();
    receiver
        .fill(&socket)
        .and_then(|_| receiver.take_descriptors(1))
        .context("take over the terminal")?
        .pop()
        .ok_or_else(|| Failure::new(FailureKind::System, "the new process sent no terminal"))
}

/// Opens the slave side of the terminal whose master side is `master`, without making it the controlling terminal.
pub(crate) fn open_slave(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    Ok(rustix::pty::ioctl_tiocgptpeer(master, flags)?)
}

/// Opens a new terminal for this process's standard streams, and sends its master side.
pub(crate) fn open_and_send(socket: &OwnedFd) -> Step {
    let what = "open a terminal";
    // The container's image may have another file there: opening it must neither block nor have side effects.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // Nor may a magic link lead to another process's open files.
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let master = rustix::fs::openat2(CWD, "/dev/ptmx", flags, Mode::empty(), resolve)
        .context(format_args!("{what} (/dev/ptmx)"))?;
    let stat = rustix::fs::fstat(&master).context(what)?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || device != MULTIPLEXER {
        return Err(Failure::new(
            FailureKind::Invalid,
            "failed to open a terminal: /dev/ptmx in the container is something else",
        ));
    }
    rustix::pty::unlockpt(&master).context(what)?;
    let slave = open_slave(master.as_fd()).context(what)?;
    tcsetwinsize(&slave, SIZE).context("set the terminal's size")?;
    rustix::stdio::dup2_stdin(&slave)
        .and_then(|()| rustix::stdio::dup2_stdout(&slave))
        .and_then(|()| rustix::stdio::dup2_stderr(&slave))
        .context("use the terminal")?;
    send(socket, b"t", &[master.as_fd()]).context("hand the terminal over")?;
    Ok(())
}

/// Makes the terminal on standard input the controlling terminal of this session leader.
pub(crate) fn control() -> Step {
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())
        .context("make the terminal the session's own")
}

/// Mounts the terminal on standard input at `/dev/console`, as container runtimes do, unless a client mounts there.
pub(crate) fn console(mounts: &[MountPlan]) -> Step {
    let ours = ["/dev", "/dev/pts", "/dev/console"].map(Path::new);
    if mounts.iter().any(|mount| ours.contains(&&*mount.destination)) {
        return Ok(());
    }
    let what = "make /dev/console";
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, "/dev/console", flags | OFlags::EXCL, Mode::from_raw_mode(0o600))
    {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error).context(what),
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(rustix::stdio::stdin(), "", flags).context(what)?;
    move_mount(tree.as_fd(), "", CWD, "/dev/console", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .context(what)
}

/// Makes the process's user the owner of the standard streams made for it, so that `/dev/stdout` can be opened.
pub(crate) fn own_streams(uid: u32) {
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        own(stream, uid);
    }
}

/// Makes a user the owner of a stream made for its process, with `uid` as this process sees it. A process in a user
/// namespace cannot chown a pipe made outside.
pub(crate) fn own(stream: BorrowedFd<'_>, uid: u32) {
    if let Ok(stat) = rustix::fs::fstat(stream) {
        let made_for_it = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo => true,
            FileType::CharacterDevice => TERMINALS.contains(&rustix::fs::major(stat.st_rdev)),
            FileType::RegularFile
            | FileType::Directory
            | FileType::Symlink
            | FileType::Socket
            | FileType::BlockDevice
            | FileType::Unknown => false,
        };
        if made_for_it {
            // On failure the open descriptors still work.
            let _ = rustix::fs::fchown(stream, Some(Uid::from_raw(uid)), None::<Gid>);
        }
    }
}
