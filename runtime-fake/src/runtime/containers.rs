//! Containers: create, start, stop, remove, reopen the log.

use std::{fs, sync::Arc, time::Duration};

use cri::v1::ContainerConfig;
use jiff::Timestamp;

use super::{Error, Runtime, blocking, io, pods::Pod};
use crate::{
    container::{Container, ContainerEvent, ContainerState},
    id::ContainerId,
    image::Rootfs,
    keeper::{
        client::unexpected,
        protocol::{Call, Outcome},
    },
    launch::{self, Given, ImageDefaults, Invalid, RootPlan},
    store::{Change, Refused, words},
};

const SIGKILL: i32 = 9;
/// A process that survives SIGKILL this long is stuck in the kernel: say so rather than wait for ever.
const AFTER_KILL: Duration = Duration::from_secs(60);

impl Runtime {
    /// Sets a container up to its barrier.
    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
    ) -> Result<ContainerId, Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(sandbox)?.clone();
        let Some(pod) = self.pods.get(&sandbox.id) else {
            return Err(Refused::SandboxNotReady {
                id: sandbox.id.clone(),
                wanted: "a container",
            }
            .into());
        };
        let id = ContainerId::random();
        let directory = self.container_dir(&sandbox.id, &id);
        let image = self.image(&config).await?;
        let container = Container {
            id: id.clone(),
            sandbox: sandbox.id.clone(),
            image_id: image.id.clone(),
            stop_signal: launch::stop_signal(&config, &image.defaults)?,
            log_path: String::new(),
            state: ContainerState::Creating,
            created_at: Timestamp::now(),
            started_at: None,
            user: None,
            exit: None,
            config,
        };
        let given = Given {
            rung: self.config.isolation.rung(),
            directory: directory.clone(),
            sandbox_directory: &self.sandbox_dir(&sandbox.id),
            root: image.root,
            image: &image.defaults,
        };
        let plan = launch::container(&container.config, &sandbox.config, given)?;
        let container = Container {
            log_path: plan
                .log_path
                .as_ref()
                .map_or_else(String::new, |p| p.display().to_string()),
            ..container
        };
        for part in ["rootfs", "layer/upper", "layer/work"] {
            fs::create_dir_all(directory.join(part))
                .map_err(io("make the container's directory"))?;
        }
        if let Some(parent) = plan.log_path.as_deref().and_then(std::path::Path::parent) {
            fs::create_dir_all(parent).map_err(io("make the directory of the container's log"))?;
        }
        if let Err(refused) = self
            .store
            .apply(Change::AddContainer(Box::new(container)))
            .await
        {
            let _ = fs::remove_dir_all(&directory);
            return Err(refused.into());
        }
        match pod
            .keeper
            .call(Call::Create {
                container: id.to_string(),
                plan: Box::new(plan),
            })
            .await
        {
            Ok(Outcome::Created { user, .. }) => {
                self.store
                    .apply(Change::Container(id.clone(), ContainerEvent::Created(user)))
                    .await?;
                Ok(id)
            }
            answer => {
                self.store.apply(Change::RemoveContainer(id)).await?;
                Err(match answer {
                    Ok(outcome) => unexpected(&outcome).into(),
                    Err(failure) => failure.into(),
                })
            }
        }
    }

    /// The image that `config` names, ready to run.
    pub(crate) async fn image(&self, config: &ContainerConfig) -> Result<Image, Error> {
        let name = config.image.as_ref().map_or("", |i| &i.image).to_owned();
        if name.is_empty() {
            return Err(Invalid("the container names no image".to_owned()).into());
        }
        let images = self.images.clone();
        blocking(move || {
            let Some(record) = images.status(&name) else {
                return Err(Invalid(format!("image {name:?} is not here: pull it first")).into());
            };
            let root = match images.rootfs(&name)? {
                Rootfs::Host => RootPlan::Host,
                Rootfs::Layers { lower } => RootPlan::Layers(lower),
            };
            let config = &record.config;
            let defaults = ImageDefaults {
                env: config.env.clone(),
                entrypoint: config.entrypoint.clone(),
                cmd: config.cmd.clone(),
                user: config.user.clone(),
                working_dir: config.working_dir.clone(),
                stop_signal: Some(config.stop_signal.clone()).filter(|s| !s.is_empty()),
            };
            Ok(Image {
                id: record.id.to_string(),
                root,
                defaults,
            })
        })
        .await
    }

    /// Lets a created container go.
    pub(crate) async fn start_container(&self, id: &str) -> Result<(), Error> {
        let (container, pod) = self.container_and_pod(id, "start it once, after it was created")?;
        if container.state != ContainerState::Created {
            return Err(wrong_state(
                &container,
                "only a created container can be started",
            ));
        }
        match pod
            .keeper
            .call(Call::Start {
                container: container.id.to_string(),
            })
            .await
        {
            Ok(Outcome::Started { at }) => {
                self.store
                    .apply(Change::Container(
                        container.id.clone(),
                        ContainerEvent::Started(at),
                    ))
                    .await?;
                Ok(())
            }
            Ok(outcome) => Err(unexpected(&outcome).into()),
            Err(failure) => {
                // Whoever reads the error finds the container ended, with the reason.
                if !failure.is_wrong_state() {
                    self.store
                        .wait(|state| {
                            state
                                .containers
                                .get(&container.id)
                                .is_none_or(|c| c.ended())
                        })
                        .await?;
                }
                Err(failure.into())
            }
        }
    }

    /// Asks a container to end, and after `grace` makes it. Stopping what has ended, or was never there, is no error.
    ///
    /// A client that goes away during the grace leaves the container running; of two at once the shorter grace wins.
    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let Ok(container) = self.store.state().container(id).cloned() else {
            return Ok(());
        };
        if container.ended() {
            return Ok(());
        }
        let Some(pod) = self.pods.get(&container.sandbox) else {
            return Ok(());
        };
        let ended = || {
            self.store.wait(|state| {
                state
                    .containers
                    .get(&container.id)
                    .is_none_or(|c| c.ended())
            })
        };
        // A container at its barrier has no program that could honour a signal.
        if !grace.is_zero() && container.state == ContainerState::Running {
            signal(&pod, &container, container.stop_signal).await;
            if let Ok(result) = tokio::time::timeout(grace, ended()).await {
                return Ok(result?);
            }
        }
        signal(&pod, &container, SIGKILL).await;
        match tokio::time::timeout(AFTER_KILL, ended()).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Error::Timeout {
                what: format!("container {} (after SIGKILL)", container.id.short()),
                seconds: AFTER_KILL.as_secs(),
            }),
        }
    }

    /// Removes a container, killing it first if need be. Removing what is not there is no error.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), Error> {
        let Ok(container) = self.store.state().container(id).cloned() else {
            return Ok(());
        };
        self.stop_container(container.id.as_str(), Duration::ZERO)
            .await?;
        if let Some(pod) = self.pods.get(&container.sandbox)
            && let Err(failure) = pod
                .keeper
                .call(Call::Forget {
                    container: container.id.to_string(),
                })
                .await
        {
            tracing::debug!(%failure, "a keeper had ended before it could forget a container");
        }
        Ok(self
            .store
            .apply(Change::RemoveContainer(container.id.clone()))
            .await?)
    }

    /// Opens the log file of a running container again, after it was renamed.
    pub(crate) async fn reopen_log(&self, id: &str) -> Result<(), Error> {
        let (container, pod) = self.container_and_pod(id, "its log is closed")?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(
                &container,
                "only a running container's log can be reopened",
            ));
        }
        pod.keeper
            .call(Call::ReopenLog {
                container: container.id.to_string(),
            })
            .await?;
        Ok(())
    }

    /// A container and the keeper that holds it.
    pub(crate) fn container_and_pod(
        &self,
        id: &str,
        wanted: &'static str,
    ) -> Result<(Arc<Container>, Arc<Pod>), Error> {
        let container = self.store.state().container(id)?.clone();
        match self.pods.get(&container.sandbox) {
            Some(pod) => Ok((container, pod)),
            None => Err(wrong_state(&container, wanted)),
        }
    }
}

/// An image, ready to run.
pub(crate) struct Image {
    pub(crate) id: String,
    pub(crate) root: RootPlan,
    pub(crate) defaults: ImageDefaults,
}

pub(super) fn wrong_state(container: &Container, wanted: &'static str) -> Error {
    Refused::WrongState {
        id: container.id.clone(),
        state: words(container.state),
        wanted,
    }
    .into()
}

async fn signal(pod: &Pod, container: &Container, signal: i32) {
    if let Err(failure) = pod
        .keeper
        .call(Call::Signal {
            container: container.id.to_string(),
            signal,
        })
        .await
    {
        tracing::debug!(%failure, container = container.id.short(), "a signal came too late");
    }
}
