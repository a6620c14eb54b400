//! Detects unreachable drivers, and deletes their ResourceSlices.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::ClaimCluster;
use crate::registry::Registry;
use crate::slice_deletions::SliceDeletions;

/// The interval between checks of the connections to plugins. The socket of a killed plugin stays on disk.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Deletes ResourceSlices until the future is dropped.
pub(crate) async fn run(registry: Arc<Registry>, cluster: Arc<dyn ClaimCluster>) {
    let mut changes = registry.changes();
    let mut slice_deletions = SliceDeletions::new(Instant::now().into_std());
    loop {
        let has_plugins = probe(&registry).await;
        let now = Instant::now().into_std();
        slice_deletions.follow(&registry.missing(), now);
        for driver in slice_deletions.due(now) {
            let deleted = cluster.delete_slices(driver.as_deref()).await;
            match &deleted {
                Ok(()) => tracing::info!(driver, "deleted the node's ResourceSlices"),
                Err(error) => {
                    tracing::debug!(driver, error, "failed to delete ResourceSlices; will retry");
                }
            }
            slice_deletions.ended(&driver, deleted.is_ok(), Instant::now().into_std());
        }
        let next = slice_deletions.next().map(Instant::from_std);
        tokio::select! {
            () = sleep(PROBE_INTERVAL), if has_plugins => {}
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            // It cannot fail: the registry owns the sender.
            Ok(()) = changes.changed() => {}
        }
    }
}

/// Records which plugins are reachable. Returns whether there are any plugins.
pub(crate) async fn probe(registry: &Registry) -> bool {
    let plugins = registry.plugins();
    for plugin in &plugins {
        let is_reachable = plugin.is_reachable(CONNECT_TIMEOUT).await;
        registry.set_reachable(&plugin.endpoint, is_reachable);
    }
    !plugins.is_empty()
}
