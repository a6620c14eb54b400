//! The reports of a new process during its set-up, as its keeper reads them.

use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use crate::contract::plan::UserIds;
use crate::kernel::failure::{Failure, FailureKind};
use crate::setup::Report;

/// An event from a report pipe.
pub(crate) enum ReportEvent {
    Nothing,
    Ready(UserIds),
    /// Another process, with this pid, becomes the program.
    Born(i32),
    Failed(Failure),
    /// Closed: by a successful `execve`, or by the exit of the process.
    Closed,
}

/// The reading end of a child's report pipe.
pub(crate) struct ReportPipe {
    pipe: File,
    text: Vec<u8>,
}

impl ReportPipe {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), text: Vec::new() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Reads the next event. [`ReportEvent::Closed`] is the last one.
    pub(crate) fn read(&mut self) -> ReportEvent {
        loop {
            if let Some(end) = self.text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return match serde_json::from_slice(&line) {
                    Ok(Report::Ready(ids)) => ReportEvent::Ready(ids),
                    Ok(Report::Born(pid)) => ReportEvent::Born(pid),
                    Ok(Report::Failed(failure)) => ReportEvent::Failed(failure),
                    Err(error) => ReportEvent::Failed(Failure::new(
                        FailureKind::System,
                        format!("a new process sent an invalid report: {error}"),
                    )),
                };
            }
            let mut chunk = [0u8; 4096];
            match self.pipe.read(&mut chunk) {
                Ok(0) => return ReportEvent::Closed,
                Ok(n) => self.text.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return ReportEvent::Nothing,
            }
        }
    }
}
