//! Executes a kill plan: stops all targets concurrently, each after the ones it waits for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cri::{Cri, CriError};
use crate::plan::terminate::{KillPlan, StopTarget};

/// A container that could not be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopFailure {
    /// The container's name.
    pub(crate) name: String,
    /// The error of the stop call.
    pub(crate) error: CriError,
}

/// Stops the targets of a plan. Once `kill_now` is true, no target waits for another and none gets a grace period, not even
/// those whose stop is already running.
pub(crate) async fn kill(
    cri: &Arc<dyn Cri>,
    plan: KillPlan,
    kill_now: &watch::Receiver<bool>,
) -> Vec<StopFailure> {
    let stopped: BTreeMap<String, watch::Sender<bool>> = plan
        .targets
        .iter()
        .map(|target| (target.name.clone(), watch::channel(false).0))
        .collect();
    let stopped = Arc::new(stopped);
    let mut tasks = JoinSet::new();
    for target in plan.targets {
        let (cri, stopped, kill_now) = (Arc::clone(cri), Arc::clone(&stopped), kill_now.clone());
        tasks.spawn(async move {
            let result = stop(&*cri, &target, &stopped, kill_now).await;
            match result {
                Ok(()) => {
                    if let Some(stopped) = stopped.get(&target.name) {
                        stopped.send_replace(true);
                    }
                    None
                }
                Err(error) => Some(StopFailure {
                    name: target.name,
                    error,
                }),
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn stop(
    cri: &dyn Cri,
    target: &StopTarget,
    stopped: &BTreeMap<String, watch::Sender<bool>>,
    mut kill_now: watch::Receiver<bool>,
) -> Result<(), CriError> {
    if target.pre_stop {
        tracing::warn!(container = %target.name, "preStop hooks are not supported; skipping");
    }
    let begun = Instant::now();
    let wait_limit =
        Duration::try_from(target.wait_limit(SignedDuration::ZERO)).unwrap_or_default();
    let others = async {
        for name in &target.waits_for {
            if let Some(other) = stopped.get(name) {
                let _ = other.subscribe().wait_for(|stopped| *stopped).await;
            }
        }
    };
    tokio::select! {
        () = others => {}
        () = tokio::time::sleep(wait_limit) => {}
        () = kill_requested(&mut kill_now) => {}
    }
    let waited = SignedDuration::try_from(begun.elapsed()).unwrap_or_default();
    let seconds = target.stop_timeout(SignedDuration::ZERO, waited);
    let grace = if *kill_now.borrow() {
        0
    } else {
        u64::try_from(seconds).unwrap_or_default()
    };
    let result = tokio::select! {
        result = cri.stop_container(&target.id, Duration::from_secs(grace)) => result,
        // The runtime takes the shorter grace period of two stops; dropping the first call does not abort that stop.
        () = kill_requested(&mut kill_now), if grace > 0 => cri.stop_container(&target.id, Duration::ZERO).await,
    };
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Returns once `kill_now` is true; never returns if its sender is gone.
async fn kill_requested(kill_now: &mut watch::Receiver<bool>) {
    if kill_now.wait_for(|now| *now).await.is_err() {
        std::future::pending::<()>().await;
    }
}
