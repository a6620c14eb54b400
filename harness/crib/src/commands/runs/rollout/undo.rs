//! `crib rollout undo`: restores the pod template of an earlier revision, as `kubectl rollout undo` does.

use crib_base::report::print_error;
use crib_base::run_socket::{Request, Undo};

use super::revisions::{self, Rollback};
use super::targets::TargetArgs;
use crate::client::Endpoints;
use crate::client::run_objects::{Found, request_change, runs, with_runs};
use crate::commands::prelude::*;
use crate::objects::metadata;

/// Restore the pod templates of earlier revisions of Deployments
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rollout undo deploy/web
  crib rollout undo deploy/web --to-revision 2

`crib rollout history` shows the revisions. The restored template applies until `crib run --watch` applies a changed manifest of \
the object. The exit code is 1 if an object was not rolled back."))]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    targets: TargetArgs,
    /// The revision to restore; 0: the one before the current revision
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    to_revision: u64,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Rolls the objects back; continues if one is refused or does not exist.
pub(super) fn run(args: &UndoArgs) -> Result<Exit, CallError> {
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
        let to = args.to_revision;
        let refused = match rollback(&found, to) {
            Ok(Rollback::Skipped) => {
                print(&format!(
                    "{name} skipped rollback (current template already matches revision {to})"
                ))?;
                continue;
            }
            Ok(Rollback::To(number)) => request_change(&all, &found, request(&found, number))?,
            Err(why) => Some(why),
        };
        match refused {
            None => print(&format!("{name} rolled back"))?,
            Some(why) => {
                print_error(&CallError::Denied(format!("{name} was not rolled back: {why}")));
                failed = true;
            }
        }
    }
    if failed { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

/// The effect of the rollback. An error is the reason to refuse it.
fn rollback(found: &Found<'_>, to: u64) -> Result<Rollback, String> {
    if found.resource.kind != "Deployment" {
        return Err(format!("a run keeps no revisions of {}", found.resource.plural_name()));
    }
    revisions::rollback(found.object, &revisions::of(found.object, &found.run.objects), to)
}

fn request(found: &Found<'_>, revision: u64) -> Request {
    let text = |field: &str| found.object[field].as_str().unwrap_or_default().to_owned();
    Request::Undo(Undo {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: metadata(found.object, "namespace").to_owned(),
        name: metadata(found.object, "name").to_owned(),
        revision,
    })
}
