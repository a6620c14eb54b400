//! A container in its keeper.
//!
//! ```text
//! Creating ──ready──▶ Created ──start──▶ Starting ──execve──▶ Running ──exit──▶ Exited
//!     └──────────────────┴───────────────────┴────────exit──────────────────────▶
//! ```

use std::{
    collections::BTreeMap,
    fs::File,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    time::Duration,
};

use jiff::Timestamp;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::contract::plan::{IsolationMode, LaunchPlan, Pids};
use crate::contract::protocol::Exit;
use crate::kernel::cgroup::{
    CgroupPath, cleanup,
    directory::{self, CgroupFds},
};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::sys::{self, Fork};
use crate::parent::exec_processes::Namespace;
use crate::parent::limit::Limit;
use crate::parent::log::Stream;
use crate::parent::output::{Output, pipe_from_child};
use crate::setup;
use crate::setup::child::{self, ChildStreams, ContainerContext};
use crate::setup::fork::{CloneTarget, fork_into};
use crate::setup::pod::Pod;
use crate::setup::process;
use crate::setup::report_pipe::{ReportEvent, ReportPipe};
use crate::setup::root;
use crate::setup::shared::Shared;
use crate::setup::terminal;

/// A container's state, with the ticket of the request that waits for the next state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Creating { ticket: u64 },
    Created,
    Starting { ticket: u64 },
    Running,
    Exited,
}

/// The limit of a container's set-up: the source of a mount may be on a server that does not respond. The kubelet waits
/// for two minutes (runtimeRequestTimeout).
const SET_UP: Duration = Duration::from_secs(100);

/// A container and its first process.
pub(crate) struct Container {
    pub(crate) phase: Phase,
    /// The pid of the first process; meaningless once [`Phase::Exited`].
    pub(crate) pid: i32,
    pub(crate) isolation: IsolationMode,
    pub(crate) output: Output,
    pub(crate) started: Option<Timestamp>,
    pub(crate) start_error: Option<Failure>,
    pub(crate) exit: Option<Exit>,
    /// The tickets of the Forget requests that wait for its exit.
    pub(crate) forget: Vec<u64>,
    /// Its cgroup, until the container has ended.
    pub(crate) cgroup: Option<CgroupPath>,
    /// Its other processes may outlive the first one.
    pub(crate) orphans: bool,
    /// Its mount namespace, which identifies its other processes if it has no cgroup.
    mounts: Option<Namespace>,
    /// The directory of the criu that restores its processes; `pid` is criu until the restore succeeds.
    pub(crate) restoring: Option<PathBuf>,
    /// The daemon killed it, so the OOM killer did not.
    pub(crate) killed: bool,
    /// The process that prepares its root, until that process exits.
    pub(crate) preparing: Option<i32>,
    /// `pid` is not the created process but one that the created process forked.
    pub(crate) successor: bool,
    /// The limit of its set-up.
    pub(crate) limit: Limit,
    report: Option<ReportPipe>,
    barrier: Option<File>,
    input: Input,
    /// The socket on which its terminal arrives; none after that.
    terminal: Option<OwnedFd>,
}

/// The keeper's end of a container's standard input. As long as the keeper or a client holds it, a read in the
/// container blocks instead of returning EOF.
enum Input {
    None,
    /// Every client that requests it gets a copy.
    Kept(OwnedFd),
    /// The first client gets it; closing it ends the input (CRI v1, ContainerConfig.stdin_once).
    Once(Option<OwnedFd>),
}

/// The process namespace that a new container joins, if it joins one: the pod's, or another container's.
pub(crate) fn joined(
    containers: &BTreeMap<String, Container>,
    pod: &Pod,
    plan: &LaunchPlan,
) -> Step<Option<Shared>> {
    let container = match &plan.pids {
        _ if plan.isolation == IsolationMode::Process => return Ok(None),
        Pids::Pod => return pod.pause.as_ref().map(Shared::of_pod).transpose(),
        Pids::Own | Pids::Host => return Ok(None),
        Pids::Target { container } => container,
    };
    match containers.get(container) {
        Some(target) if target.phase == Phase::Running => Shared::of_container(target.pid),
        Some(_) | None => Err(Failure::new(
            FailureKind::WrongState,
            format!("the target container {container} does not run: it has no processes to share"),
        )),
    }
}

/// Forks the process that prepares the root of a container in a user namespace. Returns the socket on which the
/// prepared mounts arrive, and the process id.
fn prepare_outside(plan: &LaunchPlan, pod: &Pod, shared: Option<&Shared>) -> Step<(OwnedFd, i32)> {
    let what = "prepare the container's root";
    let (ours, theirs) = UnixStream::pair().context(what)?;
    match sys::fork(0).context(what)? {
        Fork::Parent(pid) => Ok((ours.into(), pid)),
        Fork::Child => {
            drop(ours);
            root::idmap::prepare(plan, pod, shared, &theirs.into())
        }
    }
}

impl Container {
    /// Forks the first process, which sets itself up and reports. `shared` is the process namespace to join.
    pub(crate) fn create(
        plan: &LaunchPlan,
        pod: &Pod,
        shared: Option<&Shared>,
        ticket: u64,
    ) -> Step<Self> {
        let what = "make the container's pipes";
        let (report, child_report) = pipe_from_child().context(what)?;
        let (child_barrier, barrier) = pipe_with(PipeFlags::CLOEXEC).context(what)?;
        let mut output = Output::new(plan.log.clone());
        let (ends, input, terminal) = if plan.terminal {
            let (ours, theirs) = terminal::socket_pair().context(what)?;
            let ends = ChildStreams {
                stdin: null()?,
                stdout: null()?,
                stderr: null()?,
                report: child_report,
                terminal: Some(theirs),
            };
            (ends, Input::None, Some(ours))
        } else {
            let (stdout, child_stdout) = pipe_from_child().context(what)?;
            let (stderr, child_stderr) = pipe_from_child().context(what)?;
            output.add_pipe(Stream::Stdout, stdout);
            output.add_pipe(Stream::Stderr, stderr);
            let (stdin, input) = make_input(plan).context(what)?;
            let ends = ChildStreams {
                stdin: stdin.map_or_else(null, Ok)?,
                stdout: child_stdout,
                stderr: child_stderr,
                report: child_report,
                terminal: None,
            };
            (ends, input, None)
        };
        let flags = match (plan.isolation, &plan.pids) {
            (IsolationMode::Process, _) => 0,
            // criu creates the process namespace with the processes.
            (_, Pids::Own) if plan.restore.is_some() => libc::CLONE_NEWNS,
            (_, Pids::Own) => libc::CLONE_NEWNS | libc::CLONE_NEWPID,
            // The child joins a shared process namespace last.
            (_, Pids::Pod | Pids::Target { .. } | Pids::Host) => libc::CLONE_NEWNS,
        };
        let filter = process::filter(&plan.process)?;
        let users = pod.user_namespace.as_ref();
        let (prepared, preparing) = match users {
            Some(_) => Some(prepare_outside(plan, pod, shared)?),
            None => None,
        }
        .unzip();
        let cgroup_fds = plan.cgroup.as_ref().map(directory::prepare).transpose()?;
        let target =
            CloneTarget { users, cgroup: cgroup_fds.as_ref().and_then(CgroupFds::unified) };
        let before = || child::adjust_oom_score(plan.oom_score_adj);
        let pid = match fork_into(target, flags, before)? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                let prepared = prepared.as_ref();
                let home = ContainerContext { pod, shared, prepared };
                child::container(plan, home, filter, ends, child_barrier, cgroup_fds)
            }
        };
        Ok(Self {
            phase: Phase::Creating { ticket },
            pid,
            isolation: plan.isolation,
            output,
            started: None,
            start_error: None,
            exit: None,
            forget: Vec::new(),
            cgroup: plan.cgroup.as_ref().map(|cgroup| cgroup.path.clone()),
            orphans: plan.isolation == IsolationMode::Process
                || plan.pids != Pids::Own
                || plan.restore.is_some(),
            mounts: None,
            restoring: plan.restore.as_ref().map(|r| r.directory.clone()),
            killed: false,
            preparing,
            successor: false,
            limit: Limit::new(SET_UP),
            report: Some(ReportPipe::new(report)),
            barrier: Some(barrier.into()),
            input,
            terminal,
        })
    }

    /// Records that its first process waits at the barrier, with all its namespaces.
    pub(crate) fn record_creation(&mut self) {
        self.phase = Phase::Created;
        if self.orphans && self.cgroup.is_none() {
            self.mounts = Namespace::of_mounts(self.pid);
        }
    }

    /// Records that criu has restored its processes, of which `pid` is the first.
    pub(crate) fn record_restore(&mut self, pid: i32, at: Timestamp) {
        self.pid = pid;
        self.started = Some(at);
        self.phase = Phase::Running;
        // From now on they end with their process namespace.
        self.orphans = false;
    }

    /// The ticket of the request that waits until the program runs.
    pub(crate) fn starting(&self) -> Option<u64> {
        match self.phase {
            Phase::Starting { ticket } => Some(ticket),
            Phase::Creating { .. } | Phase::Created | Phase::Running | Phase::Exited => None,
        }
    }

    /// Makes `ticket` the request that waits for the start, in place of the one that started the container. Returns an error if
    /// the start has failed.
    pub(crate) fn replace_start_ticket(&mut self, ticket: u64) -> Step {
        if let Some(failure) = &self.start_error {
            return Err(failure.clone());
        }
        self.phase = Phase::Starting { ticket };
        Ok(())
    }

    /// Opens the barrier.
    pub(crate) fn start(&mut self, ticket: u64) -> Step {
        match self.phase {
            Phase::Created => {}
            Phase::Creating { .. } => {
                return Err(Failure::new(
                    FailureKind::WrongState,
                    "the container is still being created",
                ));
            }
            Phase::Starting { .. } | Phase::Running => {
                return Err(Failure::new(
                    FailureKind::WrongState,
                    "the container is already started",
                ));
            }
            Phase::Exited => {
                return Err(Failure::new(
                    FailureKind::WrongState,
                    "the container has ended: create another one",
                ));
            }
        }
        let opened = self.output.open();
        if let Err(failure) =
            opened.context(format_args!("open the log file {}", self.output.path()))
        {
            // The container will never run: the client that gets this error finds it exited, with the reason.
            self.start_error = Some(failure.clone());
            self.signal(libc::SIGKILL);
            return Err(failure);
        }
        let Some(mut barrier) = self.barrier.take() else {
            return Err(Failure::new(FailureKind::WrongState, "the container has no barrier left"));
        };
        self.phase = Phase::Starting { ticket };
        // If the process died at the barrier, its exit reports the reason.
        let _ = std::io::Write::write_all(&mut barrier, b"g");
        Ok(())
    }

    /// Reads the next event from its report pipe.
    pub(crate) fn next_report(&mut self) -> ReportEvent {
        let Some(report) = &mut self.report else {
            return ReportEvent::Nothing;
        };
        let event = report.read();
        if matches!(event, ReportEvent::Closed) {
            self.report = None;
        }
        if matches!(event, ReportEvent::Ready(_))
            && let Some(socket) = self.terminal.take()
            && let Err(failure) =
                terminal::receive(socket).and_then(|master| self.output.add_terminal(master))
        {
            self.signal(libc::SIGKILL);
            return ReportEvent::Failed(failure);
        }
        event
    }

    /// Also copies its output from now on to `outputs`. Returns its terminal, or the pipe to its standard input if the client
    /// requested it and it is available.
    pub(crate) fn attach(
        &mut self,
        stdin: bool,
        outputs: Vec<(Stream, OwnedFd)>,
    ) -> Step<Option<OwnedFd>> {
        let what = "share the container's standard input";
        let input = match (self.output.terminal(), &mut self.input) {
            (Some(master), _) => Some(master.try_clone_to_owned().context(what)?),
            (None, Input::Kept(input)) if stdin => Some(input.try_clone().context(what)?),
            (None, Input::Once(input)) if stdin => input.take(),
            (None, Input::None | Input::Kept(_) | Input::Once(_)) => None,
        };
        for (stream, pipe) in outputs {
            self.output.watchers.add(stream, pipe);
        }
        Ok(input)
    }

    /// Makes `uid`, as the keeper sees it, the owner of its standard streams.
    pub(crate) fn own_streams(&self, uid: u32) {
        let input = match &self.input {
            Input::None => None,
            Input::Kept(input) => Some(input),
            Input::Once(input) => input.as_ref(),
        };
        let input = input.map(|input| input.as_fd());
        for stream in self.output.pipes().chain(input) {
            terminal::own(stream, uid);
        }
    }

    /// The time left for its set-up.
    pub(crate) fn setup_time_left(&self) -> Option<Duration> {
        matches!(self.phase, Phase::Creating { .. }).then(|| self.limit.time_left())
    }

    /// The descriptors to poll.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.report.iter().map(ReportPipe::fd).chain(self.output.pipes())
    }

    /// Opens its cgroup for further processes.
    pub(crate) fn cgroup_fds(&self) -> Step<Option<CgroupFds>> {
        let cgroup_fds = self.cgroup.as_ref().map(directory::open_fds).transpose();
        Ok(cgroup_fds?)
    }

    /// Sends a signal to the first process.
    pub(crate) fn signal(&self, signal: i32) {
        if self.phase != Phase::Exited {
            // It is our child and not reaped yet, so its pid has not been reused.
            sys::kill(self.pid, signal);
        }
        if signal == libc::SIGKILL
            && let Some(preparing) = self.preparing
        {
            sys::kill(preparing, signal);
        }
    }

    /// Records the exit of the first process.
    pub(crate) fn ended(&mut self, code: i32) -> Exit {
        let oom_killed = code == 128 + libc::SIGKILL
            && !self.killed
            && self.start_error.is_none()
            && self.cgroup.as_ref().and_then(cleanup::oom_kills).is_some_and(|kills| kills > 0);
        if let Some(preparing) = self.preparing {
            sys::kill(preparing, libc::SIGKILL);
        }
        // Without a process namespace of its own, processes may be
        // left in its process group and elsewhere in its cgroup.
        sys::kill(-self.pid, libc::SIGKILL);
        if let Some(place) = self.cgroup.as_ref().filter(|_| self.orphans) {
            cleanup::kill(place);
        }
        if let Some(mounts) = self.mounts.take() {
            mounts.kill();
        }
        self.output.finish();
        self.phase = Phase::Exited;
        self.barrier = None;
        self.input = Input::None;
        let start_error = self.start_error.as_ref().map(|f| f.message.clone());
        let exit = Exit {
            code: if start_error.is_some() { setup::START_ERROR } else { code },
            at: Timestamp::now(),
            started: self.started,
            start_error,
            oom_killed,
        };
        self.exit = Some(exit.clone());
        exit
    }
}

fn null() -> Step<OwnedFd> {
    Ok(File::open("/dev/null").context("open /dev/null")?.into())
}

/// Makes the standard input, if it has one: the container's end and the keeper's.
fn make_input(plan: &LaunchPlan) -> std::io::Result<(Option<OwnedFd>, Input)> {
    if !plan.stdin {
        return Ok((None, Input::None));
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Non-blocking, for the clients that get it.
    rustix::io::ioctl_fionbio(&writer, true)?;
    let input = if plan.stdin_once { Input::Once(Some(writer)) } else { Input::Kept(writer) };
    Ok((Some(reader), input))
}
