//! ResourceClaims of pods, whose devices are prepared by drivers of dynamic resource allocation. The agent knows neither drivers
//! nor claims: another package does.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod, pkg/kubelet/kubelet.go SyncTerminatingPod.

use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use compact::Map;
use k8s_openapi::api::core::v1::{Container, ResourceStatus};
use tokio::sync::watch;

use crate::histogram::Histogram;

/// Lets drivers prepare the devices of claims. A dropped call may have completed.
#[async_trait]
pub trait ClaimManager: Send + Sync {
    /// Lets drivers prepare the claims of a pod. Called before each creation of its sandbox; prepared claims stay prepared.
    ///
    /// # Errors
    /// Why a claim is not prepared, with a kubelet's message.
    async fn prepare(&self, pod: &Pod) -> Result<(), String>;

    /// The names of the CDI devices of a container's claims.
    ///
    /// # Errors
    /// If a claim is not prepared, with a kubelet's message.
    fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String>;

    /// Unprepares the claims of a pod of which nothing runs any more, except claims that other pods use. A repeated call does
    /// nothing.
    ///
    /// # Errors
    /// Why a claim is still prepared, with a kubelet's message.
    async fn unprepare(&self, pod: &PodUid) -> Result<(), String>;

    /// The claims of a container, with their prepared devices.
    fn claims(&self, pod: &Pod, container: &Container) -> Vec<PreparedClaim>;

    /// The health of the devices of a container's claims, for its status.
    fn health(&self, _: &Pod, _: &Container) -> Vec<ResourceStatus> {
        Vec::new()
    }

    /// Reports later changes of [`ClaimManager::health`]; `None`: it never changes.
    fn health_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// The measurements so far.
    fn measures(&self) -> ClaimMeasures {
        ClaimMeasures::default()
    }
}

/// The durations of preparing claims, in seconds, and the number of prepared claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimMeasures {
    /// The operations on pods' claims.
    pub operations: Map<ClaimOperation, Histogram>,
    /// The calls of drivers.
    pub calls: Map<ClaimCall, Histogram>,
    /// The number of prepared claims, by driver; the driver `<any>` counts all of them.
    pub in_use: Map<String, u64>,
}

/// An operation on the claims of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimOperation {
    /// `PrepareResources` or `UnprepareResources`.
    pub name: &'static str,
    /// Whether it failed.
    pub failed: bool,
}

/// A call of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimCall {
    /// The driver's name.
    pub driver: String,
    /// The path of the call: its service and method.
    pub path: &'static str,
    /// The code of the response, by Go's name: `OK`.
    pub code: &'static str,
}

/// A claim that is prepared for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedClaim {
    /// The claim's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its devices.
    pub devices: Vec<PreparedDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The driver that prepared it.
    pub driver: String,
    /// The pool that contains the device.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// The id of the share, if several claims share the device.
    pub share_id: Option<String>,
    /// The names of its CDI devices.
    pub cdi_devices: Vec<String>,
}

/// Whether a pod has claims to prepare.
#[must_use]
pub fn has_claims(pod: &Pod) -> bool {
    let has_own = pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let status = pod.api().status.as_ref();
    has_own || status.is_some_and(|status| status.extended_resource_claim_status.is_some())
}
