//! Reaps the keeper's children, and records and reports their exits.

use jiff::Timestamp;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use crate::contract::protocol::{Event, Exit, Message, Outcome, exit_record};
use crate::kernel::failure::{Failure, FailureKind};
use crate::kernel::sys;
use crate::parent::container::{Container, Phase};
use crate::parent::exec_processes;
use crate::parent::limit::Verdict;
use crate::setup::report_pipe::ReportEvent;
use crate::setup::restore;
use crate::{Keeper, own_pid};

impl Keeper {
    /// Handles the reports of a container's first process.
    pub(crate) fn handle_reports(&mut self, id: &str) {
        loop {
            let Some(container) = self.containers.get_mut(id) else {
                return;
            };
            let (event, phase, pid) = (container.next_report(), container.phase, container.pid);
            let (ticket, result) = match (event, phase) {
                (ReportEvent::Ready(user), Phase::Creating { ticket }) => {
                    container.record_creation();
                    let users = self.pod.as_ref().and_then(|pod| pod.user_namespace.as_ref());
                    if let Some(uid) = users.and_then(|users| users.outside(&user)) {
                        container.own_streams(uid);
                    }
                    (ticket, Ok(Outcome::Created { pid, user }))
                }
                (ReportEvent::Born(successor), _) => {
                    container.pid = successor;
                    container.successor = true;
                    continue;
                }
                // criu runs; its exit code reports the outcome.
                (ReportEvent::Closed, Phase::Starting { .. }) if container.restoring.is_some() => {
                    continue;
                }
                (ReportEvent::Closed, Phase::Starting { ticket })
                    if container.start_error.is_none() =>
                {
                    let at = Timestamp::now();
                    container.started = Some(at);
                    container.phase = Phase::Running;
                    let pid = container.successor.then_some(pid);
                    (ticket, Ok(Outcome::Started { at, pid }))
                }
                (ReportEvent::Failed(failure), Phase::Starting { ticket }) => {
                    container.start_error = Some(failure.clone());
                    (ticket, Err(failure))
                }
                // Answered after its exit, so that the daemon can reuse the id immediately.
                (ReportEvent::Failed(failure), Phase::Creating { .. }) => {
                    container.start_error = Some(failure);
                    continue;
                }
                (ReportEvent::Nothing, _) => return,
                (ReportEvent::Ready(_) | ReportEvent::Failed(_) | ReportEvent::Closed, _) => {
                    continue;
                }
            };
            self.reply(ticket, result);
        }
    }

    /// Reaps every child that has exited.
    pub(crate) fn reap(&mut self, flags: WaitPidFlag) {
        loop {
            let (pid, code) = match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Err(nix::errno::Errno::EINTR) => continue,
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(
                    WaitStatus::Stopped(..)
                    | WaitStatus::Continued(_)
                    | WaitStatus::PtraceEvent(..)
                    | WaitStatus::PtraceSyscall(_),
                ) => continue,
            };
            self.handle_exit(pid.as_raw(), code);
        }
    }

    fn handle_exit(&mut self, pid: i32, code: i32) {
        // Handle reports that were sent before the exit: they contain a successor's pid, or report that the program ran.
        if !self.knows(pid) && self.in_set_up() {
            self.handle_all_reports();
        }
        if let Some(id) = self.container_of(pid) {
            self.handle_reports(&id);
            // If it forked the process that becomes the program, its own exit is not reported.
            if self.container_of(pid).as_ref() == Some(&id) && !self.restored(&id, code) {
                self.container_ended(&id, code);
            }
        } else if self.execs.has(pid) {
            let (answer, event) = self.execs.handle_exit(pid, code);
            if let Some(answer) = answer {
                self.send_answer(answer);
            }
            if let Some(event) = event {
                self.notify(&event);
            }
        } else if let Some(container) = self.preparing(pid) {
            container.preparing = None;
        } else if self.in_set_up() {
            self.unclaimed_exits.push((pid, code));
        }
    }

    fn container_of(&self, pid: i32) -> Option<String> {
        let mut living = self.containers.iter();
        let found = living.find(|(_, c)| c.pid == pid && c.phase != Phase::Exited);
        found.map(|(id, _)| id.clone())
    }

    fn preparing(&mut self, pid: i32) -> Option<&mut Container> {
        let mut all = self.containers.values_mut();
        all.find(|c| c.preparing == Some(pid))
    }

    fn knows(&self, pid: i32) -> bool {
        self.container_of(pid).is_some() || self.execs.has(pid)
    }

    /// Whether a process may exit before its owner is known.
    fn in_set_up(&self) -> bool {
        let starts =
            |c: &Container| c.restoring.is_some() || matches!(c.phase, Phase::Starting { .. });
        self.execs.in_set_up() || self.containers.values().any(starts)
    }

    /// Handles the reports of all new processes.
    pub(crate) fn handle_all_reports(&mut self) {
        for id in self.containers.keys().cloned().collect::<Vec<_>>() {
            self.handle_reports(&id);
        }
        for answer in self.execs.read_reports() {
            self.send_answer(answer);
        }
    }

    /// Handles exits that were reaped before their owner was known.
    pub(crate) fn catch_up(&mut self) {
        for (pid, code) in std::mem::take(&mut self.unclaimed_exits) {
            self.handle_exit(pid, code);
        }
    }

    /// Ends set-ups that exceed their limit.
    pub(crate) fn enforce_limits(&mut self) {
        for answer in self.execs.enforce_limits() {
            self.send_answer(answer);
        }
        for id in self.containers.keys().cloned().collect::<Vec<_>>() {
            let Some(container) = self.containers.get_mut(&id) else {
                continue;
            };
            if !matches!(container.phase, Phase::Creating { .. }) {
                continue;
            }
            match container.limit.check() {
                Verdict::Wait => {}
                Verdict::Kill => {
                    container.start_error = Some(Failure::new(
                        FailureKind::Silent,
                        "the container's set-up took too long and was given up: a mount's source or the container's image may be on a file system that does not answer",
                    ));
                    container.signal(libc::SIGKILL);
                }
                Verdict::GiveUp => self.container_ended(&id, 128 + libc::SIGKILL),
            }
        }
    }

    /// Records the exit of criu after a restore; returns whether the container's processes are running.
    fn restored(&mut self, id: &str, code: i32) -> bool {
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        let Phase::Starting { ticket } = container.phase else {
            return false;
        };
        if container.start_error.is_some() {
            return false;
        }
        let Some(directory) = container.restoring.take() else {
            return false;
        };
        match restore::outcome(&directory, code) {
            Ok(pid) => {
                let at = Timestamp::now();
                container.record_restore(pid, at);
                self.reply(ticket, Ok(Outcome::Started { at, pid: Some(pid) }));
                true
            }
            Err(failure) => {
                container.start_error = Some(failure.clone());
                self.reply(ticket, Err(failure));
                false
            }
        }
    }

    fn container_ended(&mut self, id: &str, code: i32) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let before = container.phase;
        let reported = container.start_error.is_some();
        let exit = container.ended(code);
        if let Some(place) = container.cgroup.take() {
            self.cgroups.ended(place, container.orphans);
        }
        let waiting = std::mem::take(&mut container.forget);
        self.execs.kill_of(id);
        match before {
            // The container was never created: the answer to Create has the reason.
            Phase::Creating { ticket } => {
                let failure = self.containers.remove(id).and_then(|c| c.start_error);
                let unexplained = || {
                    Failure::new(
                        FailureKind::System,
                        format!(
                            "the container's first process ended with {code} during its set-up"
                        ),
                    )
                };
                self.reply(ticket, Err(failure.unwrap_or_else(unexplained)));
            }
            Phase::Starting { ticket } if !reported => {
                self.reply(
                    ticket,
                    Err(Failure::new(
                        FailureKind::System,
                        format!(
                            "the container's first process ended with {code} before its program ran"
                        ),
                    )),
                );
                self.report_exit(id, exit);
            }
            Phase::Created | Phase::Starting { .. } | Phase::Running | Phase::Exited => {
                self.report_exit(id, exit)
            }
        }
        if !waiting.is_empty() {
            self.containers.remove(id);
        }
        for ticket in waiting {
            self.reply(ticket, Ok(Outcome::Done));
        }
    }

    fn report_exit(&mut self, id: &str, exit: Exit) {
        if let Some(pod) = &self.pod {
            // The daemon may not be running: it reads the record later.
            if let Err(error) = write_record(&pod.plan.directory, id, &exit) {
                let _ = std::io::Write::write_all(
                    &mut std::io::stderr(),
                    format!("keeper: failed to record the exit of {id}: {error}\n").as_bytes(),
                );
            }
        }
        self.notify(&Message::Event(Event::Exited { container: id.to_owned(), exit }));
    }

    /// Kills everything, sends the last event and exits.
    pub(crate) fn end(mut self) -> std::io::Result<()> {
        loop {
            let children = children(own_pid());
            if children.is_empty() {
                break;
            }
            for pid in &children {
                sys::kill(*pid, libc::SIGKILL);
            }
            // Their orphans become children of this process: list the children again after each exit.
            match waitpid(None, Some(WaitPidFlag::empty())) {
                Ok(WaitStatus::Exited(pid, code)) => self.handle_exit(pid.as_raw(), code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    self.handle_exit(pid.as_raw(), 128 + signal as i32)
                }
                Err(nix::errno::Errno::ECHILD) => break,
                Ok(_) | Err(_) => {}
            }
        }
        self.cgroups.end(self.connection.is_none());
        if let Some(ticket) = self.ending {
            self.reply(ticket, Ok(Outcome::Done));
        }
        if let Some(connection) = &mut self.connection {
            // Without a connection, the daemon reads the records.
            let _ = connection.flush_all();
        }
        Ok(())
    }
}

/// Writes a container's exit record.
pub(crate) fn write_record(
    directory: &std::path::Path,
    id: &str,
    exit: &Exit,
) -> std::io::Result<()> {
    let path = exit_record(directory, id);
    let temporary = path.with_extension("exit.tmp");
    std::fs::write(&temporary, serde_json::to_vec(exit)?)?;
    std::fs::rename(&temporary, &path)
}

/// The children of this process, from `/proc`.
pub(crate) fn children(own: i32) -> Vec<i32> {
    if let Ok(text) = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")) {
        return text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    // Kernels without CONFIG_PROC_CHILDREN.
    exec_processes::processes().filter(|pid| exec_processes::parent(*pid) == Some(own)).collect()
}
