//! The cluster for CSI drivers: the objects, attachments and secrets that drivers need, and what the node publishes about them:
//! its annotation and labels, its CSINode, and the volumes in use.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/nodeinfomanager/nodeinfomanager.go.

use std::sync::Arc;
use std::time::Duration;

use agent::cluster::{IssuedToken, TokenRequest};
use api::patch::{PatchError, strategic};
use async_trait::async_trait;
use compact::Set;
use csi::{NodeDriver, UpdatePeriods, VolumeCluster};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::client::{ApiClient, ApiError, Change, PatchKind, Reflector};
use crate::node::csi_node::{
    is_of_node, new_csi_node, with_driver, with_node_id, with_topology, without_driver,
    without_node_id,
};
use crate::node::registration;
use crate::node::status::patch;
use crate::node::volumes_in_use::VolumesInUse;
use crate::tokens;

const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

/// The attempts for a change, and the first delay. Each delay is five times the previous one.
const TRIES: usize = 4;
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The first delay before another attempt to create the CSINode, and the maximum.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The cluster for CSI drivers.
pub(crate) struct ClusterVolumes {
    client: ApiClient,
    node: String,
    in_use: VolumesInUse,
    /// Serializes changes of the node and its CSINode.
    write_lock: tokio::sync::Mutex<()>,
}

impl ClusterVolumes {
    pub(crate) fn new(client: ApiClient, node: &str, in_use: VolumesInUse) -> Self {
        Self { client, node: node.to_owned(), in_use, write_lock: tokio::sync::Mutex::default() }
    }

    async fn object<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, String> {
        match self.client.get(path, &[]).await {
            Ok(value) => serde_json::from_value(value).map(Some).map_err(|error| error.to_string()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error_chain(&error)),
        }
    }

    /// Changes the node's labels and annotations.
    async fn change_node(
        &self,
        change: impl Fn(&Value) -> Result<Value, String>,
    ) -> Result<(), String> {
        let path = registration::path(&self.node);
        let before = self.client.get(&path, &[]).await.map_err(|error| error_chain(&error))?;
        let after = change(&before)?;
        let patch = patch(&before, &after).map_err(|error| error.to_string())?;
        if let Some(patch) = patch {
            let path = format!("{path}/status");
            let kind = PatchKind::StrategicMerge;
            self.client.patch(&path, kind, &patch).await.map_err(|error| error_chain(&error))?;
        }
        Ok(())
    }

    /// Gets or creates the node's CSINode. Deletes one that belongs to an earlier node of the same name.
    async fn csi_node(&self) -> Result<Value, String> {
        let node = self.client.get(&registration::path(&self.node), &[]).await;
        let node = node.map_err(|error| error_chain(&error))?;
        let path = format!("{CSI_NODES}/{}", self.node);
        match self.client.get(&path, &[]).await {
            Ok(found) if is_of_node(&found, &node) => return Ok(found),
            Ok(found) => {
                let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
                self.client.delete_now(&path, uid).await.map_err(|error| error_chain(&error))?;
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error_chain(&error)),
        }
        let created = self.client.create(CSI_NODES, &new_csi_node(&node)).await;
        created.map_err(|error| error_chain(&error))
    }

    /// Changes the drivers of the CSINode, unless `change` returns `None`.
    async fn change_csi_node(
        &self,
        change: impl Fn(&Value) -> Option<Value>,
    ) -> Result<(), String> {
        let before = self.csi_node().await?;
        if let Some(after) = change(&before) {
            let path = format!("{CSI_NODES}/{}", self.node);
            self.client.replace(&path, &after).await.map_err(|error| error_chain(&error))?;
        }
        Ok(())
    }

    /// Creates the node's CSINode, and retries until it succeeds: the scheduler needs it for volume limits.
    pub(crate) async fn make_csi_node(self: Arc<Self>) {
        let mut wait = RETRY;
        loop {
            let made = {
                let _alone = self.write_lock.lock().await;
                self.csi_node().await
            };
            match made {
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(node = %self.node, error, "failed to create CSINode; will retry");
                }
            }
            sleep(wait).await;
            wait = wait.saturating_mul(2).min(RETRY_MAX);
        }
    }
}

/// The error and its causes as text.
pub(crate) fn error_chain(error: &ApiError) -> String {
    if let ApiError::Refused { message, .. } = error
        && !message.is_empty()
    {
        return message.clone();
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Retries a few times: another client may change the same object concurrently.
async fn with_retries<F: Future<Output = Result<(), String>>>(
    what: &str,
    change: impl Fn() -> F,
) -> Result<(), String> {
    let mut wait = FIRST_WAIT;
    let mut last = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            sleep(wait).await;
            wait = wait.saturating_mul(5);
        }
        match change().await {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(format!("error updating {what} object with CSI driver node info: {last}"))
}

/// ◆ The patch of a claim's status from `before` to `after`. With `is_current` the server rejects it if the claim has changed
/// since.
fn claim_patch(before: &Value, after: &Value, is_current: bool) -> Result<Value, PatchError> {
    let Some(schema) = strategic::schema_of("v1", "PersistentVolumeClaim") else {
        return Ok(json!({}));
    };
    let status = |claim: &Value| json!({"status": claim["status"]});
    let mut patch = strategic::between(schema, &status(before), &status(after))?;
    if is_current {
        let version = &before["metadata"]["resourceVersion"];
        patch["metadata"] = json!({"resourceVersion": version});
    }
    Ok(patch)
}

/// ◆ The periods of the updates of drivers' limits, from their CSIDriver objects.
fn update_periods<'a>(drivers: impl Iterator<Item = &'a Value>) -> UpdatePeriods {
    let period = |driver: &Value| {
        let seconds = driver["spec"]["nodeAllocatableUpdatePeriodSeconds"].as_u64()?;
        let name = driver["metadata"]["name"].as_str()?;
        (seconds > 0).then(|| (name.to_owned(), Duration::from_secs(seconds)))
    };
    drivers.filter_map(period).collect()
}

#[async_trait]
impl VolumeCluster for ClusterVolumes {
    async fn driver(&self, name: &str) -> Result<Option<CSIDriver>, String> {
        self.object(&format!("{CSI_DRIVERS}/{name}")).await
    }

    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, String> {
        self.object(&format!("/apis/storage.k8s.io/v1/volumeattachments/{name}")).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String> {
        let found = self.object(&format!("/api/v1/namespaces/{namespace}/secrets/{name}")).await?;
        found.ok_or_else(|| format!("secrets {name:?} not found"))
    }

    async fn claim(&self, namespace: &str, name: &str) -> Result<Value, String> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
        self.client.get(&path, &[]).await.map_err(|error| error_chain(&error))
    }

    async fn set_claim_status(
        &self,
        before: &Value,
        after: &Value,
        is_current: bool,
    ) -> Result<Value, String> {
        let (namespace, name) = (&before["metadata"]["namespace"], &before["metadata"]["name"]);
        let (namespace, name) =
            (namespace.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}/status");
        let failed =
            |error: String| format!("patchPVCStatus failed to patch PVC {name:?}: {error}");
        let patch =
            claim_patch(before, after, is_current).map_err(|error| failed(error.to_string()))?;
        let patched = self.client.patch(&path, PatchKind::StrategicMerge, &patch).await;
        patched.map_err(|error| failed(error_chain(&error)))
    }

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, String> {
        tokens::issue(&self.client, request).await
    }

    async fn install(&self, driver: &NodeDriver) -> Result<(), String> {
        let _alone = self.write_lock.lock().await;
        with_retries("Node", || {
            self.change_node(|node| {
                let node = with_node_id(node, &driver.name, &driver.node_id)?;
                with_topology(&node, &driver.topology)
            })
        })
        .await?;
        with_retries("CSINode", || self.change_csi_node(|node| with_driver(node, driver))).await
    }

    async fn update(&self, driver: &NodeDriver) -> Result<(), String> {
        let _alone = self.write_lock.lock().await;
        with_retries("CSINode", || self.change_csi_node(|node| with_driver(node, driver))).await
    }

    async fn watch_update_periods(&self, periods: &watch::Sender<UpdatePeriods>) {
        let mut drivers = Reflector::new(self.client.clone(), CSI_DRIVERS);
        loop {
            match drivers.next().await {
                Change::Failed(error) => {
                    let error = error_chain(&error);
                    tracing::debug!(error, "failed to watch CSIDriver objects; will retry");
                }
                Change::Listed | Change::Object => {
                    let found = update_periods(drivers.objects().values());
                    periods.send_if_modified(|known| {
                        let is_changed = *known != found;
                        *known = found;
                        is_changed
                    });
                }
            }
        }
    }

    async fn uninstall(&self, name: &str) -> Result<(), String> {
        let _alone = self.write_lock.lock().await;
        with_retries("CSINode", || self.change_csi_node(|node| without_driver(node, name))).await?;
        with_retries("Node", || self.change_node(|node| without_node_id(node, name))).await
    }

    fn set_in_use(&self, volumes: Set<String>) {
        self.in_use.set(volumes);
    }

    async fn wait_until_reported_in_use(&self, volume: &str) {
        self.in_use.wait_until_reported(volume).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn drivers_that_request_updates_have_a_period() {
        let driver = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let drivers = [
            driver("a", json!({"nodeAllocatableUpdatePeriodSeconds": 10})),
            driver("b", json!({"attachRequired": true})),
        ];
        let expected = UpdatePeriods::from([("a".to_owned(), Duration::from_secs(10))]);
        assert_eq!(update_periods(drivers.iter()), expected);
    }

    #[test]
    fn patch_of_a_claim_changes_the_status_alone() {
        let claim = |status: Value| json!({"metadata": {"resourceVersion": "7"}, "spec": {"a": 1}, "status": status});
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let before = claim(json!({
            "phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
            "conditions": [condition("Other"), condition("Resizing")],
        }));
        let after = claim(json!({
            "phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [condition("Other")],
        }));
        let expected = json!({
            "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null,
            "$setElementOrder/conditions": [{"type": "Other"}],
            "conditions": [{"$patch": "delete", "type": "Resizing"}],
        });
        let patch = claim_patch(&before, &after, true).unwrap();
        assert_eq!(patch, json!({"metadata": {"resourceVersion": "7"}, "status": expected}));
        let patch = claim_patch(&before, &after, false).unwrap();
        assert_eq!(patch, json!({"status": expected}));
    }
}
