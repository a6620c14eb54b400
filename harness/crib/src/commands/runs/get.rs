//! `crib get`: the objects of runs in the format of `kubectl get`.

use std::path::PathBuf;

use crib_base::report::print_error;
use serde_json::{Value, json};

use crate::client::completion;
use crate::client::output::{Document, print_object_json, print_value, write_text};
use crate::client::run_objects::{
    Found, RunObjects, RunWatch, add_events, named, names_in_manifests, of_kind, runs, with_runs,
};
use crate::commands::prelude::*;
use crate::objects::jsonpath::{JsonPath, Path};
use crate::objects::kinds::{self, RequestedObjects, Resource, requested};
use crate::objects::metadata;
use crate::objects::selectors::{Fields, Labels};
use crate::template::{Template, TemplateError};

mod columns;
mod output_format;
mod printers;
mod table;
mod watch;

use columns::sort_by;
use output_format::OutputFormat;
use table::{TableArgs, tables};

/// Show the objects of `crib run`, as kubectl get does
#[derive(Debug, Args)]
#[command(after_help = with_codes(&format!("\
Examples:
  crib get pods
  crib get deploy,svc -A -o wide
  crib get pod/web job/migrate -o yaml
  crib get pods -l 'app in (web, api)' --field-selector status.phase=Running -o name
  crib get pods -o jsonpath='{{range .items[*]}}{{.metadata.name}}{{\"\\t\"}}{{.status.podIP}}{{\"\\n\"}}{{end}}'
  crib get secret db -o go-template='{{{{.data.password | base64decode}}}}'
  crib get pods -o custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image
  crib get -f manifests/ -o name
  crib get pods --watch

--watch continues until Ctrl-C, or until all runs that existed when the watch began have ended.

{}

-o jsonpath supports fields, ['quoted fields'], indexes, slices, *, .., filters ([?(@.type==\"Ready\")]), {{range}} and \
{{end}}, quoted text inside braces, and text outside braces. All other JSONPath syntax is an error. -o jsonpath prints \
nothing for a missing field. -o jsonpath-as-json prints, for each path, a JSON array of the values.

-o go-template supports the part of Go's template language that `crib inspect --help` describes, but prints <no value> for a \
missing field instead of an error.", kinds::HELP)))]
pub(crate) struct GetArgs {
    /// Kinds, optionally followed by names, or KIND/NAME: `pods`, `deploy,svc`, `all`, `pod web`, `pod/web svc/web`
    #[arg(
        required_unless_present = "filename",
        value_name = "KIND[,KIND]|KIND/NAME|NAME",
        add = completion::kinds_and_objects()
    )]
    objects: Vec<String>,
    /// Show the objects of these manifests; repeatable
    #[arg(
        long,
        short = 'f',
        value_name = "FILE|DIR|-",
        conflicts_with_all = ["objects", "selector", "field_selector", "all_namespaces", "watch", "watch_only"]
    )]
    filename: Vec<PathBuf>,
    /// Namespace of the objects
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Show the objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Filter by fields: `metadata.name`, `metadata.namespace`; for pods also `status.phase`, `spec.nodeName` and more; for Jobs
    /// `status.successful`, for Secrets `type`, for Services `spec.type`
    #[arg(long)]
    field_selector: Option<Fields>,
    /// Output format: wide, name, json, yaml, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, go-template=TEMPLATE or
    /// custom-columns=HEADING:PATH,...; with the template in a file: jsonpath-file=FILE, go-template-file=FILE or
    /// custom-columns-file=FILE
    #[arg(short, long, value_name = "FORMAT", value_parser = output_format)]
    output: Option<OutputFormat>,
    /// Go template for -o go-template, which --template makes the default format
    #[arg(long, value_name = "TEMPLATE", required_if_eq_any = [("output", "go-template"), ("output", "template")])]
    template: Option<Template>,
    #[command(flatten)]
    table: TableArgs,
    /// Sort by a field, such as `.metadata.creationTimestamp`
    #[arg(long, value_name = "PATH", value_parser = Path::relaxed)]
    sort_by: Option<Path>,
    /// Exit with code 0 if a named object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Show the objects of one kind, and then every change
    #[arg(short, long)]
    watch: bool,
    /// Show only changes, without the current objects
    #[arg(long)]
    watch_only: bool,
    /// With --watch or --watch-only, show the types of changes; current objects are ADDED
    #[arg(long)]
    output_watch_events: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

impl GetArgs {
    /// The output format; `None` for a table.
    fn format(&self) -> Option<OutputFormat> {
        match (&self.output, &self.template) {
            (None | Some(OutputFormat::GoTemplate(None)), Some(template)) => {
                Some(OutputFormat::GoTemplate(Some(template.clone())))
            }
            (output, _) => output.clone(),
        }
    }
}

/// Parses a format, and reads its template if it is in a file.
fn output_format(text: &str) -> Result<OutputFormat, String> {
    match text.split_once('=') {
        Some((name, path)) if OutputFormat::OF_FILES.contains(&name) => {
            let template = std::fs::read_to_string(path);
            let template =
                template.map_err(|error| format!("failed to read the template {path}: {error}"))?;
            OutputFormat::of_file(name, &template)
        }
        Some(_) | None => text.parse(),
    }
}

/// The selected objects.
struct Selected<'r> {
    found: Vec<Found<'r>>,
    several_kinds: bool,
    /// Whether a single object was requested by name.
    single: bool,
    /// Whether an object was not found, which was reported.
    missing: bool,
}

/// Prints the objects.
pub(crate) async fn run(args: &GetArgs) -> Result<Exit, CallError> {
    let all = with_runs(args.connection.open_all())?;
    if args.watch || args.watch_only {
        return watch::run(args, RunWatch::open(&all).await?).await;
    }
    if args.output_watch_events {
        let problem = "--output-watch-events option can only be used with --watch or --watch-only";
        return Err(CallError::Usage(problem.to_owned()));
    }
    let mut runs = runs(&all)?;
    if !args.filename.is_empty() {
        return show_all(args, &of_manifests(args, &runs)?);
    }
    let objects: Vec<&Value> = runs.iter().flat_map(|run| &run.objects).collect();
    let requested = requested(&args.objects, &objects).map_err(CallError::Usage)?;
    check(args, &requested)?;
    if requested.have_events() {
        add_events(&all, &mut runs)?;
    }
    let selected = match &requested {
        RequestedObjects::Lists(resources) => lists(args, &runs, resources)?,
        RequestedObjects::Named(names) => {
            let names = names.iter();
            let names =
                names.map(|(kind, name)| (kind.clone(), args.namespace.as_str(), name.as_str()));
            all_named(args, &runs, &names.collect::<Vec<_>>())?
        }
    };
    if let RequestedObjects::Lists(resources) = &requested
        && selected.found.is_empty()
        && matches!(args.format(), None | Some(OutputFormat::Wide))
        && !args.ignore_not_found
    {
        match resources.iter().any(|kind| kind.namespaced) && !args.all_namespaces {
            true => print_stderr(&format!("no resources found in {} namespace", args.namespace)),
            false => print_stderr("no resources found"),
        }
    }
    show_all(args, &selected)
}

/// Shows the objects. Fails if one is missing. With --ignore-not-found, no objects are no output, not an empty list.
fn show_all(args: &GetArgs, selected: &Selected<'_>) -> Result<Exit, CallError> {
    if !selected.found.is_empty() || !(selected.single || args.ignore_not_found) {
        show(args, selected)?;
    }
    if selected.missing { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

/// The objects of the requested kinds.
fn lists<'r>(
    args: &GetArgs,
    runs: &'r [RunObjects],
    resources: &[Resource],
) -> Result<Selected<'r>, CallError> {
    let mut found = Vec::new();
    for resource in resources {
        found.extend(sorted(args, list(args, runs, resource))?);
    }
    let several_kinds = resources.len() > 1;
    Ok(Selected { found, several_kinds, single: false, missing: false })
}

/// The objects of manifests. Reports missing ones.
fn of_manifests<'r>(args: &GetArgs, runs: &'r [RunObjects]) -> Result<Selected<'r>, CallError> {
    let names = names_in_manifests(&args.filename, &args.namespace)?;
    let names = names.iter().map(|(kind, namespace, name)| (kind.clone(), &**namespace, &**name));
    all_named(args, runs, &names.collect::<Vec<_>>())
}

/// The objects with these kinds, namespaces and names. Reports missing ones.
fn all_named<'r>(
    args: &GetArgs,
    runs: &'r [RunObjects],
    names: &[(Resource, &str, &str)],
) -> Result<Selected<'r>, CallError> {
    let (mut found, mut missing) = (Vec::new(), false);
    for (resource, namespace, name) in names {
        match named(runs, resource, namespace, name) {
            Ok(one) => found.push(one),
            Err(CallError::NoObject { .. }) if args.ignore_not_found => {}
            Err(error) => {
                print_error(&error);
                missing = true;
            }
        }
    }
    let found = sorted(args, found)?;
    let first = found.first().map(|found| &found.resource);
    let several_kinds = found.iter().any(|found| Some(&found.resource) != first);
    Ok(Selected { found, several_kinds, single: names.len() == 1, missing })
}

fn sorted<'r>(args: &GetArgs, mut found: Vec<Found<'r>>) -> Result<Vec<Found<'r>>, CallError> {
    if let Some(path) = &args.sort_by {
        let is_found = sort_by(&mut found, path, |found| found.object);
        if !is_found.map_err(TemplateError::Execute)? && !found.is_empty() {
            let problem = "no object has the field of --sort-by: check its path";
            return Err(CallError::Unmet(problem.to_owned()));
        }
    }
    Ok(found)
}

/// Rejects flags that exclude each other.
fn check(args: &GetArgs, requested: &RequestedObjects) -> Result<(), CallError> {
    let refuse = |problem: &str| Err(CallError::Usage(problem.to_owned()));
    match requested {
        RequestedObjects::Lists(resources) => {
            let fields = args.field_selector.clone().unwrap_or_default();
            resources.iter().try_for_each(|kind| fields.check(&kind.kind)).map_err(CallError::Usage)
        }
        RequestedObjects::Named(_) if args.selector.is_some() || args.field_selector.is_some() => {
            refuse("name cannot be provided when a selector is specified")
        }
        RequestedObjects::Named(_) if args.all_namespaces => {
            refuse("a resource cannot be retrieved by name across all namespaces")
        }
        RequestedObjects::Named(_) => Ok(()),
    }
}

/// The objects of a kind, sorted by namespace, name and run.
fn list<'r>(args: &GetArgs, runs: &'r [RunObjects], resource: &Resource) -> Vec<Found<'r>> {
    let mut found = of_kind(runs, resource);
    found.retain(|found| is_selected(args, resource, found.object));
    found
        .sort_by_key(|found| (metadata(found.object, "namespace"), metadata(found.object, "name")));
    found
}

/// Whether an object matches the namespace and the selectors.
fn is_selected(args: &GetArgs, resource: &Resource, object: &Value) -> bool {
    let namespace = metadata(object, "namespace");
    (args.all_namespaces || !resource.namespaced || namespace == args.namespace)
        && args.selector.as_ref().is_none_or(|labels| labels.match_object(object))
        && args.field_selector.as_ref().is_none_or(|fields| fields.match_object(object))
}

/// Prints objects.
fn show(args: &GetArgs, selected: &Selected<'_>) -> Result<(), CallError> {
    let Selected { found, several_kinds, .. } = selected;
    let document = || match found.as_slice() {
        [one] if selected.single => one.object.clone(),
        all => json!({
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {"resourceVersion": ""},
            "items": all.iter().map(|found| found.object).collect::<Vec<_>>(),
        }),
    };
    match &args.format() {
        None => tables(&args.table, args.all_namespaces, found, *several_kinds, false),
        Some(OutputFormat::Wide) => {
            tables(&args.table, args.all_namespaces, found, *several_kinds, true)
        }
        Some(OutputFormat::Json) => print_object_json(&document()),
        Some(OutputFormat::Yaml) => print_value(&document(), Document::Yaml),
        Some(OutputFormat::Name) => found
            .iter()
            .try_for_each(|found| print(&found.resource.named(metadata(found.object, "name")))),
        Some(OutputFormat::JsonPath(template)) => {
            let text = template.fill(&document()).map_err(TemplateError::Execute)?;
            write_text(&text)
        }
        Some(OutputFormat::JsonPathAsJson(template)) => write_json(template, &document()),
        Some(OutputFormat::GoTemplate(template)) => {
            template.iter().try_for_each(|template| write_text(&template.fill_object(&document())?))
        }
        Some(OutputFormat::CustomColumns(columns)) => {
            let mut table = args.table.columns(&columns.headings());
            for found in found {
                table.row(columns.cells(found.object).map_err(TemplateError::Execute)?);
            }
            table.print()
        }
    }
}

/// Prints the values of a template as JSON.
fn write_json(template: &JsonPath, document: &Value) -> Result<(), CallError> {
    let text = template.fill_json(document).map_err(TemplateError::Execute)?;
    if text.is_empty() { Ok(()) } else { print_json(text.trim_end()) }
}
