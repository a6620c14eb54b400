//! Copies files out of and into running containers, without running a program in them: below the root of the first process, which
//! includes the container's mounts.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use file_copy::{ChunkReader, ChunkWriter, CopyError, Destination, Notes, Root, Side, Source, Top};
use keeper::contract::protocol::{Call, Outcome};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::{Mode, OFlags};
use tokio::sync::oneshot;

use super::{Error, Runtime, containers::wrong_state, io};
use crate::{container::ContainerState, keeper_client::unexpected, launch};

const WHAT: &str = "open the container's root";

/// A running container's files.
pub(crate) struct ContainerFiles {
    root: Root,
    working_directory: PathBuf,
    /// The ids, as this process sees them, of the user that the container runs as.
    owner: (u32, u32),
}

/// The outcome of a copy, which runs on its own thread.
pub(crate) type Copied = oneshot::Receiver<Result<Notes, CopyError>>;

impl Runtime {
    /// Opens the files of a running container.
    pub(crate) async fn container_files(&self, id: &str) -> Result<ContainerFiles, Error> {
        let wanted = "its files are copied while it runs";
        let (container, pod) = self.container_and_pod(id, wanted)?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(&container, wanted));
        }
        let first = async || {
            let outcome = pod.keeper.call(Call::State).await?;
            let Outcome::State { containers, .. } = outcome else {
                return Err(Error::from(unexpected(&outcome)));
            };
            let found = containers.into_iter().find(|one| one.container == container.id.as_str());
            let pid = found.map(|one| one.pid).filter(|pid| *pid > 0);
            pid.ok_or_else(|| wrong_state(&container, wanted))
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let pid = first().await?;
        let process = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty());
        let process = process.map_err(|errno| io(WHAT)(errno.into()))?;
        // The pid is the container's both before and after the directory was opened, and the open directory always refers to one
        // process.
        if first().await? != pid {
            return Err(wrong_state(&container, wanted));
        }
        let root: OwnedFd = rustix::fs::openat(process, "root", flags, Mode::empty())
            .map_err(|errno| io(WHAT)(errno.into()))?;
        let plan = self.exec_plan(&container, vec![".".to_owned()], false)?;
        let (uid, gid) = (plan.user.uid, plan.user.gid);
        let sandbox = self.store.state().sandbox(container.sandbox.as_str())?.clone();
        let owner = match launch::user_namespace(&sandbox.config, self.config.isolation.mode())? {
            Some(ids) => ids.shift(uid, gid).unwrap_or_else(|| ids.root()),
            None => (uid, gid),
        };
        let working_directory = Path::new("/").join(plan.process.cwd);
        Ok(ContainerFiles { root: Root::of_container(root), working_directory, owner })
    }
}

impl ContainerFiles {
    /// Packs the file or directory at a path.
    pub(crate) fn pack(self, path: &str, to: ChunkWriter) -> Result<Copied, Error> {
        let path = self.working_directory.join(path);
        on_a_thread(move || file_copy::pack(Source::open(&self.root, &path)?, to))
    }

    /// Unpacks an archive at a path, under the name `name`; without a name, all of its members. The files belong to the user that
    /// the container runs as.
    pub(crate) fn unpack(
        self,
        path: &str,
        name: &str,
        archive: ChunkReader,
    ) -> Result<Copied, Error> {
        let path = self.working_directory.join(path);
        let (name, top) = match name {
            "" => (".".to_owned(), Top::Any),
            name => (name.to_owned(), Top::First),
        };
        on_a_thread(move || {
            act_for(self.owner)?;
            let to = Destination::open(&self.root, &path, OsStr::new(&name))?;
            file_copy::unpack(archive, to, top, Side::Container)
        })
    }
}

/// Runs a copy on a thread of its own, because the copy changes the thread's fsuid and fsgid.
fn on_a_thread(
    copy: impl FnOnce() -> Result<Notes, CopyError> + Send + 'static,
) -> Result<Copied, Error> {
    let (sender, copied) = oneshot::channel();
    let thread = std::thread::Builder::new().name("copy".to_owned());
    let spawned = thread.spawn(move || {
        // Its client may have disconnected.
        let _ = sender.send(copy());
    });
    spawned.map_err(io("start a thread"))?;
    Ok(copied)
}

/// Makes a user the owner of new files of this thread (fsuid and fsgid), and keeps the capabilities to write everywhere. In a
/// user namespace, files cannot be made for an unmapped id.
fn act_for((uid, gid): (u32, u32)) -> Result<(), CopyError> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let failed = |errno: rustix::io::Errno| CopyError::Io {
        doing: "make files for",
        path: format!("user {uid}"),
        source: errno.into(),
    };
    let capabilities = rustix::thread::capabilities(None).map_err(failed)?;
    setfsgid(Gid::from_raw(gid));
    setfsuid(Uid::from_raw(uid));
    rustix::thread::set_capabilities(None, capabilities).map_err(failed)
}
