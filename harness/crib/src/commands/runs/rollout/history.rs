//! `crib rollout history`: the revisions of Deployments, as `kubectl rollout history` shows them.

use crib_base::report::print_error;

use super::revisions;
use super::targets::TargetArgs;
use crate::client::Endpoints;
use crate::client::run_objects::{Found, runs, with_runs};
use crate::commands::prelude::*;
use crate::commands::runs::describe::pod_template;
use crate::objects::metadata;

/// Show the revisions of Deployments
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rollout history deploy/web
  crib rollout history deploy/web --revision 2

A revision is a pod template that the Deployment has or had. CHANGE-CAUSE is the annotation kubernetes.io/change-cause. A run \
keeps no revisions of DaemonSets and StatefulSets. The exit code is 1 if an object has no revisions."))]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    targets: TargetArgs,
    /// Show the pod template of this revision
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    revision: u64,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Prints the revisions; continues if an object has none or does not exist.
pub(super) fn run(args: &HistoryArgs) -> Result<Exit, CallError> {
    let all = with_runs(args.connection.open_all())?;
    let known = runs(&all)?;
    let (found, missing) = args.targets.find(&known)?;
    if found.is_empty() && missing.is_empty() {
        print_stderr(&format!("no resources found in {} namespace", args.targets.namespace));
        return Ok(Exit::Success);
    }
    missing.iter().for_each(|error| print_error(error));
    let mut failed = !missing.is_empty();
    for found in found {
        match history(&found, args.revision) {
            Ok(text) => print(&text)?,
            Err(why) => {
                print_error(&CallError::Unmet(why));
                failed = true;
            }
        }
    }
    if failed { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

/// The revisions of an object, or the pod template of one; the last line is empty. An error is the reason why there are none.
fn history(found: &Found<'_>, number: u64) -> Result<String, String> {
    let name = found.resource.named(metadata(found.object, "name"));
    if found.resource.kind != "Deployment" {
        let kind = found.resource.plural_name();
        return Err(format!("{name} has no history: a run keeps no revisions of {kind}"));
    }
    let revisions = revisions::of(found.object, &found.run.objects);
    if number > 0 {
        let revision = revisions.iter().find(|revision| revision.number == number);
        let revision = revision.ok_or("unable to find the specified revision")?;
        let lines = pod_template(revision.set, "/spec/template").join("\n");
        return Ok(format!("{name} with revision #{number}\n{lines}\n"));
    }
    if revisions.is_empty() {
        return Ok(format!("{name}\nNo rollout history found."));
    }
    // The heading is the longest cell of its column.
    let line = |number: &str, cause: &str| format!("{number:<10}{}\n", escape_control(cause));
    let rows = revisions.iter().map(|it| line(&it.number.to_string(), &it.cause()));
    Ok(format!("{name}\n{}{}", line("REVISION", "CHANGE-CAUSE"), rows.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::run_objects::RunObjects;
    use crate::objects::kinds;

    fn shown(kind: &str, number: u64) -> Result<String, String> {
        let set = |number: &str| {
            json!({
                "kind": "ReplicaSet",
                "metadata": {
                    "annotations": {"deployment.kubernetes.io/revision": number},
                    "ownerReferences": [{"uid": "u", "controller": true}],
                },
                "spec": {"template": {"metadata": {"labels": {"a": number}}}},
            })
        };
        let object: Value = json!({"metadata": {"name": "web", "uid": "u"}});
        let run = RunObjects {
            choice: String::new(),
            name: String::new(),
            objects: vec![set("2"), set("1")],
            ended: false,
        };
        let resource = kinds::single(kind).unwrap();
        history(&Found { resource, object: &object, run: &run }, number)
    }

    #[test]
    fn history_lists_revisions_of_deployments() {
        let expected =
            "deployment.apps/web\nREVISION  CHANGE-CAUSE\n1         <none>\n2         <none>\n";
        assert_eq!(shown("deploy", 0).as_deref(), Ok(expected));
        let one = shown("deploy", 2).unwrap();
        let expected =
            "deployment.apps/web with revision #2\nPod Template:\n  Labels:          a=2\n";
        assert!(one.starts_with(expected), "{one}");
    }

    #[test]
    fn missing_history_has_a_reason() {
        let why = shown("deploy", 3).unwrap_err();
        assert_eq!(why, "unable to find the specified revision");
        let why = shown("sts", 0).unwrap_err();
        let expected =
            "statefulset.apps/web has no history: a run keeps no revisions of statefulsets.apps";
        assert_eq!(why, expected);
    }
}
