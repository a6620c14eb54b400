//! `crib get --watch`: the objects of one kind, then a row or a document for each change.

use std::borrow::Cow;

use crib_base::run_socket::WatchEvent;
use serde_json::{Value, json};

use super::table::{GrowingTable, Layout};
use super::{GetArgs, OutputFormat, is_selected, list, sorted, write_json};
use crate::client::output::{Document, print, print_object_json, print_value, write_text};
use crate::client::run_objects::{Found, RunEvent, RunWatch, named};
use crate::client::{CallError, until_signal};
use crate::objects::kinds::{RequestedObjects, Resource, requested};
use crate::objects::metadata;
use crate::template::TemplateError;
use crib_base::exit::Exit;
use crib_base::report::print_stderr;

/// Prints objects one after another.
struct Rows<'a> {
    args: &'a GetArgs,
    resource: &'a Resource,
    layout: Layout<'a>,
    table: GrowingTable,
    /// Whether nothing was printed yet.
    is_first: bool,
}

/// Prints the objects and their changes until all runs have ended or a signal arrives.
pub(super) async fn run(args: &GetArgs, watch: RunWatch) -> Result<Exit, CallError> {
    until_signal(show(args, watch)).await
}

async fn show(args: &GetArgs, mut watch: RunWatch) -> Result<Exit, CallError> {
    let objects: Vec<&Value> = watch.runs().iter().flat_map(|run| &run.objects).collect();
    let requested = requested(&args.objects, &objects).map_err(CallError::Usage)?;
    super::check(args, &requested)?;
    let one_kind = || CallError::Usage("you may only specify a single resource type".to_owned());
    let (resource, name) = match requested {
        RequestedObjects::Lists(kinds) => match <[Resource; 1]>::try_from(kinds) {
            Ok([kind]) => (kind, None),
            Err(_) => return Err(one_kind()),
        },
        RequestedObjects::Named(names) => match <[(Resource, String); 1]>::try_from(names) {
            Ok([(kind, name)]) => (kind, Some(name)),
            Err(_) => return Err(one_kind()),
        },
    };
    if resource.is_event() {
        let problem = "events cannot be watched: leave out --watch";
        return Err(CallError::Usage(problem.to_owned()));
    }
    if args.sort_by.is_some() {
        print_stderr(match args.watch_only {
            true => "warning: --watch-only requested, --sort-by will be ignored",
            false => {
                "warning: --watch requested, --sort-by will be ignored for watch events received"
            }
        });
    }
    let wide = matches!(args.format(), Some(OutputFormat::Wide));
    let several_runs = watch.runs().len() > 1;
    let layout = args.table.layout(&resource, args.all_namespaces, wide, several_runs);
    let table = GrowingTable::default();
    let mut rows = Rows { args, resource: &resource, layout, table, is_first: true };
    let found = match &name {
        Some(name) => match named(watch.runs(), &resource, &args.namespace, name) {
            Err(CallError::NoObject { .. }) if args.ignore_not_found => return Ok(Exit::Success),
            found => vec![found?],
        },
        None => list(args, watch.runs(), &resource),
    };
    if !args.watch_only {
        rows.print(&sorted(args, found)?, "ADDED")?;
    }
    while let Some(next) = watch.next().await? {
        let RunEvent::Change(index, event) = next else { continue };
        let (change, object) = match &event {
            WatchEvent::Added(object) => ("ADDED", object),
            WatchEvent::Modified(object) => ("MODIFIED", object),
            WatchEvent::Deleted(object) => ("DELETED", object),
            WatchEvent::Bookmark | WatchEvent::Error(_) => continue,
        };
        let matches = resource.has(object)
            && is_selected(args, &resource, object)
            && name.as_ref().is_none_or(|name| name == metadata(object, "name"));
        if matches && let Some(run) = watch.runs().get(index) {
            rows.print(&[Found { resource: resource.clone(), object, run }], change)?;
        }
    }
    Ok(Exit::Success)
}

impl Rows<'_> {
    /// Prints objects after a change of this type.
    fn print(&mut self, found: &[Found<'_>], change: &str) -> Result<(), CallError> {
        let with_type = self.args.output_watch_events;
        let typed = |first: &str, cells: Vec<String>| -> Vec<String> {
            with_type.then(|| first.to_owned()).into_iter().chain(cells).collect()
        };
        let mut rows = Vec::new();
        let with_headings = self.is_first && !self.args.table.no_headers && !found.is_empty();
        let format = self.args.format();
        for found in found {
            let document = match with_type {
                true => Cow::Owned(json!({"type": change, "object": found.object})),
                false => Cow::Borrowed(found.object),
            };
            match &format {
                None | Some(OutputFormat::Wide) => {
                    if with_headings && rows.is_empty() {
                        rows.push(typed("EVENT", self.layout.headings()));
                    }
                    let cells = self.layout.cells(self.resource, found.object, &found.run.name);
                    // The types are equally wide, so that the first rows do not change the table's layout.
                    rows.push(typed(&format!("{change:<8}"), cells));
                }
                Some(OutputFormat::CustomColumns(columns)) => {
                    if with_headings && rows.is_empty() {
                        rows.push(columns.headings().into_iter().map(str::to_owned).collect());
                    }
                    rows.push(columns.cells(&document).map_err(TemplateError::Execute)?);
                }
                Some(OutputFormat::Json) => print_object_json(&document)?,
                Some(OutputFormat::Yaml) => {
                    if !self.is_first {
                        print("---")?;
                    }
                    print_value(&document, Document::Yaml)?;
                }
                Some(OutputFormat::Name) => {
                    print(&self.resource.named(metadata(found.object, "name")))?;
                }
                Some(OutputFormat::JsonPath(template)) => {
                    let text = template.fill(&document).map_err(TemplateError::Execute)?;
                    write_text(&text)?;
                }
                Some(OutputFormat::JsonPathAsJson(template)) => write_json(template, &document)?,
                Some(OutputFormat::GoTemplate(template)) => {
                    if let Some(template) = template {
                        write_text(&template.fill_object(&document)?)?;
                    }
                }
            }
            self.is_first = false;
        }
        self.table.lines(&rows).iter().try_for_each(|line| print(line))
    }
}
