//! `crib rollout restart`: replaces the pods of workloads, as `kubectl rollout restart` does.

use std::path::PathBuf;

use crib_base::report::print_error;
use crib_base::run_socket::{Request, Restart};
use serde_json::Value;

use crate::client::run_objects::{
    Found, RunObjects, all_in_manifests, named, of_kind, request_change, runs, with_runs,
};
use crate::client::{Endpoints, completion};
use crate::commands::prelude::*;
use crate::objects::kinds::{RequestedObjects, requested};
use crate::objects::metadata;
use crate::objects::selectors::Labels;

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
    /// Deployments, DaemonSets or StatefulSets; kinds without names mean all of their objects
    #[arg(
        required_unless_present = "filename",
        value_name = "KIND/NAME|KIND",
        add = completion::kinds_and_objects()
    )]
    objects: Vec<String>,
    /// Restart the objects of these manifests; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-", conflicts_with_all = ["objects", "selector"])]
    filename: Vec<PathBuf>,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Namespace of the objects
    #[arg(short, long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Restarts the objects; continues if one is refused or does not exist.
pub(super) fn run(args: &RestartArgs) -> Result<Exit, CallError> {
    let all = with_runs(args.connection.open_all())?;
    let known = runs(&all)?;
    let (found, missing) = objects(args, &known)?;
    if found.is_empty() && missing.is_empty() {
        print_stderr(&format!("no resources found in {} namespace", args.namespace));
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

/// The requested objects, and errors for missing ones.
fn objects<'r>(
    args: &RestartArgs,
    runs: &'r [RunObjects],
) -> Result<(Vec<Found<'r>>, Vec<CallError>), CallError> {
    if !args.filename.is_empty() {
        return all_in_manifests(&args.filename, runs, &args.namespace);
    }
    let all: Vec<&Value> = runs.iter().flat_map(|run| &run.objects).collect();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    match requested(&args.objects, &all).map_err(CallError::Usage)? {
        RequestedObjects::Named(_) if args.selector.is_some() => {
            let problem = "name cannot be provided when a selector is specified";
            return Err(CallError::Usage(problem.to_owned()));
        }
        RequestedObjects::Named(names) => {
            for (resource, name) in &names {
                match named(runs, resource, &args.namespace, name) {
                    Ok(one) => found.push(one),
                    Err(error @ CallError::NoObject { .. }) => missing.push(error),
                    Err(error) => return Err(error),
                }
            }
        }
        RequestedObjects::Lists(resources) => {
            let labels = args.selector.clone().unwrap_or_default();
            for resource in &resources {
                found.extend(of_kind(runs, resource).into_iter().filter(|found| {
                    metadata(found.object, "namespace") == args.namespace
                        && labels.match_object(found.object)
                }));
            }
        }
    }
    Ok((found, missing))
}
