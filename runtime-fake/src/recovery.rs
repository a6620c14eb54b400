//! Recovers after a restart: reconciles the records with the keepers that still run.

mod addresses;

use std::{net::IpAddr, path::Path, time::Duration};

use keeper::contract::liveness::{self, Liveness};

use crate::id::SandboxId;
use crate::keepers;
use crate::launch::host_ports;
use crate::runtime::reconnect::KeeperRecovery;
use crate::runtime::{AttachedSandbox, Connected, Runtime, blocking};
use crate::sandbox::{Sandbox, SandboxEvent, SandboxState, UnknownReason};
use crate::store::{Change, State, sandbox_dir};

/// How long a restart waits for the keepers' answers.
const ANSWER: Duration = Duration::from_secs(5);

/// The connected sandboxes, for the network.
pub(crate) fn connected(state_dir: &Path, state: &State) -> Vec<Connected> {
    let connected = state.sandboxes.values().filter(|s| may_run(s));
    connected
        .map(|s| Connected {
            id: s.id.to_string(),
            addresses: addresses_of(state_dir, s),
            ports: host_ports(&s.config.port_mappings).unwrap_or_default(),
        })
        .filter(|connected| !connected.addresses.is_empty())
        .collect()
}

/// Whether the sandbox may run, by its record. An unreadable record means that it may.
fn may_run(sandbox: &Sandbox) -> bool {
    sandbox.state == SandboxState::Ready || is_damaged(sandbox)
}

fn is_damaged(sandbox: &Sandbox) -> bool {
    matches!(sandbox.unknown_reason, Some(UnknownReason::Record(_)))
}

/// A sandbox's addresses; if its record is unreadable, the addresses in its network namespace.
fn addresses_of(state_dir: &Path, sandbox: &Sandbox) -> Vec<IpAddr> {
    if !sandbox.addresses.is_empty() || !is_damaged(sandbox) {
        return sandbox.addresses.clone();
    }
    let directory = sandbox_dir(state_dir, &sandbox.id);
    match (liveness::of(&directory), keepers::pod_netns(&directory)) {
        (Liveness::Running(pid), Ok(Some(_))) => addresses::of(pid),
        _ => Vec::new(),
    }
}

/// Reconciles every record: adopts running keepers, and records what has ended. A keeper that cannot be reached now is retried as
/// long as its pod runs.
pub(crate) async fn reconcile(runtime: &Runtime) {
    let sandboxes: Vec<_> = runtime.store.state().sandboxes.values().cloned().collect();
    let looked_for: Vec<_> = sandboxes
        .into_iter()
        .map(|sandbox| {
            let directory = runtime.sandbox_dir(&sandbox.id);
            let found = runtime.pods.recover(&sandbox.id, &directory, &runtime.store);
            (sandbox, found)
        })
        .collect();
    let deadline = tokio::time::Instant::now() + ANSWER;
    for (sandbox, found) in looked_for {
        let found = tokio::time::timeout_at(deadline, found).await;
        let found = found.ok().and_then(Result::ok);
        recover_sandbox(runtime, &sandbox, found).await;
        tracing::info!(sandbox = sandbox.id.short(), state = ?sandbox.state, ?found, "found");
    }
    let (cgroups, state) = (runtime.cgroups.clone(), runtime.store.state());
    blocking(move || cgroups.sweep(|id| state.sandboxes.keys().any(|known| known.as_str() == id)))
        .await;
    clean_up_network(runtime).await;
    let (images, state) = (runtime.images.clone(), runtime.store.state());
    let released = blocking(move || {
        images.release_all_but(|holder| state.containers.by_id().contains_key(holder))
    })
    .await;
    if let Err(error) = released {
        tracing::warn!(
            error = crate::chain(&error),
            "failed to release images of removed containers"
        );
    }
}

/// Finishes the operations that an earlier daemon had started, from its records.
async fn recover_sandbox(runtime: &Runtime, sandbox: &Sandbox, found: Option<KeeperRecovery>) {
    if is_damaged(sandbox) {
        return;
    }
    match (sandbox.state, found) {
        (SandboxState::Ready, _) | (SandboxState::NotReady, Some(KeeperRecovery::Ended)) => {}
        // No client has received its ID, so the client will retry. Remove the existing parts.
        (SandboxState::Creating, _) => {
            let _ = runtime
                .store
                .apply(Change::Sandbox(sandbox.id.clone(), SandboxEvent::Stopped))
                .await;
            remove(runtime, &sandbox.id).await;
        }
        // An interrupted stop.
        (SandboxState::NotReady, Some(KeeperRecovery::Adopted) | None) => {
            if let Err(error) = runtime.stop_sandbox(sandbox.id.as_str()).await {
                tracing::error!(
                    sandbox = sandbox.id.short(),
                    error = crate::chain(&error),
                    "failed to finish StopPodSandbox"
                );
            }
        }
    }
}

/// Cleans up the network before any pod is attached. No call waits until CNI plugins have released earlier pods.
async fn clean_up_network(runtime: &Runtime) {
    let state = runtime.store.state();
    // A pod that may still run may need its network.
    let (mut kept, mut connected) = (Vec::new(), Vec::new());
    for sandbox in state.sandboxes.values().filter(|s| may_run(s)) {
        match liveness::of(&runtime.sandbox_dir(&sandbox.id)) {
            Liveness::Running(_) => {
                kept.push(sandbox.id.to_string());
                if !is_damaged(sandbox) {
                    connected.push(runtime.for_network(sandbox));
                }
            }
            Liveness::Unknown(_) => kept.push(sandbox.id.to_string()),
            Liveness::Ended => {}
        }
    }
    let network = runtime.network.clone();
    blocking(move || network.clean_up(&kept)).await;
    let network = runtime.network.clone();
    let connected: Vec<AttachedSandbox> = connected;
    runtime
        .tasks
        .spawn(tasks::boxed(blocking(move || network.check(&connected, keepers::pod_netns))));
}

async fn remove(runtime: &Runtime, id: &SandboxId) {
    if let Err(error) = runtime.remove_sandbox(id.as_str()).await {
        tracing::error!(
            sandbox = id.short(),
            error = crate::chain(&error),
            "failed to remove incomplete sandbox"
        );
    }
}
