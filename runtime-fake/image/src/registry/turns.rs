//! Limits concurrent pulls, in total and for each pod, so that one pod cannot occupy all turns with images of a registry that
//! never answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit on concurrent pulls. Each takes a thread.
const PULLS: usize = 32;
/// Limit on concurrent pulls for one pod: a kubelet pulls the images of a pod one after the other.
const PULLS_OF_POD: usize = 4;

/// The turns of pulls.
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// The turns of the pods that hold or wait for one.
    pods: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The right to pull, until it is dropped.
pub(super) struct Turn {
    _of_all: Option<OwnedSemaphorePermit>,
    _of_pod: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(PULLS)), pods: Mutex::default() }
    }

    /// Waits for one of the pod's turns, and then for one of all turns. A pull without a pod waits for the latter only.
    pub(super) async fn next(&self, pod: Option<&str>) -> Turn {
        let own = pod.map(|pod| self.turns_of(pod));
        // The semaphores are never closed.
        let of_pod = match own {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        Turn { _of_all: Arc::clone(&self.all).acquire_owned().await.ok(), _of_pod: of_pod }
    }

    fn turns_of(&self, pod: &str) -> Arc<Semaphore> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = pods.get(pod).and_then(Weak::upgrade) {
            return turns;
        }
        pods.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(PULLS_OF_POD));
        pods.insert(pod.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// The turn, if it is available immediately.
    fn next(turns: &Turns, pod: Option<&str>) -> Option<Turn> {
        match pin!(turns.next(pod)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// The immediately available turns, of `wanted` requests.
    fn taken(turns: &Turns, pod: Option<&str>, wanted: usize) -> Vec<Turn> {
        (0..wanted).map_while(|_| next(turns, pod)).collect()
    }

    #[test]
    fn pod_has_its_share_of_turns() {
        let turns = Turns::new();
        let first = taken(&turns, Some("a"), PULLS);
        assert_eq!(first.len(), PULLS_OF_POD);
        let others = taken(&turns, Some("b"), 1).len() + taken(&turns, None, 1).len();
        assert_eq!(others, 2);
        drop(first);
        assert_eq!(taken(&turns, Some("a"), 1).len(), 1);
    }

    #[test]
    fn turns_are_limited_for_all_and_pods_are_forgotten() {
        let turns = Turns::new();
        let names: Vec<String> = (0..PULLS).map(|pod| pod.to_string()).collect();
        let all: Vec<Turn> = names.iter().flat_map(|pod| taken(&turns, Some(pod), 2)).collect();
        assert_eq!(all.len(), PULLS);
        assert_eq!(taken(&turns, None, 1).len(), 0);
        drop(all);
        let _last = taken(&turns, Some("last"), 1);
        assert_eq!(turns.pods.lock().unwrap().len(), 1);
    }
}
