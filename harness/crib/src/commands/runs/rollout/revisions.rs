//! ◆ The revisions of a Deployment, which are its ReplicaSets. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/polymorphichelpers/history.go and rollback.go.

use crib_base::columns::fields::{flag, list, text, text_or};
use serde_json::Value;

/// The annotation of a ReplicaSet with the number of its revision.
const REVISION: &str = "/metadata/annotations/deployment.kubernetes.io~1revision";
/// The annotation with the reason of a change.
const CAUSE: &str = "/metadata/annotations/kubernetes.io~1change-cause";
/// The label of a ReplicaSet's template with its hash.
const HASH: &str = "pod-template-hash";

/// A revision of a Deployment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Revision<'v> {
    pub(super) number: u64,
    pub(super) set: &'v Value,
}

/// The effect of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rollback {
    /// The template of the revision with this number is to be restored.
    To(u64),
    /// The Deployment has the template of the revision already.
    Skipped,
}

impl Revision<'_> {
    /// The reason of the change; `<none>` if it is not set.
    pub(super) fn cause(&self) -> String {
        text_or(self.set, CAUSE, "<none>")
    }
}

/// The revisions of a Deployment among the objects of its run, sorted by number.
pub(super) fn of<'v>(deployment: &Value, objects: &'v [Value]) -> Vec<Revision<'v>> {
    let uid = text(deployment, "/metadata/uid");
    let is_controller = |owner: &Value| text(owner, "/uid") == uid && flag(owner, "/controller");
    let revision = |set: &'v Value| {
        let is_own = text(set, "/kind") == "ReplicaSet"
            && list(set, "/metadata/ownerReferences").iter().any(is_controller);
        let number = text(set, REVISION).parse().ok()?;
        is_own.then_some(Revision { number, set })
    };
    let mut all: Vec<Revision<'v>> = objects.iter().filter_map(revision).collect();
    compact::sort_by(&mut all, |one, other| one.number.cmp(&other.number));
    all
}

/// The effect of a rollback to a revision, or to the one before the last. An error is the reason to refuse the rollback.
pub(super) fn rollback(
    deployment: &Value,
    revisions: &[Revision<'_>],
    to: u64,
) -> Result<Rollback, String> {
    let found = match (to, revisions) {
        (0, [.., previous, _]) => *previous,
        (0, _) => {
            let name = text(deployment, "/metadata/name");
            return Err(format!("no rollout history found for deployment {name:?}"));
        }
        (to, all) => {
            let found = all.iter().find(|revision| revision.number == to).copied();
            found.ok_or_else(|| format!("unable to find specified revision {to} in history"))?
        }
    };
    let template = |object: &Value| {
        let mut template = object.pointer("/spec/template").cloned().unwrap_or_default();
        if let Some(Value::Object(labels)) = template.pointer_mut("/metadata/labels") {
            labels.remove(HASH);
        }
        template
    };
    match template(found.set) == template(deployment) {
        true => Ok(Rollback::Skipped),
        false => Ok(Rollback::To(found.number)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn set(number: &str, owner: &str) -> Value {
        json!({
            "kind": "ReplicaSet",
            "metadata": {
                "annotations": {"deployment.kubernetes.io/revision": number},
                "ownerReferences": [{"uid": owner, "controller": true}],
            },
            "spec": {"template": {"metadata": {"labels": {"app": number, HASH: "h"}}}},
        })
    }

    fn deployment(template: &str) -> Value {
        json!({
            "metadata": {"name": "web", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"app": template}}}},
        })
    }

    #[test]
    fn revisions_are_sorted_by_number() {
        let mut with_cause = set("2", "u");
        with_cause["metadata"]["annotations"]["kubernetes.io/change-cause"] = json!("new image");
        let objects = [set("10", "u"), with_cause, set("3", "other"), set("x", "u")];
        let revisions = of(&deployment("10"), &objects);
        let shown = revisions.iter().map(|it| format!("{} {}", it.number, it.cause()));
        assert_eq!(shown.collect::<Vec<_>>(), ["2 new image", "10 <none>"]);
    }

    #[rstest]
    #[case::previous(&["1", "2", "3"], 0, Ok(Rollback::To(2)))]
    #[case::chosen(&["1", "2", "3"], 1, Ok(Rollback::To(1)))]
    #[case::current(&["1", "2", "3"], 3, Ok(Rollback::Skipped))]
    #[case::missing(&["1", "3"], 2, Err("unable to find specified revision 2 in history"))]
    #[case::only_one(&["3"], 0, Err("no rollout history found for deployment \"web\""))]
    #[case::nothing(&[], 0, Err("no rollout history found for deployment \"web\""))]
    fn rollback_goes_to_the_requested_revision(
        #[case] numbers: &[&str],
        #[case] to: u64,
        #[case] expected: Result<Rollback, &str>,
    ) {
        let objects: Vec<Value> = numbers.iter().map(|number| set(number, "u")).collect();
        let deployment = deployment("3");
        let found = rollback(&deployment, &of(&deployment, &objects), to);
        assert_eq!(found, expected.map_err(str::to_owned));
    }
}
