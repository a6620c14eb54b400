//! The keeper: one single-threaded process for each pod. It is the pod's pause process, its subreaper, the launcher of
//! its containers, the writer of their logs and the recorder of their exits.
//!
//! The keeper lives in the pod's namespaces and so keeps them alive. It outlives the daemon; a new daemon finds it by
//! its socket. It makes no decisions: the daemon sends complete plans, and the keeper reports what happened.
//!
//! | module | contents | may use |
//! |---|---|---|
//! | [`kernel`] | adapters of the kernel | no other module |
//! | [`contract`] | the messages between a daemon and its keepers | `kernel` |
//! | [`setup`] | the code between fork and `execve`, and a pod's namespaces | `kernel`, `contract` |
//! | [`parent`] | calls, children, logs, exits, host ports | all of them |
//!
//! Read [`contract::plan`] and [`contract::protocol`] first: they define the messages.
//!
//! ```text
//! CreateContainer  ─▶ keeper forks ─▶ child: mounts, pivot_root, user, capabilities ─▶ "ready" ─▶ waits at the barrier
//! StartContainer   ─▶ keeper opens the barrier ─▶ execve ─▶ the report pipe closes: the program runs
//! ```
//!
//! # Invariants
//! - No `waitpid(-1)` outside the keeper, and no fork in a process with threads: the daemon spawns the zygote, and the zygote
//!   (`parent::zygote`) forks keepers, which have one thread too.
//! - No exit is reported before its record is in a file, and the container's output in its log.
//! - No process of a container is outside its cgroup, and no cgroup outlives its pod.
//! - No mount is made in the host's mount namespace, so none has to be unmounted.
//! - No path of an image or a client is followed outside the container's root or the sandbox's log directory.
//! - No container outlives its keeper (parent-death signal). Keepers outlive the daemon, unless it was started with
//!   `--ephemeral`: then they end with their connection.
//!
//! This package uses no CRI type, gRPC or HTTP. docs/design.md has the reasons and measurements.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod setup;

pub mod kernel {
    //! Adapters of the kernel: system calls, mounts, cgroups, seccomp, paths below a root. They depend neither on pods nor on
    //! plans.
    //!
    //! - `cgroup`: `limits` ◆ checks what a client may request, `plan` ◆ decides which files are written, `device` ◆ which devices a
    //!   container may use, `path` ◆ where a cgroup is; `directory` makes cgroups, `cleanup` counts OOM kills and removes cgroups. No pid is
    //!   written into `cgroup.procs`: that waits for an RCU grace period, 7 to 22 ms.
    //! - `secure_join` looks up paths in a container's root with `openat2(RESOLVE_IN_ROOT)`.
    //! - `mount` makes detached mounts. They belong to the mount namespace that they are attached in, and are never unmounted.
    //! - `seccomp` compiles profiles to filters. The daemon compiles; a keeper only loads.
    //! - `sys` and `cgroup::program` have the system calls without a safe wrapper: the only unsafe code of this package.
    //! - `failure` is the error of a keeper's call, with the operation that failed.

    pub mod capability;
    pub mod cgroup;
    pub mod failure;
    pub(crate) mod interpreter;
    pub(crate) mod mount;
    pub mod seccomp;
    pub(crate) mod secure_join;
    pub(crate) mod sys;
}

pub mod contract {
    //! The messages between a daemon and its keepers: plans, calls and their frames, descriptors and locks. This module starts no
    //! process.
    //!
    //! The connection is a unix socket in the sandbox's directory, with JSON documents in frames (`frame`); file descriptors are
    //! attached to the frames, in any number. A new daemon connects to the same socket and requests the state. A connection that
    //! fails in one direction is closed in both, and every call on it fails; the daemon sets a deadline for each kind of call.
    //!
    //! A keeper holds a lock on its standard output, `keeper.lock`, for life (`liveness`). The lock belongs to the process: no fork
    //! inherits it. The daemon declares a pod lost only if the lock is free and nothing listens on the socket; it retries after any other
    //! failure, and the pod is not ready meanwhile.
    //!
    //! `plan` is complete: the keeper decides nothing. A new field is added there, set by `launch` of the runtime, and applied by
    //! `setup`. `criu` has the requests of a dump over criu's own protocol: the keeper starts `criu swrk`, and the daemon talks
    //! to it.

    pub mod criu;
    pub mod frame;
    pub mod host;
    pub mod liveness;
    pub mod open_files;
    pub mod orphan;
    pub mod plan;
    pub mod protocol;
}

pub mod parent {
    //! The keeper's own side: calls of the daemon, children from the fork to the exit, their output and logs, records of their exits,
    //! host ports, and the zygote that keepers are forked from.
    //!
    //! - `zygote`: `crib __keeper`, one for each daemon. It has one thread, only forks, and looks up the host's cgroup hierarchies and the
    //!   boot's name once for all keepers. It ends with its connection to the daemon.
    //! - `connection`, `dispatch`, `tickets` ◆: handle the daemon's calls one at a time, across reconnections.
    //! - `container`, `exec`, `limit`: forks. A set-up may take 100 s for a container and 8 s for an exec; then it is killed, and the
    //!   caller gets an error.
    //! - `exec_processes`: the processes of an exec, found by its cgroup namespace, so that all are killed with it.
    //! - `cgroups`: made with their limits before the fork. After the exit the keeper reads OOM kills and kills the remaining processes;
    //!   it removes the directories after all callers have their responses.
    //! - `exit`: reaps, writes the exit record, then reports.
    //! - `output`, `log`, `watchers`: a container's pipes are the keeper's, which copies them to the log and to clients of Attach. The
    //!   pipes of an exec are the daemon's own.
    //! - `forward`: the forwarder of host ports, a fork of the keeper with one thread: an epoll loop over non-blocking sockets,
    //!   which buffers only data that a slow receiver has not taken. Its clients share slots by the rule of the package `shares`.

    pub(crate) mod cgroups;
    pub(crate) mod connection;
    pub(crate) mod container;
    pub(crate) mod dispatch;
    pub(crate) mod exec;
    pub(crate) mod exec_processes;
    pub(crate) mod exit;
    pub(crate) mod forward;
    pub(crate) mod limit;
    pub mod log;
    pub(crate) mod output;
    pub(crate) mod tickets;
    pub(crate) mod watchers;
    pub(crate) mod zygote;
}

use std::{
    collections::BTreeMap,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::WaitPidFlag,
    },
    unistd::Pid,
};

use parent::cgroups::{AGAIN, Cgroups};
use parent::connection::Connection;
use parent::container::Container;

use contract::protocol::{Message, Outcome};
use kernel::failure::Step;
pub use kernel::sys::set_close_on_exec;
pub use kernel::sys::set_read_only;
pub use kernel::sys::take_short_turns;
use parent::exec::Execs;
use parent::tickets::Tickets;
use parent::zygote::Role;
use setup::pod::Pod;

/// How long a keeper without a pod waits for its daemon.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The `main` of `crib __keeper`, which forks keepers (see `zygote.rs`), with its connection to the daemon as standard input. A
/// keeper has its listening socket as standard input, its lock file as standard output (the lock shows that the keeper is
/// running), and its log as standard error.
///
/// Call it before the process starts any thread.
pub fn keeper_main() -> ! {
    let served = parent::zygote::serve().and_then(|role| match role {
        Role::Zygote => Ok(()),
        Role::Keeper => keep(),
    });
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            log_error(&error.to_string());
            1
        }
    };
    std::process::exit(code)
}

fn keep() -> std::io::Result<()> {
    kernel::sys::close_inherited();
    let _ = rustix::thread::set_name(c"crib-keeper");
    take_short_turns();
    kernel::sys::join_new_keyring()?;
    kernel::sys::become_subreaper()?;
    // Signals that a terminal sends to the daemon's process group must not reach the pod. setsid(2) fails for a process
    // group leader, which is in a group of its own already.
    let _ = rustix::process::setsid();
    // The lock shows the daemon that this process is running.
    contract::liveness::lock_stdout()?;
    let listener = UnixListener::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    listener.set_nonblocking(true)?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Keeper {
        listener,
        signals,
        connection: None,
        tickets: Tickets::default(),
        pod: None,
        containers: BTreeMap::new(),
        execs: Execs::default(),
        cgroups: Cgroups::default(),
        unclaimed_exits: Vec::new(),
        ending: None,
    }
    .serve()
}

/// The answer to a request.
struct Answer {
    ticket: u64,
    result: Step<Outcome>,
    /// The file descriptors sent with the answer.
    descriptors: Vec<OwnedFd>,
}

struct Keeper {
    listener: UnixListener,
    signals: SignalFd,
    connection: Option<Connection>,
    tickets: Tickets,
    pod: Option<Pod>,
    containers: BTreeMap<String, Container>,
    execs: Execs,
    cgroups: Cgroups,
    /// Reaped processes, with their exit codes, whose pids no container or exec has reported yet.
    unclaimed_exits: Vec<(i32, i32)>,
    /// The ticket of the Shutdown request while the last processes exit; 0, which is no ticket, if the keeper ends without a
    /// request.
    ending: Option<u64>,
}

impl Keeper {
    fn serve(mut self) -> std::io::Result<()> {
        while self.ending.is_none() {
            self.wait()?;
            // Read reports before exits: a program may have started and exited between two rounds.
            self.handle_all_reports();
            while let Ok(Some(_)) = self.signals.read_signal() {}
            self.reap(WaitPidFlag::WNOHANG);
            self.catch_up();
            self.enforce_limits();
            for container in self.containers.values_mut() {
                container.output.pump();
                container.output.watchers.prune();
            }
            if let Ok((stream, _)) = self.listener.accept() {
                // Finish the requests of the previous daemon first.
                while self.listen() {}
                self.tickets.invalidate();
                self.connection = Connection::new(stream).ok();
            }
            self.listen();
            if let Some(Err(error)) = self.connection.as_mut().map(Connection::flush) {
                self.lose_connection(&error);
            }
            self.cgroups.catch_up();
        }
        self.end()
    }

    /// Waits for the next event or timeout.
    fn wait(&self) -> std::io::Result<()> {
        let mut descriptors: Vec<PollFd<'_>> = vec![
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(connection) = &self.connection {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, connection.wants_to_write());
            descriptors.push(PollFd::new(connection.stream.as_fd(), flags));
        }
        let watched: Vec<BorrowedFd<'_>> = self
            .containers
            .values()
            .flat_map(Container::descriptors)
            .chain(self.execs.descriptors())
            .collect();
        descriptors.extend(watched.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let watchers = self.containers.values();
        let watchers = watchers.flat_map(|c| c.output.watchers.descriptors());
        descriptors.extend(watchers);
        // The daemon may die after it starts the keeper and before it sends Setup; then there is no pod to keep.
        let timeout = if self.pod.is_none() {
            Some(SETUP_TIMEOUT)
        } else {
            let set_up = self.containers.values().filter_map(Container::setup_time_left);
            let again = self.cgroups.waits().then_some(AGAIN);
            set_up.chain(self.execs.time_left()).chain(again).min()
        };
        // Rounded up, so that poll(2) does not return just before the timeout.
        let timeout = timeout.map(|time| time + Duration::from_millis(1));
        let timeout = timeout.and_then(|time| PollTimeout::try_from(time).ok());
        match poll(&mut descriptors, timeout.unwrap_or(PollTimeout::NONE)) {
            Ok(0) if self.pod.is_none() => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                "received no request from the daemon",
            )),
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from the connection once, and handles the requests. Returns whether there was anything to read.
    fn listen(&mut self) -> bool {
        let Some(connection) = &mut self.connection else {
            return false;
        };
        match connection.requests() {
            Ok(None) => return false,
            Ok(Some(requests)) => {
                for (request, descriptors) in requests {
                    self.answer(request, descriptors);
                }
            }
            Err(error) => self.lose_connection(&error),
        }
        true
    }

    fn lose_connection(&mut self, why: &std::io::Error) {
        self.connection = None;
        self.tickets.invalidate();
        if why.kind() != std::io::ErrorKind::UnexpectedEof {
            log_error(&format!("the connection to the daemon failed: {why}"));
        }
        // The clients of Attach were connected through the daemon.
        for container in self.containers.values_mut() {
            container.output.watchers.clear();
        }
        if self.pod.as_ref().is_none_or(|pod| pod.plan.ephemeral) {
            self.ending = Some(0);
        }
    }

    fn notify(&mut self, message: &Message) {
        if let Some(connection) = &mut self.connection {
            connection.queue(message, Vec::new());
        }
    }

    fn reply(&mut self, ticket: u64, result: Step<Outcome>) {
        self.send_answer(Answer { ticket, result, descriptors: Vec::new() });
    }

    fn send_answer(&mut self, answer: Answer) {
        let Some(number) = self.tickets.redeem(answer.ticket) else {
            return;
        };
        if let Some(connection) = &mut self.connection {
            let message = Message::Reply {
                number,
                descriptors: answer.descriptors.len(),
                result: answer.result,
            };
            connection.queue(&message, answer.descriptors);
        }
    }
}

/// Writes a line to standard error, which is the sandbox's keeper.log.
fn log_error(what: &str) {
    let _ =
        std::io::Write::write_all(&mut std::io::stderr(), format!("keeper: {what}\n").as_bytes());
}

fn own_pid() -> i32 {
    Pid::this().as_raw()
}
