//! Operations on containers: start, stop, remove, reopen the log; and the runtime's part of behaviour scripts.

use std::sync::Arc;
use std::time::Duration;

use keeper::contract::protocol::{Call, Outcome};
use keeper::kernel::failure::FailureKind;

use super::pods::Pod;
use super::{Error, Runtime, cleanup};
use crate::container::{Container, ContainerEvent, ContainerState};
use crate::keeper_client::unexpected;
use crate::launch::{self, Behaviour, Invalid, NoOom};
use crate::sandbox::UnknownReason;
use crate::store::{Change, StateError, state_name};

const SIGKILL: i32 = 9;
/// Timeout for the last event of an ended keeper to reach the store.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// A process that survives SIGKILL this long is stuck in the kernel: report it instead of waiting forever.
const AFTER_KILL: Duration = Duration::from_secs(60);

impl Runtime {
    /// Starts a created container.
    pub(crate) async fn start_container(&self, id: &str) -> Result<(), Error> {
        let (container, pod) = self.container_and_pod(id, "start it once, after it was created")?;
        if container.state != ContainerState::Created {
            return Err(wrong_state(&container, "only a created container can be started"));
        }
        self.act_in_start(&container).await?;
        let call = Call::Start {
            container: container.id.to_string(),
            restored: self.is_restored(&container),
        };
        match pod.keeper.call(call).await {
            Ok(Outcome::Started { at, pid }) => {
                self.finish_restore(&container, pid);
                self.store
                    .apply(Change::Container(container.id.clone(), ContainerEvent::Started(at)))
                    .await?;
                Ok(())
            }
            Ok(outcome) => Err(unexpected(&outcome).into()),
            Err(failure) => {
                // Wait, so that a client that gets the error finds the container exited, with the reason.
                if failure.is_final() {
                    self.store
                        .wait(|state| state.containers.get(&container.id).is_none_or(|c| c.ended()))
                        .await?;
                }
                Err(failure.into())
            }
        }
    }

    /// Sends the stop signal to a container, and SIGKILL after `grace`. Stopping a container that has ended, or does
    /// not exist, is not an error.
    ///
    /// If the client disconnects during the grace period, the container keeps running; of two concurrent calls the
    /// shorter grace period wins.
    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let Some(container) = self.store.state().container_if_there(id)?.cloned() else {
            return Ok(());
        };
        if container.ended() {
            return Ok(());
        }
        let ended = || {
            self.store.wait(|state| state.containers.get(&container.id).is_none_or(|c| c.ended()))
        };
        let Some(pod) = self.pods.get(&container.sandbox) else {
            if let Some(unknown_reason) = container.unknown_reason() {
                return Err(unreachable(&container, unknown_reason));
            }
            // Its keeper has ended; the store is about to record the exit.
            return match tokio::time::timeout(EXIT_TIMEOUT, ended()).await {
                Ok(result) => Ok(result?),
                Err(_) => Err(Error::Timeout {
                    what: format!("container {} (its keeper has ended)", container.id.short()),
                    seconds: EXIT_TIMEOUT.as_secs(),
                }),
            };
        };
        // A container at its barrier has no program that could handle a signal.
        if !grace.is_zero() && container.state == ContainerState::Running {
            signal(&pod, &container, container.stop_signal).await?;
            if let Ok(result) = tokio::time::timeout(grace, ended()).await {
                return Ok(result?);
            }
        }
        signal(&pod, &container, SIGKILL).await?;
        match tokio::time::timeout(AFTER_KILL, ended()).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Error::Timeout {
                what: format!("container {} (after SIGKILL)", container.id.short()),
                seconds: AFTER_KILL.as_secs(),
            }),
        }
    }

    /// Removes a container, killing it first if it runs. Removing a missing container is not an error.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), Error> {
        let Some(container) = self.store.state().container_if_there(id)?.cloned() else {
            return Ok(());
        };
        self.stop_container(container.id.as_str(), Duration::ZERO).await?;
        if let Some(pod) = self.pods.get(&container.sandbox) {
            let call = Call::Forget { container: container.id.to_string() };
            match pod.keeper.call(call).await {
                Ok(_) => {}
                // Its processes may still run.
                Err(failure) if failure.kind == FailureKind::Silent => return Err(failure.into()),
                Err(failure) => {
                    tracing::debug!(%failure, "keeper exited before container removal");
                    cleanup::destroy_container_cgroup(&container).await;
                }
            }
        }
        self.store.apply(Change::RemoveContainer(container.id.clone())).await?;
        self.release_image(&container.id).await;
        Ok(())
    }

    /// Reopens the log file of a running container, after it was rotated.
    pub(crate) async fn reopen_log(&self, id: &str) -> Result<(), Error> {
        let (container, pod) = self.container_and_pod(id, "its log is closed")?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(&container, "only a running container's log can be reopened"));
        }
        pod.keeper.call(Call::ReopenLog { container: container.id.to_string() }).await?;
        Ok(())
    }

    /// A container and its pod's keeper.
    pub(crate) fn container_and_pod(
        &self,
        id: &str,
        wanted: &'static str,
    ) -> Result<(Arc<Container>, Arc<Pod>), Error> {
        let container = self.store.state().container(id)?.clone();
        match self.pods.get(&container.sandbox) {
            Some(pod) => Ok((container, pod)),
            None => Err(match container.unknown_reason() {
                Some(unknown_reason) => unreachable(&container, unknown_reason),
                None => wrong_state(&container, wanted),
            }),
        }
    }
}

fn unreachable(container: &Container, unknown_reason: &UnknownReason) -> Error {
    Error::Unreachable { id: container.id.clone(), why: unknown_reason.to_string() }
}

pub(super) fn wrong_state(container: &Container, wanted: &'static str) -> Error {
    StateError::WrongState { id: container.id.clone(), state: state_name(container.state), wanted }
        .into()
}

/// Sends a signal. If the container or the keeper has ended already, that is not an error.
async fn signal(pod: &Pod, container: &Container, signal: i32) -> Result<(), Error> {
    let call = Call::Signal { container: container.id.to_string(), signal };
    match pod.keeper.call(call).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.kind == FailureKind::Silent => Err(failure.into()),
        Err(failure) => {
            tracing::debug!(%failure, container = container.id.short(), "process exited before signal");
            Ok(())
        }
    }
}

impl From<NoOom> for Error {
    fn from(lack: NoOom) -> Self {
        match lack {
            NoOom::Unlimited => Invalid(lack.to_string()).into(),
            NoOom::NotApplied(_) => Self::Unable(lack.to_string()),
        }
    }
}

impl Runtime {
    /// The script of a container, if it has one.
    pub(super) fn behaviour(&self, container: &Container) -> Result<Option<Behaviour>, Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(container.sandbox.as_str())?;
        let found = launch::behaviour(&container.config, &sandbox.config, &container.image)?;
        Ok(found)
    }

    /// Delays the creation of a container, or fails it, according to its script.
    pub(super) async fn act_in_creation(&self, behaviour: &Behaviour) -> Result<(), Error> {
        self.wait_for(behaviour.create_takes()).await?;
        if behaviour.create_fails() {
            return Err(Error::Scripted("create-fails"));
        }
        Ok(())
    }

    /// Delays the start of a container according to its script.
    pub(super) async fn act_in_start(&self, container: &Container) -> Result<(), Error> {
        match self.behaviour(container)? {
            Some(behaviour) => self.wait_for(behaviour.start_takes()).await,
            None => Ok(()),
        }
    }

    async fn wait_for(&self, time: Duration) -> Result<(), Error> {
        if time.is_zero() {
            return Ok(());
        }
        // Cancel-safe: both only wait.
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = self.stopping.cancelled() => Err(StateError::ShuttingDown.into()),
        }
    }
}
