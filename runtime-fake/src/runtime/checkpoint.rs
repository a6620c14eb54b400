//! Checkpoints running containers to an archive. They are frozen while they are dumped, and continue afterwards.

mod criu_program;

use std::{
    collections::BTreeMap,
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use image::Rootfs;
use keeper::contract::criu::{self, Dump, DumpError};
use keeper::contract::protocol::{Call, Outcome};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tempfile::TempDir;

use super::{Error, Runtime, blocking, containers::wrong_state, io, pods::Pod};
use crate::{
    checkpoint::{self, CheckpointRecord, PodOptions, Writer},
    container::{Container, ContainerState},
    id::ContainerId,
    keeper_client::unexpected,
    launch::Invalid,
    sandbox::{Sandbox, SandboxState},
    stats,
    store::StateError,
};

/// A dumped container: its files are in the directory, which is removed on drop.
struct Dumped {
    name: String,
    files: TempDir,
}

impl Runtime {
    /// Checkpoints a running container to an archive at `location`. A zero `limit` means no timeout.
    pub(crate) async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        limit: Duration,
    ) -> Result<(), Error> {
        let container = self.store.state().container(id)?.clone();
        let location = archive_path("location", location)?;
        let short = container.id.short().to_owned();
        let given_up = Arc::new(AtomicBool::new(false));
        let work = {
            let (runtime, given_up) = (self.clone(), given_up.clone());
            async move {
                let program = runtime.criu().await?;
                let dumped = runtime.dump(&container, &program, given_up.clone()).await?;
                let archive = move |archive: &mut Writer| archive.add(dumped.files.path(), "");
                write(&location, given_up, archive).await
            }
        };
        // criu is never interrupted, because that would leave its processes changed. After the timeout it continues, and its
        // result is dropped.
        let work = self.tasks.spawn(tasks::boxed(work));
        if limit.is_zero() {
            return joined(work.await);
        }
        match tokio::time::timeout(limit, work).await {
            Ok(done) => joined(done),
            Err(_) => {
                given_up.store(true, Ordering::Relaxed);
                Err(Error::Timeout {
                    what: format!("the checkpoint of container {short}"),
                    seconds: limit.as_secs(),
                })
            }
        }
    }

    /// Checkpoints containers of a pod to one archive: the named ones, or all running ones.
    pub(crate) async fn checkpoint_pod(
        &self,
        id: &str,
        named: &[String],
        output: &str,
    ) -> Result<(), Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(id)?.clone();
        if sandbox.state != SandboxState::Ready {
            return Err(StateError::SandboxNotReady {
                id: sandbox.id.clone(),
                wanted: "a checkpoint",
            }
            .into());
        }
        let output = archive_path("output_path", output)?;
        let mut containers: BTreeMap<String, Arc<Container>> = BTreeMap::new();
        let running = state.containers_of(&sandbox.id);
        let running = running.filter(|c| c.state == ContainerState::Running);
        let wanted: Vec<Arc<Container>> = if named.is_empty() {
            running.cloned().collect()
        } else {
            let found = named.iter().map(|id| state.container(id).cloned());
            found.collect::<Result<_, _>>()?
        };
        for container in wanted {
            if container.sandbox != sandbox.id {
                let message = format!("container {} is in another pod sandbox", container.id);
                return Err(Invalid(message).into());
            }
            let metadata = container.config.metadata.clone().unwrap_or_default();
            if let Some(other) = containers.insert(metadata.name.clone(), container.clone())
                && other.id != container.id
            {
                let message = format!(
                    "two containers are called {:?}: a pod is restored by their names, so name one of them only",
                    metadata.name
                );
                return Err(Invalid(message).into());
            }
        }
        if containers.is_empty() {
            let message = "no container of the pod sandbox runs: there is nothing to checkpoint";
            return Err(Error::Unable(message.to_owned()));
        }
        let program = self.criu().await?;
        let mut all = Vec::new();
        for container in containers.values() {
            all.push(self.dump(container, &program, Arc::default()).await?);
        }
        let config = sandbox.config.clone();
        let archive = move |archive: &mut Writer| {
            let directories: BTreeMap<String, String> = all
                .iter()
                .enumerate()
                .map(|(n, dumped)| (dumped.name.clone(), format!("container-{n}")))
                .collect();
            archive.add_document(checkpoint::POD_OPTIONS, &PodOptions::new(directories.clone()))?;
            archive.add_document(checkpoint::POD, &config)?;
            for dumped in &all {
                archive.add(dumped.files.path(), &directories[&dumped.name])?;
            }
            Ok(())
        };
        write(&output, Arc::default(), archive).await
    }

    /// Dumps a container with criu. The container continues in any case.
    async fn dump(
        &self,
        container: &Arc<Container>,
        program: &Path,
        given_up: Arc<AtomicBool>,
    ) -> Result<Dumped, Error> {
        let _turn = self.lock_for_dump(container)?;
        let (_, pod) = self.container_and_pod(container.id.as_str(), "it has ended")?;
        if self.store.state().container(container.id.as_str())?.state != ContainerState::Running {
            return Err(wrong_state(container, "only a running container can be checkpointed"));
        }
        let sandbox = self.store.state().sandbox(container.sandbox.as_str())?.clone();
        let directory = self.container_dir(&sandbox.id, &container.id);
        self.check_can_be_dumped(container, &sandbox)?;
        let files = tempfile::Builder::new()
            .prefix("checkpoint-")
            .tempdir_in(&directory)
            .map_err(io("make a directory for the checkpoint"))?;
        fs::create_dir(files.path().join(checkpoint::IMAGES))
            .map_err(io("make a directory for the checkpoint"))?;
        let (socket, crius) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| io("make a socket for criu")(error.into()))?;
        let pid = start_criu(&pod, container, program, crius).await?;
        let container = container.clone();
        let upper = directory.join("layer/upper");
        blocking(move || {
            let work = files.path();
            let record = observe(&container, pid)?;
            // The host's root is not copied.
            let own_shm = !shares_ipc(&sandbox) && record.mounts.iter().any(|at| at == "/dev/shm");
            let external = record.mounts.iter().enumerate();
            let external = external.map(|(n, at)| criu::dumped(n, at)).collect();
            let open =
                |path: &Path| fs::File::open(path).map_err(io("open the checkpoint's files"));
            let (work_dir, images) = (open(work)?, open(&work.join(checkpoint::IMAGES))?);
            let what = Dump { pid, images: images.as_fd(), work: work_dir.as_fd(), external };
            let frozen = || {
                if given_up.load(Ordering::Relaxed) {
                    return Err(Error::Unable("its caller has disconnected".to_owned()));
                }
                checkpoint::write_diff(&upper, &work.join(checkpoint::DIFF))
                    .map_err(io("copy what the container has changed in its image"))?;
                if !own_shm {
                    return Ok(());
                }
                checkpoint::shared_memory(&PathBuf::from(format!("/proc/{pid}/root")))
                    .and_then(|shm| checkpoint::write_open_diff(&shm, &work.join(checkpoint::SHM)))
                    .map_err(io("copy the pod's shared memory"))
            };
            criu::dump(socket, what, frozen)
                .map_err(|error| not_dumped(error, &container, work))?;
            checkpoint::describe(work, &container, &sandbox.config, &record)
                .map_err(io("describe the container in its checkpoint"))?;
            Ok(Dumped { name: record.name().to_owned(), files })
        })
        .await
    }

    /// Locks the container: two criu processes cannot dump the same processes.
    fn lock_for_dump(&self, container: &Container) -> Result<DumpGuard<'_>, Error> {
        let mut busy = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(container.id.clone()) {
            return Err(Error::Unable(format!(
                "container {} is already being checkpointed",
                container.id.short()
            )));
        }
        Ok(DumpGuard(self, container.id.clone()))
    }

    /// Rejects containers that criu would reject with a less clear error, or would restore incompletely.
    fn check_can_be_dumped(&self, container: &Container, sandbox: &Sandbox) -> Result<(), Error> {
        let no = |why: &str| {
            Err(Error::Unable(format!(
                "container {} cannot be checkpointed: {why}",
                container.id.short()
            )))
        };
        if container.config.tty {
            return no("it has a terminal, whose master side the runtime holds");
        }
        if self.behaviour(container)?.is_some() {
            return no("it acts out a behaviour script: criu knows only programs");
        }
        let security = sandbox.config.linux.as_ref();
        let security = security.and_then(|l| l.security_context.as_ref());
        let pod = security.and_then(|s| s.namespace_options.as_ref());
        if pod
            .and_then(|n| n.userns_options.as_ref())
            .is_some_and(|u| u.mode == cri::v1::NamespaceMode::Pod as i32)
        {
            return no(
                "its pod has a user namespace, from outside of which criu cannot make its mounts again",
            );
        }
        let own = container.config.linux.as_ref();
        let own = own.and_then(|l| l.security_context.as_ref());
        let namespaces = own.and_then(|s| s.namespace_options.as_ref()).or(pod);
        if namespaces.map_or(0, |n| n.pid) != cri::v1::NamespaceMode::Container as i32 {
            return no(
                "it shares its process namespace, where other processes may have its process ids later (namespace_options.pid has to be CONTAINER)",
            );
        }
        let directory = self.container_dir(&container.sandbox, &container.id);
        let is_copy = stats::layer(&directory).is_some_and(|layer| layer.ends_with("rootfs"));
        if is_copy || self.copies.load(Ordering::Relaxed) {
            return no("overlayfs does not work here, so its changes to the image are unknown");
        }
        match self.images.rootfs(&container.image_id) {
            Ok(Rootfs::Layers { .. }) => Ok(()),
            Ok(Rootfs::Host) => no(
                "its image is crib.local/host, whose changes are in memory only: use another image",
            ),
            // The image was removed under its names; its layers are held.
            Err(_) => Ok(()),
        }
    }
}

/// The lock on a container that is being dumped, released on drop.
struct DumpGuard<'a>(&'a Runtime, ContainerId);

impl Drop for DumpGuard<'_> {
    fn drop(&mut self) {
        let mut busy = self.0.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        busy.remove(&self.1);
    }
}

async fn start_criu(
    pod: &Pod,
    container: &Container,
    program: &Path,
    socket: std::os::fd::OwnedFd,
) -> Result<i32, Error> {
    let call = Call::Dump { container: container.id.to_string(), program: program.to_owned() };
    match pod.keeper.exchange(call, vec![socket]).await? {
        (Outcome::Dump { pid }, _) => Ok(pid),
        (outcome, _) => Err(unexpected(&outcome).into()),
    }
}

/// Whether a pod shares the host's IPC namespace.
fn shares_ipc(sandbox: &Sandbox) -> bool {
    let security = sandbox.config.linux.as_ref();
    let security = security.and_then(|l| l.security_context.as_ref());
    let namespaces = security.and_then(|s| s.namespace_options.as_ref());
    namespaces.is_some_and(|n| n.ipc == cri::v1::NamespaceMode::Node as i32)
}

/// Collects a container's record, and the facts that only its processes show.
fn observe(container: &Container, pid: i32) -> Result<CheckpointRecord, Error> {
    let what = "look at the container's processes";
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_err(io(what))?;
    let mounts = criu::external_mounts(&table).map_err(|unfit| {
        let id = container.id.short();
        Error::Unable(format!("container {id} cannot be checkpointed: {unfit}"))
    })?;
    let stream = |number| {
        let link = fs::read_link(format!("/proc/{pid}/fd/{number}"));
        // The process may have closed it.
        link.map_or_else(|_| String::new(), |link| link.to_string_lossy().into_owned())
    };
    Ok(CheckpointRecord::of(container, mounts, (0..3).map(stream).collect()))
}

fn not_dumped(error: DumpError<Error>, container: &Container, work: &Path) -> Error {
    let id = container.id.short();
    match error {
        DumpError::WhileFrozen(error) => error,
        DumpError::Lost(source) => Error::Io { what: "communicate with criu", source },
        DumpError::Refused(said) => {
            let why = criu::first_error_in(&work.join(checkpoint::LOG))
                .or(said)
                .unwrap_or_else(|| "no error message".to_owned());
            Error::Unable(format!("criu cannot dump container {id}: {why}"))
        }
    }
}

/// Writes an archive and moves it to its path, unless its caller has given up.
async fn write(
    place: &Path,
    given_up: Arc<AtomicBool>,
    add: impl FnOnce(&mut Writer) -> std::io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    let place = place.to_owned();
    blocking(move || {
        let written = || {
            let mut archive = Writer::new(&place)?;
            add(&mut archive)?;
            if given_up.load(Ordering::Relaxed) {
                return Ok(());
            }
            archive.finish()
        };
        written().map_err(io("write the archive of the checkpoint"))
    })
    .await
}

fn joined(done: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    match done {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StateError::ShuttingDown.into()),
        },
    }
}

/// Validates the path of an archive.
pub(super) fn archive_path(field: &str, path: &str) -> Result<PathBuf, Error> {
    let invalid = |message: String| Err(Invalid(message).into());
    let found = Path::new(path);
    if !found.is_absolute() || path.contains('\0') {
        return invalid(format!("{field} {path:?} is not an absolute path"));
    }
    if found.file_name().is_none() || found.is_dir() {
        return invalid(format!("{field} {path:?} is a directory: name a file"));
    }
    if !found.parent().is_some_and(Path::is_dir) {
        return invalid(format!("there is no directory for {field} {path:?}"));
    }
    Ok(found.to_owned())
}
