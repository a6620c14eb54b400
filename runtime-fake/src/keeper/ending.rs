//! What becomes of the keeper's children: their exit statuses, taken, recorded and told.

use jiff::Timestamp;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::{
    Keeper,
    container::{News, Phase},
    own_pid,
    protocol::{Event, Exit, Failure, FailureKind, Message, Outcome},
    record, restore, sys,
};

impl Keeper {
    /// Follows a container through its set-up.
    pub(super) fn hear(&mut self, id: &str) {
        loop {
            let Some(container) = self.containers.get_mut(id) else {
                return;
            };
            let (news, phase, pid) = (container.news(), container.phase, container.pid);
            let (number, result) = match (news, phase) {
                (News::Ready(user), Phase::Creating { number }) => {
                    container.phase = Phase::Created;
                    (number, Ok(Outcome::Created { pid, user }))
                }
                // criu runs, and says by its end how it went.
                (News::Closed, Phase::Starting { .. }) if container.restoring.is_some() => continue,
                (News::Closed, Phase::Starting { number }) if container.start_error.is_none() => {
                    let at = Timestamp::now();
                    container.started = Some(at);
                    container.phase = Phase::Running;
                    (number, Ok(Outcome::Started { at, pid: None }))
                }
                (News::Failed(failure), Phase::Starting { number }) => {
                    container.start_error = Some(failure.clone());
                    (number, Err(failure))
                }
                // Answered when it has ended, so that the same id can be tried again at once.
                (News::Failed(failure), Phase::Creating { .. }) => {
                    container.start_error = Some(failure);
                    continue;
                }
                (News::Nothing, _) => return,
                (News::Ready(_) | News::Failed(_) | News::Closed, _) => continue,
            };
            self.reply(number, result);
        }
    }

    /// Takes the exit status of every child that has ended.
    pub(super) fn reap(&mut self, flags: WaitPidFlag) {
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
            self.ended(pid.as_raw(), code);
        }
    }

    fn ended(&mut self, pid: i32, code: i32) {
        let found = self
            .containers
            .iter()
            .find(|(_, c)| c.pid == pid && c.phase != Phase::Exited)
            .map(|(id, _)| id.clone());
        if let Some(id) = found {
            self.hear(&id);
            if !self.restored(&id, code) {
                self.container_ended(&id, code);
            }
            return;
        }
        if let Some((answer, news)) = self.execs.ended(pid, code) {
            if let Some(answer) = answer {
                self.answered(answer);
            }
            self.say(&news);
            return;
        }
        if self.containers.values().any(|c| c.restoring.is_some()) {
            self.early.push((pid, code));
        }
    }

    /// Takes note of the end of a criu that was to bring back a container's processes, and says whether they are there.
    fn restored(&mut self, id: &str, code: i32) -> bool {
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        let Phase::Starting { number } = container.phase else {
            return false;
        };
        if container.start_error.is_some() {
            return false;
        }
        let Some(directory) = container.restoring.take() else {
            return false;
        };
        let early = match restore::outcome(&directory, code) {
            Ok(pid) => {
                let at = Timestamp::now();
                container.is_back(pid, at);
                self.reply(number, Ok(Outcome::Started { at, pid: Some(pid) }));
                self.early.iter().find(|(early, _)| *early == pid).copied()
            }
            Err(failure) => {
                container.start_error = Some(failure.clone());
                self.reply(number, Err(failure));
                None
            }
        };
        if !self.containers.values().any(|c| c.restoring.is_some()) {
            self.early.clear();
        }
        let back = self
            .containers
            .get(id)
            .is_some_and(|c| c.phase == Phase::Running);
        if let Some((_, code)) = early {
            self.container_ended(id, code);
        }
        back
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
            // It never was: the answer to Create says why.
            Phase::Creating { number } => {
                let failure = self.containers.remove(id).and_then(|c| c.start_error);
                let unexplained = || {
                    Failure::new(
                        FailureKind::System,
                        format!(
                            "the container's first process ended with {code} during its set-up"
                        ),
                    )
                };
                self.reply(number, Err(failure.unwrap_or_else(unexplained)));
            }
            Phase::Starting { number } if !reported => {
                self.reply(
                    number,
                    Err(Failure::new(
                        FailureKind::System,
                        format!(
                            "the container's first process ended with {code} before its program ran"
                        ),
                    )),
                );
                self.tell_exit(id, exit);
            }
            Phase::Created | Phase::Starting { .. } | Phase::Running | Phase::Exited => {
                self.tell_exit(id, exit)
            }
        }
        if !waiting.is_empty() {
            self.containers.remove(id);
        }
        for number in waiting {
            self.reply(number, Ok(Outcome::Done));
        }
    }

    fn tell_exit(&mut self, id: &str, exit: Exit) {
        if let Some(pod) = &self.pod {
            // The daemon may be away: what it does not hear now it reads later.
            if let Err(error) = record::exit(&pod.plan.directory, id, &exit) {
                let _ = std::io::Write::write_all(
                    &mut std::io::stderr(),
                    format!("keeper: failed to record the exit of {id}: {error}\n").as_bytes(),
                );
            }
        }
        self.say(&Message::Event(Event::Exited {
            container: id.to_owned(),
            exit,
        }));
    }

    /// Kills everything, tells the last news and ends.
    pub(super) fn end(mut self) -> std::io::Result<()> {
        loop {
            let children = record::children(own_pid());
            if children.is_empty() {
                break;
            }
            for pid in &children {
                sys::kill(*pid, libc::SIGKILL);
            }
            // Orphans of those that end now become our children: look again after each.
            match waitpid(None, Some(WaitPidFlag::empty())) {
                Ok(WaitStatus::Exited(pid, code)) => self.ended(pid.as_raw(), code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    self.ended(pid.as_raw(), 128 + signal as i32)
                }
                Err(nix::errno::Errno::ECHILD) => break,
                Ok(_) | Err(_) => {}
            }
        }
        self.cgroups.end(self.connection.is_none());
        if let Some(number) = self.ending {
            self.reply(number, Ok(Outcome::Done));
        }
        if let Some(connection) = &mut self.connection {
            // A daemon that is gone reads the records.
            let _ = connection.flush_all();
        }
        Ok(())
    }
}
