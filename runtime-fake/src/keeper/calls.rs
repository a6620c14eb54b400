//! What the daemon asks of a keeper, call by call.

use std::os::fd::OwnedFd;

use super::{
    Keeper,
    container::{self, Container, Phase},
    forward, own_pid, pod,
    protocol::{Call, ContainerState, Failure, FailureKind, Outcome, Request},
    step::{self, Step},
};

impl Keeper {
    pub(super) fn answer(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
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
            Call::Connected { forward } => {
                let Some(pod) = &self.pod else {
                    return Err(Failure::new(
                        FailureKind::WrongState,
                        "the pod is not set up",
                    ));
                };
                pod::set_network_sysctls(&pod.plan)?;
                if let Some(plan) = forward {
                    forward::start(&plan, descriptors)?;
                }
                Ok(Some(Outcome::Done))
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
                let joined = container::joined(&self.containers, &plan)?;
                let created = Container::create(&plan, pod, joined, number)?;
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

    pub(super) fn container(&mut self, id: &str) -> Step<&mut Container> {
        self.containers.get_mut(id).ok_or_else(|| {
            Failure::new(FailureKind::NotFound, "the keeper knows no such container")
        })
    }
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
