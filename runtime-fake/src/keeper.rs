//! The keeper: one small process with one thread for each pod. It is the pod's pause process, its subreaper, the
//! launcher of its containers, the writer of their logs and the recorder of their exits. It lives in the pod's
//! namespaces and so holds them, and it outlives the daemon, which finds it again by its socket.
//!
//! It makes no decisions: plans come in, facts go out. See [`protocol`] for the two.

mod child;
pub(crate) mod client;
mod connection;
mod container;
mod exec;
pub(crate) mod frame;
mod output;
mod pod;
mod process;
pub(crate) mod protocol;
mod record;
mod root;
mod step;
mod sys;
mod user;

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
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use connection::Connection;
use container::{Container, News, Phase};
use exec::Execs;
use jiff::Timestamp;
use pod::Pod;
use protocol::{
    Call, ContainerState, Event, Exit, Failure, FailureKind, Message, Outcome, Request,
};
use step::Step;

/// How long a keeper that nobody has spoken to waits for its daemon.
const FIRST_WORD: Duration = Duration::from_secs(30);

/// The keeper's `main`: `crib __keeper`, with the listening socket as its standard input.
///
/// It must be called before anything has started a thread.
pub fn keeper_main() -> ! {
    let code = match run() {
        Ok(()) => 0,
        Err(error) => {
            // Standard error is the sandbox's keeper.log.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("keeper: {error}\n").as_bytes(),
            );
            1
        }
    };
    std::process::exit(code)
}

fn run() -> std::io::Result<()> {
    let _ = rustix::thread::set_name(c"crib-keeper");
    sys::become_subreaper()?;
    // Signals that a terminal sends to the daemon's group are not for the pod. A leader of a group has no need of it.
    let _ = rustix::process::setsid();
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
        pod: None,
        containers: BTreeMap::new(),
        execs: Execs::default(),
        ending: None,
    }
    .serve()
}

struct Keeper {
    listener: UnixListener,
    signals: SignalFd,
    connection: Option<Connection>,
    pod: Option<Pod>,
    containers: BTreeMap<String, Container>,
    execs: Execs,
    /// The request to end, while the last processes go.
    ending: Option<u64>,
}

impl Keeper {
    fn serve(mut self) -> std::io::Result<()> {
        while self.ending.is_none() {
            self.wait()?;
            // Reports come before exits: a program that ran and ended at once has run.
            for id in self.containers.keys().cloned().collect::<Vec<_>>() {
                self.hear(&id);
            }
            for message in self.execs.hear() {
                self.say(&message);
            }
            while let Ok(Some(_)) = self.signals.read_signal() {}
            self.reap(WaitPidFlag::WNOHANG);
            for container in self.containers.values_mut() {
                container.output.pump();
            }
            if let Ok((stream, _)) = self.listener.accept() {
                self.connection = Connection::new(stream).ok();
            }
            self.listen();
            if self.connection.as_mut().is_some_and(|c| c.flush().is_err()) {
                self.lose_connection();
            }
        }
        self.end()
    }

    /// Waits until there is something to do.
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
        descriptors.extend(
            watched
                .into_iter()
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
        );
        // A daemon that dies between starting a keeper and speaking to it leaves one with nothing to keep.
        let timeout = if self.pod.is_none() {
            PollTimeout::try_from(FIRST_WORD).unwrap_or(PollTimeout::NONE)
        } else {
            PollTimeout::NONE
        };
        match poll(&mut descriptors, timeout) {
            Ok(0) => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                "no word from the daemon",
            )),
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn listen(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        match connection.requests() {
            Ok(requests) => {
                for (request, descriptors) in requests {
                    self.answer(request, descriptors);
                }
            }
            Err(_) => self.lose_connection(),
        }
    }

    fn lose_connection(&mut self) {
        self.connection = None;
        if self.pod.as_ref().is_none_or(|pod| pod.plan.ephemeral) {
            self.ending = Some(0);
        }
    }

    fn say(&mut self, message: &Message) {
        if let Some(connection) = &mut self.connection {
            connection.say(message);
        }
    }

    fn reply(&mut self, number: u64, result: Step<Outcome>) {
        self.say(&Message::Reply { number, result });
    }

    fn answer(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
        let number = request.number;
        match self.call(request, descriptors) {
            Ok(Some(outcome)) => self.reply(number, Ok(outcome)),
            Ok(None) => {}
            Err(failure) => self.reply(number, Err(failure)),
        }
    }

    /// Does what is asked; `None` when the answer comes later.
    fn call(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Step<Option<Outcome>> {
        let number = request.number;
        match request.call {
            Call::Setup(plan) => {
                if self.pod.is_some() {
                    return Err(Failure::new(
                        FailureKind::WrongState,
                        "the pod is set up already",
                    ));
                }
                self.pod = Some(pod::set_up(*plan, descriptors)?);
                Ok(Some(Outcome::Setup { pid: own_pid() }))
            }
            Call::Create { container, plan } => {
                let Some(pod) = &self.pod else {
                    return Err(Failure::new(
                        FailureKind::WrongState,
                        "the pod is not set up",
                    ));
                };
                if self.containers.contains_key(&container) {
                    return Err(Failure::new(
                        FailureKind::WrongState,
                        "the container is there already",
                    ));
                }
                let created = Container::create(&plan, pod, number)?;
                self.containers.insert(container, created);
                Ok(None)
            }
            Call::Start { container } => self.container(&container)?.start(number).map(|()| None),
            Call::Signal { container, signal } => {
                self.container(&container)?.signal(signal);
                Ok(Some(Outcome::Done))
            }
            Call::Exec { container, plan } => {
                let target = self.container(&container)?;
                if target.phase != Phase::Running {
                    return Err(Failure::new(
                        FailureKind::WrongState,
                        "the container is not running",
                    ));
                }
                let (pid, rung) = (target.pid, target.rung);
                self.execs
                    .start(number, &plan, rung, pid, descriptors)
                    .map(|()| None)
            }
            Call::KillExec { pid } => {
                self.execs.kill(pid);
                Ok(Some(Outcome::Done))
            }
            Call::ReopenLog { container } => {
                let target = self.container(&container)?;
                if target.phase != Phase::Running {
                    return Err(Failure::new(
                        FailureKind::WrongState,
                        "the container is not running: its log file is closed",
                    ));
                }
                let path = target.output.path();
                step::Doing::doing(
                    target.output.open(),
                    format_args!("open the log file {path}"),
                )?;
                Ok(Some(Outcome::Done))
            }
            Call::Forget { container } => match self.containers.get_mut(&container) {
                Some(found) if found.phase != Phase::Exited => {
                    found.forget.push(number);
                    found.signal(libc::SIGKILL);
                    Ok(None)
                }
                Some(_) | None => {
                    self.containers.remove(&container);
                    Ok(Some(Outcome::Done))
                }
            },
            Call::State => Ok(Some(Outcome::State {
                pid: own_pid(),
                containers: self.containers.iter().map(|(id, c)| state(id, c)).collect(),
            })),
            Call::Shutdown => {
                self.ending = Some(number);
                Ok(None)
            }
        }
    }

    fn container(&mut self, id: &str) -> Step<&mut Container> {
        self.containers.get_mut(id).ok_or_else(|| {
            Failure::new(FailureKind::NotFound, "the keeper knows no such container")
        })
    }

    /// Follows a container through its set-up.
    fn hear(&mut self, id: &str) {
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
                (News::Closed, Phase::Starting { number }) if container.start_error.is_none() => {
                    let at = Timestamp::now();
                    container.started = Some(at);
                    container.phase = Phase::Running;
                    (number, Ok(Outcome::Started { at }))
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
    fn reap(&mut self, flags: WaitPidFlag) {
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
            self.container_ended(&id, code);
            return;
        }
        for message in self.execs.ended(pid, code) {
            self.say(&message);
        }
    }

    fn container_ended(&mut self, id: &str, code: i32) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let before = container.phase;
        let reported = container.start_error.is_some();
        let exit = container.ended(code);
        let waiting = std::mem::take(&mut container.forget);
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
    fn end(mut self) -> std::io::Result<()> {
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

fn own_pid() -> i32 {
    Pid::this().as_raw()
}

fn state(id: &str, container: &Container) -> ContainerState {
    let pid = if container.phase == Phase::Exited {
        0
    } else {
        container.pid
    };
    ContainerState {
        container: id.to_owned(),
        pid,
        started: container.started,
        exit: container.exit.clone(),
    }
}
