//! After a restart: what the records say, compared with the keepers that still run.

use std::{
    fs::{self, File},
    io::Read as _,
    net::IpAddr,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use crate::{
    container::{ContainerEvent, ContainerState},
    id::{ContainerId, SandboxId},
    keeper::{
        client::connect,
        protocol::{Call, ContainerState as Seen, Exit, Outcome, exit_record},
    },
    runtime::{Runtime, blocking, pods},
    sandbox::{SandboxEvent, SandboxState},
    store::{Change, State},
};

/// The file in a sandbox's directory that names its keeper's process.
pub(crate) const KEEPER_PID: &str = "keeper.pid";
/// The file in a sandbox's directory that is its keeper's standard error.
pub(crate) const KEEPER_LOG: &str = "keeper.log";

/// The processes of the keepers of an earlier daemon that still run.
pub(crate) fn living_keepers(state_dir: &Path) -> Vec<i32> {
    let directories = fs::read_dir(state_dir.join("sandboxes"))
        .into_iter()
        .flatten()
        .flatten();
    directories
        .filter_map(|entry| living_keeper(&entry.path()))
        .collect()
}

/// The process id of the keeper in a sandbox's directory, if it lives.
pub(crate) fn living_keeper(sandbox_dir: &Path) -> Option<i32> {
    let pid = fs::read_to_string(sandbox_dir.join(KEEPER_PID))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let mut name = String::new();
    File::open(format!("/proc/{pid}/comm"))
        .ok()?
        .read_to_string(&mut name)
        .ok()?;
    // A number may have gone to another keeper, which writes elsewhere. A connection would tell more, but a keeper takes
    // the last one for its daemon's.
    let log = |path: PathBuf| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let own = log(sandbox_dir.join(KEEPER_LOG))?;
    (name.trim() == "crib-keeper" && log(format!("/proc/{pid}/fd/2").into()) == Some(own))
        .then_some(pid)
}

/// What the network has to know of the sandboxes that are connected.
pub(crate) fn connected(state: &State) -> Vec<(String, IpAddr)> {
    let ready = state
        .sandboxes
        .values()
        .filter(|s| s.state == SandboxState::Ready);
    ready
        .filter_map(|s| Some((s.id.to_string(), *s.addresses.first()?)))
        .collect()
}

/// The namespace of an earlier daemon's bridge, from a keeper that holds it.
pub(crate) fn private_bridge_namespace(state_dir: &Path) -> Option<OwnedFd> {
    living_keepers(state_dir).into_iter().find_map(|pid| {
        let own = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
        let held: Vec<PathBuf> = fs::read_dir(format!("/proc/{pid}/fd"))
            .ok()?
            .flatten()
            .map(|e| e.path())
            .collect();
        let bridge = held.into_iter().find(|path| {
            fs::read_link(path)
                .is_ok_and(|link| link.to_string_lossy().starts_with("net:[") && link != own)
        })?;
        File::open(bridge).ok().map(Into::into)
    })
}

/// Brings every record up to date: adopts the keepers that run, and takes note of what ended meanwhile.
pub(crate) async fn reconcile(runtime: &Runtime) {
    let sandboxes: Vec<_> = runtime.store.state().sandboxes.values().cloned().collect();
    for sandbox in sandboxes {
        let adopted = adopt(runtime, &sandbox.id).await;
        match (sandbox.state, adopted) {
            (SandboxState::Ready, true) | (SandboxState::NotReady, false) => {}
            (SandboxState::Ready, false) => {
                exits_on_record(runtime, &sandbox.id).await;
                pods::lose(&sandbox.id, &runtime.store).await;
            }
            // Nobody was told of it: the client calls again. What there is of it goes.
            (SandboxState::Creating, _) => {
                let _ = runtime
                    .store
                    .apply(Change::Sandbox(sandbox.id.clone(), SandboxEvent::Stopped))
                    .await;
                remove(runtime, &sandbox.id).await;
            }
            // A stop that was cut short.
            (SandboxState::NotReady, true) => {
                if let Err(error) = runtime.stop_sandbox(sandbox.id.as_str()).await {
                    tracing::error!(
                        sandbox = sandbox.id.short(),
                        error = crate::chain(&error),
                        "failed to finish stopping"
                    );
                }
            }
        }
        tracing::info!(sandbox = sandbox.id.short(), state = ?sandbox.state, adopted, "found");
    }
    let (images, state) = (runtime.images.clone(), runtime.store.state());
    let released =
        blocking(move || images.release_all_but(|holder| state.containers.contains_key(holder)))
            .await;
    if let Err(error) = released {
        tracing::warn!(
            error = crate::chain(&error),
            "images are held for containers that are gone"
        );
    }
}

async fn remove(runtime: &Runtime, id: &SandboxId) {
    if let Err(error) = runtime.remove_sandbox(id.as_str()).await {
        tracing::error!(
            sandbox = id.short(),
            error = crate::chain(&error),
            "failed to remove a sandbox that was half made"
        );
    }
}

/// Speaks to a sandbox's keeper, if it runs.
async fn adopt(runtime: &Runtime, id: &SandboxId) -> bool {
    let Ok(stream) = connect(&runtime.sandbox_dir(id)) else {
        return false;
    };
    let Ok(pod) = runtime.pods.adopt(id, stream, &runtime.store) else {
        return false;
    };
    let Ok(Outcome::State { containers, .. }) = pod.keeper.call(Call::State).await else {
        runtime.pods.forget(id);
        return false;
    };
    for container in runtime
        .store
        .state()
        .containers_of(id)
        .filter(|c| !c.ended())
    {
        let seen = containers
            .iter()
            .find(|seen| seen.container == container.id.as_str());
        for change in changes(&container.id, container.state, seen) {
            let _ = runtime.store.apply(change).await;
        }
        if container.state == ContainerState::Creating {
            let _ = pod
                .keeper
                .call(Call::Forget {
                    container: container.id.to_string(),
                })
                .await;
        }
    }
    true
}

/// What has happened to a container since its record was written.
fn changes(id: &ContainerId, recorded: ContainerState, seen: Option<&Seen>) -> Vec<Change> {
    let event = |event| Change::Container(id.clone(), event);
    match (recorded, seen) {
        // Nobody was told of it.
        (ContainerState::Creating, _) => vec![Change::RemoveContainer(id.clone())],
        (
            _,
            Some(Seen {
                exit: Some(exit), ..
            }),
        ) => vec![event(ContainerEvent::Exited(exit.clone()))],
        (
            ContainerState::Created,
            Some(Seen {
                started: Some(at), ..
            }),
        ) => vec![event(ContainerEvent::Started(*at))],
        (_, Some(_)) => Vec::new(),
        (_, None) => vec![event(ContainerEvent::Lost(Timestamp::now()))],
    }
}

/// Takes in the exits that a keeper recorded before it ended.
async fn exits_on_record(runtime: &Runtime, id: &SandboxId) {
    let directory = runtime.sandbox_dir(id);
    for container in runtime.store.state().containers_of(id) {
        let record = fs::read(exit_record(&directory, container.id.as_str())).ok();
        let exit = record.and_then(|bytes| serde_json::from_slice::<Exit>(&bytes).ok());
        let change = match (container.state, exit) {
            (ContainerState::Creating, _) => Change::RemoveContainer(container.id.clone()),
            (_, Some(exit)) => {
                Change::Container(container.id.clone(), ContainerEvent::Exited(exit))
            }
            (_, None) => continue,
        };
        let _ = runtime.store.apply(change).await;
    }
}
