//! Requests expansions from drivers if a PersistentVolume has grown: after a volume is mounted, and while pods use it.
//!
//! Source: Kubernetes 1.36, pkg/volume/util/operationexecutor/node_expander.go; pkg/volume/csi/expander.go.

use std::path::Path;

use agent::storage::drivers::{DriverError, DriverStep, DriverVolume, Expansion};
use api::pod::Pod;
use api::quantity::Quantity;
use jiff::Timestamp;
use serde_json::Value;

use crate::expansion::{
    Decision, ExpandError, ExpansionRequest, FailureAction, after_failure, capacity, decide,
    failed, finished, in_progress,
};
use crate::grpc::Expand;
use crate::paths::VolumePaths;
use crate::request::{Capabilities, Claimed, PodVolume};
use crate::volumes::Volumes;

impl Volumes {
    /// Expands a volume that was just mounted, if its claim is smaller than its PersistentVolume.
    pub(crate) async fn expand_mounted(
        &self,
        pod_volume: &PodVolume,
        target: &Path,
    ) -> Result<Expansion, String> {
        let Some(claimed) = pod_volume.persistent.as_ref().and_then(|it| it.claimed.as_ref())
        else {
            return Ok(Expansion::Unchanged);
        };
        let claim = self.claim(claimed).await?;
        let size = capacity(&claim);
        self.sizes.change(&pod_volume.key, |known| known.size = known.size.or(Some(size)));
        if size >= claimed.capacity() {
            return Ok(Expansion::Unchanged);
        }
        if pod_volume.readonly {
            return Ok(Expansion::ReadOnly);
        }
        self.expand_claim(pod_volume, target, claimed, claim).await
    }

    /// Expands a volume that is mounted in the pod with this directory, if it is smaller than its PersistentVolume.
    pub(crate) async fn expand_online(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<Expansion, DriverError> {
        let failed = |message: String, waits| DriverError {
            step: DriverStep::Expand,
            volume: volume.spec_name.clone(),
            message,
            waits,
            is_exhausted: false,
        };
        let Some(pod_volume) = PodVolume::of(pod, volume).filter(|pod_volume| !pod_volume.readonly)
        else {
            return Ok(Expansion::Unchanged);
        };
        let Some(claimed) = pod_volume.persistent.as_ref().and_then(|it| it.claimed.as_ref())
        else {
            return Ok(Expansion::Unchanged);
        };
        let paths = VolumePaths::of(&self.root, pod_dir, &pod_volume);
        let _before_the_end = self.pods.lock(&pod_dir.to_owned()).await;
        let _one_at_a_time = self.locks.lock(&pod_volume.key.of_driver()).await;
        let is_mounted = paths.key().as_ref() == Some(&pod_volume.key);
        let known = self.sizes.get(&pod_volume.key);
        if !is_mounted || !known.may_grow(claimed.capacity()) {
            return Ok(Expansion::Unchanged);
        }
        let claim = self.claim(claimed).await;
        // Without a known size, the error must be reported: an expansion may be needed.
        let claim = claim.map_err(|error| failed(error, known.size.is_none()))?;
        if known.size.is_none() {
            let size = Some(capacity(&claim));
            self.sizes.change(&pod_volume.key, |known| known.size = size);
            if !self.sizes.get(&pod_volume.key).may_grow(claimed.capacity()) {
                return Ok(Expansion::Unchanged);
            }
        }
        let expanded = self.expand_claim(&pod_volume, &paths.target, claimed, claim).await;
        expanded.map_err(|error| failed(error, false))
    }

    async fn claim(&self, claimed: &Claimed) -> Result<Value, String> {
        let found = self.cluster.claim(&claimed.namespace, &claimed.name).await;
        found.map_err(|error| format!("mountVolume.NodeExpandVolume get PVC failed : {error}"))
    }

    /// Expands the volume of a claim, if the claim's status allows it.
    async fn expand_claim(
        &self,
        pod_volume: &PodVolume,
        target: &Path,
        claimed: &Claimed,
        mut claim: Value,
    ) -> Result<Expansion, String> {
        let key = &pod_volume.key;
        let has_size = |size: Quantity| self.sizes.change(key, |known| known.size = Some(size));
        let has_failed = self.sizes.get(key).has_failed;
        let request = match decide(&claim, &claimed.capacity, has_failed) {
            Decision::Has(size) => {
                has_size(size);
                return Ok(Expansion::Unchanged);
            }
            Decision::Wait => return Ok(Expansion::Unchanged),
            Decision::Expand(request) => request,
        };
        if request.tracked_in_claim() {
            claim = self.cluster.set_claim_status(&claim, &in_progress(&claim), true).await?;
        }
        if let Err(error) = self.call_node_expand(pod_volume, target, &request).await {
            let (action, failure_status) = after_failure(&request, &error);
            if let Some(failure_status) = failure_status {
                self.sizes.change(key, |known| known.has_failed = true);
                let after = failed(&claim, failure_status, &error.to_string(), Timestamp::now());
                if let Err(error) = self.cluster.set_claim_status(&claim, &after, false).await {
                    tracing::warn!(
                        volume = key.handle,
                        error,
                        "failed to update the status of a claim whose expansion failed"
                    );
                }
            }
            return match action {
                FailureAction::Finished => {
                    has_size(request.amount());
                    Ok(Expansion::Unchanged)
                }
                FailureAction::InUse => {
                    tracing::warn!(volume = key.handle, %error, "cannot expand the volume while it is in use");
                    self.sizes.change(key, |known| known.is_in_use = true);
                    Ok(Expansion::Unchanged)
                }
                FailureAction::Retry => Err(error.to_string()),
            };
        }
        if request.updates_claim_status() {
            let after = finished(&claim, &request.size);
            let set = self.cluster.set_claim_status(&claim, &after, true).await;
            set.map_err(|error| {
                format!("mountVolume.NodeExpandVolume update pvc status failed: {error}")
            })?;
        }
        has_size(request.amount());
        Ok(Expansion::Expanded)
    }

    async fn call_node_expand(
        &self,
        pod_volume: &PodVolume,
        target: &Path,
        request: &ExpansionRequest,
    ) -> Result<(), ExpandError> {
        let driver = &pod_volume.key.driver;
        let service = self.registry.driver(driver).map_err(ExpandError::NotRegistered)?;
        let capabilities: Capabilities = service.capabilities().await.map_err(|error| {
            ExpandError::NotRequested(format!(
                "Expander.NodeExpand failed to check if node supports expansion : {error}"
            ))
        })?;
        if !capabilities.expands {
            return Err(ExpandError::NotSupported(format!(
                "NodeExpand is not supported by the CSI driver {driver}"
            )));
        }
        let secret = pod_volume.persistent.as_ref().and_then(|it| it.expand_secret.as_ref());
        let secrets = self.secrets(secret, "NodeExpandSecretRef").await;
        let expand = Expand {
            handle: pod_volume.key.handle.clone(),
            target: target.to_owned(),
            staging: capabilities.stages.then(|| pod_volume.key.staging(&self.root)),
            bytes: request.bytes(),
            capability: pod_volume.capability(capabilities).without_group(),
            secrets: secrets.map_err(ExpandError::NotRequested)?,
        };
        let result = service.expand(expand).await;
        result.map_err(|error| ExpandError::of_call(error.code, error.to_string()))
    }
}
