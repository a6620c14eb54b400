//! Further processes in running containers.

use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
};

use super::{
    child::{self, Ends},
    container::{News, ReportPipe},
    output::pipe_from_child,
    pod::fork_into,
    protocol::{Event, Failure, FailureKind, Message, Outcome},
    step::{Doing as _, Step},
    sys::{self, Fork},
};
use crate::launch::{ExecPlan, Rung};

/// The execs whose process has not ended, by process id.
#[derive(Default)]
pub(super) struct Execs {
    running: BTreeMap<i32, Exec>,
}

struct Exec {
    /// The request that waits for the program to run.
    number: Option<u64>,
    report: Option<ReportPipe>,
}

impl Execs {
    /// Forks a process into the container of `target`. The answer comes with [`Self::hear`].
    pub(super) fn start(
        &mut self,
        number: u64,
        plan: &ExecPlan,
        rung: Rung,
        target: i32,
        descriptors: Vec<OwnedFd>,
    ) -> Step {
        let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(descriptors).map_err(|got| {
            Failure::new(
                FailureKind::Invalid,
                format!("an exec comes with three descriptors, not {}", got.len()),
            )
        })?;
        let (report, child_report) = pipe_from_child().doing("make a pipe")?;
        let ends = Ends {
            stdin,
            stdout,
            stderr,
            report: child_report,
        };
        let namespace = (rung != Rung::Process).then_some(target);
        let pid = match fork_into(namespace, 0)? {
            Fork::Parent(pid) => pid,
            Fork::Child => child::exec(plan, rung, target, ends),
        };
        self.running.insert(
            pid,
            Exec {
                number: Some(number),
                report: Some(ReportPipe::new(report)),
            },
        );
        Ok(())
    }

    /// Kills an exec and what is left of its session.
    pub(super) fn kill(&self, pid: i32) {
        if self.running.contains_key(&pid) {
            sys::kill(-pid, libc::SIGKILL);
            sys::kill(pid, libc::SIGKILL);
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running
            .values()
            .filter_map(|e| e.report.as_ref())
            .map(ReportPipe::fd)
    }

    /// Answers for those whose program runs, or never will.
    pub(super) fn hear(&mut self) -> Vec<Message> {
        self.running
            .iter_mut()
            .filter_map(|(pid, exec)| exec.hear(*pid))
            .collect()
    }

    /// Takes note of an end.
    pub(super) fn ended(&mut self, pid: i32, code: i32) -> Vec<Message> {
        let Some(mut exec) = self.running.remove(&pid) else {
            return Vec::new();
        };
        let mut messages: Vec<Message> = exec.hear(pid).into_iter().collect();
        messages.push(Message::Event(Event::ExecExited { pid, code }));
        messages
    }
}

impl Exec {
    fn hear(&mut self, pid: i32) -> Option<Message> {
        let report = self.report.as_mut()?;
        let result = match report.read() {
            News::Nothing => return None,
            News::Failed(failure) => Err(failure),
            News::Ready(_) | News::Closed => Ok(Outcome::Exec { pid }),
        };
        self.report = None;
        Some(Message::Reply {
            number: self.number.take()?,
            result,
        })
    }
}
