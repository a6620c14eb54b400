//! `crib wait`: waits until objects of runs meet a condition, as `kubectl wait` does.

use std::path::PathBuf;
use std::str::FromStr;

use crib_base::report::print_error;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::client::run_objects::{
    Found, RunEvent, RunWatch, named, names_in_manifests, of_kind, with_runs,
};
use crate::client::{Endpoints, completion};
use crate::commands::prelude::*;
use crate::objects::kinds::{RequestedObjects, Resource, requested};
use crate::objects::metadata;
use crate::objects::selectors::{Fields, Labels};

mod condition;

use condition::Condition;

/// A negative timeout, as in kubectl.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Wait until objects of `crib run` meet a condition, as kubectl wait does
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib wait --for=condition=Ready pod/web
  crib wait --for=condition=Available deploy --all --timeout=2m
  crib wait --for=condition=Complete job/migrate
  crib wait --for=jsonpath='{.status.phase}'=Succeeded pods -l app=web
  crib wait --for=condition=Ready -f pod.yaml
  crib wait --for=delete pod/web
  crib wait --for=create --for=condition=Ready pod/web

`crib wait` waits for --for=create first, then for each condition of each object in turn. If an object is deleted during the \
wait, --for=delete is met; for any other condition, the wait continues, because the object can be created again. If the run \
that contains the object ends, --for=delete is met, and any other condition fails immediately. The exit code is 1 if a \
condition is not met before --timeout expires."))]
pub(crate) struct WaitArgs {
    /// Kinds followed by names, or KIND/NAME: `deploy web`, `pod/web svc/web`; with -l, --field-selector or --all, kinds only:
    /// `pods`
    #[arg(
        required_unless_present = "filename",
        value_name = "KIND/NAME|KIND",
        add = completion::kinds_and_objects()
    )]
    objects: Vec<String>,
    /// Wait for the objects of these manifests; repeatable
    #[arg(
        long,
        short = 'f',
        value_name = "FILE|DIR|-",
        conflicts_with_all = ["objects", "all", "selector", "field_selector", "all_namespaces"]
    )]
    filename: Vec<PathBuf>,
    /// create, delete, condition=TYPE[=STATUS] or jsonpath='{PATH}'[=VALUE]; if repeated, all conditions must be met
    #[arg(long = "for", required = true, value_name = "CONDITION")]
    conditions: Vec<Condition>,
    /// Maximum time to wait: 30s, 2m; 0: check once; negative: wait for a week
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true)]
    timeout: Limit,
    /// Namespace of the objects
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Wait for objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Wait for all objects of the given kinds
    #[arg(long)]
    all: bool,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long, conflicts_with = "all")]
    selector: Option<Labels>,
    /// Filter by fields: `metadata.name`, `metadata.namespace`; for pods also `status.phase`, `spec.nodeName` and more; for Jobs
    /// `status.successful`, for Secrets `type`, for Services `spec.type`
    #[arg(long)]
    field_selector: Option<Fields>,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// The value of --timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Duration);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('-') {
            Some(time) => duration(time).map(|_| Self(WEEK)),
            None if matches!(text, "0" | "0s") => Ok(Self(Duration::ZERO)),
            None => duration(text).map(Self),
        }
    }
}

/// An object to wait for.
#[derive(Clone, Debug)]
struct Target {
    /// The index of its run.
    run: usize,
    resource: Resource,
    namespace: String,
    name: String,
}

/// When waiting ends.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    until: Instant,
    /// Whether the condition is checked only once.
    once: bool,
}

/// Waits for the conditions.
pub(crate) async fn run(args: &WaitArgs) -> Result<Exit, CallError> {
    let once = args.timeout.0.is_zero();
    let deadline = Deadline { until: Instant::now() + args.timeout.0.min(WEEK), once };
    // Standard input can be read only once.
    let in_manifests = match args.filename.as_slice() {
        [] => Vec::new(),
        paths => names_in_manifests(paths, &args.namespace)?,
    };
    let all = with_runs(args.connection.open_all())?;
    let mut watch = RunWatch::open(&all).await?;
    if args.conditions.contains(&Condition::Created) {
        created(args, &in_manifests, &mut watch, deadline).await?;
    }
    let (targets, missing) = targets(args, &in_manifests, &watch)?;
    let mut failed = false;
    let is_for_delete = args.conditions.contains(&Condition::Deleted);
    for error in missing.iter().filter(|_| !is_for_delete) {
        print_error(error);
        failed = true;
    }
    if targets.is_empty() && missing.is_empty() && !is_for_delete {
        return Err(CallError::Unmet("no matching resources found".to_owned()));
    }
    for target in &targets {
        for condition in &args.conditions {
            match target.meets(condition, &mut watch, deadline).await {
                Ok(()) => {
                    print(&format!("{} condition met", target.resource.named(&target.name)))?;
                }
                Err(error @ CallError::Unmet(_)) => {
                    print_error(&error);
                    failed = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    if failed { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

/// Waits until all named objects exist, or at least one object matches.
async fn created(
    args: &WaitArgs,
    in_manifests: &[(Resource, String, String)],
    watch: &mut RunWatch,
    deadline: Deadline,
) -> Result<(), CallError> {
    loop {
        let (found, missing) = targets(args, in_manifests, watch)?;
        if missing.is_empty() && !found.is_empty() {
            return Ok(());
        }
        match timeout_at(deadline.until, watch.next()).await {
            _ if deadline.once => return Ok(()),
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => return Err(CallError::Unmet("the run has ended".to_owned())),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                return Err(CallError::Unmet("timed out waiting for the condition".to_owned()));
            }
        }
    }
}

/// The objects that currently match the arguments, and errors for missing ones.
fn targets(
    args: &WaitArgs,
    in_manifests: &[(Resource, String, String)],
    watch: &RunWatch,
) -> Result<(Vec<Target>, Vec<CallError>), CallError> {
    let runs = watch.runs();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let mut add = |resource: &Resource, namespace: &str, name: &str| {
        match named(runs, resource, namespace, name) {
            Ok(one) => found.push(one),
            Err(error @ CallError::NoObject { .. }) => missing.push(error),
            Err(error) => return Err(error),
        }
        Ok(())
    };
    for (resource, namespace, name) in in_manifests {
        add(resource, namespace, name)?;
    }
    if in_manifests.is_empty() {
        match requested_objects(args, watch)? {
            RequestedObjects::Named(names) => {
                for (resource, name) in &names {
                    add(resource, &args.namespace, name)?;
                }
            }
            RequestedObjects::Lists(resources) => {
                for resource in &resources {
                    found.extend(selected(args, watch, resource)?);
                }
            }
        }
    }
    let target = |found: Found<'_>| Target {
        run: runs.iter().position(|run| std::ptr::eq(run, found.run)).unwrap_or_default(),
        namespace: metadata(found.object, "namespace").to_owned(),
        name: metadata(found.object, "name").to_owned(),
        resource: found.resource,
    };
    Ok((found.into_iter().map(target).collect(), missing))
}

/// Parses the kinds and names. Kinds need a selector, and names exclude one.
fn requested_objects(args: &WaitArgs, watch: &RunWatch) -> Result<RequestedObjects, CallError> {
    let objects: Vec<&Value> = watch.runs().iter().flat_map(|run| &run.objects).collect();
    let selects = args.all || args.selector.is_some() || args.field_selector.is_some();
    let problem = match requested(&args.objects, &objects).map_err(CallError::Usage)? {
        RequestedObjects::Lists(_) if !selects => {
            "resource(s) were provided, but no name was specified: name objects, or choose them with -l or --all"
        }
        RequestedObjects::Named(_) if selects => {
            "name cannot be provided when a selector is specified"
        }
        requested @ (RequestedObjects::Lists(_) | RequestedObjects::Named(_)) => {
            return Ok(requested);
        }
    };
    Err(CallError::Usage(problem.to_owned()))
}

/// The objects of a kind that the selectors match.
fn selected<'w>(
    args: &WaitArgs,
    watch: &'w RunWatch,
    resource: &Resource,
) -> Result<Vec<Found<'w>>, CallError> {
    let fields = args.field_selector.clone().unwrap_or_default();
    fields.check(&resource.kind).map_err(CallError::Usage)?;
    let labels = args.selector.clone().unwrap_or_default();
    let mut found = of_kind(watch.runs(), resource);
    found.retain(|found| {
        let namespace = metadata(found.object, "namespace");
        (args.all_namespaces || !resource.namespaced || namespace == args.namespace)
            && labels.match_object(found.object)
            && fields.match_object(found.object)
    });
    Ok(found)
}

impl Target {
    /// The current object, if it exists.
    fn object<'w>(&self, watch: &'w RunWatch) -> Option<&'w Value> {
        let run = watch.runs().get(self.run)?;
        run.objects.iter().find(|object| self.is(object))
    }

    fn is(&self, object: &Value) -> bool {
        self.resource.has(object)
            && metadata(object, "name") == self.name
            && metadata(object, "namespace") == self.namespace
    }

    /// Waits until the object meets a condition.
    async fn meets(
        &self,
        condition: &Condition,
        watch: &mut RunWatch,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let place = format!("{}/{}", self.resource.plural(), self.name);
        let unmet = |why: String| Err(CallError::Unmet(why));
        loop {
            if condition.is_met(self.object(watch)).map_err(CallError::Unmet)? {
                return Ok(());
            }
            if watch.runs().get(self.run).is_none_or(|run| run.ended) {
                return unmet(format!("the run ended before the condition was met on {place}"));
            }
            if deadline.once {
                return unmet(format!("condition not met for {place}"));
            }
            match timeout_at(deadline.until, watch.next()).await {
                Ok(event) => match event? {
                    Some(RunEvent::Change(..) | RunEvent::Ended(_)) => {}
                    None => {
                        return unmet(format!(
                            "the run ended before the condition was met on {place}"
                        ));
                    }
                },
                Err(_) => return unmet(format!("timed out waiting for the condition on {place}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("30s", Some(30))]
    #[case("2m", Some(120))]
    #[case("0", Some(0))]
    #[case("0s", Some(0))]
    #[case("-1s", Some(WEEK.as_secs()))]
    #[case("-1", Some(WEEK.as_secs()))]
    #[case("soon", None)]
    #[case("-", None)]
    fn timeouts_are_those_of_kubectl(#[case] text: &str, #[case] seconds: Option<u64>) {
        let limit = text.parse::<Limit>().ok();
        assert_eq!(limit, seconds.map(|seconds| Limit(Duration::from_secs(seconds))));
    }
}
