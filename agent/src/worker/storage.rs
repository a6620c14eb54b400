//! Measures the local storage of a pod with limits, and evicts the pod if it exceeds them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use jiff::Timestamp;

use super::Worker;
use crate::clock::after;
use crate::local_node::eviction::local_storage::{self, LocalUsage};
use crate::observed::Observed;
use crate::reporting::measures::Counted;
use crate::reporting::status::eviction::Eviction;
use tasks::blocking;

/// The period of a kubelet's measurements. Kubernetes 1.36, pkg/kubelet/kubelet.go evictionMonitoringPeriod.
const PERIOD: Duration = Duration::from_secs(10);

/// When the pod is measured.
#[derive(Debug, Default)]
pub(super) struct Storage {
    next: Option<Timestamp>,
    /// Whether images are on another file system than the node's own files, once known.
    has_image_fs: Option<bool>,
}

impl Storage {
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        self.next
    }
}

impl Worker {
    /// Measures the pod if it is due. Returns whether it is evicted.
    pub(super) async fn exceeds_storage(&mut self, pod: &Pod, observed: &Observed) -> bool {
        if !local_storage::is_limited(pod) {
            self.storage.next = None;
            return false;
        }
        let now = self.shared.clock.now();
        let due = *self.storage.next.get_or_insert(after(now, PERIOD));
        if due > now {
            return false;
        }
        self.storage.next = Some(after(now, PERIOD));
        let mut usage = self.storage_usage(pod, observed).await;
        usage.has_image_fs = self.has_image_fs().await;
        let Some((signal, message)) = local_storage::exceeded(pod, &usage) else {
            return false;
        };
        self.shared.measures.count(Counted::Evicted(signal));
        self.evict(Eviction::of_local_storage(message));
        true
    }

    /// Storage that cannot be measured counts as unused, as in a kubelet.
    async fn storage_usage(&self, pod: &Pod, observed: &Observed) -> LocalUsage {
        let (dirs, of, shared) = (self.dirs.clone(), pod.clone(), Arc::clone(&self.shared));
        let mut usage = blocking(move || dirs.usage(&of, &shared.in_memory)).await;
        for seen in &observed.containers {
            match self.shared.cri.writable_layer(&seen.id).await {
                Ok(used) => *usage.layers.entry(seen.name.clone()).or_default() += used,
                Err(error) => {
                    tracing::debug!(pod = %pod.full_name(), container = %seen.id, %error, "failed to measure container");
                }
            }
        }
        usage
    }

    /// Whether images are on another file system than the node's own files; false while the runtime or the machine does not tell.
    async fn has_image_fs(&mut self) -> bool {
        if let Some(known) = self.storage.has_image_fs {
            return known;
        }
        let images = self.shared.cri.image_fs_info().await.ok();
        let Some(images) = images.and_then(|all| all.into_iter().next()) else {
            return false;
        };
        let shared = Arc::clone(&self.shared);
        let differs = blocking(move || {
            let device = |path: &Path| shared.machine.file_system(path).ok().map(|fs| fs.device);
            Some(device(Path::new(&images.mountpoint))? != device(&shared.config.root_dir)?)
        });
        self.storage.has_image_fs = differs.await;
        self.storage.has_image_fs.unwrap_or_default()
    }
}
