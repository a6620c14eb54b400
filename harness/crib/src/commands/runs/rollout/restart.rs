//! `crib rollout restart`: replaces the pods of workloads, as `kubectl rollout restart` does.

use crib_base::report::print_error;
use crib_base::run_socket::{Request, Restart};

use super::targets::TargetArgs;
use crate::client::Endpoints;
use crate::client::run_objects::{Found, request_change, runs, with_runs};
use crate::commands::prelude::*;
use crate::objects::metadata;

/// Replace the pods of Deployments, DaemonSets and StatefulSets
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rollout restart deploy/web
  crib rollout restart statefulset db
  crib rollout restart deploy,ds -l app=web
  crib rollout restart -f deployment.yaml

`crib rollout restart` sets the annotation kubectl.kubernetes.io/restartedAt of the pod template, so that the pods are replaced as after a change \
of the manifest. Exits with code 1 if an object was not restarted."))]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    targets: TargetArgs,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Restarts the objects; continues if one is refused or does not exist.
pub(super) fn run(args: &RestartArgs) -> Result<Exit, CallError> {
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
        let name = found.resource.named(metadata(found.object, "name"));
        match request_change(&all, &found, request(&found))? {
            None => print(&format!("{name} restarted"))?,
            Some(why) => {
                print_error(&CallError::Denied(format!("{name} was not restarted: {why}")));
                failed = true;
            }
        }
    }
    if failed { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

fn request(found: &Found<'_>) -> Request {
    let text = |field: &str| found.object[field].as_str().unwrap_or_default().to_owned();
    Request::Restart(Restart {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: metadata(found.object, "namespace").to_owned(),
        name: metadata(found.object, "name").to_owned(),
    })
}
