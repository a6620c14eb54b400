//! Runs further processes in running containers (execs).

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use crate::Answer;
use crate::contract::plan::{ExecPlan, IsolationMode};
use crate::contract::protocol::{Event, Message, Outcome};
use crate::kernel::cgroup::directory::CgroupFds;
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::sys::{self, Fork};
use crate::parent::exec_processes::{self, ExecScope};
use crate::parent::limit::{Limit, Verdict};
use crate::parent::output::pipe_from_child;
use crate::setup::child::{self, ChildStreams, ExecNamespaces};
use crate::setup::pod::Pod;
use crate::setup::process;
use crate::setup::report_pipe::{ReportEvent, ReportPipe};
use crate::setup::shared;
use crate::setup::terminal;

/// The execs whose process has not exited, by process id.
#[derive(Default)]
pub(crate) struct Execs {
    running: BTreeMap<i32, Exec>,
}

/// The running container of an exec.
pub(crate) struct ExecTarget {
    pub(crate) container: String,
    pub(crate) isolation: IsolationMode,
    /// Its first process.
    pub(crate) pid: i32,
    /// The descriptors of its cgroup.
    pub(crate) cgroup: Option<CgroupFds>,
}

struct Exec {
    /// The container that it runs in.
    container: String,
    /// The ticket of the request that waits until the program runs.
    ticket: Option<u64>,
    report: Option<ReportPipe>,
    /// The socket on which its terminal arrives, if it has one.
    terminal: Option<OwnedFd>,
    /// The processes that are killed with it.
    scope: ExecScope,
    /// The limit of its set-up.
    limit: Limit,
    /// It was killed at that limit: the end of its reports no longer means that the program runs.
    late: bool,
}

/// The limit of an exec's set-up, shorter than the daemon's deadline for the answer.
const SET_UP: Duration = Duration::from_secs(8);

impl Execs {
    /// Forks a process into a container. [`Self::read_reports`] returns the answer.
    pub(crate) fn start(
        &mut self,
        ticket: u64,
        plan: &ExecPlan,
        target: ExecTarget,
        pod: Option<&Pod>,
        descriptors: Vec<OwnedFd>,
    ) -> Step {
        let what = "make a pipe";
        let users = pod.and_then(|pod| pod.user_namespace.as_ref());
        let null = pod.and_then(|pod| pod.null.as_ref());
        let (isolation, target_pid) = (target.isolation, target.pid);
        let (terminal, child_terminal) = if plan.terminal {
            let (ours, theirs) = terminal::socket_pair().context(what)?;
            (Some(ours), Some(theirs))
        } else {
            (None, None)
        };
        let [stdin, stdout, stderr] = streams(plan, descriptors)?;
        if let Some(uid) = users.and_then(|users| users.outside(&plan.user)) {
            for stream in [&stdin, &stdout, &stderr] {
                terminal::own(stream.as_fd(), uid);
            }
        }
        let (report, child_report) = pipe_from_child().context(what)?;
        let ends =
            ChildStreams { stdin, stdout, stderr, report: child_report, terminal: child_terminal };
        let filter = process::filter(&plan.process)?;
        // The keeper opens them: in a user namespace the container's first process may belong to another user.
        let (mounts, pids) = if isolation == IsolationMode::Process {
            (None, None)
        } else {
            let mounts = File::open(format!("/proc/{target_pid}/ns/mnt"));
            let mounts = mounts.context("find the container's mount namespace")?;
            let pids = shared::namespace(target_pid);
            let pids = pids.context("find the container's process namespace")?;
            (Some(OwnedFd::from(mounts)), pids)
        };
        let cgroup = target.cgroup.as_ref().and_then(CgroupFds::unified);
        let pid = match sys::fork_inside(0, cgroup).context("start a process in the container")? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                let joined = ExecNamespaces { pid: target_pid, users, mounts, pids, null };
                child::exec(plan, joined, filter, ends, target.cgroup)
            }
        };
        self.running.insert(
            pid,
            Exec {
                container: target.container,
                ticket: Some(ticket),
                report: Some(ReportPipe::new(report)),
                terminal,
                scope: ExecScope::Session,
                limit: Limit::new(SET_UP),
                late: false,
            },
        );
        Ok(())
    }

    /// Kills an exec and its descendants.
    pub(crate) fn kill(&self, pid: i32) {
        if let Some(exec) = self.running.get(&pid) {
            exec_processes::kill(pid, &exec.scope);
        }
    }

    /// Kills all execs of a container.
    pub(crate) fn kill_of(&self, container: &str) {
        for (pid, exec) in &self.running {
            if exec.container == container {
                exec_processes::kill(*pid, &exec.scope);
            }
        }
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running.values().filter_map(|e| e.report.as_ref()).map(ReportPipe::fd)
    }

    /// The answers for execs whose program runs or has failed to start.
    pub(crate) fn read_reports(&mut self) -> Vec<Answer> {
        let all: Vec<i32> = self.running.keys().copied().collect();
        all.into_iter().filter_map(|pid| self.read_report(pid)).collect()
    }

    fn read_report(&mut self, mut pid: i32) -> Option<Answer> {
        loop {
            let exec = self.running.get_mut(&pid)?;
            let result = match exec.report.as_mut()?.read() {
                ReportEvent::Nothing => return None,
                ReportEvent::Born(successor) => {
                    let exec = self.running.remove(&pid)?;
                    self.running.insert(successor, exec);
                    pid = successor;
                    continue;
                }
                ReportEvent::Failed(failure) => Err(failure),
                ReportEvent::Ready(_) | ReportEvent::Closed if exec.late => Err(late()),
                ReportEvent::Ready(_) | ReportEvent::Closed => Ok(Outcome::Exec { pid }),
            };
            return exec.answer(pid, result);
        }
    }

    /// Whether any exec is still being set up: it may have a successor whose pid is not known yet.
    pub(crate) fn in_set_up(&self) -> bool {
        self.running.values().any(|exec| exec.ticket.is_some())
    }

    /// Whether `pid` is an exec.
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.running.contains_key(&pid)
    }

    /// The time left until a set-up exceeds its limit.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let in_set_up = self.running.values().filter(|exec| exec.ticket.is_some());
        in_set_up.map(|exec| exec.limit.time_left()).min()
    }

    /// Kills execs whose set-up exceeds its limit. Returns answers for the ones that do not exit.
    pub(crate) fn enforce_limits(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (pid, exec) in &mut self.running {
            if exec.ticket.is_none() {
                continue;
            }
            match exec.limit.check() {
                Verdict::Wait => {}
                Verdict::Kill => {
                    exec.late = true;
                    sys::kill(*pid, libc::SIGKILL);
                }
                Verdict::GiveUp => answers.extend(exec.answer(*pid, Err(late()))),
            }
        }
        answers
    }

    /// Records the exit of `pid`; returns the pending answer, if any, and the event.
    pub(crate) fn handle_exit(&mut self, pid: i32, code: i32) -> (Option<Answer>, Option<Message>) {
        let answer = self.read_report(pid);
        // The last report may have replaced its pid by its successor's.
        let Some(mut exec) = self.running.remove(&pid) else {
            return (answer, None);
        };
        let unexplained = || {
            let message = format!("the process ended with {code} during its set-up");
            Failure::new(FailureKind::System, message)
        };
        let answer = answer.or_else(|| exec.answer(pid, Err(unexplained())));
        let event = Message::Event(Event::ExecExited { pid, code });
        (answer, Some(event))
    }
}

fn late() -> Failure {
    let seconds = SET_UP.as_secs();
    let message = format!(
        "the set-up of the process in the container took longer than {seconds} s and was given up"
    );
    Failure::new(FailureKind::Silent, message)
}

/// The standard streams of a process; /dev/null in place of a terminal that is still to be made.
fn streams(plan: &ExecPlan, descriptors: Vec<OwnedFd>) -> Step<[OwnedFd; 3]> {
    if plan.terminal && descriptors.is_empty() {
        let null =
            || -> Step<OwnedFd> { Ok(File::open("/dev/null").context("open /dev/null")?.into()) };
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
    /// The answer to the pending request, if there is one.
    fn answer(&mut self, pid: i32, result: Step<Outcome>) -> Option<Answer> {
        self.report = None;
        let ticket = self.ticket.take()?;
        if result.is_ok() {
            self.scope = ExecScope::of(pid);
        }
        let terminal = match (&result, self.terminal.take()) {
            (Ok(_), Some(socket)) => Some(terminal::receive(socket)),
            (Ok(_), None) | (Err(_), _) => None,
        };
        let (result, descriptors) = match terminal {
            Some(Err(failure)) => {
                exec_processes::kill(pid, &self.scope);
                (Err(failure), Vec::new())
            }
            Some(Ok(master)) => (result, vec![master]),
            None => (result, Vec::new()),
        };
        Some(Answer { ticket, result, descriptors })
    }
}
