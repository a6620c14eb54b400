//! What a pod's worker waits for: something to do, or a runtime that is ready for its pod.

use std::sync::Arc;

use jiff::Timestamp;

use super::Worker;
use super::start_errors::jittered;
use crate::causes::Causes;
use crate::clock::after;
use crate::events::Happening;
use crate::pod::Pod;

impl Worker {
    /// Waits for a snapshot, an update, a result of a probe, a change of an object, or the time.
    pub(super) async fn wait(&mut self, wake: Option<Timestamp>, now: Timestamp) {
        self.resyncs += 1;
        let resync = after(
            now,
            jittered(
                self.shared.config.resync_period,
                self.pod_ref.uid.as_str(),
                self.resyncs,
            ),
        );
        let deadline = wake.map_or(resync, |wake| wake.min(resync));
        let clock = Arc::clone(&self.shared.clock);
        tokio::select! {
            changed = self.updates.changed() => {
                // The sender is gone: the agent is stopping, and pods keep running.
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            changed = self.snapshots.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                // What it shows decides.
                return;
            }
            () = self.probes.changed() => {}
            () = self.volumes.changed() => self.take_object_changes(),
            () = clock.sleep_until(deadline) => {}
        }
        self.published.make_due();
    }

    /// Why the pod cannot be brought to its desired state now, if so: the runtime is not ready, or its network, which a pod
    /// in the node's network does not need.
    fn blocked(&self, pod: &Pod) -> Option<(String, bool)> {
        let readiness = self.shared.readiness.borrow();
        let of_runtime = readiness.runtime.clone().map(|why| (why, false));
        let of_network = readiness.network.clone().filter(|_| !pod.host_network());
        of_runtime.or_else(|| of_network.map(|why| (why, true)))
    }

    /// Waits while the runtime is not ready for the pod. Returns whether it waited.
    pub(super) async fn wait_for_runtime(&mut self, pod: &Pod) -> bool {
        let Some((why, network)) = self.blocked(pod) else {
            return false;
        };
        if network {
            self.event(None, &Happening::NetworkNotReady(why.clone()));
        }
        self.report_again(Causes::pod(why));
        let mut readiness = self.shared.readiness.clone();
        readiness.mark_unchanged();
        if self.blocked(pod).is_none() {
            return true;
        }
        tokio::select! {
            changed = readiness.changed() => {
                // The watcher is gone: the agent is stopping, and pods keep running.
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            changed = self.updates.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
        true
    }
}
