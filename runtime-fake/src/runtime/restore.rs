//! Restores containers from a checkpoint.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use cri::v1::{ContainerConfig, ImageSpec, PodSandboxConfig};
use keeper::contract::orphan;
use keeper::contract::plan::{IsolationMode, LaunchPlan, Pids, RestorePlan, RootPlan};

use super::{Error, Runtime, blocking, checkpoint::archive_path, io};
use crate::{
    checkpoint::{self, Archive, CheckpointError, CheckpointRecord, PodOptions},
    container::Container,
    id::{ContainerId, SandboxId},
    launch::Invalid,
};

/// The subdirectory of a container with the files that criu needs to restore its processes.
const DIRECTORY: &str = "restore";

/// A container in an archive.
pub(super) struct Checkpoint {
    archive: Arc<Archive>,
    /// Its directory in the archive, with a trailing slash; empty for the checkpoint of a single container.
    at: String,
    record: CheckpointRecord,
    /// A working criu.
    program: Option<PathBuf>,
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Invalid(message) => Invalid(message).into(),
            CheckpointError::Io { what, source } => Self::Io { what, source },
        }
    }
}

impl Checkpoint {
    fn read(archive: Arc<Archive>, directory: &str) -> Result<Self, CheckpointError> {
        let at = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let record: CheckpointRecord = archive.document(&format!("{at}{}", checkpoint::CRIB))?;
        Ok(Self { archive, at, record, program: None })
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.at)
    }
}

impl Runtime {
    /// Creates a sandbox and restores the archive's containers in it; on failure everything created is removed.
    pub(crate) async fn restore_pod(
        &self,
        path: &str,
        config: PodSandboxConfig,
        runtime_handler: String,
        containers: Vec<ContainerConfig>,
    ) -> Result<(SandboxId, Vec<(String, ContainerId)>), Error> {
        let path = archive_path("checkpoint_path", path)?;
        let found = blocking(move || read_checkpoints(&path)).await?;
        let wanted = matched(found, containers)?;
        let program = self.criu().await?;
        let sandbox = self.run_sandbox(config, runtime_handler).await?;
        let mut restored = Vec::new();
        for (config, mut from) in wanted {
            from.program = Some(program.clone());
            let name = from.record.name().to_owned();
            match self.restore_into(&sandbox, config, from).await {
                Ok(id) => restored.push((name, id)),
                Err(error) => {
                    if let Err(other) = self.remove_sandbox(sandbox.as_str()).await {
                        tracing::warn!(
                            sandbox = sandbox.short(),
                            error = crate::chain(&other),
                            "failed to remove sandbox after failed restore"
                        );
                    }
                    return Err(error);
                }
            }
        }
        Ok((sandbox, restored))
    }

    async fn restore_into(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
        from: Checkpoint,
    ) -> Result<ContainerId, Error> {
        let id = self.create_container_from(sandbox.as_str(), config, Some(from)).await?;
        self.start_container(id.as_str()).await?;
        Ok(id)
    }

    /// The checkpoint, if `config` names one as its image; then the image in `config` is replaced by the checkpoint's.
    pub(super) async fn named_as_image(
        &self,
        config: &mut ContainerConfig,
    ) -> Result<Option<Checkpoint>, Error> {
        let named = config.image.as_ref().map_or("", |i| &i.image);
        if !named.starts_with('/') {
            return Ok(None);
        }
        let path = archive_path("image.image", named)?;
        let from = blocking(move || {
            let archive = Arc::new(Archive::open(&path)?);
            if archive.has(checkpoint::POD_OPTIONS) {
                let message = "this is the checkpoint of a pod: use RestorePod";
                return Err(CheckpointError::Invalid(message.to_owned()));
            }
            Checkpoint::read(archive, "")
        })
        .await?;
        let image = config.image.get_or_insert_default();
        image.image.clone_from(&from.record.image);
        Ok(Some(from))
    }

    /// Checks that the container of `plan` can be restored from `from`, and returns the criu for it.
    pub(super) async fn can_restore(
        &self,
        from: &Checkpoint,
        plan: &LaunchPlan,
        image: &str,
    ) -> Result<PathBuf, Error> {
        let program = match &from.program {
            Some(program) => program.clone(),
            None => self.criu().await?,
        };
        let name = from.record.name();
        let invalid = |why: &str| -> Result<PathBuf, Error> {
            Err(Invalid(format!("container {name:?} cannot be restored: {why}")).into())
        };
        if from.record.image != image {
            return invalid(&format!(
                "it was made of the image {}, whose files its processes have open, not of {image}",
                from.record.image
            ));
        }
        if plan.isolation != IsolationMode::Root || plan.ids.is_some() {
            return invalid("it had no user namespace, and cannot have one now");
        }
        if plan.pids != Pids::Own {
            return invalid("it had a process namespace of its own, and needs one");
        }
        if plan.terminal {
            return invalid("it had no terminal, and cannot have one now");
        }
        let had_input = from.record.streams.first().is_some_and(|s| s.starts_with("pipe:["));
        if had_input != plan.stdin {
            return invalid("stdin has to be as it was");
        }
        match &plan.root {
            RootPlan::Layers(_) if !self.copies.load(Ordering::Relaxed) => Ok(program),
            RootPlan::Layers(_) | RootPlan::Host | RootPlan::Copied => {
                invalid("its image has no writable layer to restore")
            }
        }
    }

    /// Restores a container's files.
    pub(super) async fn prepare_restore(
        &self,
        from: Checkpoint,
        program: PathBuf,
        plan: &LaunchPlan,
    ) -> Result<RestorePlan, Error> {
        let (images, plan) = (self.images.clone(), plan.clone());
        blocking(move || {
            let directory = plan.directory.join(DIRECTORY);
            private_directory(&directory).map_err(io("make a directory for the checkpoint"))?;
            let archive = &from.archive;
            let images_at = from.named(checkpoint::IMAGES);
            archive.extract(&images_at, &directory.join(checkpoint::IMAGES))?;
            let diff = directory.join(checkpoint::DIFF);
            archive.extract_file(&from.named(checkpoint::DIFF), &diff)?;
            if let RootPlan::Layers(lower) = &plan.root {
                let file = fs::File::open(&diff).map_err(io("open the container's files"))?;
                let upper = plan.directory.join("layer/upper");
                let applied = images.apply_diff(file, lower, &upper);
                applied.map_err(|problem| {
                    let what = "restore the container's changes to its image";
                    let wrong = format!("{} of the checkpoint is invalid", checkpoint::DIFF);
                    CheckpointError::of(problem, what, &wrong)
                })?;
            }
            let _ = fs::remove_file(&diff);
            let shm = from.named(checkpoint::SHM);
            if archive.has(&shm) && !plan.host_ipc {
                archive.extract_file(&shm, &directory.join(checkpoint::SHM))?;
            }
            Ok(RestorePlan {
                program,
                directory,
                mounts: from.record.mounts,
                streams: from.record.streams,
                user: from.record.user,
            })
        })
        .await
    }

    /// Restores the pod's shared memory, through the root of process `pid`, unless another container has restored it.
    pub(super) async fn restore_shm(
        &self,
        restore: &RestorePlan,
        directory: &Path,
        pid: i32,
    ) -> Result<(), Error> {
        let Ok(tar) = fs::File::open(restore.directory.join(checkpoint::SHM)) else {
            return Ok(());
        };
        let root = directory.join("rootfs");
        let at = PathBuf::from(format!("/proc/{pid}/root{}/dev/shm", root.display()));
        let images = self.images.clone();
        blocking(move || {
            let what = "restore the pod's shared memory";
            if fs::read_dir(&at).map_err(io(what))?.next().is_some() {
                return Ok(());
            }
            // The directory was created for this container's pod, and has no lower layers.
            images.apply_diff(tar, &[], &at).map_err(|problem| {
                let wrong = format!("{} of the checkpoint is invalid", checkpoint::SHM);
                CheckpointError::of(problem, what, &wrong).into()
            })
        })
        .await
    }

    /// Whether starting the container restores it with criu.
    pub(super) fn is_restored(&self, container: &Container) -> bool {
        let directory = self.container_dir(&container.sandbox, &container.id);
        directory.join(DIRECTORY).exists()
    }

    /// Records that a container's processes were restored; `pid` is the first one.
    pub(super) fn finish_restore(&self, container: &Container, pid: Option<i32>) {
        let Some(pid) = pid else { return };
        let directory = self.container_dir(&container.sandbox, &container.id);
        if let Err(error) = orphan::note(&directory, pid) {
            tracing::warn!(%error, "failed to record container process: it may outlive a killed keeper");
        }
        if let Err(error) = self.trash.put(&directory.join(DIRECTORY)) {
            tracing::warn!(%error, container = container.id.short(), "failed to remove checkpoint images: they stay until the container is removed");
        }
    }
}

/// Creates a private directory: it will contain a container's memory.
fn private_directory(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// The containers in an archive, of a pod or a single container, by name.
fn read_checkpoints(path: &Path) -> Result<BTreeMap<String, Checkpoint>, CheckpointError> {
    let archive = Arc::new(Archive::open(path)?);
    let directories = if archive.has(checkpoint::POD_OPTIONS) {
        let options: PodOptions = archive.document(checkpoint::POD_OPTIONS)?;
        options.containers.into_values().collect()
    } else {
        vec![String::new()]
    };
    let mut found = BTreeMap::new();
    for directory in directories {
        let from = Checkpoint::read(archive.clone(), &directory)?;
        found.insert(from.record.name().to_owned(), from);
    }
    Ok(found)
}

/// Matches the client's configurations with the archive's containers; a container without one gets its original
/// configuration.
fn matched(
    mut found: BTreeMap<String, Checkpoint>,
    configs: Vec<ContainerConfig>,
) -> Result<Vec<(ContainerConfig, Checkpoint)>, Invalid> {
    let mut wanted = Vec::new();
    for mut config in configs {
        let name = config.metadata.as_ref().map_or("", |m| &m.name);
        let Some(from) = found.remove(name) else {
            return Err(Invalid(format!(
                "the checkpoint has no container {name:?}, or it is named twice"
            )));
        };
        if config.image.as_ref().is_none_or(|i| i.image.is_empty()) {
            config.image =
                Some(ImageSpec { image: from.record.image.clone(), ..ImageSpec::default() });
        }
        wanted.push((config, from));
    }
    wanted.extend(found.into_values().map(|from| {
        let mut config = from.record.config.clone();
        // Its old name may refer to another image by now.
        config.image.get_or_insert_default().image.clone_from(&from.record.image);
        (config, from)
    }));
    Ok(wanted)
}
