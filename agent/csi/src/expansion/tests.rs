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

fn order(size: &str, account: Account) -> Decision {
    Decision::Expand(Order { size: size.to_owned(), account })
}

const MARKED: Account = Account::Claim { gives_up: false };

#[rstest]
#[case::older_controller(json!({"capacity": {"storage": "1Gi"}}), order("3Gi", Account::OlderController))]
#[case::pending(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": PENDING}}), order("2Gi", MARKED))]
#[case::interrupted(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": IN_PROGRESS}}), order("2Gi", MARKED))]
#[case::infeasible(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": INFEASIBLE}}), Decision::Wait)]
#[case::of_controller(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}), Decision::Wait)]
#[case::no_state_yet(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}}), Decision::Wait)]
#[case::expanded_by_controller(json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}), Decision::Has(Quantity::whole(2 << 30, api::quantity::Format::BinarySi)))]
fn controller_says_whose_turn_it_is(#[case] status: Value, #[case] expected: Decision) {
    assert_eq!(decide(&claim(status), "3Gi", false), expected);
}

#[test]
fn shared_volume_is_expanded_on_each_node() {
    let sizes = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}});
    let mut shared = claim(sizes);
    shared["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    assert_eq!(decide(&shared, "2Gi", false), order("2Gi", Account::OtherNode));
    shared["metadata"]["annotations"] = json!({NOT_REQUIRED: "true"});
    assert!(matches!(decide(&shared, "2Gi", false), Decision::Has(_)));
}

#[rstest]
#[case("2Gi", true, false)]
#[case("1500Mi", true, true)]
#[case("1500Mi", false, false)]
fn failed_expansion_is_given_up_once_another_size_is_wanted(
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
    let expected = order("2Gi", Account::Claim { gives_up });
    assert_eq!(decide(&claim, "2Gi", has_failed), expected);
}

#[rstest]
#[case::refused("Internal", MARKED, Consequence::Retry, Some(Mark::Failed))]
#[case::in_use("FailedPrecondition", MARKED, Consequence::InUse, Some(Mark::Failed))]
#[case::too_large("OutOfRange", MARKED, Consequence::Retry, Some(Mark::Infeasible))]
#[case::given_up("Internal", Account::Claim { gives_up: true }, Consequence::Retry, Some(Mark::Infeasible))]
#[case::older_refused("Internal", Account::OlderController, Consequence::Retry, None)]
#[case::older_in_use("FailedPrecondition", Account::OlderController, Consequence::InUse, None)]
fn failure_is_marked_in_the_claim(
    #[case] code: &str,
    #[case] account: Account,
    #[case] consequence: Consequence,
    #[case] mark: Option<Mark>,
) {
    let order = Order { size: "2Gi".to_owned(), account };
    let error = ExpandError::of_call(code, String::new());
    assert_eq!(after_failure(&order, &error), (consequence, mark));
}

#[rstest]
#[case(MARKED, Consequence::Retry, Some(Mark::Failed))]
#[case(Account::OtherNode, Consequence::Finished, None)]
#[case(Account::OlderController, Consequence::Finished, None)]
fn driver_that_does_not_expand_fails_a_node_whose_turn_it_is(
    #[case] account: Account,
    #[case] consequence: Consequence,
    #[case] mark: Option<Mark>,
) {
    let order = Order { size: "2Gi".to_owned(), account };
    let error = ExpandError::NotSupported(String::new());
    assert_eq!(after_failure(&order, &error), (consequence, mark));
    let away = ExpandError::Away(String::new());
    assert_eq!(after_failure(&order, &away), (Consequence::Retry, None));
}

#[test]
fn finished_claim_has_the_size_and_no_condition_of_the_expansion() {
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
    let once = failed(&claim(json!({})), Mark::Failed, "no disk", now);
    let condition = json!({
        "type": "NodeResizeError", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z",
        "message": "failed to expand pvc with no disk",
    });
    assert_eq!(once["status"], json!({"conditions": [condition]}));
    let twice = failed(&once, Mark::Infeasible, "other", now);
    let states = json!({"storage": INFEASIBLE});
    let expected = json!({"conditions": [condition], "allocatedResourceStatuses": states});
    assert_eq!(twice["status"], expected);
}

#[rstest]
#[case::unknown(None, false, true)]
#[case::smaller(Some("1Gi"), false, true)]
#[case::of_the_size(Some("2048Mi"), false, false)]
#[case::nothing(Some("0"), false, false)]
#[case::in_use(Some("1Gi"), true, false)]
fn mounted_volume_grows_if_it_is_smaller(
    #[case] size: Option<&str>,
    #[case] is_in_use: bool,
    #[case] expected: bool,
) {
    let size = size.map(|text| quantity(&json!(text)));
    let known = KnownSize { size, is_in_use, has_failed: false };
    assert_eq!(known.may_grow(quantity(&json!("2Gi"))), expected);
}
