//! Resizes pods in place: CPU and memory of a pod change while its containers run.
//!
//! | state | owner | file below the pod's directory |
//! |---|---|---|
//! | desired: the spec of the source | source | |
//! | allocated: what the node has granted | sync loop | `allocated-resources.json` |
//! | actuated: what the runtime was told | worker | `actuated-resources.json` |
//!
//! A resize is granted by the sync loop (`decision`, in the order of `queue`) and carried out by the pod's worker: the plan
//! says which containers, `steps` has the calls. The worker's pod always has the allocated resources.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/allocation.

pub mod actuated;
pub(crate) mod allocation;
pub mod conditions;
pub(crate) mod decision;
pub(crate) mod files;
pub(crate) mod queue;
pub(crate) mod steps;

use conditions::ResizeCondition;

/// What the sync loop tells a pod's worker about resizes, beside the pod with its allocated resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResizeState {
    /// A resize that is not granted.
    pub(crate) pending: Option<ResizeCondition>,
    /// How many resizes were granted. A new one is in progress until it is carried out.
    pub(crate) granted: u64,
}
