//! The command of a run in the background (`crib run --name`): its streams, and how the command that started it learns that the
//! pods have started.
//!
//! Standard output is a pipe to the command at the terminal. It gets one line, [`STARTED`] or [`FAILED`], when the pods have
//! started, and ends without one when the run ends before. Standard error is the terminal's until then, and the file `run.log` afterwards.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use crate::output::printer::Printer;

/// The file in the run's directory that gets what is printed later.
pub(crate) const LOG: &str = "run.log";
/// What is written when the pods have started.
pub(crate) const STARTED: &str = "started\n";
/// The same, if one of them can never run.
pub(crate) const FAILED: &str = "failed\n";

/// A run whose starting command still waits.
#[derive(Debug)]
pub(crate) struct Background {
    /// The pipe. No other process gets it.
    starter: OwnedFd,
}

impl Background {
    /// Leaves the session of the terminal, and its streams but for standard error. To be called when the manifests are read,
    /// one of which may be standard input.
    pub(crate) fn enter() -> io::Result<Self> {
        let starter = io::stdout().as_fd().try_clone_to_owned()?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        // It fails for the leader of a process group only, which the starting command does not make of it.
        let _ = nix::unistd::setsid();
        Ok(Self { starter })
    }

    /// Gets something when the starting command ends. It has to be alive until the pods have started: its user is told why
    /// they do not.
    pub(crate) fn watch_starter(&self) -> io::Result<mpsc::UnboundedReceiver<()>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let pipe = self.starter.try_clone()?;
        std::thread::spawn(move || {
            loop {
                // No event is asked for: errors are always told (poll(2)).
                let mut descriptors = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
                match poll(&mut descriptors, PollTimeout::NONE) {
                    Err(nix::errno::Errno::EINTR) => {}
                    Ok(_) | Err(_) => break,
                }
            }
            // Nobody listens once the pods have started.
            let _ = sender.send(());
        });
        Ok(receiver)
    }

    /// Tells the starting command a line, that the pods have started, once what was printed so far is on its terminal. What is
    /// printed later goes to `log`.
    pub(crate) async fn started(self, printer: Printer, log: File, line: &'static str) {
        printer.errors_to(log).await;
        // If the starting command has ended, nobody waits for this.
        let _ = File::from(self.starter).write_all(line.as_bytes());
    }
}
