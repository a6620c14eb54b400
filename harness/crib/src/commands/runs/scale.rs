//! `crib scale`: sets the number of pods of a Deployment or similar object, as `kubectl scale` does.

use std::path::PathBuf;

use crib_base::report::print_error;
use crib_base::run_socket::{Request, Scale};
use serde_json::Value;

use crate::client::run_objects::{
    Found, RunObjects, all_in_manifests, named, of_kind, request_change, runs, with_runs,
};
use crate::client::{Endpoints, completion};
use crate::commands::prelude::*;
use crate::objects::kinds::{RequestedObjects, requested};
use crate::objects::metadata;
use crate::objects::selectors::Labels;

/// Set the number of pods of a Deployment, StatefulSet, ReplicaSet or ReplicationController
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib scale deploy/web --replicas 3
  crib scale statefulset db --replicas 1
  crib scale deploy/web deploy/api --current-replicas 1 --replicas 2
  crib scale deploy,sts --all --replicas 0
  crib scale -f deployment.yaml --replicas 2

The new number of pods applies until `crib run --watch` applies a changed manifest of the object. The exit code is 1 if an \
object was not scaled."))]
pub(crate) struct ScaleArgs {
    /// A Deployment, StatefulSet, ReplicaSet or ReplicationController; with -l or --all, kinds only: `deploy,sts`
    #[arg(
        required_unless_present = "filename",
        value_name = "KIND/NAME|KIND NAME",
        add = completion::kinds_and_objects()
    )]
    objects: Vec<String>,
    /// Scale the objects of these manifests; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-", conflicts_with_all = ["objects", "all", "selector"])]
    filename: Vec<PathBuf>,
    /// New number of pods
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    replicas: i32,
    /// Scale only if the object currently has this number of replicas
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    current_replicas: Option<i32>,
    /// Scale all objects of the given kinds in the namespace
    #[arg(long)]
    all: bool,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Namespace of the objects
    #[arg(short, long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Scales the objects; continues if one fails or does not exist.
pub(crate) fn run(args: &ScaleArgs) -> Result<Exit, CallError> {
    let all = with_runs(args.connection.open_all())?;
    let known = runs(&all)?;
    let (found, missing) = objects(args, &known)?;
    if found.is_empty() && missing.is_empty() {
        return Err(CallError::Unmet("no objects passed to scale".to_owned()));
    }
    missing.iter().for_each(|error| print_error(error));
    let mut failed = !missing.is_empty();
    for found in found {
        let name = found.resource.named(metadata(found.object, "name"));
        match scale(args, &all, &found) {
            Ok(()) => print(&format!("{name} scaled"))?,
            Err(error @ CallError::Denied(_)) => {
                print_error(&error);
                failed = true;
            }
            Err(error) => return Err(error),
        }
    }
    if failed { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

/// The requested objects, and errors for missing ones.
fn objects<'r>(
    args: &ScaleArgs,
    runs: &'r [RunObjects],
) -> Result<(Vec<Found<'r>>, Vec<CallError>), CallError> {
    if !args.filename.is_empty() {
        return all_in_manifests(&args.filename, runs, &args.namespace);
    }
    let usage = |problem: &str| Err(CallError::Usage(problem.to_owned()));
    let all: Vec<&Value> = runs.iter().flat_map(|run| &run.objects).collect();
    let selects = args.all || args.selector.is_some();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    match requested(&args.objects, &all).map_err(CallError::Usage)? {
        RequestedObjects::Named(_) if selects => {
            return usage("name cannot be provided when a selector is specified");
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
        RequestedObjects::Lists(_) if !selects => {
            return usage(
                "resource(s) were provided, but no name was specified: name one, such as deploy/web",
            );
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

/// Sends the request to scale an object to its run.
fn scale(args: &ScaleArgs, all: &[Cri], found: &Found<'_>) -> Result<(), CallError> {
    let text = |field: &str| found.object[field].as_str().unwrap_or_default().to_owned();
    let request = Request::Scale(Scale {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: metadata(found.object, "namespace").to_owned(),
        name: metadata(found.object, "name").to_owned(),
        replicas: args.replicas,
        current_replicas: args.current_replicas,
    });
    match request_change(all, found, request)? {
        Some(why) => {
            let name = found.resource.named(metadata(found.object, "name"));
            Err(CallError::Denied(format!("{name} was not scaled: {why}")))
        }
        None => Ok(()),
    }
}
