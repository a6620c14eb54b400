//! A process that a test starts, and programs that a test writes. The test waits for a process with a pidfd, and never leaves it
//! behind.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Readable once the process has exited.
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let opened = match pid {
            Some(pid) => pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from),
            None => Err(io::Error::other("the process has no id")),
        };
        match opened {
            Ok(pidfd) => Ok(Self { child, pidfd, ended: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// The writing end of its standard input, if that is a pipe and has not been taken.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The reading end of its standard output, if that is a pipe and has not been taken.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends a signal, unless the process has exited.
    pub fn signal(&mut self, signal: Signal) {
        if self.try_wait().is_none() {
            let _ = kill(Pid::from_raw(self.pid()), signal);
        }
    }

    /// Its exit status, if it has exited.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits for its exit, for at most `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.try_wait().is_none() {
            let pidfd = self.pidfd.try_clone().ok()?;
            // `try_wait` below distinguishes an exit from a timeout.
            let _ = tasks::spawn_blocking(move || wait_for_end(&pidfd, limit)).await;
        }
        self.try_wait()
    }

    /// Waits for its exit, for at most `limit`, in code that cannot await.
    pub fn wait_blocking(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.try_wait().is_none() {
            wait_for_end(&self.pidfd, limit);
        }
        self.try_wait()
    }
}

/// Writes a script that any process can execute as soon as this returns. Its directory must exist.
///
/// A shell writes it: a file that this process has open for writing is also open in a child that another thread forks meanwhile, and
/// cannot be executed until that child has executed its own program (ETXTBSY).
///
/// # Errors
/// The shell could not be started, or failed; it has written the reason to standard error.
pub fn write_program(path: &Path, script: &str) -> io::Result<()> {
    let write = r#"printf %s "$1" >"$0" && chmod 755 "$0""#;
    let status = Command::new("/bin/sh").arg("-c").arg(write).arg(path).arg(script).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("failed to write {}: {status}", path.display()))),
    }
}

/// Waits until the process of `pidfd` has exited, for at most `limit`.
fn wait_for_end(pidfd: &OwnedFd, limit: Duration) {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // After EINTR, wait for the remaining time.
        if poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], timeout) != Err(Errno::EINTR)
        {
            return;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
