//! The waits of a pod's worker: for work, or for a runtime that is ready for its pod.

use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use jiff::Timestamp;
use tokio::sync::watch;

use super::Worker;
use super::start_errors::jittered;
use crate::clock::after;
use crate::decide::plan::{HoldKey, backoff_key};
use crate::managers::claims::has_claims;
use crate::observed::Observed;
use crate::reporting::causes::Causes;
use crate::reporting::events::EventReason;

/// The period of syncs of a pod without a network, plus up to half of it.
const NETWORK_RETRY: Duration = Duration::from_secs(1);

/// Waits for a change; never returns without `changes`. Cancel-safe.
async fn changed(changes: Option<&mut watch::Receiver<u64>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

impl Worker {
    /// Whether the pod requests extended resources, which may be devices.
    fn has_devices(&self) -> bool {
        let mut containers = self.pod.iter().flat_map(Pod::init_and_apps);
        containers.any(|container| {
            let limits = container.resources.as_ref().and_then(|it| it.limits.as_ref());
            limits.is_some_and(|limits| limits.keys().any(|name| name.contains('/')))
        })
    }

    /// Waits for a snapshot, an update, a result of a probe, a change of an object, or the deadline.
    pub(super) async fn wait(&mut self, wake: Option<Timestamp>, now: Timestamp) {
        let resync = after(now, self.next_resync());
        let deadline = wake.map_or(resync, |wake| wake.min(resync));
        let clock = Arc::clone(&self.shared.clock);
        tokio::select! {
            changed = self.updates.changed() => {
                // The send side is dropped: the agent is stopping, and pods keep running.
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                // The update decides whether a sync is due.
                return;
            }
            changed = self.observation.snapshots.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                // The snapshot decides whether a sync is due.
                return;
            }
            () = self.probes.changed() => {}
            () = self.volumes.changed(&self.pod_ref.namespace, &self.shared.objects) => {
                // Failed actions may succeed now.
                self.history.holds.release_all();
            }
            () = async { self.shared.managers.devices_changed().await }, if self.has_devices() => {}
            () = changed(self.claim_health.as_mut()), if self.pod.as_ref().is_some_and(has_claims) => {}
            () = clock.sleep_until(deadline) => {}
        }
        self.reported.published.make_due();
    }

    /// Records an observation, and delays the start of containers that another client removed: that is not an event, so
    /// that a kubelet notices it only at the next sync of the pod (Kubernetes 1.36, pkg/kubelet/kubelet.go isSyncPodWorthy).
    pub(super) fn defer_removed_containers(
        &mut self,
        pod: &Pod,
        observed: &Observed,
        changed: bool,
        now: Timestamp,
    ) {
        let removed = self.stabilization.observe(observed, now);
        let Some(before) = self.reported.published.observed().filter(|_| !changed) else {
            return;
        };
        let had_ended =
            before.containers.iter().filter(|seen| removed.iter().any(|id| id == seen.id.as_str()));
        let missing = had_ended.filter(|seen| observed.container(&seen.name).is_none());
        for name in missing.map(|seen| seen.name.clone()).collect::<Vec<_>>() {
            let Some((_, container)) = pod.container(&name) else {
                continue;
            };
            let wait = match self.start_errors.of(&name) {
                Some(_) => self.next_retry(),
                None => self.next_resync(),
            };
            let key = HoldKey::Start(backoff_key(pod, container));
            self.history.holds.defer_until_event(key, after(now, wait));
        }
    }

    /// The delay between a successful sync and the next one.
    pub(super) fn next_resync(&mut self) -> Duration {
        self.seeds.resyncs += 1;
        jittered(self.shared.config.resync_period, self.pod_ref.uid.as_str(), self.seeds.resyncs)
    }

    /// Why the pod cannot be synced now, if so: the runtime is not ready, or its network, which a pod with `hostNetwork` does not
    /// need.
    fn blocked(&self, pod: &Pod) -> Option<(String, bool)> {
        let readiness = self.shared.readiness.borrow();
        let of_runtime = readiness.runtime.clone().map(|why| (why, false));
        let of_network = readiness.network.clone().filter(|_| !pod.host_network());
        of_runtime.or_else(|| of_network.map(|why| (why, true)))
    }

    /// Waits while the runtime is not ready for the pod. Returns whether it waited.
    ///
    /// Without the runtime no pod is synced. Without its network a kubelet still syncs the pod, about every second (Kubernetes
    /// 1.36, pkg/kubelet/pod_workers.go completeWork), so that its status, probes and deadline are handled.
    pub(super) async fn wait_for_runtime(
        &mut self,
        pod: &Pod,
        now: Timestamp,
        syncs: bool,
    ) -> bool {
        let Some((why, network)) = self.blocked(pod) else {
            return false;
        };
        if network && syncs {
            self.event(None, &EventReason::NetworkNotReady(why.clone()));
        }
        self.report_again(Causes::pod(why));
        let mut readiness = self.shared.readiness.clone();
        readiness.mark_unchanged();
        if self.blocked(pod).is_none() {
            return true;
        }
        if network {
            self.seeds.failures += 1;
            let uid = self.pod_ref.uid.as_str();
            let again = after(now, jittered(NETWORK_RETRY, uid, self.seeds.failures));
            tokio::select! {
                () = self.wait(Some(again), now) => {}
                Ok(()) = readiness.changed() => {}
            }
            return true;
        }
        tokio::select! {
            changed = readiness.changed() => {
                // The send side is dropped: the agent is stopping, and pods keep running.
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
