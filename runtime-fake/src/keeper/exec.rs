//! Further processes in running containers.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{BorrowedFd, OwnedFd},
};

use super::{
    Answer,
    child::{self, Ends},
    container::{News, ReportPipe},
    kin::{self, Kin},
    output::pipe_from_child,
    pod::{Birthplace, fork_into},
    process,
    protocol::{Event, Failure, FailureKind, Message, Outcome},
    step::{Doing as _, Step},
    sys::Fork,
    terminal,
    userns::UserNamespace,
};
use crate::{
    cgroup::directory::Entrance,
    launch::{ExecPlan, Rung},
};

/// The execs whose process has not ended, by process id.
#[derive(Default)]
pub(super) struct Execs {
    running: BTreeMap<i32, Exec>,
}

/// The running container that a process is started in.
pub(super) struct Place {
    pub(super) container: String,
    pub(super) rung: Rung,
    /// Its first process.
    pub(super) pid: i32,
    /// The way into its cgroup.
    pub(super) cgroup: Option<Entrance>,
}

struct Exec {
    /// The container that it runs in.
    container: String,
    /// The request that waits for the program to run.
    number: Option<u64>,
    report: Option<ReportPipe>,
    /// Where its terminal comes from, if it is to have one.
    terminal: Option<OwnedFd>,
    /// Who is killed with it.
    kin: Kin,
}

impl Execs {
    /// Forks a process into a container. The answer comes with [`Self::hear`].
    pub(super) fn start(
        &mut self,
        number: u64,
        plan: &ExecPlan,
        place: Place,
        users: Option<&UserNamespace>,
        descriptors: Vec<OwnedFd>,
    ) -> Step {
        let what = "make a pipe";
        let (rung, target) = (place.rung, place.pid);
        let (terminal, child_terminal) = if plan.tty {
            let (ours, theirs) = terminal::way().doing(what)?;
            (Some(ours), Some(theirs))
        } else {
            (None, None)
        };
        let [stdin, stdout, stderr] = streams(plan, descriptors)?;
        let (report, child_report) = pipe_from_child().doing(what)?;
        let ends = Ends {
            stdin,
            stdout,
            stderr,
            report: child_report,
            terminal: child_terminal,
        };
        let filter = process::filter(&plan.process)?;
        let cgroup = place.cgroup.as_ref().and_then(Entrance::unified);
        // Opened here: inside a user namespace the container's first process may be somebody else's.
        let (birthplace, mounts) = if rung == Rung::Process {
            let birthplace = Birthplace {
                cgroup,
                ..Birthplace::default()
            };
            (birthplace, None::<OwnedFd>)
        } else {
            let pids = Some(target);
            let mounts = File::open(format!("/proc/{target}/ns/mnt"));
            let mounts = mounts.doing("find the container's mount namespace")?;
            let birthplace = Birthplace {
                pids,
                users,
                cgroup,
            };
            (birthplace, Some(mounts.into()))
        };
        let pid = match fork_into(birthplace, 0, || ())? {
            Fork::Parent(pid) => pid,
            Fork::Child => child::exec(plan, target, mounts.as_ref(), filter, ends, place.cgroup),
        };
        self.running.insert(
            pid,
            Exec {
                container: place.container,
                number: Some(number),
                report: Some(ReportPipe::new(report)),
                terminal,
                kin: Kin::Session,
            },
        );
        Ok(())
    }

    /// Kills an exec and all that it started.
    pub(super) fn kill(&self, pid: i32) {
        if let Some(exec) = self.running.get(&pid) {
            kin::kill(pid, &exec.kin);
        }
    }

    /// Kills all execs of a container.
    pub(super) fn kill_of(&self, container: &str) {
        for (pid, exec) in &self.running {
            if exec.container == container {
                kin::kill(*pid, &exec.kin);
            }
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running
            .values()
            .filter_map(|e| e.report.as_ref())
            .map(ReportPipe::fd)
    }

    /// Answers for those whose program runs, or never will.
    pub(super) fn hear(&mut self) -> Vec<Answer> {
        self.running
            .iter_mut()
            .filter_map(|(pid, exec)| exec.hear(*pid))
            .collect()
    }

    /// Takes note of an end: the answer that was due, if any, and the news.
    pub(super) fn ended(&mut self, pid: i32, code: i32) -> Option<(Option<Answer>, Message)> {
        let mut exec = self.running.remove(&pid)?;
        let news = Message::Event(Event::ExecExited { pid, code });
        Some((exec.hear(pid), news))
    }
}

/// What a process has for its standard streams; nothing in the place of a terminal that is still to be made.
fn streams(plan: &ExecPlan, descriptors: Vec<OwnedFd>) -> Step<[OwnedFd; 3]> {
    if plan.tty && descriptors.is_empty() {
        let null =
            || -> Step<OwnedFd> { Ok(File::open("/dev/null").doing("open /dev/null")?.into()) };
        return Ok([null()?, null()?, null()?]);
    }
    <[OwnedFd; 3]>::try_from(descriptors).map_err(|got| {
        Failure::new(
            FailureKind::Invalid,
            format!("an exec comes with three descriptors, not {}", got.len()),
        )
    })
}

impl Exec {
    fn hear(&mut self, pid: i32) -> Option<Answer> {
        let report = self.report.as_mut()?;
        let result = match report.read() {
            News::Nothing => return None,
            News::Failed(failure) => Err(failure),
            News::Ready(_) | News::Closed => Ok(Outcome::Exec { pid }),
        };
        self.report = None;
        let number = self.number.take()?;
        if result.is_ok() {
            self.kin = Kin::of(pid);
        }
        let terminal = match (&result, self.terminal.take()) {
            (Ok(_), Some(way)) => Some(terminal::receive(way)),
            (Ok(_), None) | (Err(_), _) => None,
        };
        let (result, descriptors) = match terminal {
            Some(Err(failure)) => {
                kin::kill(pid, &self.kin);
                (Err(failure), Vec::new())
            }
            Some(Ok(master)) => (result, vec![master]),
            None => (result, Vec::new()),
        };
        Some(Answer {
            number,
            result,
            descriptors,
        })
    }
}
