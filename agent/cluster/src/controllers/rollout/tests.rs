//! Tables of rollouts.
#![allow(clippy::unwrap_used, reason = "tests")]

use api::pod::PodUid;
use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fixtures;

/// Pods in letters: `o` and `n` are old and new and ready, `O` and `N` not ready.
fn pods(letters: &str) -> Vec<OwnedPod> {
    let numbered = letters.chars().enumerate();
    numbered
        .map(|(number, letter)| {
            let name = number.to_string();
            let pod = fixtures::pod_of(&name, &name, json!({"containers": []}));
            let revision = if letter.eq_ignore_ascii_case(&'o') { "old" } else { "new" };
            let mut owned = OwnedPod::new(pod, u32::try_from(number).ok(), revision);
            owned.ready_since = letter.is_ascii_lowercase().then_some(Timestamp::UNIX_EPOCH);
            owned
        })
        .collect()
}

/// The indexes of deleted pods, and the number of created ones.
fn summed(plan: Option<Plan>) -> (String, usize) {
    let actions = plan.map(|plan| plan.actions).unwrap_or_default();
    let mut deleted = String::new();
    let mut created = 0;
    for action in actions {
        match action {
            Action::Create(_) => created += 1,
            Action::Delete(uid, _) => deleted.push_str(PodUid::as_str(&uid)),
        }
    }
    (deleted, created)
}

fn rolling(surge: &str, unavailable: &str) -> DeploymentSpec {
    let part = |text: &str| match text.parse() {
        Ok(number) => IntOrString::Int(number),
        Err(_) => IntOrString::String(text.to_owned()),
    };
    DeploymentSpec {
        strategy: Some(DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(part(surge)),
                max_unavailable: Some(part(unavailable)),
            }),
        }),
        ..DeploymentSpec::default()
    }
}

#[rstest]
#[case::one_more_first("25%", "25%", "o", "", 1)]
#[case::old_one_waits_for_the_new("25%", "25%", "oN", "", 0)]
#[case::old_one_ends("25%", "25%", "on", "0", 0)]
#[case::quarters_of_four("25%", "25%", "oooo", "0", 1)]
#[case::unready_old_one_goes_first("25%", "25%", "ooOo", "2", 1)]
#[case::no_surge("0", "1", "oo", "0", 0)]
#[case::neither_is_one_unavailable("0", "0", "oo", "0", 0)]
#[case::all_at_once("100%", "0", "ooo", "", 3)]
fn deployment_replaces_pods_within_its_margins(
    #[case] surge: &str,
    #[case] unavailable: &str,
    #[case] letters: &str,
    #[case] deleted: &str,
    #[case] created: usize,
) {
    let wanted = letters.chars().filter(|c| "oO".contains(*c)).count();
    let plan = deployment(
        &rolling(surge, unavailable),
        wanted,
        "new",
        &pods(letters),
        Failures::default(),
        110,
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!(summed(plan), (deleted.to_owned(), created));
}

#[test]
fn deployment_without_old_pods_has_no_rollout_plan() {
    let (spec, now) = (DeploymentSpec::default(), Timestamp::UNIX_EPOCH);
    let plan = deployment(&spec, 3, "new", &pods("nn"), Failures::default(), 110, now);
    assert_eq!(plan, None);
}

#[test]
fn recreate_ends_all_old_pods_before_new_ones_start() {
    let mut spec = rolling("0", "0");
    spec.strategy =
        Some(DeploymentStrategy { type_: Some("Recreate".to_owned()), rolling_update: None });
    let now = Timestamp::UNIX_EPOCH;
    let plan = deployment(&spec, 2, "new", &pods("oO"), Failures::default(), 110, now);
    assert_eq!(summed(plan), ("01".to_owned(), 0));
}

#[rstest]
#[case::highest_first("ooo", "2")]
#[case::next("oon", "1")]
#[case::new_one_is_not_ready("ooN", "")]
#[case::done("nnn", "")]
fn stateful_set_replaces_pods_one_by_one(#[case] letters: &str, #[case] deleted: &str) {
    let plan = stateful_set(&StatefulSetSpec::default(), "new", &pods(letters));
    assert_eq!(summed(plan).0, deleted);
}

#[test]
fn daemon_set_waits_until_its_old_pod_is_removed() {
    let mut pods = pods("o");
    pods[0].is_deleted = true;
    let plan = daemon_set(&DaemonSetSpec::default(), "new", &pods);
    assert_eq!(plan, Some(Plan::open(Vec::new(), None)));
}

#[rstest]
#[case("o", "0")]
#[case("n", "")]
fn daemon_set_ends_its_old_pod(#[case] letters: &str, #[case] deleted: &str) {
    let plan = daemon_set(&DaemonSetSpec::default(), "new", &pods(letters));
    assert_eq!(summed(plan).0, deleted);
}
