//! The reports of a new process on its report pipe, between a fork of the keeper and the container's program.

use std::{
    io::{self, Write as _},
    os::fd::OwnedFd,
};

use serde::{Deserialize, Serialize};

use crate::contract::plan::UserIds;
use crate::kernel::failure::Failure;

/// The exit status of a process whose program could not be run, as containerd reports it (`StartError`).
pub(crate) const START_ERROR: i32 = 128;

/// One line of JSON on the report pipe.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The set-up is complete, with the resolved ids.
    Ready(UserIds),
    /// The pid of the process that becomes the program, if it is not the one that set it up.
    Born(i32),
    /// The set-up failed.
    Failed(Failure),
}

pub(crate) fn say(report: &OwnedFd, what: &Report) {
    let write = |mut to: std::fs::File| -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        to.write_all(&line)
    };
    // The keeper may have exited.
    let _ = report.try_clone().and_then(|fd| write(fd.into()));
}

pub(crate) fn fail(report: &OwnedFd, failure: Failure) -> ! {
    say(report, &Report::Failed(failure));
    std::process::exit(START_ERROR)
}
