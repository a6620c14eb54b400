//! Keeps a pod's volumes up to date, and schedules retries of failed volumes.

use std::time::Duration;

use api::pod::Pod;
use jiff::Timestamp;
use tokio::sync::watch;

use super::Worker;
use crate::clock::after;
use crate::execute::{self, MountFailure};
use crate::objects::{ObjectMap, ObjectStore};
use crate::observed::Observed;
use crate::pod_spec::references::{Referenced, References};
use crate::reporting::events::EventReason;
use crate::shared::Shared;
use crate::storage::volumes::{content, may_be_of_driver};

/// The first delay before a failed volume is retried, followed by the maximum. Each delay is twice the previous one. Kubernetes
/// 1.36, pkg/util/goroutinemap/exponentialbackoff.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// How long a kubelet waits for volumes before it reports the missing ones. Kubernetes 1.36, pkg/kubelet/volumemanager.
const PATIENCE: Duration = Duration::from_secs(123);

/// The state of a pod's volumes.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// Whether any of them has files that the agent keeps up to date.
    written: bool,
    references: References,
    /// The objects at the last update of the volumes.
    seen: Referenced,
    changes: Option<watch::Receiver<u64>>,
    /// Whether their content may have changed.
    stale: bool,
    /// The time of the next retry or token refresh.
    refresh_at: Option<Timestamp>,
    failures: u32,
    /// Since when the pod waits for volumes.
    waiting_since: Option<Timestamp>,
    /// The period in which drivers may remount their volumes, if there are drivers.
    renewal_period: Option<Duration>,
    /// Whether a driver may have mounted one of them.
    of_drivers: bool,
    /// When drivers may next remount them; `None`: now.
    renew_at: Option<Timestamp>,
    /// Whether their PersistentVolumes may have grown.
    may_grow: bool,
    /// When failed expansions are retried.
    expand_at: Option<Timestamp>,
    expand_failures: u32,
}

impl Volumes {
    /// The state before the pod is set.
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            changes: Some(shared.objects.changes()),
            stale: true,
            renewal_period: shared.drivers.as_ref().map(|drivers| drivers.renewal_period()),
            ..Self::default()
        }
    }

    /// Sets a new version of the pod, whose fields volumes may show.
    pub(super) fn set_pod(&mut self, pod: &Pod) {
        let mut volumes = pod.spec().volumes.iter().flatten();
        self.written = volumes.any(content::is_written);
        self.of_drivers =
            self.renewal_period.is_some() && pod.mounted_volumes().any(may_be_of_driver);
        self.references = References::of(pod);
        (self.stale, self.may_grow) = (true, true);
    }

    /// Waits until objects that the pod refers to have changed, so that its volumes must be updated. Objects of other pods cause no
    /// sync of this one, which would repeat its back-off event. Cancel-safe.
    pub(super) async fn changed(&mut self, namespace: &str, objects: &ObjectStore) {
        while let Some(changes) = &mut self.changes {
            if changes.changed().await.is_err() {
                self.changes = None;
                break;
            }
            let found = self.references.look_up(namespace, &objects.current());
            if found != self.seen {
                self.seen = found;
                (self.stale, self.may_grow) = (true, true);
                return;
            }
        }
        // There are no further changes.
        std::future::pending::<()>().await;
    }

    /// Records the objects that volumes show from now on.
    fn see(&mut self, namespace: &str, objects: &ObjectMap) {
        self.seen = self.references.look_up(namespace, objects);
    }

    /// When volumes must be updated without another cause.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        let refresh_at = self.refresh_at.filter(|_| self.written);
        let of_drivers = [self.renew_at, self.expand_at].map(|at| at.filter(|_| self.of_drivers));
        refresh_at.into_iter().chain(of_drivers.into_iter().flatten()).min()
    }

    /// Whether drivers may remount their volumes now. If so, the next time is a period later.
    fn take_renewal(&mut self, now: Timestamp) -> bool {
        let Some(period) = self.renewal_period.filter(|_| self.of_drivers) else {
            return false;
        };
        let is_due = self.renew_at.is_none_or(|at| at <= now);
        if is_due {
            self.renew_at = Some(after(now, period));
        }
        is_due
    }

    /// Whether drivers may have to expand their volumes now.
    fn take_expansion(&mut self, now: Timestamp) -> bool {
        let is_due = self.may_grow || self.expand_at.is_some_and(|at| at <= now);
        let takes = self.of_drivers && is_due;
        if takes {
            (self.may_grow, self.expand_at) = (false, None);
        }
        takes
    }

    /// Records whether all of them have their size.
    fn expanded(&mut self, all: bool, now: Timestamp) {
        if all {
            self.expand_failures = 0;
        } else {
            self.expand_at = Some(after(now, backoff(self.expand_failures)));
            self.expand_failures += 1;
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.written && (self.stale || self.refresh_at.is_some_and(|at| at <= now))
    }

    /// Records that all volumes are prepared.
    pub(super) fn mounted(&mut self) {
        self.failures = 0;
        self.waiting_since = None;
    }

    /// Whether the pod waits for volumes that failed.
    pub(super) fn are_awaited(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// Records that a volume failed. Returns the time of the next retry.
    fn failed(&mut self, now: Timestamp) -> Timestamp {
        let wait = backoff(self.failures);
        self.failures += 1;
        after(now, wait)
    }
}

/// The delay after this many failures.
fn backoff(failures: u32) -> Duration {
    RETRY.saturating_mul(2_u32.saturating_pow(failures)).min(RETRY_MAX)
}

impl Worker {
    /// Records that volumes of the pod failed before it could start. Returns the time of the next retry. Ends the pod if the node
    /// cannot attach them.
    pub(super) fn mount_failed(&mut self, failure: &MountFailure, now: Timestamp) -> Timestamp {
        let since = *self.volumes.waiting_since.get_or_insert(now);
        if after(since, PATIENCE) <= now {
            self.volumes.waiting_since = Some(now);
            let volumes = failure.volumes.join(" ");
            match failure.is_exhausted {
                true => self.reject_for_attachments(&volumes),
                false => self.event(
                    None,
                    &EventReason::FailedMount(format!(
                        "Unable to attach or mount volumes: unmounted volumes=[{volumes}], unattached volumes=[], failed to \
                         process volumes=[]: context deadline exceeded"
                    )),
                ),
            }
        }
        self.volumes.failed(now)
    }

    /// Updates the volumes of a started pod.
    pub(super) async fn refresh_volumes(&mut self, pod: &Pod, observed: &Observed) {
        let now = self.shared.clock.now();
        if !observed.sandboxes.iter().any(|sandbox| sandbox.ready) {
            // Volumes mounted from now on show these objects, and failed ones are retried when they change.
            self.volumes.see(pod.namespace(), &self.shared.objects.current());
            return;
        }
        execute::volumes::count_adopted(&self.shared, pod);
        if self.volumes.take_renewal(now) {
            execute::volumes::renew(&self.shared, &self.dirs, pod).await;
        }
        if self.volumes.take_expansion(now) {
            let all = execute::volumes::expand(&self.shared, &self.dirs, pod).await;
            self.volumes.expanded(all, now);
        }
        if !self.volumes.is_due(now) {
            return;
        }
        self.volumes.see(pod.namespace(), &self.shared.objects.current());
        self.volumes.stale = false;
        self.volumes.refresh_at = if execute::volumes::refresh(&self.shared, &self.dirs, pod).await
        {
            self.volumes.failures = 0;
            self.shared.tokens.refresh_at(pod.uid())
        } else {
            Some(self.volumes.failed(now))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_drivers_are_renewed_each_period() {
        let mut volumes = Volumes::default();
        let now = Timestamp::UNIX_EPOCH;
        assert!(!volumes.take_renewal(now), "without drivers");
        volumes.renewal_period = Some(Duration::from_secs(60));
        assert!(!volumes.take_renewal(now), "without their volumes");
        volumes.of_drivers = true;
        assert!(volumes.take_renewal(now));
        assert!(!volumes.take_renewal(after(now, Duration::from_secs(59))));
        assert_eq!(volumes.wake_at(), Some(after(now, Duration::from_secs(60))));
        assert!(volumes.take_renewal(after(now, Duration::from_secs(60))));
    }

    #[test]
    fn volumes_of_drivers_are_expanded_when_they_may_have_grown() {
        let mut volumes = Volumes { of_drivers: true, may_grow: true, ..Volumes::default() };
        let now = Timestamp::UNIX_EPOCH;
        assert!(volumes.take_expansion(now));
        assert!(!volumes.take_expansion(now));
        let ends: Vec<Option<Timestamp>> = (0..3)
            .map(|_| {
                volumes.expanded(false, now);
                volumes.wake_at()
            })
            .collect();
        let waits = [500, 1000, 2000].map(|wait| Some(after(now, Duration::from_millis(wait))));
        assert_eq!(ends, waits);
        assert!(!volumes.take_expansion(now));
        assert!(volumes.take_expansion(after(now, Duration::from_secs(2))));
        volumes.expanded(true, now);
        assert_eq!(volumes.wake_at(), None);
        volumes.may_grow = true;
        volumes.of_drivers = false;
        assert!(!volumes.take_expansion(now));
    }

    #[test]
    fn failed_volumes_are_retried_after_twice_the_time() {
        let mut volumes = Volumes::default();
        let now = Timestamp::UNIX_EPOCH;
        let waits: Vec<i128> =
            (0..10).map(|_| volumes.failed(now).as_millisecond().into()).collect();
        assert_eq!(waits[..4], [500, 1000, 2000, 4000]);
        assert_eq!(waits[8..], [122_000, 122_000]);
        volumes.mounted();
        assert_eq!(volumes.failed(now).as_millisecond(), 500);
    }
}
