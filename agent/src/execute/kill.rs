//! Executes a kill plan: stops all targets concurrently, each after its preStop hook and the targets it waits for.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use compact::Map;
use jiff::SignedDuration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::hook;
use crate::cri::CriError;
use crate::decide::plan::Stop;
use crate::decide::plan::terminate::{MIN_STOP_SECONDS, StopTarget};
use crate::observed::ContainerId;
use crate::reporting::events::EventReason;
use crate::shared::Shared;

/// How long to wait for a hook after its container has stopped.
const HOOK_AFTER_STOP: Duration = Duration::from_secs(1);

/// A container that could not be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopFailure {
    /// The container.
    pub(crate) id: ContainerId,
    /// The container's name.
    pub(crate) name: String,
    /// The error of the stop call.
    pub(crate) error: CriError,
}

/// Stops containers of one pod.
#[derive(Clone)]
pub(crate) struct Killer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pod: Pod,
    /// The pod's address, for HTTP hooks.
    pub(crate) host: Option<String>,
}

type RunningHook<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Killer {
    /// Stops the targets of a plan. Once the agent must kill, no target waits for another or runs its hook, and each gets the
    /// shortest grace period, even a target that is already being stopped.
    pub(crate) async fn kill(&self, stop: &Stop) -> Vec<StopFailure> {
        let stopped: Map<String, watch::Sender<bool>> = stop
            .plan
            .targets
            .iter()
            .map(|target| (target.name.clone(), watch::channel(false).0))
            .collect();
        let stopped = Arc::new(stopped);
        let mut tasks = JoinSet::new();
        for target in stop.plan.targets.clone() {
            let (killer, stopped, message) =
                (self.clone(), Arc::clone(&stopped), stop.message.clone());
            tasks.spawn(tasks::boxed(async move {
                match killer.stop(&target, message, &stopped).await {
                    Ok(()) => {
                        if let Some(stopped) = stopped.get(&target.name) {
                            stopped.send_replace(true);
                        }
                        None
                    }
                    Err(error) => Some(StopFailure { id: target.id, name: target.name, error }),
                }
            }));
        }
        tasks.join_all().await.into_iter().flatten().collect()
    }

    fn event(&self, target: &StopTarget, reason: &EventReason) {
        self.shared.events.record(&self.pod, Some(&target.name), reason);
    }

    async fn stop(
        &self,
        target: &StopTarget,
        message: String,
        stopped: &Map<String, watch::Sender<bool>>,
    ) -> Result<(), CriError> {
        self.event(target, &EventReason::Killing(message));
        let mut kill_now = self.shared.kill_now.clone();
        let begun = Instant::now();
        let mut hook = self.pre_stop(target);
        if let Some(running) = &mut hook {
            let ended = tokio::select! {
                () = running => true,
                () = tokio::time::sleep(seconds(target.grace)) => false,
                () = kill_requested(&mut kill_now) => false,
            };
            // A hook that takes longer runs on until its container has ended.
            if ended {
                hook = None;
            }
        }
        let hook_took = SignedDuration::try_from(begun.elapsed()).unwrap_or_default();

        let begun = Instant::now();
        let wait_limit = Duration::try_from(target.wait_limit(hook_took)).unwrap_or_default();
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
        let timeout = if *kill_now.borrow() {
            MIN_STOP_SECONDS
        } else {
            target.stop_timeout(hook_took, waited)
        };
        let result = self.stop_with_hook(target, timeout, kill_now, hook).await;
        match result {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Makes the call while a hook that exceeds its time may still be running.
    async fn stop_with_hook(
        &self,
        target: &StopTarget,
        timeout: i64,
        kill_now: watch::Receiver<bool>,
        hook: Option<RunningHook<'_>>,
    ) -> Result<(), CriError> {
        let call = self.call(target, timeout, kill_now);
        let Some(mut hook) = hook else {
            return call.await;
        };
        tokio::pin!(call);
        tokio::select! {
            result = &mut call => {
                // The hook's command ends with the container.
                let _ = tokio::time::timeout(HOOK_AFTER_STOP, hook).await;
                result
            }
            () = &mut hook => call.await,
        }
    }

    async fn call(
        &self,
        target: &StopTarget,
        timeout: i64,
        mut kill_now: watch::Receiver<bool>,
    ) -> Result<(), CriError> {
        let cri = &self.shared.cri;
        tokio::select! {
            result = cri.stop_container(&target.id, seconds(timeout)) => result,
            // The runtime takes the shorter grace period of two stops; dropping the first call does not abort that stop.
            () = kill_requested(&mut kill_now), if timeout > MIN_STOP_SECONDS => {
                cri.stop_container(&target.id, seconds(MIN_STOP_SECONDS)).await
            }
        }
    }

    /// The preStop hook of a target, if it must run.
    fn pre_stop<'a>(&'a self, target: &'a StopTarget) -> Option<RunningHook<'a>> {
        if !target.pre_stop || *self.shared.kill_now.borrow() {
            return None;
        }
        let pod = &self.pod;
        let (_, container) = pod.container(&target.name)?;
        let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
        Some(Box::pin(async move {
            let host = self.host.as_deref();
            let result = hook::run(&self.shared, pod, container, handler, &target.id, host).await;
            if let Err(message) = result {
                tracing::warn!(pod = %pod.full_name(), container = %target.name, error = %message, "preStop hook failed");
                self.event(target, &EventReason::FailedPreStopHook);
            }
        }))
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Returns once `kill_now` is true; never returns if its sender is dropped.
pub(crate) async fn kill_requested(kill_now: &mut watch::Receiver<bool>) {
    if kill_now.wait_for(|now| *now).await.is_err() {
        std::future::pending::<()>().await;
    }
}
