//! ◆ Pod statuses as JSON in the API server's form, and patches between them. Pure.

use agent::reporting::status::is_own;
use api::manifest::to_json;
use api::patch::{PatchError, strategic};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

use crate::time::whole_seconds;

/// The time fields of a status.
const TIMES: [&str; 5] =
    ["startTime", "startedAt", "finishedAt", "lastProbeTime", "lastTransitionTime"];

/// A status in canonical form for comparison: times have whole seconds, and `lastState` is present only if it is not empty; the
/// server writes an empty one. Fields that this version of the API does not have are absent.
pub(crate) fn status_json(status: &PodStatus) -> Value {
    let mut value = to_json(status);
    normalize(&mut value);
    value
}

fn normalize(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let is_nothing = |value: &Value| value.as_object().is_some_and(Map::is_empty);
            if fields.get("lastState").is_some_and(is_nothing) {
                fields.remove("lastState");
            }
            for (name, value) in fields {
                match value.as_str().filter(|_| TIMES.contains(&name.as_str())) {
                    Some(text) => {
                        if let Ok(at) = text.parse::<Timestamp>() {
                            *value = Value::String(whole_seconds(at));
                        }
                    }
                    None => normalize(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The patch of the status of the pod with this uid, from `before` to `after`; `None` if they are equal. Fields that neither
/// status has remain at the server. The uid is a precondition.
///
/// Source: Kubernetes 1.36, pkg/util/pod/pod.go PatchPodStatus.
pub(crate) fn patch(
    uid: &str,
    before: &PodStatus,
    after: &PodStatus,
) -> Result<Option<Value>, PatchError> {
    let Some(schema) = strategic::schema_of("v1", "Pod") else {
        return Ok(None);
    };
    let old = json!({"status": status_json(before)});
    let new = json!({"status": status_json(after)});
    let mut patch = strategic::between(schema, &old, &new)?;
    if patch.as_object().is_none_or(Map::is_empty) {
        return Ok(None);
    }
    patch["metadata"] = json!({"uid": uid});
    Ok(Some(patch))
}

/// Whether the agent's own part of a status differs from the server's (needsReconcile).
pub(crate) fn differs(at_server: &PodStatus, own: &PodStatus) -> bool {
    let own_part = |status: &PodStatus| {
        let mut status = status.clone();
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|condition| is_own(&condition.type_));
        compact::sort_by(conditions, |one, other| one.type_.cmp(&other.type_));
        status.resource_claim_statuses = None;
        status.extended_resource_claim_status = None;
        status.node_allocatable_resource_claim_statuses = None;
        status_json(&status)
    };
    own_part(at_server) != own_part(own)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    fn condition(kind: &str, is: &str, at: &str) -> Value {
        json!({"type": kind, "status": is, "lastTransitionTime": at})
    }

    #[test]
    fn patch_has_the_uid_and_what_differs_alone() {
        let at = "2026-11-28T10:00:00Z";
        let before = status(json!({
            "phase": "Pending",
            "startTime": at,
            "conditions": [condition("PodScheduled", "True", at), condition("Mine", "True", at)],
        }));
        let after = status(json!({
            "phase": "Running",
            "startTime": "2026-11-28T10:00:00.7Z",
            "conditions": [
                condition("Mine", "True", at),
                condition("PodScheduled", "True", at),
                condition("Ready", "True", "2026-11-28T10:00:05.9Z"),
            ],
        }));
        let patch = super::patch("u1", &before, &after).unwrap().unwrap();
        assert_eq!(patch["metadata"], json!({"uid": "u1"}));
        assert_eq!(patch["status"]["phase"], "Running");
        assert_eq!(patch["status"].get("startTime"), None);
        let conditions = json!([condition("Ready", "True", "2026-11-28T10:00:05Z")]);
        assert_eq!(patch["status"]["conditions"], conditions);
        let mut pod = json!({"status": status_json(&before)});
        pod["status"]["future"] = json!({"kept": true});
        let schema = strategic::schema_of("v1", "Pod").unwrap();
        strategic::apply(schema, &mut pod, &patch).unwrap();
        assert_eq!(pod["status"]["future"], json!({"kept": true}));
        assert_eq!(pod["status"]["phase"], "Running");
        assert_eq!(super::patch("u1", &after, &after).unwrap(), None);
    }

    /// Go's JSON encoder writes an empty struct that is not behind a pointer.
    #[test]
    fn empty_last_state_is_no_difference() {
        let of = |last: Value| {
            let mut container = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"waiting": {}}});
            container.as_object_mut().unwrap().extend(last.as_object().unwrap().clone());
            status(json!({"phase": "Running", "conditions": [], "containerStatuses": [container]}))
        };
        let (own, at_server) = (of(json!({})), of(json!({"lastState": {}})));
        assert!(!differs(&at_server, &own));
        assert_eq!(patch("u", &at_server, &own).unwrap(), None);
        assert_eq!(status_json(&own)["containerStatuses"][0]["state"], json!({"waiting": {}}));
        let ended = of(json!({"lastState": {"terminated": {"exitCode": 1}}}));
        assert!(differs(&at_server, &ended));
    }

    #[test]
    fn only_the_own_part_of_a_status_is_reconciled() {
        let at = "2026-11-28T10:00:00Z";
        let of = |phase: &str, conditions: &[Value]| {
            status(json!({"phase": phase, "conditions": conditions}))
        };
        let ready = condition("Ready", "True", at);
        let own = of("Running", std::slice::from_ref(&ready));
        assert!(!differs(&of("Running", &[condition("Mine", "True", at), ready.clone()]), &own));
        assert!(!differs(
            &of("Running", &[condition("Ready", "True", "2026-11-28T10:00:00.5Z")]),
            &own
        ));
        assert!(differs(&of("Running", &[condition("Ready", "False", at)]), &own));
        assert!(differs(&of("Pending", &[ready]), &own));
    }
}
