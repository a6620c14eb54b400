//! After a restart: what the records say, compared with the keepers that still run.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    container::{ContainerEvent, ContainerState},
    id::{ContainerId, SandboxId},
    keeper::{
        client::connect,
        protocol::{Call, ContainerState as Seen, Outcome},
    },
    launch::host_ports,
    net::PodNetns,
    runtime::{Connected, Runtime, Target, blocking, pods},
    sandbox::{SandboxEvent, SandboxState},
    store::{Change, State},
};

/// The file in a sandbox's directory that names its keeper's process.
pub(crate) const KEEPER_PID: &str = "keeper.pid";
/// The file in a sandbox's directory that is its keeper's standard error.
pub(crate) const KEEPER_LOG: &str = "keeper.log";
/// How long a killed keeper may take to end: one that does not is stuck in the kernel.
const KILLED: Duration = Duration::from_secs(10);
/// How long a restart waits for a keeper's answer.
const ANSWER: Duration = Duration::from_secs(5);

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
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // A number may have gone to another keeper, which writes elsewhere. A connection would tell more, but a keeper takes
    // the last one for its daemon's.
    let log = |path: PathBuf| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let own = log(sandbox_dir.join(KEEPER_LOG))?;
    (name.trim() == "crib-keeper" && log(format!("/proc/{pid}/fd/2").into()) == Some(own))
        .then_some(pid)
}

/// The keeper in `sandbox_dir`, if it lives: its process id, which may be another process's at any time, and its pidfd.
fn hold_keeper(sandbox_dir: &Path) -> io::Result<Option<(i32, OwnedFd)>> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let find = || living_keeper(sandbox_dir).and_then(Pid::from_raw);
    let Some(pid) = find() else { return Ok(None) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        opened => opened?,
    };
    // It may have ended, and its number gone to another one, before that.
    Ok((find() == Some(pid)).then_some((pid.as_raw_pid(), process)))
}

/// The network namespace of the pod in `sandbox_dir`, if it lives and has one of its own.
pub(crate) fn pod_netns(sandbox_dir: &Path) -> io::Result<Option<PodNetns>> {
    match hold_keeper(sandbox_dir)? {
        Some((pid, keeper)) => PodNetns::open(pid, keeper),
        None => Ok(None),
    }
}

/// Kills the keeper in `sandbox_dir`, if one runs, and all of its pod with it; returns when it has ended.
pub(crate) async fn kill_keeper(sandbox_dir: &Path) -> std::io::Result<()> {
    let directory = sandbox_dir.to_owned();
    blocking(move || kill_and_wait(&directory)).await
}

/// The same, for those that may block.
pub(crate) fn kill_and_wait(sandbox_dir: &Path) -> io::Result<()> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use rustix::process::{Signal, pidfd_send_signal};
    use std::os::fd::AsFd as _;
    let Some((pid, process)) = hold_keeper(sandbox_dir)? else {
        return Ok(());
    };
    pidfd_send_signal(&process, Signal::KILL)?;
    // Readable when the process has ended.
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(KILLED).unwrap_or(PollTimeout::MAX);
    match poll(&mut ended, limit)? {
        0 => Err(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("process {pid} did not end within {KILLED:?} after SIGKILL"),
        )),
        _ => Ok(()),
    }
}

/// What the network has to know of the sandboxes that are connected.
pub(crate) fn connected(state: &State) -> Vec<Connected> {
    let ready = state
        .sandboxes
        .values()
        .filter(|s| s.state == SandboxState::Ready);
    ready
        .filter(|s| !s.addresses.is_empty())
        .map(|s| Connected {
            id: s.id.to_string(),
            addresses: s.addresses.clone(),
            ports: host_ports(&s.config.port_mappings).unwrap_or_default(),
        })
        .collect()
}

/// The namespace of an earlier daemon's bridge, from a keeper that holds it.
pub(crate) fn private_bridge_namespace(state_dir: &Path) -> Option<OwnedFd> {
    let directories = fs::read_dir(state_dir.join("sandboxes")).ok()?.flatten();
    let keepers = directories.filter_map(|entry| hold_keeper(&entry.path()).ok()?);
    keepers.into_iter().find_map(|(pid, keeper)| {
        let of = |process: String| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let (pods, own) = (of(pid.to_string())?, of("self".to_owned())?);
        let held: Vec<PathBuf> = fs::read_dir(format!("/proc/{pid}/fd"))
            .ok()?
            .flatten()
            .map(|e| e.path())
            .collect();
        let bridge = held.into_iter().find(|path| {
            fs::read_link(path).is_ok_and(|link| {
                link.to_string_lossy().starts_with("net:[") && link != pods && link != own
            })
        })?;
        let opened = File::open(bridge).ok()?;
        // All of it was the keeper's if it still lives.
        let lives = !crate::net::has_ended(&keeper).ok()?;
        lives.then(|| opened.into())
    })
}

/// Brings every record up to date: adopts the keepers that run, and takes note of what ended meanwhile.
pub(crate) async fn reconcile(runtime: &Runtime) {
    let sandboxes: Vec<_> = runtime.store.state().sandboxes.values().cloned().collect();
    for sandbox in sandboxes {
        let adopted = adopt_in_time(runtime, &sandbox.id).await;
        if !adopted {
            pods::destroy_cgroups(&sandbox.id, &runtime.store).await;
            forget_unfinished(runtime, &sandbox.id).await;
        }
        match (sandbox.state, adopted) {
            (SandboxState::Ready, true) | (SandboxState::NotReady, false) => {}
            (SandboxState::Ready, false) => {
                let directory = runtime.sandbox_dir(&sandbox.id);
                pods::lose(&sandbox.id, &directory, &runtime.store).await;
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
    let (cgroups, state) = (runtime.cgroups.clone(), runtime.store.state());
    blocking(move || cgroups.sweep(|id| state.sandboxes.keys().any(|known| known.as_str() == id)))
        .await;
    look_over_network(runtime).await;
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

/// Lets the network clean up before anything new is connected. Nobody waits for what plugins think of the pods that they
/// connected earlier.
async fn look_over_network(runtime: &Runtime) {
    let state = runtime.store.state();
    let connected = state
        .sandboxes
        .values()
        .filter(|s| s.state == SandboxState::Ready);
    let connected: Vec<Target> = connected
        .filter(|sandbox| living_keeper(&runtime.sandbox_dir(&sandbox.id)).is_some())
        .map(|sandbox| runtime.for_network(sandbox))
        .collect();
    let network = runtime.network.clone();
    let connected = blocking(move || {
        network.clean_up(&connected);
        connected
    })
    .await;
    let network = runtime.network.clone();
    runtime
        .tasks
        .spawn(blocking(move || network.check(&connected, pod_netns)));
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

/// [`adopt`], which goes on by itself when a keeper takes too long: the others are not to wait for it.
async fn adopt_in_time(runtime: &Runtime, id: &SandboxId) -> bool {
    let adoption = {
        let (runtime, id) = (runtime.clone(), id.clone());
        tokio::spawn(async move { adopt(&runtime, &id).await })
    };
    match tokio::time::timeout(ANSWER, adoption).await {
        Ok(adopted) => adopted.unwrap_or(false),
        Err(_) => {
            tracing::warn!(
                sandbox = id.short(),
                "its keeper runs and does not answer: remove the pod sandbox if it stays so"
            );
            true
        }
    }
}

/// Speaks to a sandbox's keeper, if it runs.
async fn adopt(runtime: &Runtime, id: &SandboxId) -> bool {
    let directory = runtime.sandbox_dir(id);
    let Ok(stream) = connect(&directory) else {
        return false;
    };
    // What is created from now on is not the earlier daemon's.
    let state = runtime.store.state();
    let Ok(pod) = runtime.pods.adopt(id, &directory, stream, &runtime.store) else {
        return false;
    };
    let Ok(Outcome::State { containers, .. }) = pod.keeper.call(Call::State).await else {
        runtime.pods.forget(id);
        return false;
    };
    for container in state.containers_of(id).filter(|c| !c.ended()) {
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

/// Takes away what was being created when the daemon and the keeper ended: nobody was told of it.
async fn forget_unfinished(runtime: &Runtime, id: &SandboxId) {
    for container in runtime.store.state().containers_of(id) {
        if container.state == ContainerState::Creating {
            let change = Change::RemoveContainer(container.id.clone());
            let _ = runtime.store.apply(change).await;
        }
    }
}
