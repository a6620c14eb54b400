//! Cleans up when a keeper has ended: its pod's cgroups, and its containers' processes and records.

use std::{io, path::Path, time::Duration};

use jiff::Timestamp;
use keeper::contract::orphan;
use keeper::contract::protocol::{Exit, exit_record};
use keeper::kernel::cgroup::cleanup;

use crate::{
    container::{Container, ContainerEvent, ContainerState},
    id::SandboxId,
    sandbox::SandboxEvent,
    store::{Change, Store},
};

/// Timeout for killed processes to end.
const LAST: Duration = Duration::from_secs(5);

/// Removes the cgroups of a pod whose keeper has ended, and kills the processes left in them.
pub(crate) async fn destroy_cgroups(id: &SandboxId, store: &Store) {
    let state = store.state();
    let of_pod = state.sandboxes.get(id).and_then(|s| s.cgroup.clone());
    // If the pod's record is unreadable, its containers' records may have the path.
    let of_container = || state.containers_of(id).find_map(|c| c.cgroup.as_ref()?.parent());
    let Some(place) = of_pod.or_else(of_container) else {
        return;
    };
    let mut containers: Vec<String> = state.containers_of(id).map(|c| c.id.to_string()).collect();
    // The cgroup of the pod's own process.
    containers.push(id.to_string());
    let gone = super::blocking(move || cleanup::destroy(&place, &containers, LAST)).await;
    if !gone {
        tracing::warn!(
            sandbox = id.short(),
            "failed to remove pod cgroup: processes did not exit after SIGKILL"
        );
    }
}

/// Removes a container's cgroup and kills the processes left in it. Call it before the record is removed: without
/// a record the cgroup is not found when the pod ends.
pub(super) async fn destroy_container_cgroup(container: &Container) {
    let Some(place) = container.cgroup.clone() else {
        return;
    };
    if !super::blocking(move || cleanup::destroy_container(&place, LAST)).await {
        tracing::warn!(
            container = container.id.short(),
            "failed to remove container cgroup: processes did not exit after SIGKILL"
        );
    }
}

/// Records that the keeper of the sandbox in `directory` has ended, so nothing of the pod runs any more. The
/// keeper may have recorded exits that it did not report.
pub(crate) async fn mark_lost(id: &SandboxId, directory: &Path, store: &Store) {
    let state = store.state();
    let containers = state.containers_of(id);
    let (unfinished, left): (Vec<_>, Vec<_>) = containers
        .filter(|c| !c.ended())
        .map(|c| c.id.clone())
        .partition(|c| state.containers[c].state == ContainerState::Creating);
    // No client has received their IDs.
    for container in unfinished {
        let _ = store.apply(Change::RemoveContainer(container)).await;
    }
    // Applied in one step: a client that saw an ended container in a ready sandbox would start the next one there.
    let mut changes = vec![
        Change::Keeper(id.clone(), Ok(())),
        Change::Sandbox(id.clone(), SandboxEvent::Stopped),
    ];
    for container in left {
        orphan::kill(&directory.join("containers").join(container.as_str()));
        let exit = recorded_exit(&exit_record(directory, container.as_str()));
        let event =
            exit.map_or_else(|| ContainerEvent::Lost(Timestamp::now()), ContainerEvent::Exited);
        changes.push(Change::Container(container, event));
    }
    let _ = store.apply(Change::Batch(changes)).await;
}

/// The exit that the keeper recorded. If it is missing or unreadable, the exit is unknown.
fn recorded_exit(path: &Path) -> Option<Exit> {
    let read = std::fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    match read {
        Ok(exit) => Some(exit),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "failed to read exit record");
            None
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{container::Container, id::ContainerId, store};

    /// A keeper may be killed between recording an exit and reporting it.
    #[tokio::test]
    async fn exit_recorded_by_keeper_is_used() {
        let root = tempfile::tempdir().unwrap();
        let (directory, mut state) = store::open(root.path()).unwrap();
        let id = SandboxId::random();
        for name in ["recorded", "lost"] {
            let container = Container::of_test(name, id.clone(), ContainerState::Running);
            state.containers.insert(std::sync::Arc::new(container));
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
        mark_lost(&id, &of_sandbox, &store).await;
        let state = store.state();
        let known = |name: &str| state.containers[&ContainerId::from_record(name)].clone();
        assert_eq!(known("recorded").state, ContainerState::Exited);
        assert_eq!(known("recorded").exit.as_ref().unwrap().code, 7);
        assert_eq!(known("lost").state, ContainerState::Lost);
    }
}
