//! ◆ Decides whether the node expands a volume, how it handles the driver's answer, and which status the claim gets. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/util/operationexecutor/{node_expander,operation_generator}.go; pkg/volume/util/resize_util.go;
//! pkg/volume/csi/expander.go.

use api::quantity::Quantity;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The annotation of a claim whose volume needs no expansion on nodes.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// The states of an expansion in a claim's status.
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";

/// The conditions of a claim that concern its expansion.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// The known size of a mounted volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownSize {
    /// `None` until it is looked up.
    pub(crate) size: Option<Quantity>,
    /// The driver does not expand the volume while it is in use.
    pub(crate) is_in_use: bool,
    /// The driver has failed to expand it.
    pub(crate) has_failed: bool,
}

impl KnownSize {
    /// Whether a mounted volume may need an expansion to `requested`.
    pub(crate) fn may_grow(&self, requested: Quantity) -> bool {
        !self.is_in_use && self.size.is_none_or(|size| !size.is_zero() && size < requested)
    }
}

/// The quantity in a field; zero if it is absent or malformed.
pub(crate) fn quantity(field: &Value) -> Quantity {
    let parsed = field.as_str().and_then(|text| Quantity::parse(text).ok());
    parsed.unwrap_or(Quantity::ZERO)
}

/// The size of a claim's volume, according to its status.
pub(crate) fn capacity(claim: &Value) -> Quantity {
    quantity(&claim["status"]["capacity"]["storage"])
}

/// How an expansion is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    /// In the claim's status, as an expansion on the node. `gives_up`: a failure is final, because the claim requests another
    /// size by now.
    Claim { gives_up: bool },
    /// The claim already has the size: another node expanded the volume first.
    OtherNode,
    /// By an older controller, which records no states in the claim's status.
    OlderController,
}

/// An expansion to request from a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpansionRequest {
    /// The new size, as the API has it.
    pub(crate) size: String,
    tracking: Tracking,
}

impl ExpansionRequest {
    /// The new size in bytes.
    pub(crate) fn bytes(&self) -> i64 {
        self.amount().value()
    }

    pub(crate) fn amount(&self) -> Quantity {
        Quantity::parse(&self.size).unwrap_or(Quantity::ZERO)
    }

    /// Whether the claim's status must show the expansion on the node as in progress.
    pub(crate) fn tracked_in_claim(&self) -> bool {
        matches!(self.tracking, Tracking::Claim { .. })
    }

    /// Whether the claim's status gets the new size.
    pub(crate) fn updates_claim_status(&self) -> bool {
        self.tracking != Tracking::OtherNode
    }
}

/// The decision about a volume that is larger than its known size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// The volume has this size already.
    Has(Quantity),
    /// The node must wait: the controller has not expanded the volume yet, or must recover from a failure.
    Wait,
    Expand(ExpansionRequest),
}

/// Decides about a claim's volume. `of_volume` is the capacity of the PersistentVolume.
pub(crate) fn decide(claim: &Value, of_volume: &str, has_failed: bool) -> Decision {
    let status = &claim["status"];
    let state = status["allocatedResourceStatuses"]["storage"].as_str().unwrap_or_default();
    if state.is_empty() && !status["allocatedResources"].is_object() {
        let tracking = Tracking::OlderController;
        return Decision::Expand(ExpansionRequest { size: of_volume.to_owned(), tracking });
    }
    let allocated = &status["allocatedResources"]["storage"];
    let (text, size) = (allocated.as_str().unwrap_or("0").to_owned(), quantity(allocated));
    if capacity(claim) >= size && state.is_empty() {
        let mut modes = claim["spec"]["accessModes"].as_array().into_iter().flatten();
        let is_shared = modes.any(|mode| mode == "ReadWriteMany");
        let is_required = claim["metadata"]["annotations"][NOT_REQUIRED].is_null();
        return match is_shared && is_required {
            true => {
                Decision::Expand(ExpansionRequest { size: text, tracking: Tracking::OtherNode })
            }
            false => Decision::Has(size),
        };
    }
    if !matches!(state, PENDING | IN_PROGRESS) {
        return Decision::Wait;
    }
    let requested = quantity(&claim["spec"]["resources"]["requests"]["storage"]);
    let tracking = Tracking::Claim { gives_up: has_failed && requested != size };
    Decision::Expand(ExpansionRequest { size: text, tracking })
}

/// The reason that a volume was not expanded, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpandError {
    /// The driver is not registered.
    #[error("{0}")]
    NotRegistered(String),
    /// The driver does not expand volumes on nodes.
    #[error("{0}")]
    NotSupported(String),
    /// The driver does not expand a volume in use.
    #[error("Expander.NodeExpand failed to expand the volume : {0}")]
    InUse(String),
    /// The driver can never satisfy the request.
    #[error("Expander.NodeExpand failed to expand the volume {0}")]
    Infeasible(String),
    #[error("Expander.NodeExpand failed to expand the volume : {0}")]
    Refused(String),
    #[error("{0}")]
    NotRequested(String),
}

impl ExpandError {
    /// The error of NodeExpandVolume with this code, by its Go name.
    pub(crate) fn of_call(code: &str, error: String) -> Self {
        match code {
            "FailedPrecondition" => Self::InUse(error),
            "InvalidArgument" | "OutOfRange" | "NotFound" => Self::Infeasible(error),
            _ => Self::Refused(error),
        }
    }
}

/// The reaction to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureAction {
    /// None: the volume needs no expansion on the node.
    Finished,
    /// No retry while the volume is mounted.
    InUse,
    /// Retry.
    Retry,
}

/// How the claim's status shows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureStatus {
    /// As a condition.
    Failed,
    /// As a condition, and as infeasible, so that the controller recovers.
    Infeasible,
}

/// The reaction to a failed expansion, and how the claim's status shows it.
pub(crate) fn after_failure(
    request: &ExpansionRequest,
    error: &ExpandError,
) -> (FailureAction, Option<FailureStatus>) {
    let action = match (error, request.tracking) {
        (ExpandError::NotSupported(_), Tracking::OtherNode | Tracking::OlderController) => {
            return (FailureAction::Finished, None);
        }
        (ExpandError::InUse(_), _) => FailureAction::InUse,
        (_, _) => FailureAction::Retry,
    };
    let is_infeasible = matches!(error, ExpandError::Infeasible(_))
        || request.tracking == Tracking::Claim { gives_up: true };
    let failure_status = match (error, request.tracking) {
        (ExpandError::NotRegistered(_), _) | (_, Tracking::OlderController) => None,
        (_, _) if is_infeasible => Some(FailureStatus::Infeasible),
        (_, _) => Some(FailureStatus::Failed),
    };
    (action, failure_status)
}

/// The claim with the expansion on the node in progress.
pub(crate) fn in_progress(claim: &Value) -> Value {
    let mut claim = claim.clone();
    set_storage(&mut claim, "allocatedResourceStatuses", IN_PROGRESS);
    claim
}

/// The claim after its volume got this size.
pub(crate) fn finished(claim: &Value, size: &str) -> Value {
    let mut claim = claim.clone();
    set_storage(&mut claim, "capacity", size);
    let status = &mut claim["status"];
    if let Some(states) = status["allocatedResourceStatuses"].as_object_mut() {
        states.remove("storage");
    }
    let conditions = conditions(status).into_iter().filter(|condition| !is_of_expansion(condition));
    let conditions: Vec<Value> = conditions.collect();
    status["conditions"] = json!(conditions);
    if let Value::Object(status) = status {
        remove_empty(status);
    }
    claim
}

/// The claim after a failure.
pub(crate) fn failed(
    claim: &Value,
    failure_status: FailureStatus,
    error: &str,
    now: Timestamp,
) -> Value {
    let mut claim = claim.clone();
    if failure_status == FailureStatus::Infeasible {
        set_storage(&mut claim, "allocatedResourceStatuses", INFEASIBLE);
    }
    let status = fields(&mut claim, "status");
    let mut conditions = conditions(status);
    let known = conditions.iter().position(|condition| condition["type"] == "NodeResizeError");
    let condition = json!({
        "type": "NodeResizeError",
        "status": "True",
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "message": format!("failed to expand pvc with {error}"),
    });
    match known.and_then(|at| conditions.get_mut(at)) {
        // An existing true condition keeps its message.
        Some(known) if known["status"] == "True" => {}
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
    status["conditions"] = json!(conditions);
    claim
}

/// Sets the entry of the storage in a field of the claim's status.
fn set_storage(claim: &mut Value, field: &str, value: &str) {
    fields(fields(claim, "status"), field)["storage"] = json!(value);
}

/// The object in a field. It replaces any other value, whose fields cannot be set; no API server sends one.
fn fields<'v>(value: &'v mut Value, field: &str) -> &'v mut Value {
    if !value.is_object() {
        *value = json!({});
    }
    let found = &mut value[field];
    if !found.is_object() {
        *found = json!({});
    }
    found
}

fn conditions(status: &Value) -> Vec<Value> {
    status["conditions"].as_array().cloned().unwrap_or_default()
}

fn is_of_expansion(condition: &Value) -> bool {
    condition["type"].as_str().is_some_and(|kind| CONDITIONS.contains(&kind))
}

/// Removes the empty fields, which the API server omits.
fn remove_empty(status: &mut Map<String, Value>) {
    for field in ["conditions", "allocatedResourceStatuses"] {
        let value = status.get(field);
        let empty = [Value::Null, json!([]), json!({})];
        let is_empty = value.is_some_and(|value| empty.contains(value));
        if is_empty {
            status.remove(field);
        }
    }
}

#[cfg(test)]
#[path = "expansion/tests.rs"]
mod tests;
