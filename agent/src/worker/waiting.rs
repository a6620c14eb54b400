//! What a pod's worker waits for: something to do, or a runtime that is ready for its pod.

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
use crate::reporting::events::Happening;

/// How long after a look at a pod without a network it is looked at again, plus up to half of it.
const NETWORK_RETRY: Duration = Duration::from_secs(1);

/// Waits for a change; without changes, for ever. Cancel-safe.
async fn changed(changes: Option<&mut watch::Receiver<u64>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

impl Worker {
    /// Whether the pod asks for extended resources, which devices may be.
    fn has_devices(&self) -> bool {
        let mut containers = self.pod.iter().flat_map(Pod::init_and_apps);
        containers.any(|container| {
            let limits = container.resources.as_ref().and_then(|it| it.limits.as_ref());
            limits.is_some_and(|limits| limits.keys().any(|name| name.contains('/')))
        })
    }

    /// Waits for a snapshot, an update, a result of a probe, a change of an object, or the time.
    pub(super) async fn wait(&mut self, wake: Option<Timestamp>, now: Timestamp) {
        let resync = after(now, self.next_resync());
        let deadline = wake.map_or(resync, |wake| wake.min(resync));
        let clock = Arc::clone(&self.shared.clock);
        tokio::select! {
            changed = self.updates.changed() => {
                // The sender is gone: the agent is stopping, and pods keep running.
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                // What it has decides.
                return;
            }
            changed = self.seen.snapshots.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                // What it shows decides.
                return;
            }
            () = self.probes.changed() => {}
            () = self.volumes.changed(&self.pod_ref.namespace, &self.shared.objects) => {
                // What failed may succeed now.
                self.history.holds.release_all();
            }
            () = async { self.shared.managers.devices_changed().await }, if self.has_devices() => {}
            () = changed(self.claim_health.as_mut()), if self.pod.as_ref().is_some_and(has_claims) => {}
            () = clock.sleep_until(deadline) => {}
        }
        self.reported.published.make_due();
    }

    /// Notes what is seen, and delays the start of containers whose remains another client removed: that is no event, so
    /// that a kubelet notices when it looks at the pod again (Kubernetes 1.36, pkg/kubelet/kubelet.go isSyncPodWorthy).
    pub(super) fn miss_remains(
        &mut self,
        pod: &Pod,
        observed: &Observed,
        changed: bool,
        now: Timestamp,
    ) {
        let remains = self.settling.see(observed, now);
        let Some(before) = self.reported.published.observed().filter(|_| !changed) else {
            return;
        };
        let had_ended =
            before.containers.iter().filter(|seen| remains.iter().any(|id| id == seen.id.as_str()));
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
            self.history.holds.put_off_until_event(key, after(now, wait));
        }
    }

    /// How long after a sync that succeeded the pod is looked at again.
    pub(super) fn next_resync(&mut self) -> Duration {
        self.seeds.resyncs += 1;
        jittered(self.shared.config.resync_period, self.pod_ref.uid.as_str(), self.seeds.resyncs)
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
    ///
    /// Without the runtime no pod is looked at. Without its network a kubelet goes on looking at the pod, about each second
    /// (Kubernetes 1.36, pkg/kubelet/pod_workers.go completeWork), so that its status, probes and deadline are seen to.
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
            self.event(None, &Happening::NetworkNotReady(why.clone()));
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
