//! Tables of Jobs: the spec and its pods, and the plan.
#![allow(clippy::unwrap_used, reason = "tests")]

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fixtures;

/// A pod from `index phase exit-code seconds`: `- F1 5` failed with code 1 after 5 seconds, `2 R` runs.
fn pods(text: &str) -> Vec<OwnedPod> {
    let texts = text.split(", ").filter(|text| !text.is_empty()).enumerate();
    texts.map(|(number, text)| pod(number, text)).collect()
}

fn pod(number: usize, text: &str) -> OwnedPod {
    let mut words = text.split(' ');
    let index = words.next().unwrap().parse().ok();
    let state = words.next().unwrap();
    let code: i32 = state[1..].parse().unwrap_or_default();
    let ended = words.next().map(|seconds| at(seconds.parse().unwrap()));
    let (uid, name) = (format!("u{number}"), format!("p{number}"));
    let pod = fixtures::pod_of(&uid, &name, json!({"containers": []}));
    let phase = match &state[..1] {
        "F" => "Failed",
        "S" => "Succeeded",
        _ => "Running",
    };
    let mut owned = OwnedPod::new(pod, index, "");
    owned.ended = ended;
    let state = if ended.is_some() { json!({"terminated": {"exitCode": code}}) } else { json!({}) };
    owned.status = serde_json::from_value(json!({
        "phase": phase,
        "conditions": [{"type": "DisruptionTarget", "status": if code == 99 { "True" } else { "False" }}],
        "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": if ended.is_none() { code } else { 0 }, "state": state}],
    }))
    .unwrap();
    owned
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

/// The plan at 100 s: `+2` new pods, `+0` a pod of index 0, `-u1` a deletion, `@120` the next sync, or the outcome.
fn decided(spec: &serde_json::Value, text: &str) -> String {
    decided_with_capacity(spec, text, 110)
}

/// Like `decided`, with capacity for this many new pods; `!3` pods that do not fit.
fn decided_with_capacity(spec: &serde_json::Value, text: &str, capacity: usize) -> String {
    let usual = json!({"template": {"spec": {"containers": [], "restartPolicy": "Never"}}, "parallelism": 1});
    let spec: JobSpec = serde_json::from_value(fixtures::with(usual, spec)).unwrap();
    let plan = plan(&spec, at(0), &pods(text), capacity, at(100));
    let mut words: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::Create(None) => "+".to_owned(),
            Action::Create(Some(index)) => format!("+{index}"),
            Action::Delete(uid, _) => format!("-{uid}"),
        })
        .collect();
    words.extend(plan.again.map(|again| format!("@{}", again.as_second())));
    words.extend((plan.unplaced > 0).then(|| format!("!{}", plan.unplaced)));
    words.push(match plan.outcome {
        Outcome::Open => "open".to_owned(),
        Outcome::Complete(reason) => format!("complete {}", reason.reason),
        Outcome::Failed(reason) => format!("failed {}", reason.reason),
    });
    words.join(" ")
}

#[rstest]
#[case::first(json!({"completions": 1}), "", "+ open")]
#[case::parallel(json!({"completions": 5, "parallelism": 3}), "- R", "+ + open")]
#[case::last_ones(json!({"completions": 3, "parallelism": 3}), "- S 1, - S 2", "+ open")]
#[case::done(json!({"completions": 2}), "- S 1, - S 2", "complete CompletionsReached")]
#[case::none_wanted(json!({"completions": 0}), "", "complete CompletionsReached")]
#[case::surplus(json!({"completions": 2, "parallelism": 2}), "- S 1, - R, - R", "-u2 open")]
#[case::queue(json!({"parallelism": 2}), "- R", "+ open")]
#[case::queue_winds_down(json!({"parallelism": 2}), "- S 5, - R", "open")]
#[case::queue_done(json!({"parallelism": 2}), "- S 5, - F1 6", "complete CompletionsReached")]
#[case::back_off(json!({"completions": 1}), "- F1 95", "@105 open")]
#[case::back_off_over(json!({"completions": 1}), "- F1 90", "+ open")]
#[case::second_failure(json!({"completions": 1}), "- F1 50, - F1 95", "@115 open")]
#[case::success_forgets(json!({"completions": 2}), "- F1 50, - F1 60, - S 70, - F1 95", "@105 open")]
#[case::limit(json!({"completions": 1, "backoffLimit": 1}), "- F1 1, - F1 2", "failed BackoffLimitExceeded")]
#[case::below_limit(json!({"completions": 1, "backoffLimit": 1}), "- F1 1", "+ open")]
#[case::default_limit(json!({"completions": 1}), "- F 1, - F 2, - F 3, - F 4, - F 5, - F 6, - F 7", "failed BackoffLimitExceeded")]
#[case::deadline(json!({"completions": 1, "activeDeadlineSeconds": 100}), "- R", "-u0 failed DeadlineExceeded")]
#[case::deadline_ahead(json!({"completions": 1, "activeDeadlineSeconds": 130}), "- R", "@130 open")]
#[case::suspended(json!({"completions": 1, "suspend": true}), "- R", "-u0 open")]
fn jobs_create_pods_until_enough_succeed(
    #[case] spec: serde_json::Value,
    #[case] pods: &str,
    #[case] expected: &str,
) {
    assert_eq!(decided(&spec, pods), expected);
}

fn indexed(more: serde_json::Value) -> serde_json::Value {
    let spec = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3});
    fixtures::with(spec, &more)
}

#[rstest]
#[case::all(json!({}), "", "+0 +1 +2 open")]
#[case::missing(json!({}), "0 S 1, 2 R", "+1 open")]
#[case::twice_counts_once(json!({}), "0 S 1, 0 S 2, 1 R, 2 R", "open")]
#[case::done(json!({}), "0 S 1, 1 S 2, 2 S 3", "complete CompletionsReached")]
#[case::own_back_off(json!({"backoffLimitPerIndex": 1}), "0 F1 95, 1 R", "+2 @105 open")]
#[case::own_limit(json!({"backoffLimitPerIndex": 0}), "0 F1 1, 1 R", "+2 open")]
#[case::failed_indexes(json!({"backoffLimitPerIndex": 0}), "0 F1 1, 1 S 1, 2 S 1", "failed FailedIndexes")]
#[case::too_many(json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 0}), "0 F1 1, 1 R", "-u1 failed MaxFailedIndexesExceeded")]
#[case::enough(json!({"successPolicy": {"rules": [{"succeededCount": 2}]}}), "0 S 1, 1 S 2, 2 R", "-u2 complete SuccessPolicy")]
#[case::the_leader(json!({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}), "0 S 1, 1 R, 2 R", "-u1 -u2 complete SuccessPolicy")]
#[case::not_the_leader(json!({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}), "0 R, 1 S 1, 2 R", "open")]
#[case::some_of_these(json!({"successPolicy": {"rules": [{"succeededIndexes": "0-2", "succeededCount": 1}]}}), "0 R, 1 S 1, 2 R", "-u0 -u2 complete SuccessPolicy")]
fn indexed_jobs_complete_each_index(
    #[case] more: serde_json::Value,
    #[case] pods: &str,
    #[case] expected: &str,
) {
    assert_eq!(decided(&indexed(more), pods), expected);
}

fn rule(action: &str, codes: &str) -> serde_json::Value {
    let requirement = match codes {
        "DisruptionTarget" => json!({"onPodConditions": [{"type": codes}]}),
        codes => {
            let (operator, codes) = codes.split_once(' ').unwrap();
            let codes: Vec<i32> = codes.split(' ').map(|code| code.parse().unwrap()).collect();
            json!({"onExitCodes": {"operator": operator, "values": codes}})
        }
    };
    fixtures::with(json!({"action": action}), &requirement)
}

#[rstest]
#[case::fail_job(&[("FailJob", "In 42")], "- F42 1", "failed PodFailurePolicy")]
#[case::other_code(&[("FailJob", "In 42")], "- F1 1", "failed BackoffLimitExceeded")]
#[case::not_in(&[("FailJob", "NotIn 1 2")], "- F42 1", "failed PodFailurePolicy")]
#[case::ignored(&[("Ignore", "In 42")], "- F42 1", "+ open")]
#[case::ignored_waits(&[("Ignore", "In 42")], "- F42 95", "@105 open")]
#[case::first_counts(&[("Count", "In 42"), ("Ignore", "NotIn 1")], "- F42 1", "failed BackoffLimitExceeded")]
#[case::disrupted(&[("Ignore", "DisruptionTarget")], "- F99 1", "+ open")]
#[case::not_disrupted(&[("Ignore", "DisruptionTarget")], "- F1 1", "failed BackoffLimitExceeded")]
fn failure_rules_decide_what_counts(
    #[case] rules: &[(&str, &str)],
    #[case] pods: &str,
    #[case] expected: &str,
) {
    let rules: Vec<_> = rules.iter().map(|(action, codes)| rule(action, codes)).collect();
    let spec = json!({"completions": 1, "backoffLimit": 0, "podFailurePolicy": {"rules": rules}});
    assert_eq!(decided(&spec, pods), expected);
}

#[test]
fn failed_index_of_a_rule_is_not_tried_again() {
    let policy = json!({"rules": [rule("FailIndex", "In 42")]});
    let spec = indexed(json!({"backoffLimitPerIndex": 5, "podFailurePolicy": policy}));
    assert_eq!(decided(&spec, "0 F42 1, 1 R, 2 R"), "open");
    assert_eq!(decided(&spec, "0 F1 1, 1 R, 2 R"), "+0 open");
}

#[rstest]
#[case(2, "- R1", "open")]
#[case(2, "- R2", "-u0 failed BackoffLimitExceeded")]
#[case(0, "- R0", "open")]
#[case(0, "- R1", "-u0 failed BackoffLimitExceeded")]
fn restarts_count_where_containers_are_restarted(
    #[case] limit: i32,
    #[case] pods: &str,
    #[case] expected: &str,
) {
    let template = json!({"spec": {"containers": [], "restartPolicy": "OnFailure"}});
    let spec = json!({"completions": 1, "backoffLimit": limit, "template": template});
    assert_eq!(decided(&spec, pods), expected);
}

#[rstest]
#[case::parallel(json!({"completions": 2_147_483_647, "parallelism": 2_147_483_647}), "- R", "+ + !2147483644 open")]
#[case::work_queue(json!({"parallelism": 4}), "", "+ + !2 open")]
#[case::indexed(json!({"completionMode": "Indexed", "completions": 2_147_483_647, "parallelism": 9}), "0 S 1, 1 R", "+2 +3 !6 open")]
#[case::indexed_limit(
    json!({"completionMode": "Indexed", "completions": 2_147_483_647, "parallelism": 9, "backoffLimitPerIndex": 0}),
    "0 F1 1, 1 R",
    "+2 +3 !6 open"
)]
fn pods_are_created_up_to_the_capacity(
    #[case] spec: serde_json::Value,
    #[case] text: &str,
    #[case] expected: &str,
) {
    assert_eq!(decided_with_capacity(&spec, text, 2), expected);
}
