//! The process of a background run (`crib run --name`): its standard streams, and the message to the command at the terminal that
//! the pods have started.
//!
//! Standard output is a pipe to the command at the terminal. The process writes one line to it when the pods have started,
//! [`STARTED`] or [`FAILED`]; if the run ends before, it writes nothing. Standard error is the terminal until then, and the file
//! `run.log` afterwards.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use crate::output::printer::Printer;

/// The file in the run's directory for later output.
pub(crate) const LOG: &str = "run.log";
/// The line after the pods have started.
pub(crate) const STARTED: &str = "started\n";
/// The line if a pod can never run.
pub(crate) const FAILED: &str = "failed\n";

/// A run whose starting command still waits.
#[derive(Debug)]
pub(crate) struct Background {
    /// The pipe to the starting command. No other process inherits it.
    starter: OwnedFd,
}

impl Background {
    /// Leaves the terminal's session, and detaches standard input and output. Must be called after the manifests are read, because
    /// standard input may be a manifest.
    pub(crate) fn enter() -> io::Result<Self> {
        let starter = io::stdout().as_fd().try_clone_to_owned()?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        // setsid fails only for a process group leader; the starting command does not create a group for this process.
        let _ = nix::unistd::setsid();
        Ok(Self { starter })
    }

    /// Sends a message when the starting command ends. The run ends if this happens before the pods have started, because that
    /// command reports why pods do not start.
    pub(crate) fn watch_starter(&self) -> io::Result<mpsc::UnboundedReceiver<()>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let pipe = self.starter.try_clone()?;
        std::thread::spawn(move || {
            loop {
                // poll reports errors even if no events are requested (poll(2)).
                let mut descriptors = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
                match poll(&mut descriptors, PollTimeout::NONE) {
                    Err(nix::errno::Errno::EINTR) => {}
                    Ok(_) | Err(_) => break,
                }
            }
            // The receiver is dropped once the pods have started.
            let _ = sender.send(());
        });
        Ok(receiver)
    }

    /// Redirects later output to `log`, and sends the starting command a line once all earlier output is written to the terminal.
    pub(crate) async fn started(self, printer: Printer, log: File, line: &'static str) {
        printer.errors_to(log).await;
        // Fails if the starting command has ended.
        let _ = File::from(self.starter).write_all(line.as_bytes());
    }
}
