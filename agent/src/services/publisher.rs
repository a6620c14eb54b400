//! Publishes the table again when Services, pods or their readiness change.

use std::sync::Arc;

use api::pod::Pod;
use tokio::sync::watch;

use super::{ServiceNetwork, plan};
use crate::objects::ObjectStore;
use crate::reporting::report::Reports;

/// Runs until the agent ends.
pub(crate) async fn publish(
    domain: String,
    objects: Arc<ObjectStore>,
    mut pods: watch::Receiver<Arc<[Pod]>>,
    mut reports: watch::Receiver<Arc<Reports>>,
    network: Arc<dyn ServiceNetwork>,
) {
    let mut changes = objects.changes();
    let mut published = None;
    loop {
        let table = {
            let (objects, pods) = (objects.current(), pods.borrow_and_update().clone());
            let reports = reports.borrow_and_update().clone();
            let (services, slices) = (objects.all_services(), objects.endpoint_slices());
            let services = services.iter().map(Arc::as_ref);
            plan(&domain, services, &pods, &slices, |uid| {
                reports.get(uid).map(|report| &*report.status)
            })
        };
        if published.as_ref() != Some(&table) {
            network.publish(table.clone());
            published = Some(table);
        }
        // All can be cancelled: a change stays unseen until the next turn.
        let changed = tokio::select! {
            changed = pods.changed() => changed,
            changed = reports.changed() => changed,
            changed = changes.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
