//! `crib get`: the objects of runs, as `kubectl get` shows those of a cluster.

use crib_base::report::complain;
use crib_base::run_socket::Request;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::output::{Columns, Document, print_value, write_text};
use crate::commands::prelude::*;
use crate::template::TemplateError;

mod columns;
mod jsonpath;
mod kinds;
mod output_format;
mod printers;
pub(super) mod select;

use columns::sort_by;
use jsonpath::Path;
use kinds::{Resource, Wanted, wanted};
use output_format::OutputFormat;
use printers::{Look, Printer, labels};
use select::{Fields, Labels};

/// Show the objects of `crib run`, as kubectl get does
#[derive(Debug, Args)]
#[command(after_help = with_codes(&format!("\
Examples:
  crib get pods
  crib get deploy,svc -A -o wide
  crib get pod/web job/migrate -o yaml
  crib get pods -l 'app in (web, api)' --field-selector status.phase=Running -o name
  crib get pods -o jsonpath='{{range .items[*]}}{{.metadata.name}}{{\"\\t\"}}{{.status.podIP}}{{\"\\n\"}}{{end}}'
  crib get pods -o custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image

{}

JSONPath: fields, ['quoted fields'], indexes, slices, *, .., filters that compare ([?(@.type==\"Ready\")]), {{range}} and {{end}}, \
and text in and outside of braces. All else is refused. A missing field is empty.", kinds::HELP)))]
pub(crate) struct GetArgs {
    /// Kinds and then names, or KIND/NAME: `pods`, `deploy,svc`, `pod web`, `pod/web svc/web`, `all`
    #[arg(required = true, value_name = "KIND[,KIND]|KIND/NAME|NAME")]
    objects: Vec<String>,
    /// Namespace of the objects
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Show the objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Filter by fields: `metadata.name`, `metadata.namespace`; of pods also `status.phase`, `spec.nodeName` and more
    #[arg(long)]
    field_selector: Option<Fields>,
    /// Output format: wide, name, json, yaml, jsonpath=TEMPLATE or custom-columns=HEADING:PATH,...
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<OutputFormat>,
    /// Leave the headings out
    #[arg(long)]
    no_headers: bool,
    /// Show all labels in a last column
    #[arg(long)]
    show_labels: bool,
    /// Show these labels in columns of their own
    #[arg(short = 'L', long, value_name = "LABEL", value_delimiter = ',')]
    label_columns: Vec<String>,
    /// Sort by a field, such as `.metadata.creationTimestamp`
    #[arg(long, value_name = "PATH", value_parser = Path::relaxed)]
    sort_by: Option<Path>,
    /// Exit with 0 if a named object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// The objects of a run.
struct RunObjects {
    /// The option that chooses the run.
    choice: String,
    name: String,
    objects: Vec<Value>,
}

/// An object that is shown.
#[derive(Clone, Debug)]
struct Found<'r> {
    resource: Resource,
    object: &'r Value,
    run: &'r RunObjects,
}

impl std::fmt::Debug for RunObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunObjects({})", self.choice)
    }
}

/// The objects that are shown, and what was asked for.
struct Selected<'r> {
    found: Vec<Found<'r>>,
    several_kinds: bool,
    /// One was asked for by its name.
    single: bool,
    /// Some were not found, and it was said.
    missing: bool,
}

/// Shows them.
pub(crate) fn run(args: &GetArgs) -> Result<Exit, CallError> {
    let runs = runs(&args.connection)?;
    let objects: Vec<&Value> = runs.iter().flat_map(|run| &run.objects).collect();
    let wanted = wanted(&args.objects, &objects).map_err(CallError::Usage)?;
    check(args, &wanted)?;
    let selected = match &wanted {
        Wanted::Lists(resources) => lists(args, &runs, resources)?,
        Wanted::Named(names) => all_named(args, &runs, names)?,
    };
    if !selected.single || !selected.found.is_empty() {
        show(args, &selected)?;
    }
    if let Wanted::Lists(resources) = &wanted
        && selected.found.is_empty()
        && matches!(args.output, None | Some(OutputFormat::Wide))
        && !args.ignore_not_found
    {
        match resources.iter().any(|kind| kind.namespaced) && !args.all_namespaces {
            true => say(&format!("no resources found in {} namespace", args.namespace)),
            false => say("no resources found"),
        }
    }
    if selected.missing { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}

/// The objects of kinds.
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

/// The objects with names. Those that are missing are reported.
fn all_named<'r>(
    args: &GetArgs,
    runs: &'r [RunObjects],
    names: &[(Resource, String)],
) -> Result<Selected<'r>, CallError> {
    let (mut found, mut missing) = (Vec::new(), false);
    for (resource, name) in names {
        match named(args, runs, resource, name) {
            Ok(one) => found.push(one),
            Err(CallError::NoObject { .. }) if args.ignore_not_found => {}
            Err(error) => {
                complain(&error);
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
        let sorted = sort_by(&mut found, path, |found| found.object);
        sorted.map_err(TemplateError::Execute)?;
    }
    Ok(found)
}

/// All runs that serve, of those that were named.
fn runs(connection: &Connection) -> Result<Vec<RunObjects>, CallError> {
    let all = match connection.open_all() {
        Err(CallError::NoRuntime { .. }) => return Err(CallError::NoRun),
        all => all?,
    };
    let mut runs = Vec::new();
    for cri in &all {
        let name = cri.run().map(ToString::to_string).unwrap_or_default();
        let run = |objects| RunObjects { choice: cri.choice(), name, objects };
        runs.extend(cri.ask_run(Request::Objects)?.map(|answer| run(answer.objects)));
    }
    runs.sort_by(|one, other| one.name.cmp(&other.name));
    if runs.is_empty() { Err(CallError::NoRun) } else { Ok(runs) }
}

/// Refuses flags that exclude each other.
fn check(args: &GetArgs, wanted: &Wanted) -> Result<(), CallError> {
    let refuse = |problem: &str| Err(CallError::Usage(problem.to_owned()));
    match wanted {
        Wanted::Lists(resources) => {
            let fields = args.field_selector.clone().unwrap_or_default();
            resources.iter().try_for_each(|kind| fields.check(&kind.kind)).map_err(CallError::Usage)
        }
        Wanted::Named(_) if args.selector.is_some() || args.field_selector.is_some() => {
            refuse("name cannot be provided when a selector is specified")
        }
        Wanted::Named(_) if args.all_namespaces => {
            refuse("a resource cannot be retrieved by name across all namespaces")
        }
        Wanted::Named(_) => Ok(()),
    }
}

fn metadata<'v>(object: &'v Value, field: &str) -> &'v str {
    let field = object.get("metadata").and_then(|metadata| metadata.get(field));
    field.and_then(Value::as_str).unwrap_or_default()
}

/// The objects of a kind, in the order of namespaces, names and runs.
fn list<'r>(args: &GetArgs, runs: &'r [RunObjects], resource: &Resource) -> Vec<Found<'r>> {
    let mut found = of_kind(runs, resource);
    found.retain(|found| {
        let namespace = metadata(found.object, "namespace");
        (args.all_namespaces || !resource.namespaced || namespace == args.namespace)
            && args.selector.as_ref().is_none_or(|labels| labels.match_object(found.object))
            && args.field_selector.as_ref().is_none_or(|fields| fields.match_object(found.object))
    });
    found
        .sort_by_key(|found| (metadata(found.object, "namespace"), metadata(found.object, "name")));
    found
}

fn of_kind<'r>(runs: &'r [RunObjects], resource: &Resource) -> Vec<Found<'r>> {
    let of_run = |run: &'r RunObjects| {
        let objects = run.objects.iter().filter(|object| resource.has(object));
        objects.map(move |object| Found { resource: resource.clone(), object, run })
    };
    runs.iter().flat_map(of_run).collect()
}

/// The object with a name.
fn named<'r>(
    args: &GetArgs,
    runs: &'r [RunObjects],
    resource: &Resource,
    name: &str,
) -> Result<Found<'r>, CallError> {
    let mut found = of_kind(runs, resource);
    found.retain(|found| {
        metadata(found.object, "name") == name
            && (!resource.namespaced || metadata(found.object, "namespace") == args.namespace)
    });
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(CallError::NoObject { resource: resource.plural_name(), name: name.to_owned() }),
        some => Err(CallError::Ambiguous {
            what: "object",
            name: resource.named(name),
            candidates: some.iter().map(|found| found.run.choice.clone()).collect(),
        }),
    }
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
    match &args.output {
        None => tables(args, found, *several_kinds, false),
        Some(OutputFormat::Wide) => tables(args, found, *several_kinds, true),
        Some(OutputFormat::Json) => print_value(&document(), Document::Json),
        Some(OutputFormat::Yaml) => print_value(&document(), Document::Yaml),
        Some(OutputFormat::Name) => found
            .iter()
            .try_for_each(|found| print(&found.resource.named(metadata(found.object, "name")))),
        Some(OutputFormat::JsonPath(template)) => {
            let text = template.fill(&document()).map_err(TemplateError::Execute)?;
            write_text(&text)
        }
        Some(OutputFormat::CustomColumns(columns)) => {
            let mut table = match args.no_headers {
                true => Columns::without_headings(columns.headings().len()),
                false => Columns::new(&columns.headings()),
            };
            for found in found {
                table.row(columns.cells(found.object).map_err(TemplateError::Execute)?);
            }
            table.print()
        }
    }
}

/// Prints a table for each kind, with an empty line between two.
fn tables(
    args: &GetArgs,
    found: &[Found<'_>],
    several_kinds: bool,
    wide: bool,
) -> Result<(), CallError> {
    let look = Look { wide, now: Timestamp::now() };
    let of_kinds = found.chunk_by(|one, next| one.resource == next.resource);
    for (index, of_kind) in of_kinds.enumerate() {
        if index > 0 && !args.no_headers {
            print("")?;
        }
        table(args, of_kind, several_kinds, look)?;
    }
    Ok(())
}

/// Prints a table of objects of one kind.
fn table(
    args: &GetArgs,
    found: &[Found<'_>],
    several_kinds: bool,
    look: Look,
) -> Result<(), CallError> {
    let Some(Found { resource, run: first, .. }) = found.first() else {
        return Ok(());
    };
    let printer = Printer::of(resource);
    let with_namespace = args.all_namespaces && resource.namespaced;
    // Scripts may count the columns of kubectl.
    let several_runs = found.iter().any(|found| !std::ptr::eq(found.run, *first));
    let label_headings: Vec<String> = args.label_columns.iter().map(|key| heading(key)).collect();
    let mut headings: Vec<&str> = Vec::new();
    headings.extend(with_namespace.then_some("NAMESPACE"));
    headings.push("NAME");
    for heading in printer.headings(look) {
        headings.push(heading);
    }
    headings.extend(label_headings.iter().map(String::as_str));
    headings.extend(args.show_labels.then_some("LABELS"));
    headings.extend(several_runs.then_some("RUN"));
    let mut table = match args.no_headers {
        true => Columns::without_headings(headings.len()),
        false => Columns::new(&headings),
    };
    for Found { object, run, .. } in found {
        let name = metadata(object, "name");
        let mut cells = Vec::new();
        cells.extend(with_namespace.then(|| metadata(object, "namespace").to_owned()));
        cells.push(if several_kinds { resource.named(name) } else { name.to_owned() });
        cells.extend(printer.cells(object, look));
        let labels_of = |key: &String| {
            let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(key));
            label.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        cells.extend(args.label_columns.iter().map(labels_of));
        cells.extend(args.show_labels.then(|| labels(object)));
        cells.extend(several_runs.then(|| run.name.clone()));
        table.row(cells);
    }
    table.print()
}

/// The heading of a label's column: the part after its prefix, in upper case.
fn heading(key: &str) -> String {
    key.rsplit('/').next().unwrap_or_default().to_uppercase()
}
