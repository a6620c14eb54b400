//! The keepers that run: one handle a sandbox.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use tokio::{process::Command, sync::mpsc};

use crate::{
    container::ContainerEvent,
    id::{ContainerId, SandboxId},
    keeper::{
        client::{KeeperClient, Told, connect, listen},
        protocol::Event,
    },
    sandbox::SandboxEvent,
    store::{Change, Store},
};

/// Handles by sandbox.
#[derive(Default)]
pub(crate) struct Pods {
    handles: Mutex<HashMap<SandboxId, Arc<Pod>>>,
}

/// A sandbox's keeper, and the turn to stop or remove it.
pub(crate) struct Pod {
    pub(crate) keeper: KeeperClient,
    /// Held by whoever stops or removes the sandbox.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl Pods {
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
        let mut command = Command::new("/proc/self/exe");
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
        // Somebody has to take its exit status while this daemon lives. A later one is not its parent.
        tokio::spawn(async move { child.wait().await });
        self.adopt(id, stream, store)
    }

    /// Speaks to the keeper at the other end of `stream`.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        id: &SandboxId,
        stream: std::os::unix::net::UnixStream,
        store: &Store,
    ) -> io::Result<Arc<Pod>> {
        let (told, news) = mpsc::unbounded_channel();
        let pod = Arc::new(Pod {
            keeper: KeeperClient::start(stream, told)?,
            turn: tokio::sync::Mutex::default(),
        });
        self.lock().insert(id.clone(), pod.clone());
        tokio::spawn(follow(id.clone(), news, store.clone(), self.clone()));
        Ok(pod)
    }
}

/// Takes a keeper's news into the store, until it is gone.
async fn follow(
    id: SandboxId,
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
            Told::Gone => break,
        }
    }
    pods.forget(&id);
    lose(&id, &store).await;
}

/// Takes note that a sandbox's keeper has ended: asked to or not, nothing of the pod runs any more.
pub(crate) async fn lose(id: &SandboxId, store: &Store) {
    let left: Vec<ContainerId> = store
        .state()
        .containers_of(id)
        .filter(|c| !c.ended())
        .map(|c| c.id.clone())
        .collect();
    for container in left {
        let _ = store
            .apply(Change::Container(
                container,
                ContainerEvent::Lost(Timestamp::now()),
            ))
            .await;
    }
    let _ = store
        .apply(Change::Sandbox(id.clone(), SandboxEvent::Stopped))
        .await;
}
