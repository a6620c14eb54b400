//! `crib rollout`: replaces the pods of a Deployment, DaemonSet or StatefulSet, waits until they are replaced, and restores earlier
//! pod templates of Deployments.

use std::path::PathBuf;

use crib_base::run_socket::WatchEvent;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::client::run_objects::{RunEvent, RunWatch, named, names_in_manifests, with_runs};
use crate::client::{Endpoints, completion};
use crate::commands::prelude::*;
use crate::objects::kinds::{RequestedObjects, Resource, requested};
use crate::objects::metadata;

mod history;
mod restart;
mod revisions;
mod status;
mod targets;
mod undo;

use status::Progress;

/// Restart workloads, show the progress of rollouts, and undo them
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib rollout restart deploy/web
  crib rollout status deploy/web
  crib rollout history deploy/web
  crib rollout undo deploy/web")]
pub(crate) struct RolloutArgs {
    #[command(subcommand)]
    command: RolloutCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum RolloutCommand {
    History(history::HistoryArgs),
    Restart(restart::RestartArgs),
    Status(StatusArgs),
    Undo(undo::UndoArgs),
}

impl RolloutArgs {
    /// The connection options of the subcommand.
    pub(crate) fn connection(&mut self) -> &mut Endpoints {
        match &mut self.command {
            RolloutCommand::History(args) => &mut args.connection,
            RolloutCommand::Restart(args) => &mut args.connection,
            RolloutCommand::Status(args) => &mut args.connection,
            RolloutCommand::Undo(args) => &mut args.connection,
        }
    }
}

/// Show the status of a rollout until the rollout is done
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rollout status deploy/web
  crib rollout status statefulset db --timeout 2m
  crib rollout status ds/agent --watch=false
  crib rollout status -f deployment.yaml

The exit code is 1 if, before the rollout is done, the object is deleted, the object's run ends, or --timeout expires."))]
pub(crate) struct StatusArgs {
    /// A Deployment, DaemonSet or StatefulSet
    #[arg(
        required_unless_present = "filename",
        value_name = "KIND/NAME|KIND NAME",
        add = completion::kinds_and_objects()
    )]
    objects: Vec<String>,
    /// Show the rollouts of the objects of these manifests; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-", conflicts_with_all = ["objects"])]
    filename: Vec<PathBuf>,
    /// Namespace of the object
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Wait until the rollout is done
    #[arg(
        short,
        long,
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    watch: bool,
    /// Maximum time to wait: 30s, 2m [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Runs the subcommand.
pub(crate) async fn run(args: &RolloutArgs) -> Result<Exit, CallError> {
    match &args.command {
        RolloutCommand::History(args) => history::run(args),
        RolloutCommand::Restart(args) => restart::run(args),
        RolloutCommand::Status(args) => show(args).await,
        RolloutCommand::Undo(args) => undo::run(args),
    }
}

/// Prints the status.
async fn show(args: &StatusArgs) -> Result<Exit, CallError> {
    let deadline = args.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let all = with_runs(args.connection.open_all())?;
    let mut watch = RunWatch::open(&all).await?;
    for (resource, namespace, name) in objects(args, &watch)? {
        let rollout = follow(args, &mut watch, &resource, &namespace, &name);
        match deadline {
            Some(deadline) => timeout_at(deadline, rollout).await.unwrap_or_else(|_| {
                Err(CallError::Unmet("timed out waiting for the condition".to_owned()))
            })?,
            None => rollout.await?,
        }
    }
    Ok(Exit::Success)
}

/// The kinds, namespaces and names of the objects.
fn objects(
    args: &StatusArgs,
    watch: &RunWatch,
) -> Result<Vec<(Resource, String, String)>, CallError> {
    if !args.filename.is_empty() {
        return names_in_manifests(&args.filename, &args.namespace);
    }
    let objects: Vec<&Value> = watch.runs().iter().flat_map(|run| &run.objects).collect();
    match requested(&args.objects, &objects).map_err(CallError::Usage)? {
        RequestedObjects::Named(names) => {
            let names = names.into_iter();
            Ok(names.map(|(kind, name)| (kind, args.namespace.clone(), name)).collect())
        }
        RequestedObjects::Lists(_) => {
            let problem = "resource(s) were provided, but no name was specified: name one, such as deploy/web";
            Err(CallError::Usage(problem.to_owned()))
        }
    }
}

/// Prints the progress of a rollout until it is done.
async fn follow(
    args: &StatusArgs,
    watch: &mut RunWatch,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), CallError> {
    let found = named(watch.runs(), resource, namespace, name)?;
    let own_run = watch.runs().iter().position(|run| std::ptr::eq(run, found.run));
    let mut progress = status::of(resource, found.object).map_err(CallError::Unmet)?;
    loop {
        print(progress.text())?;
        if matches!(progress, Progress::Done(_)) || !args.watch {
            return Ok(());
        }
        progress = loop {
            let is_it = |object: &Value| {
                resource.has(object)
                    && metadata(object, "name") == name
                    && metadata(object, "namespace") == namespace
            };
            let of_own = |run: usize| Some(run) == own_run;
            match watch.next().await? {
                Some(RunEvent::Change(run, WatchEvent::Deleted(object)))
                    if of_own(run) && is_it(&object) =>
                {
                    return Err(CallError::Unmet("object has been deleted".to_owned()));
                }
                Some(RunEvent::Change(
                    run,
                    WatchEvent::Added(object) | WatchEvent::Modified(object),
                )) if of_own(run) && is_it(&object) => {
                    let next = status::of(resource, &object).map_err(CallError::Unmet)?;
                    if next != progress {
                        break next;
                    }
                }
                Some(RunEvent::Ended(run)) if of_own(run) => {
                    let problem = "the run ended before the rollout was done";
                    return Err(CallError::Unmet(problem.to_owned()));
                }
                None => {
                    let problem = "the run ended before the rollout was done";
                    return Err(CallError::Unmet(problem.to_owned()));
                }
                Some(RunEvent::Change(..) | RunEvent::Ended(_)) => {}
            }
        };
    }
}
