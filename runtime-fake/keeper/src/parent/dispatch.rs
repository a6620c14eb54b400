//! Handles the daemon's calls one at a time.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::contract::open_files;
use crate::contract::orphan;
use crate::contract::protocol::{Call, ContainerState, Outcome, Request, VERSION};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::parent::cgroups::Cgroups;
use crate::parent::container::{self, Container, Phase};
use crate::parent::exec::ExecTarget;
use crate::parent::forward;
use crate::parent::log::Stream;
use crate::setup::pause;
use crate::setup::pod;
use crate::setup::restore;
use crate::{Answer, Keeper, log_error, own_pid};

impl Keeper {
    pub(crate) fn answer(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
        let ticket = self.tickets.issue(request.number);
        match self.call(request.call, ticket, descriptors) {
            Ok(Some(outcome)) => self.reply(ticket, Ok(outcome)),
            Ok(None) => {}
            Err(failure) => self.reply(ticket, Err(failure)),
        }
    }

    /// Handles a call; returns `None` if the answer comes later.
    fn call(
        &mut self,
        call: Call,
        ticket: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Step<Option<Outcome>> {
        match call {
            Call::Spawn => Err(Failure::new(FailureKind::Invalid, "only the zygote forks keepers")),
            Call::Setup(plan) => {
                if self.pod.is_some() {
                    return Err(wrong_state("the pod is already set up"));
                }
                open_files::given(plan.open_files);
                self.cgroups = Cgroups::new(plan.cgroup.clone(), pause::cgroup(&plan));
                self.pod = Some(pod::set_up(*plan, descriptors)?);
                Ok(Some(Outcome::Setup { pid: own_pid() }))
            }
            Call::Connected { forward } => {
                let pod = self.pod.as_ref().ok_or_else(not_set_up)?;
                pod::set_network_sysctls(&pod.plan)?;
                if let Some(plan) = forward {
                    forward::start(&plan, descriptors)?;
                }
                Ok(Some(Outcome::Done))
            }
            Call::Create { container, plan } => {
                let pod = self.pod.as_ref().ok_or_else(not_set_up)?;
                if self.containers.contains_key(&container) {
                    return Err(wrong_state("the container already exists"));
                }
                let shared = container::joined(&self.containers, pod, &plan)?;
                let created = Container::create(&plan, pod, shared.as_ref(), ticket);
                let created = created.inspect_err(|_| {
                    if let Some(cgroup) = &plan.cgroup {
                        self.cgroups.ended(cgroup.path.clone(), false);
                    }
                })?;
                // Recorded while the process sets itself up.
                if let Err(error) = orphan::note(&plan.directory, created.pid) {
                    log_error(&format!(
                        "failed to record container process: it may outlive a killed keeper: {error}"
                    ));
                }
                self.containers.insert(container, created);
                Ok(None)
            }
            Call::Start { container, .. } => {
                let waiting = self.container(&container)?.starting();
                let abandoned = waiting.is_some_and(|waiting| !self.tickets.is_open(waiting));
                let found = self.container(&container)?;
                let started = if abandoned {
                    // The daemon that sent the first request has ended; answer the next daemon's request instead.
                    found.replace_start_ticket(ticket)
                } else {
                    found.start(ticket)
                };
                started.map(|()| None)
            }
            Call::Signal { container, signal } => {
                let target = self.container(&container)?;
                target.killed |= signal == libc::SIGKILL;
                target.signal(signal);
                Ok(Some(Outcome::Done))
            }
            Call::Exec { container, plan } => {
                let target = self.running(&container)?;
                let exec_target = ExecTarget {
                    isolation: target.isolation,
                    pid: target.pid,
                    cgroup: target.cgroup_fds()?,
                    container,
                };
                let pod = self.pod.as_ref();
                self.execs.start(ticket, &plan, exec_target, pod, descriptors).map(|()| None)
            }
            Call::Attach { container, stdin, stdout, stderr } => {
                self.running(&container)?;
                let wanted = [(Stream::Stdout, stdout), (Stream::Stderr, stderr)];
                let wanted = wanted.iter().filter(|(_, wanted)| *wanted);
                let pipes = wanted.map(|(stream, _)| *stream).zip(descriptors).collect();
                let input = self.container(&container)?.attach(stdin, pipes)?;
                self.send_answer(Answer {
                    ticket,
                    result: Ok(Outcome::Attached),
                    descriptors: input.into_iter().collect(),
                });
                Ok(None)
            }
            Call::Sockets => {
                let descriptors = sockets()?;
                self.send_answer(Answer { ticket, result: Ok(Outcome::Sockets), descriptors });
                Ok(None)
            }
            Call::Dump { container, program } => {
                let pid = self.running(&container)?.pid;
                restore::start_dump(&program, descriptors)?;
                Ok(Some(Outcome::Dump { pid }))
            }
            Call::KillExec { pid } => {
                self.execs.kill(pid);
                Ok(Some(Outcome::Done))
            }
            Call::ReopenLog { container } => {
                let target = self.container(&container)?;
                if target.phase != Phase::Running {
                    return Err(wrong_state(
                        "the container is not running: its log file is closed",
                    ));
                }
                let path = target.output.path();
                target.output.open().context(format_args!("open the log file {path}"))?;
                Ok(Some(Outcome::Done))
            }
            Call::Forget { container } => match self.containers.get_mut(&container) {
                Some(found) if found.phase != Phase::Exited => {
                    found.forget.push(ticket);
                    found.killed = true;
                    found.signal(libc::SIGKILL);
                    Ok(None)
                }
                Some(_) | None => {
                    self.containers.remove(&container);
                    Ok(Some(Outcome::Done))
                }
            },
            Call::State => Ok(Some(Outcome::State {
                version: VERSION,
                pid: own_pid(),
                containers: self.containers.iter().map(|(id, c)| state(id, c)).collect(),
            })),
            Call::Shutdown => {
                self.ending = Some(ticket);
                Ok(None)
            }
        }
    }

    /// The container with this id, which must be running.
    fn running(&self, id: &str) -> Step<&Container> {
        match self.containers.get(id) {
            Some(container) if container.phase == Phase::Running => Ok(container),
            Some(_) => Err(wrong_state("the container is not running")),
            None => Err(unknown()),
        }
    }

    pub(crate) fn container(&mut self, id: &str) -> Step<&mut Container> {
        self.containers.get_mut(id).ok_or_else(unknown)
    }
}

fn unknown() -> Failure {
    Failure::new(FailureKind::NotFound, "no such container in the keeper")
}

/// TCP sockets of this process's network namespace, for another process to connect; they keep that namespace.
fn sockets() -> Step<Vec<OwnedFd>> {
    let make = |family| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(family, SocketType::STREAM, flags, None)
    };
    let what = "make a socket in the pod's network namespace";
    match (make(AddressFamily::INET), make(AddressFamily::INET6)) {
        (Err(error), Err(_)) => Err(error).context(what),
        (one, other) => Ok(one.into_iter().chain(other).collect()),
    }
}

fn state(id: &str, container: &Container) -> ContainerState {
    let pid = if container.phase == Phase::Exited { 0 } else { container.pid };
    ContainerState {
        container: id.to_owned(),
        pid,
        started: container.started,
        exit: container.exit.clone(),
    }
}

fn wrong_state(message: &str) -> Failure {
    Failure::new(FailureKind::WrongState, message)
}

fn not_set_up() -> Failure {
    wrong_state("the pod is not set up")
}
