//! Limits concurrent pulls, in total and for each pod, so that one pod cannot occupy all permits with images of a registry that
//! never answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit on concurrent pulls. Each takes a thread.
const PULLS: usize = 32;
/// Limit on concurrent pulls for one pod: a kubelet pulls the images of a pod one after the other.
const PULLS_OF_POD: usize = 4;

/// Limits concurrent pulls.
pub(super) struct PullLimiter {
    all: Arc<Semaphore>,
    /// The permits of the pods that hold or wait for one.
    pods: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The right to pull, until it is dropped.
pub(super) struct PullPermit {
    _of_all: Option<OwnedSemaphorePermit>,
    _of_pod: Option<OwnedSemaphorePermit>,
}

impl PullLimiter {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(PULLS)), pods: Mutex::default() }
    }

    /// Waits for one of the pod's permits, and then for one of all permits. A pull without a pod waits for the latter only.
    pub(super) async fn acquire(&self, pod: Option<&str>) -> PullPermit {
        let own = pod.map(|pod| self.permits_of(pod));
        // The semaphores are never closed.
        let of_pod = match own {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        PullPermit { _of_all: Arc::clone(&self.all).acquire_owned().await.ok(), _of_pod: of_pod }
    }

    fn permits_of(&self, pod: &str) -> Arc<Semaphore> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = pods.get(pod).and_then(Weak::upgrade) {
            return permits;
        }
        pods.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(PULLS_OF_POD));
        pods.insert(pod.to_owned(), Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// The permit, if it is available immediately.
    fn try_acquire(limiter: &PullLimiter, pod: Option<&str>) -> Option<PullPermit> {
        match pin!(limiter.acquire(pod)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    /// The immediately available permits, of `wanted` requests.
    fn taken(limiter: &PullLimiter, pod: Option<&str>, wanted: usize) -> Vec<PullPermit> {
        (0..wanted).map_while(|_| try_acquire(limiter, pod)).collect()
    }

    #[test]
    fn pod_gets_at_most_its_share_of_permits() {
        let limiter = PullLimiter::new();
        let first = taken(&limiter, Some("a"), PULLS);
        assert_eq!(first.len(), PULLS_OF_POD);
        let others = taken(&limiter, Some("b"), 1).len() + taken(&limiter, None, 1).len();
        assert_eq!(others, 2);
        drop(first);
        assert_eq!(taken(&limiter, Some("a"), 1).len(), 1);
    }

    #[test]
    fn permits_are_limited_in_total_and_idle_pods_are_removed() {
        let limiter = PullLimiter::new();
        let names: Vec<String> = (0..PULLS).map(|pod| pod.to_string()).collect();
        let all: Vec<PullPermit> =
            names.iter().flat_map(|pod| taken(&limiter, Some(pod), 2)).collect();
        assert_eq!(all.len(), PULLS);
        assert_eq!(taken(&limiter, None, 1).len(), 0);
        drop(all);
        let _last = taken(&limiter, Some("last"), 1);
        assert_eq!(limiter.pods.lock().unwrap().len(), 1);
    }
}
