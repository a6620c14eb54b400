//! Tables of expansion decisions.

use rstest::rstest;

use super::*;

fn claim(status: Value) -> Value {
    json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
        "status": status,
    })
}

fn request(size: &str, tracking: Tracking) -> Decision {
    Decision::Expand(ExpansionRequest { size: size.to_owned(), tracking })
}

const MARKED: Tracking = Tracking::Claim { gives_up: false };

#[rstest]
#[case::older_controller(json!({"capacity": {"storage": "1Gi"}}), request("3Gi", Tracking::OlderController))]
#[case::pending(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": PENDING}}), request("2Gi", MARKED))]
#[case::interrupted(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": IN_PROGRESS}}), request("2Gi", MARKED))]
#[case::infeasible(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": INFEASIBLE}}), Decision::Wait)]
#[case::of_controller(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}), Decision::Wait)]
#[case::no_state_yet(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}}), Decision::Wait)]
#[case::expanded_by_controller(json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}), Decision::Has(Quantity::whole(2 << 30, api::quantity::Format::BinarySi)))]
fn decide_follows_the_claim_status(#[case] status: Value, #[case] expected: Decision) {
    assert_eq!(decide(&claim(status), "3Gi", false), expected);
}

#[test]
fn shared_volume_is_expanded_on_each_node() {
    let sizes = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}});
    let mut shared = claim(sizes);
    shared["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    assert_eq!(decide(&shared, "2Gi", false), request("2Gi", Tracking::OtherNode));
    shared["metadata"]["annotations"] = json!({NOT_REQUIRED: "true"});
    assert!(matches!(decide(&shared, "2Gi", false), Decision::Has(_)));
}

#[rstest]
#[case("2Gi", true, false)]
#[case("1500Mi", true, true)]
#[case("1500Mi", false, false)]
fn failed_expansion_is_infeasible_after_size_change(
    #[case] requested: &str,
    #[case] has_failed: bool,
    #[case] gives_up: bool,
) {
    let mut claim = claim(json!({
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": IN_PROGRESS},
    }));
    claim["spec"]["resources"]["requests"]["storage"] = json!(requested);
    let expected = request("2Gi", Tracking::Claim { gives_up });
    assert_eq!(decide(&claim, "2Gi", has_failed), expected);
}

#[rstest]
#[case::refused("Internal", MARKED, FailureAction::Retry, Some(FailureStatus::Failed))]
#[case::in_use("FailedPrecondition", MARKED, FailureAction::InUse, Some(FailureStatus::Failed))]
#[case::too_large("OutOfRange", MARKED, FailureAction::Retry, Some(FailureStatus::Infeasible))]
#[case::given_up("Internal", Tracking::Claim { gives_up: true }, FailureAction::Retry, Some(FailureStatus::Infeasible))]
#[case::older_refused("Internal", Tracking::OlderController, FailureAction::Retry, None)]
#[case::older_in_use("FailedPrecondition", Tracking::OlderController, FailureAction::InUse, None)]
fn failure_is_marked_in_the_claim(
    #[case] code: &str,
    #[case] tracking: Tracking,
    #[case] action: FailureAction,
    #[case] failure_status: Option<FailureStatus>,
) {
    let request = ExpansionRequest { size: "2Gi".to_owned(), tracking };
    let error = ExpandError::of_call(code, String::new());
    assert_eq!(after_failure(&request, &error), (action, failure_status));
}

#[rstest]
#[case(MARKED, FailureAction::Retry, Some(FailureStatus::Failed))]
#[case(Tracking::OtherNode, FailureAction::Finished, None)]
#[case(Tracking::OlderController, FailureAction::Finished, None)]
fn unsupported_expansion_fails_if_the_claim_requires_it(
    #[case] tracking: Tracking,
    #[case] action: FailureAction,
    #[case] failure_status: Option<FailureStatus>,
) {
    let request = ExpansionRequest { size: "2Gi".to_owned(), tracking };
    let error = ExpandError::NotSupported(String::new());
    assert_eq!(after_failure(&request, &error), (action, failure_status));
    let away = ExpandError::NotRegistered(String::new());
    assert_eq!(after_failure(&request, &away), (FailureAction::Retry, None));
}

#[test]
fn finished_claim_has_new_size_and_no_resize_condition() {
    let other = json!({"type": "Other", "status": "True"});
    let pending = json!({"type": "FileSystemResizePending", "status": "True"});
    let before = claim(json!({
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": IN_PROGRESS},
        "conditions": [other, pending],
    }));
    let expected = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}, "conditions": [other]});
    assert_eq!(finished(&before, "2Gi")["status"], expected);
    let alone = claim(json!({"conditions": [pending]}));
    assert_eq!(finished(&alone, "2Gi")["status"], json!({"capacity": {"storage": "2Gi"}}));
}

#[test]
fn failure_keeps_the_first_message_until_the_claim_is_expanded() {
    let now = Timestamp::UNIX_EPOCH;
    let once = failed(&claim(json!({})), FailureStatus::Failed, "no disk", now);
    let condition = json!({
        "type": "NodeResizeError", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z",
        "message": "failed to expand pvc with no disk",
    });
    assert_eq!(once["status"], json!({"conditions": [condition]}));
    let twice = failed(&once, FailureStatus::Infeasible, "other", now);
    let states = json!({"storage": INFEASIBLE});
    let expected = json!({"conditions": [condition], "allocatedResourceStatuses": states});
    assert_eq!(twice["status"], expected);
}

#[rstest]
#[case::no_status(Value::Null)]
#[case::text(json!("x"))]
#[case::array_of_states(json!({"capacity": [1], "allocatedResourceStatuses": ["x"], "conditions": 1}))]
fn malformed_status_is_replaced(#[case] status: Value) {
    let claim = claim(status);
    let storage = |claim: &Value, field: &str| claim["status"][field]["storage"].clone();
    assert_eq!(storage(&in_progress(&claim), "allocatedResourceStatuses"), IN_PROGRESS);
    assert_eq!(storage(&finished(&claim, "2Gi"), "capacity"), "2Gi");
    let failed = failed(&claim, FailureStatus::Infeasible, "no disk", Timestamp::UNIX_EPOCH);
    assert_eq!(storage(&failed, "allocatedResourceStatuses"), INFEASIBLE);
    assert_eq!(failed["status"]["conditions"][0]["type"], "NodeResizeError");
}

#[rstest]
#[case::unknown(None, false, true)]
#[case::smaller(Some("1Gi"), false, true)]
#[case::of_the_size(Some("2048Mi"), false, false)]
#[case::nothing(Some("0"), false, false)]
#[case::in_use(Some("1Gi"), true, false)]
fn mounted_volume_may_grow_if_smaller(
    #[case] size: Option<&str>,
    #[case] is_in_use: bool,
    #[case] expected: bool,
) {
    let size = size.map(|text| quantity(&json!(text)));
    let known = KnownSize { size, is_in_use, has_failed: false };
    assert_eq!(known.may_grow(quantity(&json!("2Gi"))), expected);
}
