//! ResourceClaims of pods, whose devices drivers of dynamic resource allocation prepare. The agent knows no driver and no claim: a
//! package beside it speaks to both.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod, pkg/kubelet/kubelet.go SyncTerminatingPod.

use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use compact::Map;
use k8s_openapi::api::core::v1::{Container, ResourceStatus};
use tokio::sync::watch;

use crate::histogram::Histogram;

/// Has the devices of claims prepared. A call that is dropped may have done its work.
#[async_trait]
pub trait ClaimManager: Send + Sync {
    /// Has drivers prepare the claims of a pod. Called before each creation of its sandbox; what is prepared stays so.
    ///
    /// # Errors
    /// Why a claim is not prepared, in a kubelet's words.
    async fn prepare(&self, pod: &Pod) -> Result<(), String>;

    /// The names of the CDI devices that a container gets of the claims that it names.
    ///
    /// # Errors
    /// A claim is not prepared, in a kubelet's words.
    fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String>;

    /// Undoes what was prepared for a pod of which nothing runs any more, but for claims that other pods use. A repeated call does
    /// nothing.
    ///
    /// # Errors
    /// Why a claim is still prepared, in a kubelet's words.
    async fn unprepare(&self, pod: &PodUid) -> Result<(), String>;

    /// The claims that a container names, with all that is prepared of them.
    fn claims(&self, pod: &Pod, container: &Container) -> Vec<PreparedClaim>;

    /// The health of the devices that a container has of the claims it names, for its status.
    fn health(&self, _: &Pod, _: &Container) -> Vec<ResourceStatus> {
        Vec::new()
    }

    /// Sees that [`ClaimManager::health`] may say something else, from now on; `None`: it never does.
    fn health_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// What was measured until now.
    fn measures(&self) -> ClaimMeasures {
        ClaimMeasures::default()
    }
}

/// How long it took to have claims prepared, in seconds, and how many are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimMeasures {
    /// For the pods that were started or have ended.
    pub operations: Map<ClaimOperation, Histogram>,
    /// The calls of drivers.
    pub calls: Map<ClaimCall, Histogram>,
    /// How many claims are prepared, by driver; all of them by the driver `<any>`.
    pub in_use: Map<String, u64>,
}

/// What is done with the claims of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimOperation {
    /// `PrepareResources` or `UnprepareResources`.
    pub name: &'static str,
    /// It failed.
    pub failed: bool,
}

/// A call of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimCall {
    /// The driver's name.
    pub driver: String,
    /// The path of the call: its service and method.
    pub path: &'static str,
    /// The code of the response, as Go names it: `OK`.
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
    /// The driver that has prepared it.
    pub driver: String,
    /// The pool that has the device.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// Which share of the device it is, if claims share it.
    pub share_id: Option<String>,
    /// The names of its CDI devices.
    pub cdi_devices: Vec<String>,
}

/// Whether a pod has claims that are to be prepared.
#[must_use]
pub fn has_claims(pod: &Pod) -> bool {
    let has_own = pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let status = pod.api().status.as_ref();
    has_own || status.is_some_and(|status| status.extended_resource_claim_status.is_some())
}
