//! ◆ The progress of a rollout, with kubectl's messages. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/polymorphichelpers/rollout_status.go.

use serde_json::Value;

use crate::objects::kinds::Resource;
use crate::objects::metadata;

/// The progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Going(String),
    Done(String),
}

impl Progress {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Going(text) | Self::Done(text) => text,
        }
    }
}

/// The progress of an object's rollout. An error means that the rollout cannot finish.
pub(super) fn of(resource: &Resource, object: &Value) -> Result<Progress, String> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("apps", "Deployment") => deployment(object),
        ("apps", "DaemonSet") => daemon_set(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("", kind) => Err(format!("no status viewer has been implemented for {kind}")),
        (group, kind) => Err(format!("no status viewer has been implemented for {kind}.{group}")),
    }
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Whether the status belongs to an earlier generation of the spec.
fn is_stale(object: &Value) -> bool {
    number(object, "/metadata/generation") > number(object, "/status/observedGeneration")
}

fn deployment(object: &Value) -> Result<Progress, String> {
    let name = metadata(object, "name");
    if is_stale(object) {
        let text = "Waiting for deployment spec update to be observed...";
        return Ok(Progress::Going(text.to_owned()));
    }
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let progressing = conditions
        .into_iter()
        .flatten()
        .find(|condition| text(condition, "/type") == "Progressing");
    if progressing.is_some_and(|it| text(it, "/reason") == "ProgressDeadlineExceeded") {
        return Err(format!("deployment {name:?} exceeded its progress deadline"));
    }
    let requested = object.pointer("/spec/replicas").and_then(Value::as_i64);
    let of = |field: &str| number(object, &format!("/status/{field}"));
    let (all, updated, available) =
        (of("replicas"), of("updatedReplicas"), of("availableReplicas"));
    let waiting = |what: String| {
        Ok(Progress::Going(format!("Waiting for deployment {name:?} rollout to finish: {what}...")))
    };
    if let Some(requested) = requested.filter(|requested| updated < *requested) {
        return waiting(format!("{updated} out of {requested} new replicas have been updated"));
    }
    if all > updated {
        return waiting(format!("{} old replicas are pending termination", all - updated));
    }
    if available < updated {
        return waiting(format!("{available} of {updated} updated replicas are available"));
    }
    Ok(Progress::Done(format!("deployment {name:?} successfully rolled out")))
}

/// Whether the strategy is RollingUpdate, which is the default.
fn is_rolling_update(object: &Value) -> bool {
    matches!(text(object, "/spec/updateStrategy/type"), "" | "RollingUpdate")
}

const OTHER_STRATEGY: &str = "rollout status is only available for RollingUpdate strategy type";

fn daemon_set(object: &Value) -> Result<Progress, String> {
    let name = metadata(object, "name");
    if !is_rolling_update(object) {
        return Err(OTHER_STRATEGY.to_owned());
    }
    if is_stale(object) {
        let text = "Waiting for daemon set spec update to be observed...";
        return Ok(Progress::Going(text.to_owned()));
    }
    let of = |field: &str| number(object, &format!("/status/{field}"));
    let (requested, updated, available) =
        (of("desiredNumberScheduled"), of("updatedNumberScheduled"), of("numberAvailable"));
    let waiting = |what: String| {
        Ok(Progress::Going(format!("Waiting for daemon set {name:?} rollout to finish: {what}...")))
    };
    if updated < requested {
        return waiting(format!("{updated} out of {requested} new pods have been updated"));
    }
    if available < requested {
        return waiting(format!("{available} of {requested} updated pods are available"));
    }
    Ok(Progress::Done(format!("daemon set {name:?} successfully rolled out")))
}

fn stateful_set(object: &Value) -> Result<Progress, String> {
    if !is_rolling_update(object) {
        return Err(OTHER_STRATEGY.to_owned());
    }
    if number(object, "/status/observedGeneration") == 0 || is_stale(object) {
        let text = "Waiting for statefulset spec update to be observed...";
        return Ok(Progress::Going(text.to_owned()));
    }
    let of = |field: &str| number(object, &format!("/status/{field}"));
    let (ready, updated) = (of("readyReplicas"), of("updatedReplicas"));
    let requested = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    if ready < requested {
        return Ok(Progress::Going(format!(
            "Waiting for {} pods to be ready...",
            requested - ready
        )));
    }
    // If a manifest sets no partition, an API server sets it to 0.
    let of_partition = requested - number(object, "/spec/updateStrategy/rollingUpdate/partition");
    if updated < of_partition {
        return Ok(Progress::Going(format!(
            "Waiting for partitioned roll out to finish: {updated} out of {of_partition} new pods have been updated..."
        )));
    }
    Ok(Progress::Done(format!(
        "partitioned roll out complete: {updated} new pods have been updated..."
    )))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::objects::kinds::{RequestedObjects, requested};

    fn of_kind(kind: &str, object: &Value) -> Result<Progress, String> {
        let Ok(RequestedObjects::Lists(kinds)) = requested(&[kind.to_owned()], &[]) else {
            panic!("{kind} is not a kind");
        };
        of(&kinds[0], object)
    }

    fn shown(progress: Result<Progress, String>) -> (String, bool) {
        match progress.unwrap() {
            Progress::Going(text) => (text, false),
            Progress::Done(text) => (text, true),
        }
    }

    // The cases are from kubectl/pkg/polymorphichelpers/rollout_status_test.go: generations of the object and of its status, and
    // the desired, existing, updated and available pods.
    #[rstest]
    #[case([0, 1], 1, [1, 0, 1], "Waiting for deployment \"foo\" rollout to finish: 0 out of 1 new replicas have been updated...", false)]
    #[case([1, 1], 1, [2, 1, 2], "Waiting for deployment \"foo\" rollout to finish: 1 old replicas are pending termination...", false)]
    #[case([1, 1], 2, [2, 2, 1], "Waiting for deployment \"foo\" rollout to finish: 1 of 2 updated replicas are available...", false)]
    #[case([1, 1], 2, [2, 2, 2], "deployment \"foo\" successfully rolled out", true)]
    #[case([2, 1], 2, [2, 2, 2], "Waiting for deployment spec update to be observed...", false)]
    fn progress_of_deployments_is_that_of_kubectl(
        #[case] generations: [i64; 2],
        #[case] requested: i64,
        #[case] counts: [i64; 3],
        #[case] text: &str,
        #[case] is_done: bool,
    ) {
        let [generation, observed] = generations;
        let [replicas, updated, available] = counts;
        let object = json!({
            "metadata": {"name": "foo", "generation": generation},
            "spec": {"replicas": requested},
            "status": {
                "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated,
                "availableReplicas": available,
            },
        });
        assert_eq!(shown(of_kind("deploy", &object)), (text.to_owned(), is_done));
    }

    #[rstest]
    #[case([0, 1], [1, 0, 0], "Waiting for daemon set \"foo\" rollout to finish: 0 out of 1 new pods have been updated...", false)]
    #[case([1, 1], [2, 2, 1], "Waiting for daemon set \"foo\" rollout to finish: 1 of 2 updated pods are available...", false)]
    #[case([1, 1], [2, 2, 2], "daemon set \"foo\" successfully rolled out", true)]
    #[case([2, 1], [2, 2, 2], "Waiting for daemon set spec update to be observed...", false)]
    fn progress_of_daemon_sets_is_that_of_kubectl(
        #[case] generations: [i64; 2],
        #[case] counts: [i64; 3],
        #[case] text: &str,
        #[case] is_done: bool,
    ) {
        let [generation, observed] = generations;
        let [requested, updated, available] = counts;
        let object = json!({
            "metadata": {"name": "foo", "generation": generation},
            "status": {
                "observedGeneration": observed, "desiredNumberScheduled": requested,
                "updatedNumberScheduled": updated, "numberAvailable": available,
            },
        });
        assert_eq!(shown(of_kind("ds", &object)), (text.to_owned(), is_done));
    }

    #[rstest]
    #[case([2, 1], 0, [3, 3], "Waiting for statefulset spec update to be observed...", false)]
    #[case([1, 1], 0, [2, 3], "Waiting for 1 pods to be ready...", false)]
    #[case([1, 1], 2, [3, 1], "partitioned roll out complete: 1 new pods have been updated...", true)]
    #[case([1, 1], 2, [3, 0], "Waiting for partitioned roll out to finish: 0 out of 1 new pods have been updated...", false)]
    #[case([1, 1], 0, [3, 3], "partitioned roll out complete: 3 new pods have been updated...", true)]
    fn progress_of_stateful_sets_is_that_of_kubectl(
        #[case] generations: [i64; 2],
        #[case] partition: i64,
        #[case] counts: [i64; 2],
        #[case] text: &str,
        #[case] is_done: bool,
    ) {
        let [generation, observed] = generations;
        let [ready, updated] = counts;
        let object = json!({
            "metadata": {"name": "foo", "generation": generation},
            "spec": {
                "replicas": 3,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
            },
            "status": {
                "observedGeneration": observed, "readyReplicas": ready, "updatedReplicas": updated,
            },
        });
        assert_eq!(shown(of_kind("sts", &object)), (text.to_owned(), is_done));
    }

    #[rstest]
    #[case("sts", json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}), OTHER_STRATEGY)]
    #[case("ds", json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}), OTHER_STRATEGY)]
    #[case("job", json!({}), "no status viewer has been implemented for Job.batch")]
    #[case("pod", json!({}), "no status viewer has been implemented for Pod")]
    #[case(
        "deploy",
        json!({
            "metadata": {"name": "foo"},
            "status": {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]},
        }),
        "deployment \"foo\" exceeded its progress deadline"
    )]
    fn rollouts_without_end_are_errors(
        #[case] kind: &str,
        #[case] object: Value,
        #[case] expected: &str,
    ) {
        assert_eq!(of_kind(kind, &object).unwrap_err(), expected);
    }
}
