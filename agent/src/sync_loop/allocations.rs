//! The pods that wait until managers have allocated their containers' exclusive resources. The sync loop continues with other pods
//! meanwhile, because a device plugin may be slow.

use std::task::{Context, Poll, Waker};

use api::pod::{Pod, PodUid};
use compact::Map;
use tokio::task::{Id, JoinSet};

use super::SyncLoop;
use crate::managers::Allocation;
use crate::pod_spec::admission::Rejection;

/// The result of an allocation.
pub(super) type Allocated = Result<(), Rejection>;

/// The allocations of pods that are not started yet.
#[derive(Default)]
pub(super) struct Allocations {
    /// `None`: the allocation is in progress.
    of: Map<PodUid, Option<Allocated>>,
    tasks: JoinSet<Allocated>,
    ids: Map<Id, PodUid>,
}

impl Allocations {
    /// The result of a pod's allocation, which `begin` starts if necessary; `None`: it is in progress.
    fn of(&mut self, uid: &PodUid, begin: impl FnOnce() -> Allocation) -> Option<Allocated> {
        if let Some(known) = self.of.get(uid) {
            return known.clone();
        }
        let mut allocation = begin();
        // Most allocations complete immediately.
        let polled = allocation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let known = match polled {
            Poll::Ready(allocated) => Some(allocated),
            Poll::Pending => {
                let task = self.tasks.spawn(tasks::boxed(allocation));
                self.ids.insert(task.id(), uid.clone());
                None
            }
        };
        self.of.insert(uid.clone(), known.clone());
        known
    }

    /// Waits until an allocation completes; never returns while there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> (PodUid, Allocated) {
        loop {
            let (id, allocated) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, allocated))) => (id, allocated),
                Some(Err(error)) => {
                    tracing::error!(%error, "allocation for a pod panicked");
                    let message = "Allocate failed due to a panic, which is unexpected".to_owned();
                    let reason = "UnexpectedAdmissionError".to_owned();
                    (error.id(), Err(Rejection { reason, message }))
                }
                None => std::future::pending().await,
            };
            if let Some(uid) = self.ids.remove(&id) {
                return (uid, allocated);
            }
        }
    }

    /// Removes the allocation of a pod that was started.
    pub(super) fn started(&mut self, uid: &PodUid) {
        self.of.remove(uid);
    }
}

impl SyncLoop {
    /// The result of a pod's allocation, which is started if necessary; `None`: it is in progress.
    pub(super) fn allocate(&mut self, pod: &Pod) -> Option<Allocated> {
        let managers = &self.shared.managers;
        let active = self.sources_were_ready.then(|| {
            let running = self.entries.active(&self.reports.borrow());
            let waiting = self.allocations.of.keys().cloned();
            running.into_iter().chain(waiting).chain([pod.uid().clone()]).collect()
        });
        self.allocations.of(pod.uid(), || managers.allocate(pod, active))
    }

    /// Handles a completed allocation: its pod can be started now, unless no source has it any more.
    pub(super) fn allocated(&mut self, uid: PodUid, allocated: Allocated) {
        if self.desired.iter().any(|pod| *pod.uid() == uid) {
            self.allocations.of.insert(uid, Some(allocated));
            self.reconcile_workers();
        } else {
            self.allocations.of.remove(&uid);
            self.shared.managers.release(&uid);
        }
    }

    /// Releases the allocations of pods that were not started, and that no source has any more.
    pub(super) fn forget_allocations(&mut self) {
        if self.allocations.of.is_empty() {
            return;
        }
        let is_wanted = |uid: &PodUid| self.desired.iter().any(|pod| pod.uid() == uid);
        let is_over = |(uid, known): (&PodUid, &Option<Allocated>)| {
            (known.is_some() && !is_wanted(uid)).then(|| uid.clone())
        };
        let forgotten: Vec<PodUid> = self.allocations.of.iter().filter_map(is_over).collect();
        for uid in forgotten {
            self.allocations.of.remove(&uid);
            self.shared.managers.release(&uid);
        }
    }
}
