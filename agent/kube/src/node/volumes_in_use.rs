//! The attachable volumes in use on the node: the controller does not detach a volume that the node's status lists.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodestatus/setters.go VolumesInUse; pkg/volume/util/operationexecutor, ReportedInUse.

use std::sync::Arc;

use compact::Set;
use tokio::sync::watch;

/// The unique names of the attachable volumes in use.
pub(crate) type InUse = Arc<Set<String>>;

/// The volumes in use to report, and those that the last status has reported. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumesInUse {
    /// `None` while unknown: the status then keeps the volumes that it has.
    current: watch::Sender<Option<InUse>>,
    reported: watch::Sender<InUse>,
}

impl VolumesInUse {
    /// The volumes to report, with change notification.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<InUse>> {
        self.current.subscribe()
    }

    /// Records that the node's status lists these.
    pub(crate) fn set_reported(&self, volumes: &InUse) {
        self.reported.send_if_modified(|reported| {
            let changes = reported != volumes;
            *reported = Arc::clone(volumes);
            changes
        });
    }

    /// Sets the volumes to report.
    pub(crate) fn set(&self, volumes: Set<String>) {
        let volumes = Some(Arc::new(volumes));
        self.current.send_if_modified(|current| {
            let changes = *current != volumes;
            *current = volumes;
            changes
        });
    }

    /// Waits until the node's status lists a volume. Cancel-safe.
    pub(crate) async fn wait_until_reported(&self, volume: &str) {
        // It cannot fail: `self` owns the sender.
        let _ = self.reported.subscribe().wait_for(|reported| reported.contains(volume)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn volume_is_waited_for_until_the_status_shows_it() {
        let in_use = VolumesInUse::default();
        let mut changes = in_use.watch();
        assert_eq!(*changes.borrow_and_update(), None);
        let volumes = Set::from(["v".to_owned()]);
        in_use.set(volumes.clone());
        in_use.set(volumes.clone());
        assert_eq!(changes.borrow_and_update().as_deref(), Some(&volumes));
        in_use.set(volumes.clone());
        assert_eq!(changes.has_changed().ok(), Some(false));
        let waiting = tasks::spawn({
            let in_use = in_use.clone();
            async move { in_use.wait_until_reported("v").await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        in_use.set_reported(&Arc::new(volumes));
        assert!(waiting.await.is_ok());
    }
}
