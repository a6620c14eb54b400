//! Lets the kernel watch memory usage (`kernelMemcgNotification`), so that a pass begins as soon as a threshold is met.
//!
//! The watched usage depends on the reclaimable memory, which changes. Source: Kubernetes 1.36,
//! pkg/kubelet/eviction/eviction_manager.go.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tasks::blocking;

use super::measure::NodeState;
use crate::local_node::eviction::Signal;
use crate::local_node::eviction::config::Threshold;
use crate::local_node::eviction::notification::{is_of_memory, watched_usage};
use crate::machine::{Machine, MemoryThreshold};

/// The period in which watched thresholds are updated (notifierRefreshInterval).
const REFRESH: Duration = Duration::from_secs(10);

/// The thresholds that the kernel watches.
#[derive(Default)]
pub(super) struct Notifications {
    watched: Vec<Box<dyn MemoryThreshold>>,
    /// The time of the last update, measured from an arbitrary origin.
    told_at: Option<Duration>,
}

impl Notifications {
    /// Lets the kernel watch these thresholds, based on the last measurement, unless they were updated less than [`REFRESH`] ago.
    pub(super) async fn refresh(
        &mut self,
        machine: &Arc<dyn Machine>,
        thresholds: &[Threshold],
        pods_cgroup: Option<&str>,
        known: &mut NodeState,
        now: Duration,
    ) {
        if self.told_at.is_some_and(|at| now.saturating_sub(at) < REFRESH) {
            return;
        }
        self.told_at = Some(now);
        let wanted = thresholds.iter().filter(|threshold| is_of_memory(threshold));
        let wanted = wanted.filter_map(|threshold| {
            let (path, memory) = if threshold.signal == Signal::AllocatableMemoryAvailable {
                (pods_cgroup?, known.memory_of_pods?)
            } else {
                ("/", known.memory?)
            };
            Some((path.to_owned(), watched_usage(threshold, memory)))
        });
        let wanted: Vec<(String, u64)> = wanted.collect();
        let machine = Arc::clone(machine);
        let watched = blocking(move || {
            let watch = |(path, bytes): (String, u64)| machine.memory_threshold(&path, bytes);
            let watched = wanted.into_iter().filter_map(|wanted| watch(wanted).transpose());
            watched.collect::<io::Result<Vec<_>>>()
        });
        let what = "memory in use by notifications of the kernel";
        self.watched = known.note(what, watched.await).unwrap_or_default();
    }

    /// Waits until one of the thresholds may be met. Cancel-safe.
    pub(super) async fn crossed(&mut self) {
        let mut waits: Vec<_> = self.watched.iter_mut().map(|it| it.crossed()).collect();
        poll_fn(|context| {
            let is_crossed = waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready());
            if is_crossed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
