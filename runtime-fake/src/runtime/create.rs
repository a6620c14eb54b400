//! Creates containers: image, record, plan, keeper.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
    sync::atomic::Ordering,
};

use cri::v1::ContainerConfig;
use file_tree::private;
use image::{self, ImageNames, Rootfs};
use jiff::Timestamp;
use keeper::contract::plan::{Confinement, IsolationMode, LaunchPlan, RootPlan, UserIds};
use keeper::contract::protocol::{Call, Outcome};
use keeper::kernel::cgroup::{DeviceRule, device};
use keeper::kernel::failure::FailureKind;

use super::{
    Error, Runtime, blocking, chown, cleanup, io, pods::Pod, restore::Checkpoint, volumes,
};
use crate::{
    container::{Container, ContainerEvent, ContainerState},
    id::ContainerId,
    keeper_client::unexpected,
    launch::{self, ContainerInputs, ImageDefaults, Invalid, apparmor::ProfileError},
    sandbox::{Sandbox, selinux_options},
    store::{Change, State, StateError},
};

impl Runtime {
    /// Creates a container, up to its barrier; on failure everything created is removed.
    ///
    /// A repeated call returns the existing container if it was not started yet, because the client may not have
    /// received the first response.
    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        mut config: ContainerConfig,
    ) -> Result<ContainerId, Error> {
        // The image may be the path of a checkpoint, as in containerd and CRI-O.
        let from = self.named_as_image(&mut config).await?;
        self.create_container_from(sandbox, config, from).await
    }

    /// Like [`Self::create_container`]; with `from`, starting it restores that checkpoint.
    pub(super) async fn create_container_from(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        from: Option<Checkpoint>,
    ) -> Result<ContainerId, Error> {
        let sandbox = self.store.state().sandbox(sandbox)?.clone();
        let Some(pod) = self.pods.get(&sandbox.id) else {
            return Err(StateError::SandboxNotReady {
                id: sandbox.id.clone(),
                wanted: "a container",
            }
            .into());
        };
        let id = ContainerId::random();
        let image = self.hold_image(&id, &config).await?;
        let created = self.create_from(&id, &sandbox, &pod, config, image, from).await;
        match created {
            Ok(()) => Ok(id),
            Err(error) => {
                self.release_image(&id).await;
                self.same_container(error).await
            }
        }
    }

    /// The existing container of a repeated request with the same configuration, once it is created.
    async fn same_container(&self, error: Error) -> Result<ContainerId, Error> {
        if let Error::State(StateError::NameTaken { id, same: true, .. }) = &error {
            let made = |state: &State| {
                let found = state.containers.values().find(|c| c.id.as_str() == id)?;
                Some((found.id.clone(), found.state))
            };
            self.store
                .wait(|state| !matches!(made(state), Some((_, ContainerState::Creating))))
                .await?;
            if let Some((id, ContainerState::Created)) = made(&self.store.state()) {
                return Ok(id);
            }
        }
        Err(error)
    }

    async fn create_from(
        &self,
        id: &ContainerId,
        sandbox: &Sandbox,
        pod: &Pod,
        mut config: ContainerConfig,
        image: Image,
        from: Option<Checkpoint>,
    ) -> Result<(), Error> {
        volumes::name_images(&mut config, &image.volume_ids);
        let handler = self.config.handlers.get(&sandbox.runtime_handler)?;
        handler.harden(&mut config);
        let mode = self.config.isolation.mode();
        if mode == IsolationMode::Root && self.cgroups.leave_devices_open() {
            launch::forbid_device_nodes(&mut config);
        }
        let resolved = self.devices(&config).await?;
        let directory = self.container_dir(&sandbox.id, id);
        let behaviour = launch::behaviour(&config, &sandbox.config, &image.defaults)?;
        let inputs = ContainerInputs {
            isolation: self.config.isolation.mode(),
            directory: directory.clone(),
            sandbox_directory: &self.sandbox_dir(&sandbox.id),
            root: image.root,
            image: &image.defaults,
            behaviour: behaviour.as_ref(),
            volumes: image.volumes,
            target: self.target(sandbox, &config)?,
            devices: resolved.requested,
            log_max: self.config.log_max,
        };
        let mut plan = launch::container(&config, &sandbox.config, inputs)?;
        resolved.edits.apply(&mut plan)?;
        plan.process.confinement = self.confinement(sandbox, &config).await?;
        let resources = config.linux.as_ref().and_then(|l| l.resources.as_ref());
        let (cgroup, not_applied) = self.cgroups.container(
            sandbox.cgroup.as_ref(),
            id.as_str(),
            &launch::limits(resources)?,
            rules(&plan).as_deref(),
        )?;
        plan.cgroup = cgroup;
        if let Some(behaviour) = &behaviour {
            let limit = resources.map_or(0, |r| r.memory_limit_in_bytes);
            behaviour.check_memory(limit, &not_applied)?;
        }
        let container = Container {
            id: id.clone(),
            sandbox: sandbox.id.clone(),
            stop_signal: launch::stop_signal(&config, &image.defaults)?,
            log_path: plan
                .log
                .as_ref()
                .map_or_else(String::new, |log| log.whole().display().to_string()),
            state: ContainerState::Creating,
            created_at: Timestamp::now(),
            started_at: None,
            user: None,
            exit: None,
            cgroup: plan.cgroup.as_ref().map(|cgroup| cgroup.path.clone()),
            not_applied,
            confinement: plan.process.confinement.clone(),
            device_edits: resolved.edits.process,
            unknown_reason: None,
            image_id: image.id.clone(),
            image_name: image.names.name,
            image_reference: image.names.reference,
            image: image.defaults,
            config,
        };
        let filter = self.filter(&container.config, &plan.process).await?;
        let ready = match &from {
            Some(from) => Some(self.can_restore(from, &plan, &image.id).await?),
            None => None,
        };
        make_directories(&directory, &plan)?;
        if let (Some(from), Some(program)) = (from, ready) {
            let prepared = self.prepare_restore(from, program, &plan).await;
            plan.restore = Some(prepared.inspect_err(|_| self.discard(&directory))?);
        }
        if let (Some(path), Some(filter)) = (&plan.process.seccomp, filter) {
            fs::write(path, filter).map_err(io("write the container's seccomp filter"))?;
        }
        if let Err(refused) = self.store.apply(Change::AddContainer(Box::new(container))).await {
            self.discard(&directory);
            return Err(refused.into());
        }
        let acted = match &behaviour {
            Some(behaviour) => self.act_in_creation(behaviour).await,
            None => Ok(()),
        };
        let launched = match acted {
            Ok(()) => self.launch(id, pod, plan).await,
            Err(error) => {
                self.discard(&directory);
                Err(error)
            }
        };
        match launched {
            Ok(user) => Ok(self
                .store
                .apply(Change::Container(id.clone(), ContainerEvent::Created(user)))
                .await?),
            Err(error) => {
                // If the keeper still runs, it has removed the cgroup already.
                if let Some(container) = self.store.state().containers.get(id) {
                    cleanup::destroy_container_cgroup(container).await;
                }
                self.store.apply(Change::RemoveContainer(id.clone())).await?;
                Err(error)
            }
        }
    }

    /// Sends `plan` to the keeper, which carries it out. If overlayfs does not work, or not with this image, uses a copy of it.
    async fn launch(
        &self,
        id: &ContainerId,
        pod: &Pod,
        mut plan: LaunchPlan,
    ) -> Result<UserIds, Error> {
        let directory = plan.directory.clone();
        if self.copies.load(Ordering::Relaxed) {
            plan = self.copy_images(plan).await?;
        }
        let restore = plan.restore.clone();
        let create = |plan: LaunchPlan| {
            pod.keeper.call(Call::Create { container: id.to_string(), plan: Box::new(plan) })
        };
        let outcome = match create(plan.clone()).await {
            Err(failure) if failure.kind == FailureKind::NoOverlay && restore.is_none() => {
                tracing::warn!(%failure, "overlayfs failed: images are copied for each container");
                self.copies.store(true, Ordering::Relaxed);
                create(self.copy_images(plan).await?).await?
            }
            // Nothing is known about other images: an image with many layers must not make the daemon copy all of them.
            Err(failure)
                if failure.kind == FailureKind::NoIdMap
                    || failure.kind == FailureKind::TooManyLayers && restore.is_none() =>
            {
                tracing::info!(%failure, container = id.short(), "copying image for container");
                create(self.copy_images(plan).await?).await?
            }
            answer => answer?,
        };
        let Outcome::Created { user, pid } = outcome else {
            return Err(unexpected(&outcome).into());
        };
        if let Some(restore) = restore
            && let Err(error) = self.restore_shm(&restore, &directory, pid).await
        {
            let container = id.to_string();
            pod.keeper.call(Call::Forget { container }).await?;
            return Err(error);
        }
        Ok(user)
    }

    /// The confinement of a container by AppArmor and SELinux. Reads their files, which may take a while.
    async fn confinement(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Confinement, Error> {
        let modules = self.modules.clone();
        let context = config.linux.as_ref();
        let context = context.and_then(|l| l.security_context.clone());
        let (of_pod, labels) = (selinux_options(&sandbox.config).cloned(), sandbox.labels.clone());
        let may_wait = modules.has_any();
        let decide = move || modules.container(context.as_ref(), of_pod.as_ref(), labels.as_ref());
        let decided = if may_wait { blocking(decide).await } else { decide() };
        decided.map_err(|error| match error {
            // The same request can succeed later.
            ProfileError::NotLoaded(_) => Error::Unable(error.to_string()),
            ProfileError::Invalid(invalid) => invalid.into(),
        })
    }

    async fn copy_images(&self, mut plan: LaunchPlan) -> Result<LaunchPlan, Error> {
        let images = self.images.clone();
        blocking(move || {
            if let RootPlan::Layers(lower) = &plan.root {
                let copy = plan.directory.join("rootfs");
                images.copy(lower, &copy)?;
                if let Some(ids) = &plan.ids {
                    chown::shift_owners(&copy, ids)
                        .map_err(io("give the copy of the image to the pod"))?;
                }
                plan.root = RootPlan::Copied;
            }
            volumes::copy(&images, &mut plan.mounts)?;
            Ok(plan)
        })
        .await
    }

    /// Holds the image that `config` names for the container, even if its names are removed.
    async fn hold_image(&self, id: &ContainerId, config: &ContainerConfig) -> Result<Image, Error> {
        let name = config.image.as_ref().map_or("", |i| &i.image).to_owned();
        if name.is_empty() {
            return Err(Invalid("the container names no image".to_owned()).into());
        }
        let (images, holder) = (self.images.clone(), id.to_string());
        let specified = config.image.as_ref().map(|i| &i.user_specified_image);
        let specified = specified.cloned().unwrap_or_default();
        let mounts = config.mounts.clone();
        blocking(move || {
            let volumes = volumes::hold(&images, &holder, &mounts)?;
            let Some(record) = images.status(&name) else {
                return Err(Invalid(format!("image {name:?} is not present: pull it first")).into());
            };
            let root = match images.hold(&holder, &record.id.to_string())? {
                Rootfs::Host => RootPlan::Host,
                Rootfs::Layers { lower } => RootPlan::Layers(lower),
            };
            let names = image::names(&record, &specified, &name);
            let script = record.script();
            let config = record.config;
            let defaults = ImageDefaults {
                env: config.env,
                entrypoint: config.entrypoint,
                cmd: config.cmd,
                user: config.user,
                working_dir: config.working_dir,
                stop_signal: Some(config.stop_signal).filter(|s| !s.is_empty()),
                volumes: config.volumes,
                script,
            };
            Ok(Image {
                id: record.id.to_string(),
                names,
                root,
                defaults,
                volume_ids: volumes.ids,
                volumes: volumes.roots,
            })
        })
        .await
    }

    /// Releases the image held by [`Self::hold_image`].
    pub(super) async fn release_image(&self, id: &ContainerId) {
        let (images, holder) = (self.images.clone(), id.to_string());
        if let Err(error) = blocking(move || images.release(&holder)).await {
            tracing::warn!(
                container = id.short(),
                error = crate::chain(&error),
                "failed to release image of removed container"
            );
        }
    }
}

/// The device rules of a container; `None` if it may use all devices.
fn rules(plan: &LaunchPlan) -> Option<Vec<DeviceRule>> {
    let more = plan.devices.iter().map(|device| {
        let node = &device.node;
        DeviceRule::new(node.kind, node.major, node.minor, &device.access)
    });
    (!plan.privileged).then(|| device::usual().into_iter().chain(more).collect())
}

/// An image, ready to run.
struct Image {
    id: String,
    names: ImageNames,
    root: RootPlan,
    defaults: ImageDefaults,
    /// The images that mounts name, by the name in the request: their IDs, and their root file systems.
    volume_ids: BTreeMap<String, String>,
    volumes: BTreeMap<String, RootPlan>,
}

fn make_directories(directory: &Path, plan: &LaunchPlan) -> Result<(), Error> {
    let what = "make the container's directory";
    for path in [directory, &directory.join("layer")] {
        private::make(path).map_err(|error| io(what)(std::io::Error::other(error)))?;
    }
    if plan.isolation == IsolationMode::Process {
        // The container's users need to traverse this directory to reach their root.
        let mode = fs::Permissions::from_mode(0o711);
        fs::set_permissions(directory, mode).map_err(io(what))?;
    }
    let parts = ["rootfs", "layer/upper", "layer/work"];
    let own = parts.iter().map(|part| directory.join(part));
    for path in own.chain(volumes::directories(&plan.mounts)) {
        // The mode of a container's root directory.
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(io(what))?;
    }
    let Some(log) = &plan.log else { return Ok(()) };
    keeper::parent::log::file::prepare(log).map_err(|error| {
        if error.kind() == std::io::ErrorKind::InvalidInput {
            let path = log.path.display();
            return Invalid(format!("log_path {path} cannot be a log file: {error}")).into();
        }
        io("make the directory of the container's log")(error)
    })
}
