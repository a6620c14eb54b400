//! Ends pods when the machine shuts down, by priority, and delays the shutdown meanwhile.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go; `local_node::shutdown` ◆ decides the order.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::pod::{Pod, PodUid};
use tokio::sync::{mpsc, watch};

use crate::clock::{Clock, after};
use crate::local_node::shutdown::{Group, ShutdownPeriod, ShutdownTimes, groups, requested};
use crate::machine::logind::{InhibitLock, Logind};
use crate::reporting::events::{EventRecorder, EventType};
use crate::reporting::report::Reports;
use crate::reporting::status::eviction::Eviction;
use tasks::blocking;

/// The delay before a reconnection after a lost connection (dbusReconnectPeriod).
const RECONNECT: Duration = Duration::from_secs(1);
/// The first wait for a longer maximum delay, each twice the previous one, followed by the number of waits.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const WAITS: u32 = 5;

/// The task that ends pods before the machine shuts down.
pub(crate) struct ShutdownWatch {
    pub(crate) logind: Arc<dyn Logind>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: EventRecorder,
    pub(crate) node_name: String,
    pub(crate) periods: Vec<ShutdownPeriod>,
    /// The pods of all sources, and their reports.
    pub(crate) pods: watch::Receiver<Arc<[Pod]>>,
    pub(crate) reports: watch::Receiver<Arc<Reports>>,
    /// Sends the pods to end to the sync loop.
    pub(crate) evictions: mpsc::UnboundedSender<(PodUid, Eviction)>,
    /// Whether the machine shuts down: then the node is not ready, and admits no pod.
    pub(crate) shutting_down: watch::Sender<bool>,
    /// When pods were last ended by a shutdown; stored in this file for the next agent.
    pub(crate) times: watch::Sender<ShutdownTimes>,
    pub(crate) state_file: PathBuf,
}

/// The file of the times, in the agent's directory.
pub(crate) const STATE_FILE: &str = "graceful_node_shutdown_state";

impl ShutdownWatch {
    /// Watches until the agent ends. If there is no manager, it logs one warning.
    pub(crate) async fn run(self) {
        let file = self.state_file.clone();
        if let Some(times) = blocking(move || read(&file)).await {
            self.times.send_replace(times);
        }
        let mut is_reported = false;
        loop {
            match self.begin().await {
                Ok((events, lock)) => {
                    is_reported = false;
                    self.follow(events, lock).await;
                    tracing::warn!("lost the connection to systemd-logind; reconnecting");
                }
                Err(error) if !is_reported => {
                    is_reported = true;
                    tracing::warn!(
                        %error,
                        "failed to connect to systemd-logind; pods are not terminated before a shutdown: start systemd-logind, or remove shutdownGracePeriod"
                    );
                }
                Err(_) => {}
            }
            self.clock.sleep_until(after(self.clock.now(), RECONNECT)).await;
        }
    }

    /// Connects, and delays shutdowns from now on.
    async fn begin(&self) -> io::Result<(mpsc::UnboundedReceiver<bool>, InhibitLock)> {
        let wanted = requested(&self.periods);
        let logind = Arc::clone(&self.logind);
        let longest = blocking(move || logind.max_inhibit_delay()).await?;
        if longest < wanted {
            let logind = Arc::clone(&self.logind);
            blocking(move || logind.set_max_inhibit_delay(wanted)).await?;
            self.wait_for_max_delay(wanted).await?;
        }
        let logind = Arc::clone(&self.logind);
        blocking(move || Ok((logind.watch()?, logind.inhibit()?))).await
    }

    /// Waits until logind has the longer maximum delay: it reads its configuration some time later.
    async fn wait_for_max_delay(&self, wanted: Duration) -> io::Result<()> {
        let mut longest = Duration::ZERO;
        for wait in 0..WAITS {
            let logind = Arc::clone(&self.logind);
            longest = blocking(move || logind.max_inhibit_delay()).await?;
            if longest >= wanted {
                return Ok(());
            }
            self.clock.sleep_until(after(self.clock.now(), FIRST_WAIT * 2_u32.pow(wait))).await;
        }
        Err(io::Error::other(format!(
            "systemd-logind delays a shutdown for {longest:?} at most, and not for {wanted:?}: set InhibitDelayMaxSec in logind.conf"
        )))
    }

    /// Handles shutdowns until the connection is lost.
    async fn follow(&self, mut events: mpsc::UnboundedReceiver<bool>, lock: InhibitLock) {
        let mut lock = Some(lock);
        while let Some(begins) = events.recv().await {
            let what = if begins { "shutdown event" } else { "shutdown cancellation" };
            let message = format!("Shutdown manager detected {what}");
            tracing::info!(begins, "shutdown state changed");
            self.events.record_node(&self.node_name, EventType::Normal, "Shutdown", message);
            self.shutting_down.send_replace(begins);
            if begins {
                let start_time = Some(self.clock.now());
                self.keep(ShutdownTimes { start_time, end_time: None }).await;
                self.end_pods().await;
                self.keep(ShutdownTimes { start_time, end_time: Some(self.clock.now()) }).await;
                // The machine continues the shutdown.
                drop(lock.take());
            } else if lock.is_none() {
                let logind = Arc::clone(&self.logind);
                match blocking(move || logind.inhibit()).await {
                    Ok(held) => lock = Some(held),
                    Err(error) => tracing::warn!(%error, "failed to inhibit the next shutdown"),
                }
            }
        }
    }

    /// Publishes and stores the times.
    async fn keep(&self, times: ShutdownTimes) {
        self.times.send_replace(times);
        let file = self.state_file.clone();
        if let Err(error) = blocking(move || write(&file, times)).await {
            tracing::warn!(%error, file = %self.state_file.display(), "failed to store the shutdown times");
        }
    }

    /// Ends the active pods, one group after another. Each group has its time limit.
    async fn end_pods(&self) {
        let active: Vec<Pod> = {
            let reports = self.reports.borrow();
            let ended = |pod: &Pod| reports.get(pod.uid()).is_some_and(|report| report.finished);
            self.pods.borrow().iter().filter(|pod| !ended(pod)).cloned().collect()
        };
        for group in groups(&self.periods, active) {
            for pod in &group.pods {
                let grace = group.grace(pod);
                tracing::info!(pod = %pod.full_name(), grace, "terminating pod before shutdown");
                // The send fails only if the agent ends.
                let _ = self.evictions.send((pod.uid().clone(), Eviction::of_shutdown(grace)));
            }
            let end = after(self.clock.now(), group.limit());
            tokio::select! {
                () = self.ended(&group) => {}
                () = self.clock.sleep_until(end) => {
                    let seconds = group.period.seconds;
                    tracing::warn!(priority = group.period.priority, seconds, "timed out waiting for pods to terminate before shutdown");
                }
            }
        }
    }

    /// Waits until nothing of a group's pods runs.
    async fn ended(&self, group: &Group) {
        let mut reports = self.reports.clone();
        let all = |reports: &Arc<Reports>| {
            let ended = |pod: &Pod| reports.get(pod.uid()).is_none_or(|report| report.finished);
            group.pods.iter().all(ended)
        };
        // The wait fails only if the agent ends.
        let _ = reports.wait_for(all).await;
    }
}

/// The times stored by an earlier agent. An unreadable file counts as absent.
fn read(file: &Path) -> Option<ShutdownTimes> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// Writes the times atomically, because the machine may be powered off at any moment.
fn write(file: &Path, times: ShutdownTimes) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(&times)?)?;
    fs::File::open(&new)?.sync_all()?;
    fs::rename(&new, file)
}
