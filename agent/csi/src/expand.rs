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
    Consequence, Decision, ExpandError, Order, after_failure, capacity, decide, failed, finished,
    in_progress,
};
use crate::grpc::Expand;
use crate::place::Place;
use crate::request::{Capabilities, Claimed, Wanted};
use crate::volumes::Volumes;

impl Volumes {
    /// Expands a volume that was just mounted, if its claim is smaller than its PersistentVolume.
    pub(crate) async fn expand_mounted(
        &self,
        wanted: &Wanted,
        target: &Path,
    ) -> Result<Expansion, String> {
        let Some(claimed) = wanted.persistent.as_ref().and_then(|it| it.claimed.as_ref()) else {
            return Ok(Expansion::Unchanged);
        };
        let claim = self.claim(claimed).await?;
        let size = capacity(&claim);
        self.sizes.change(&wanted.key, |known| known.size = known.size.or(Some(size)));
        if size >= claimed.capacity() {
            return Ok(Expansion::Unchanged);
        }
        if wanted.readonly {
            return Ok(Expansion::ReadOnly);
        }
        self.expand_claim(wanted, target, claimed, claim).await
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
        };
        let Some(wanted) = Wanted::of(pod, volume).filter(|wanted| !wanted.readonly) else {
            return Ok(Expansion::Unchanged);
        };
        let Some(claimed) = wanted.persistent.as_ref().and_then(|it| it.claimed.as_ref()) else {
            return Ok(Expansion::Unchanged);
        };
        let place = Place::of(&self.root, pod_dir, &wanted);
        let _before_the_end = self.pods.lock(&pod_dir.to_owned()).await;
        let _one_at_a_time = self.locks.lock(&wanted.key.of_driver()).await;
        let is_mounted = place.key().as_ref() == Some(&wanted.key);
        let known = self.sizes.get(&wanted.key);
        if !is_mounted || !known.may_grow(claimed.capacity()) {
            return Ok(Expansion::Unchanged);
        }
        let claim = self.claim(claimed).await;
        // Without a known size, the error must be reported: an expansion may be needed.
        let claim = claim.map_err(|error| failed(error, known.size.is_none()))?;
        if known.size.is_none() {
            let size = Some(capacity(&claim));
            self.sizes.change(&wanted.key, |known| known.size = size);
            if !self.sizes.get(&wanted.key).may_grow(claimed.capacity()) {
                return Ok(Expansion::Unchanged);
            }
        }
        let expanded = self.expand_claim(&wanted, &place.target, claimed, claim).await;
        expanded.map_err(|error| failed(error, false))
    }

    async fn claim(&self, claimed: &Claimed) -> Result<Value, String> {
        let found = self.cluster.claim(&claimed.namespace, &claimed.name).await;
        found.map_err(|error| format!("mountVolume.NodeExpandVolume get PVC failed : {error}"))
    }

    /// Expands the volume of a claim, if the claim's status allows it.
    async fn expand_claim(
        &self,
        wanted: &Wanted,
        target: &Path,
        claimed: &Claimed,
        mut claim: Value,
    ) -> Result<Expansion, String> {
        let key = &wanted.key;
        let has_size = |size: Quantity| self.sizes.change(key, |known| known.size = Some(size));
        let has_failed = self.sizes.get(key).has_failed;
        let order = match decide(&claim, &claimed.capacity, has_failed) {
            Decision::Has(size) => {
                has_size(size);
                return Ok(Expansion::Unchanged);
            }
            Decision::Wait => return Ok(Expansion::Unchanged),
            Decision::Expand(order) => order,
        };
        if order.is_marked() {
            claim = self.cluster.set_claim_status(&claim, &in_progress(&claim), true).await?;
        }
        if let Err(error) = self.ask_to_expand(wanted, target, &order).await {
            let (consequence, mark) = after_failure(&order, &error);
            if let Some(mark) = mark {
                self.sizes.change(key, |known| known.has_failed = true);
                let after = failed(&claim, mark, &error.to_string(), Timestamp::now());
                if let Err(error) = self.cluster.set_claim_status(&claim, &after, false).await {
                    tracing::warn!(
                        volume = key.handle,
                        error,
                        "failed to show in a claim that its volume was not expanded"
                    );
                }
            }
            return match consequence {
                Consequence::Finished => {
                    has_size(order.amount());
                    Ok(Expansion::Unchanged)
                }
                Consequence::InUse => {
                    tracing::warn!(volume = key.handle, %error, "volume is not expanded while it is mounted");
                    self.sizes.change(key, |known| known.is_in_use = true);
                    Ok(Expansion::Unchanged)
                }
                Consequence::Retry => Err(error.to_string()),
            };
        }
        if order.ends_in_status() {
            let after = finished(&claim, &order.size);
            let set = self.cluster.set_claim_status(&claim, &after, true).await;
            set.map_err(|error| {
                format!("mountVolume.NodeExpandVolume update pvc status failed: {error}")
            })?;
        }
        has_size(order.amount());
        Ok(Expansion::Expanded)
    }

    async fn ask_to_expand(
        &self,
        wanted: &Wanted,
        target: &Path,
        order: &Order,
    ) -> Result<(), ExpandError> {
        let driver = &wanted.key.driver;
        let service = self.registry.driver(driver).map_err(ExpandError::Away)?;
        let can: Capabilities = service.capabilities().await.map_err(|error| {
            ExpandError::NotAsked(format!(
                "Expander.NodeExpand failed to check if node supports expansion : {error}"
            ))
        })?;
        if !can.expands {
            return Err(ExpandError::NotSupported(format!(
                "NodeExpand is not supported by the CSI driver {driver}"
            )));
        }
        let secret = wanted.persistent.as_ref().and_then(|it| it.expand_secret.as_ref());
        let secrets = self.secrets(secret, "NodeExpandSecretRef").await;
        let expand = Expand {
            handle: wanted.key.handle.clone(),
            target: target.to_owned(),
            staging: can.stages.then(|| wanted.key.staging(&self.root)),
            bytes: order.bytes(),
            capability: wanted.capability(can).without_group(),
            secrets: secrets.map_err(ExpandError::NotAsked)?,
        };
        let asked = service.expand(expand).await;
        asked.map_err(|error| ExpandError::of_call(error.code, error.to_string()))
    }
}
