//! Limits concurrent pulls, in total, for each pod and for each registry, so that neither one pod nor one registry that never
//! answers, or answers slowly, occupies all permits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit on concurrent pulls. Each takes a thread.
const PULLS: usize = 32;
/// Limit on concurrent pulls from one registry.
const PULLS_OF_REGISTRY: usize = 16;
/// Limit on concurrent pulls for one pod: a kubelet pulls the images of a pod one after the other.
const PULLS_OF_POD: usize = 4;

/// Limits concurrent pulls.
pub(super) struct PullLimiter {
    all: Arc<Semaphore>,
    pods: Shares,
    registries: Shares,
}

/// The right to pull, until it is dropped.
pub(super) struct PullPermit {
    _of_all: Option<OwnedSemaphorePermit>,
    _of_registry: Option<OwnedSemaphorePermit>,
    _of_pod: Option<OwnedSemaphorePermit>,
}

impl PullLimiter {
    pub(super) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(PULLS)),
            pods: Shares::new(PULLS_OF_POD),
            registries: Shares::new(PULLS_OF_REGISTRY),
        }
    }

    /// Waits for one of the pod's permits, then for one of the registry's, and then for one of all permits. A pull without a pod
    /// waits only for the latter two.
    pub(super) async fn acquire(&self, pod: Option<&str>, registry: &str) -> PullPermit {
        // The semaphores are never closed.
        let of_pod = match pod.map(|pod| self.pods.permits_of(pod)) {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        let of_registry = self.registries.permits_of(registry).acquire_owned().await.ok();
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok();
        PullPermit { _of_all: of_all, _of_registry: of_registry, _of_pod: of_pod }
    }
}

/// The permits of each pod or registry.
struct Shares {
    limit: usize,
    /// Those that hold or wait for a permit.
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    fn new(limit: usize) -> Self {
        Self { limit, known: Mutex::default() }
    }

    fn permits_of(&self, name: &str) -> Arc<Semaphore> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = known.get(name).and_then(Weak::upgrade) {
            return permits;
        }
        known.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(self.limit));
        known.insert(name.to_owned(), Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// The permit, if it is available immediately.
    fn try_acquire(limiter: &PullLimiter, pod: Option<&str>, registry: &str) -> Option<PullPermit> {
        let acquire = pin!(limiter.acquire(pod, registry));
        match acquire.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    /// The immediately available permits, of `wanted` requests.
    fn taken(
        limiter: &PullLimiter,
        pod: Option<&str>,
        registry: &str,
        wanted: usize,
    ) -> Vec<PullPermit> {
        (0..wanted).map_while(|_| try_acquire(limiter, pod, registry)).collect()
    }

    #[test]
    fn pod_gets_at_most_its_share_of_permits() {
        let limiter = PullLimiter::new();
        let first = taken(&limiter, Some("a"), "r", PULLS);
        assert_eq!(first.len(), PULLS_OF_POD);
        let others = taken(&limiter, Some("b"), "r", 1).len() + taken(&limiter, None, "r", 1).len();
        assert_eq!(others, 2);
        drop(first);
        assert_eq!(taken(&limiter, Some("a"), "r", 1).len(), 1);
    }

    #[test]
    fn pods_get_at_most_the_share_of_one_registry() {
        let limiter = PullLimiter::new();
        let names: Vec<String> = (0..PULLS).map(|pod| pod.to_string()).collect();
        let slow: Vec<PullPermit> =
            names.iter().flat_map(|pod| taken(&limiter, Some(pod), "slow", 1)).collect();
        assert_eq!(slow.len(), PULLS_OF_REGISTRY);
        assert_eq!(taken(&limiter, None, "slow", 1).len(), 0);
        assert_eq!(taken(&limiter, None, "other", 1).len(), 1);
        drop(slow);
        assert_eq!(taken(&limiter, None, "slow", 1).len(), 1);
    }

    #[test]
    fn permits_are_limited_in_total_and_idle_pods_and_registries_are_removed() {
        let limiter = PullLimiter::new();
        let names: Vec<String> = (0..PULLS).map(|pod| pod.to_string()).collect();
        let all: Vec<PullPermit> =
            names.iter().flat_map(|name| taken(&limiter, Some(name), name, 2)).collect();
        assert_eq!(all.len(), PULLS);
        assert_eq!(taken(&limiter, None, "r", 1).len(), 0);
        drop(all);
        let _last = taken(&limiter, Some("last"), "last", 1);
        for shares in [&limiter.pods, &limiter.registries] {
            assert_eq!(shares.known.lock().unwrap().len(), 1);
        }
    }
}
