//! Tables of StatefulSets: the spec and its pods, and the plan.
#![allow(clippy::unwrap_used, reason = "tests")]

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fixtures;

const ORDERED: &str = "OrderedReady";
const PARALLEL: &str = "Parallel";

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

/// A pod from `index state`: ready, waiting, ended or deleted.
fn pod(text: &str) -> OwnedPod {
    let (index, state) = text.split_once(' ').unwrap();
    let (uid, name) = (format!("u{index}"), format!("p-{index}"));
    let pod = fixtures::pod_of(&uid, &name, json!({"containers": []}));
    let mut owned = OwnedPod::new(pod, index.parse().ok(), "");
    owned.ready_since = (state == "ready").then(|| at(50));
    owned.ended = (state == "ended").then(|| at(100));
    owned.is_deleted = state == "deleted";
    owned
}

/// The plan at 100 s after this many failures at that time: `+2` a pod, `-u1` a deletion, `@101` the next sync, `!3` pods that do
/// not fit.
fn decided(policy: &str, replicas: u32, pods: &str, failures: usize, capacity: usize) -> String {
    let spec = serde_json::from_value(json!({
        "podManagementPolicy": policy, "selector": {}, "template": {}, "serviceName": "s"}))
    .unwrap();
    let pods: Vec<OwnedPod> = pods.split(", ").filter(|text| !text.is_empty()).map(pod).collect();
    let failures = (0..failures).fold(Failures::default(), |failures, _| failures.and(at(100)));
    let plan = plan(&spec, replicas, &pods, failures, capacity, at(100));
    let actions = plan.actions.iter().map(|action| match action {
        Action::Create(index) => format!("+{}", index.unwrap()),
        Action::Delete(uid, _) => format!("-{uid}"),
    });
    let mut words: Vec<String> = actions.collect();
    words.extend(plan.again.map(|again| format!("@{}", again.as_second())));
    words.extend((plan.unplaced > 0).then(|| format!("!{}", plan.unplaced)));
    words.join(" ")
}

#[rstest]
#[case::first(ORDERED, 3, "", 0, 9, "+0")]
#[case::second(ORDERED, 3, "0 ready", 0, 9, "+1")]
#[case::one_at_a_time(ORDERED, 3, "0 waiting", 0, 9, "")]
#[case::in_between(ORDERED, 3, "0 ready, 2 ready", 0, 9, "+1")]
#[case::parallel(PARALLEL, 3, "1 waiting", 0, 9, "+0 +2")]
#[case::scaled_down(ORDERED, 1, "0 ready, 1 ready, 2 ready", 0, 9, "-u2")]
#[case::all_scaled_down(PARALLEL, 1, "0 ready, 1 ready, 2 ready", 0, 9, "-u2 -u1")]
fn pods_are_created_and_deleted_by_their_numbers(
    #[case] policy: &str,
    #[case] replicas: u32,
    #[case] pods: &str,
    #[case] failures: usize,
    #[case] capacity: usize,
    #[case] expected: &str,
) {
    assert_eq!(decided(policy, replicas, pods, failures, capacity), expected);
}

#[rstest]
#[case::ended(ORDERED, 1, "0 ended", 1, "-u0")]
#[case::first_failure(ORDERED, 1, "", 1, "+0")]
#[case::second_failure(ORDERED, 1, "", 2, "@101")]
#[case::third_failure(ORDERED, 2, "0 ready", 3, "@102")]
#[case::many_failures(ORDERED, 1, "", 20, "@400")]
#[case::parallel(PARALLEL, 2, "0 ready", 2, "@101")]
#[case::nothing_missing(PARALLEL, 1, "0 ready", 2, "")]
fn failed_pods_are_replaced_after_a_back_off(
    #[case] policy: &str,
    #[case] replicas: u32,
    #[case] pods: &str,
    #[case] failures: usize,
    #[case] expected: &str,
) {
    assert_eq!(decided(policy, replicas, pods, failures, 9), expected);
}

#[rstest]
#[case::parallel(PARALLEL, 2_147_483_647, "", 2, "+0 +1 !2147483645")]
#[case::parallel_full(PARALLEL, 2_147_483_647, "0 ready, 1 ended", 0, "-u1 !2147483645")]
#[case::ordered(ORDERED, 2_147_483_647, "0 ready", 2, "+1 !2147483644")]
#[case::ordered_full(ORDERED, 4, "0 ready", 0, "!3")]
fn pods_are_created_up_to_the_capacity(
    #[case] policy: &str,
    #[case] replicas: u32,
    #[case] pods: &str,
    #[case] capacity: usize,
    #[case] expected: &str,
) {
    assert_eq!(decided(policy, replicas, pods, 0, capacity), expected);
}
