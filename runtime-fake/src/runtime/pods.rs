//! The keepers that run: one handle a sandbox.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{process::Command, sync::mpsc};

use super::{Program, survivor};
use crate::{
    cgroup::ending,
    container::ContainerEvent,
    id::{ContainerId, SandboxId},
    keeper::{
        Deadlines,
        client::{KeeperClient, Told, connect, listen},
        protocol::{Event, Exit, exit_record},
    },
    sandbox::SandboxEvent,
    store::{Change, Store},
};

/// How long what was killed may take to be gone.
const LAST: Duration = Duration::from_secs(5);

/// Handles by sandbox.
pub(crate) struct Pods {
    handles: Mutex<HashMap<SandboxId, Arc<Pod>>>,
    program: Program,
    deadlines: Deadlines,
}

/// A sandbox's keeper, and the turn to stop or remove it.
pub(crate) struct Pod {
    pub(crate) keeper: KeeperClient,
    /// Held by whoever stops or removes the sandbox.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Held by whoever changes limits in it.
    pub(crate) limits: tokio::sync::Mutex<()>,
}

impl Pods {
    /// None yet; their keepers run `program`.
    pub(crate) fn new(program: Program, deadlines: Deadlines) -> Self {
        Self {
            handles: Mutex::default(),
            program,
            deadlines,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Pod>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keeper of a sandbox, while it runs.
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Pod>> {
        self.lock().get(id).cloned()
    }

    /// Lets go of a keeper that has ended.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    /// Starts a keeper for a sandbox whose directory is there.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        id: &SandboxId,
        directory: &Path,
        store: &Store,
    ) -> io::Result<Arc<Pod>> {
        let listener: OwnedFd = listen(directory)?.into();
        // Connected before it listens: the answer to the first call says that it does.
        let stream = connect(directory)?;
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(directory.join(crate::recovery::KEEPER_LOG))?;
        let mut command = Command::new(self.program.path());
        command
            .arg0("crib-keeper")
            .arg("__keeper")
            .env_clear()
            .current_dir("/");
        command
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::from(log));
        let mut child = command.spawn()?;
        if let Some(pid) = child.id() {
            std::fs::write(directory.join(crate::recovery::KEEPER_PID), pid.to_string())?;
        }
        // Somebody has to take its exit status while this daemon lives. A later one is not its parent.
        tokio::spawn(async move { child.wait().await });
        self.adopt(id, directory, stream, store)
    }

    /// Speaks to the keeper of the sandbox in `directory`, which is at the other end of `stream`.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        id: &SandboxId,
        directory: &Path,
        stream: std::os::unix::net::UnixStream,
        store: &Store,
    ) -> io::Result<Arc<Pod>> {
        let (told, news) = mpsc::unbounded_channel();
        let pod = Arc::new(Pod {
            keeper: KeeperClient::start(stream, told, self.deadlines)?,
            turn: tokio::sync::Mutex::default(),
            limits: tokio::sync::Mutex::default(),
        });
        self.lock().insert(id.clone(), pod.clone());
        tokio::spawn(follow(
            id.clone(),
            directory.to_owned(),
            news,
            store.clone(),
            self.clone(),
        ));
        Ok(pod)
    }
}

/// Takes a keeper's news into the store, until it is gone.
async fn follow(
    id: SandboxId,
    directory: PathBuf,
    mut news: mpsc::UnboundedReceiver<Told>,
    store: Store,
    pods: Arc<Pods>,
) {
    while let Some(told) = news.recv().await {
        match told {
            Told::Event(Event::Exited { container, exit }) => {
                let change = Change::Container(
                    ContainerId::from_record(&container),
                    ContainerEvent::Exited(exit),
                );
                // A container that was removed meanwhile has no use for it.
                let _ = store.apply(change).await;
            }
            Told::Event(Event::ExecExited { .. }) => {}
            Told::Started { container, at, pid } => {
                if let Some(pid) = pid {
                    let of_container = directory.join("containers").join(container.as_str());
                    let _ = survivor::note(&of_container, pid);
                }
                let change = Change::Container(container, ContainerEvent::Started(at));
                let _ = store.apply(change).await;
            }
            Told::Disconnected(why) => {
                tracing::debug!(sandbox = id.short(), why, "a keeper's connection has ended");
                break;
            }
        }
    }
    pods.forget(&id);
    destroy_cgroups(&id, &store).await;
    lose(&id, &directory, &store).await;
}

/// Takes away what is left of a pod's cgroups, and kills what is left in them: its keeper has ended, asked to or not.
pub(crate) async fn destroy_cgroups(id: &SandboxId, store: &Store) {
    let state = store.state();
    let Some(place) = state.sandboxes.get(id).and_then(|s| s.cgroup.clone()) else {
        return;
    };
    let containers: Vec<String> = state.containers_of(id).map(|c| c.id.to_string()).collect();
    let gone = super::blocking(move || ending::destroy(&place, &containers, LAST)).await;
    if !gone {
        tracing::warn!(
            sandbox = id.short(),
            "processes of the pod did not end after SIGKILL: its cgroup is left"
        );
    }
}

/// Takes note that the keeper of the sandbox in `directory` has ended: asked to or not, nothing of the pod runs any more.
/// It may have recorded exits that it could not tell.
pub(crate) async fn lose(id: &SandboxId, directory: &Path, store: &Store) {
    let left: Vec<ContainerId> = store
        .state()
        .containers_of(id)
        .filter(|c| !c.ended())
        .map(|c| c.id.clone())
        .collect();
    for container in left {
        survivor::kill(&directory.join("containers").join(container.as_str()));
        let record = std::fs::read(exit_record(directory, container.as_str())).ok();
        let exit = record.and_then(|bytes| serde_json::from_slice::<Exit>(&bytes).ok());
        let event = exit.map_or_else(
            || ContainerEvent::Lost(Timestamp::now()),
            ContainerEvent::Exited,
        );
        let _ = store.apply(Change::Container(container, event)).await;
    }
    let _ = store
        .apply(Change::Sandbox(id.clone(), SandboxEvent::Stopped))
        .await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        container::{Container, ContainerState},
        launch::{Confinement, ImageDefaults},
        store,
    };

    fn running(id: &str, sandbox: &SandboxId) -> Container {
        Container {
            id: ContainerId::from_record(id),
            sandbox: sandbox.clone(),
            config: cri::v1::ContainerConfig::default(),
            image_id: String::new(),
            image_name: String::new(),
            image_reference: String::new(),
            image: ImageDefaults::default(),
            stop_signal: 15,
            log_path: String::new(),
            state: ContainerState::Running,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            user: None,
            exit: None,
            cgroup: None,
            not_applied: Vec::new(),
            confinement: Confinement::default(),
        }
    }

    /// A keeper may be killed between the record of an exit and the word of it.
    #[tokio::test]
    async fn what_a_keeper_recorded_last_is_believed() {
        let root = tempfile::tempdir().unwrap();
        let (directory, mut state) = store::open(root.path()).unwrap();
        let id = SandboxId::random();
        for name in ["recorded", "lost"] {
            let container = running(name, &id);
            state
                .containers
                .insert(container.id.clone(), std::sync::Arc::new(container));
        }
        let store = Store::start(directory, state);
        let of_sandbox = store::sandbox_dir(root.path(), &id);
        for name in ["recorded", "lost"] {
            let directory = of_sandbox.join("containers").join(name);
            std::fs::create_dir_all(directory).unwrap();
        }
        let exit = Exit {
            code: 7,
            at: Timestamp::UNIX_EPOCH,
            started: None,
            start_error: None,
            oom_killed: false,
        };
        let record = exit_record(&of_sandbox, "recorded");
        std::fs::write(record, serde_json::to_vec(&exit).unwrap()).unwrap();
        lose(&id, &of_sandbox, &store).await;
        let state = store.state();
        let known = |name: &str| state.containers[&ContainerId::from_record(name)].clone();
        assert_eq!(known("recorded").state, ContainerState::Exited);
        assert_eq!(known("recorded").exit.as_ref().unwrap().code, 7);
        assert_eq!(known("lost").state, ContainerState::Lost);
    }
}
