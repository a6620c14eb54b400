//! `crib describe`: pods with their containers, conditions, volumes and events, and other objects of runs, as `kubectl describe`
//! shows them.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use cri::v1;
use crib_base::exit::Exit;
use crib_base::report::print_stderr;
use crib_base::run_socket::{PodWithEvents, RecordedEvent, Request};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde_json::Value;

use crate::client::find::in_runs::{ObjectInRun, ObjectName, of_kind, of_runs, with_labels};
use crate::client::output::{Document, print, print_value};
use crate::client::run_objects::names_in_manifests;
use crate::client::status::escaped;
use crate::client::{CallError, Connection, Cri, completion, each, find, with_codes};
use crate::objects::kinds::{self, Resource};
use crate::objects::selectors::Labels;
use crate::objects::workload_pods::Best;

mod container;
mod environment;
mod events;
mod from_cri;
mod lines;
mod metadata;
mod object;
mod pod;
mod template;
mod time;
mod volume;

use events::Events;

/// Show details of pods and of other objects of `crib run`
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib describe web
  crib describe pod/shop/web --run first
  crib describe pods -A
  crib describe deploy/web svc/web
  crib describe cm
  crib describe -l app=web
  crib describe -f pod.yaml
  crib describe web -o json | jq '.pods[].events'

Kinds: pods, deployments, replicasets, replicationcontrollers, statefulsets, daemonsets, jobs, cronjobs, services, configmaps, \
secrets, persistentvolumeclaims and namespaces, with the names of `crib get --help`. `crib describe deploy/web` shows the \
Deployment; `crib describe -l app=web` shows its pods. A run has events of pods only.

If no pod has the name NAME, `crib describe pod NAME` describes the pods of `crib run` whose names begin with NAME.

The agent of a `crib run` describes the run's pods; the runtime describes all other pods."))]
pub(crate) struct DescribeArgs {
    /// Pods: names, [pod/]NAMESPACE/NAME, ids or id prefixes; or other objects: deploy/web, svc/shop/web; or a kind followed by
    /// names: `pod web`; or all objects of a kind in the namespace: `pods`, `deploy`
    #[arg(
        required_unless_present_any = ["selector", "filename"],
        value_name = "POD|KIND/NAME|KIND",
        add = completion::pods()
    )]
    pods: Vec<String>,
    /// Describe the objects of these manifests; repeatable
    #[arg(
        long,
        short = 'f',
        value_name = "FILE|DIR|-",
        conflicts_with_all = ["pods", "selector", "all_namespaces"]
    )]
    filename: Vec<PathBuf>,
    /// Select pods, or the objects of KIND, by labels: `app=web,tier!=db`
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Namespace of the objects [default: any; with -l or KIND: the namespace default]
    #[arg(short, long)]
    namespace: Option<String>,
    /// With -l or KIND: describe the objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Show events [default: true for a single object, unless only the beginning of a pod's name is given]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    show_events: Option<bool>,
    /// Output format; json and yaml print Kubernetes API objects
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// A pod, and its events if it has an agent.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Described {
    #[serde(serialize_with = "api::manifest::pod_json::serialize")]
    pod: Pod,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Vec<RecordedEvent>>,
}

/// A pod, or another object and all objects of its run.
#[derive(Debug)]
enum Description {
    Pod(Box<Described>),
    Object { object: Value, objects: Arc<Vec<Value>> },
}

/// The JSON or YAML document.
#[derive(Debug, Default, Serialize)]
struct All<'d> {
    pods: Vec<&'d Described>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<&'d Value>,
}

/// A pod that an agent reports, and the option that selects its runtime.
#[derive(Debug)]
struct Known {
    choice: String,
    answer: PodWithEvents,
}

/// Prints the descriptions.
pub(crate) async fn run(args: &DescribeArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let mut known = Vec::new();
    for cri in &all {
        known.extend(of_agent(cri)?);
    }
    let has_pod = |name: &str| {
        known.iter().any(|known| known.answer.pod.metadata.name.as_deref() == Some(name))
    };
    let mut described: Vec<Description> = Vec::new();
    let namespace = args.namespace.as_deref();
    let (list, names) = match (args.selector.clone(), requested(&args.pods, has_pod)) {
        (labels, Requested::AllPods) => (Some((None, labels.unwrap_or_default())), Vec::new()),
        (labels, Requested::AllOf(kind)) => {
            (Some((Some(kind), labels.unwrap_or_default())), Vec::new())
        }
        (Some(_), Requested::Named(names)) if !names.is_empty() => {
            let problem = "name cannot be provided when a selector is specified";
            return Err(CallError::Usage(problem.to_owned()));
        }
        (Some(labels), Requested::Named(names)) => (Some((None, labels)), names),
        (None, Requested::Named(_)) if args.all_namespaces => {
            let problem = "a resource cannot be retrieved by name across all namespaces";
            return Err(CallError::Usage(problem.to_owned()));
        }
        (None, Requested::Named(_)) if !args.filename.is_empty() => (None, in_manifests(args)?),
        (None, Requested::Named(names)) => (None, names),
    };
    let has_objects = matches!(&list, Some((Some(_), _)))
        || names.iter().any(|name| ObjectName::parse(name).is_some());
    let runs = if has_objects { of_runs(&all)? } else { Vec::new() };
    if let Some((kind, labels)) = &list {
        let namespace = (!args.all_namespaces).then_some(namespace.unwrap_or("default"));
        match kind {
            Some(kind) => {
                check_kind(kind)?;
                let found = of_kind(&runs, kind, labels, namespace);
                described.extend(found.into_iter().map(Description::from));
            }
            None => {
                let pods = with_labels(&all, labels, namespace, Best::ToConnect)?;
                let pods = pods.iter().filter_map(|pod| with_uid(&known, pod.uid()));
                described.extend(pods.map(Description::from));
            }
        }
        match namespace.filter(|_| kind.as_ref().is_none_or(|kind| kind.namespaced)) {
            Some(namespace) if described.is_empty() => {
                print_stderr(&format!("no resources found in {namespace} namespace"));
            }
            None if described.is_empty() => print_stderr("no resources found"),
            Some(_) | None => {}
        }
    }
    let beginning = beginning(&args.pods, has_pod);
    let mut is_whole_name = true;
    let exit = each(&names, async |text: &String| {
        match ObjectName::parse(text) {
            Some(name) => {
                check_kind(name.resource())?;
                described.push(Description::from(name.find(&runs, namespace)?));
            }
            None => {
                let text = find::in_namespace(text, namespace);
                let found = match describe(&all, &known, &text).await {
                    Err(error @ CallError::NotFound { .. }) => {
                        is_whole_name = false;
                        let some = beginning.map(|name| begin_with(&known, name, namespace));
                        some.filter(|some| !some.is_empty()).ok_or(error)?
                    }
                    found => vec![found?],
                };
                described.extend(found.into_iter().map(Description::from));
            }
        }
        Ok(())
    })
    .await;
    match args.output {
        Form::Text => {
            let is_one = is_whole_name && described.len() == 1;
            print_text(&described, args.show_events.unwrap_or(is_one))?;
        }
        Form::Json => print_value(&document(&described)?, Document::Json)?,
        Form::Yaml => print_value(&document(&described)?, Document::Yaml)?,
    }
    exit
}

/// The lines of the pod template at this JSON pointer.
pub(crate) fn pod_template(object: &Value, pointer: &str) -> Vec<String> {
    let mut lines = lines::Lines::default();
    template::add(&mut lines, object, pointer);
    escaped(lines.aligned())
}

/// Fails for a kind without a description.
fn check_kind(kind: &Resource) -> Result<(), CallError> {
    match object::is_known(&kind.group, &kind.kind) {
        true => Ok(()),
        false => Err(CallError::Usage(format!(
            "cannot describe {}: show them with `crib get {} -o yaml`",
            kind.plural_name(),
            kind.plural()
        ))),
    }
}

/// The names of the objects with a description in the manifests.
fn in_manifests(args: &DescribeArgs) -> Result<Vec<String>, CallError> {
    let namespace = args.namespace.as_deref().unwrap_or("default");
    let all = names_in_manifests(&args.filename, namespace)?.into_iter();
    let is_known =
        |kind: &Resource| kind.kind == "Pod" || object::is_known(&kind.group, &kind.kind);
    let names = all.filter(|(kind, ..)| is_known(kind)).map(|(kind, namespace, name)| {
        let kind = kind.singular();
        format!("{kind}/{namespace}/{name}")
    });
    let names: Vec<String> = names.collect();
    match names.as_slice() {
        [] => Err(CallError::Usage(
            "the manifests contain no objects that can be described".to_owned(),
        )),
        _ => Ok(names),
    }
}

/// What the arguments name.
#[derive(Debug, PartialEq, Eq)]
enum Requested {
    /// All pods of a namespace: `pods`.
    AllPods,
    /// All objects of another kind: `deploy`.
    AllOf(Resource),
    /// Pods and other objects, one per argument: `web`, `deploy/web`.
    Named(Vec<String>),
}

/// Parses the arguments. As with kubectl, names can follow a kind: `pod web`. A pod whose name is a kind takes precedence.
fn requested(words: &[String], has_pod: impl Fn(&str) -> bool) -> Requested {
    let named = || Requested::Named(words.to_vec());
    let Some((first, names)) = words.split_first().filter(|(first, _)| !has_pod(first)) else {
        return named();
    };
    match (kinds::single(first), names) {
        (Some(kind), []) if kind.kind == "Pod" => Requested::AllPods,
        (Some(kind), []) => Requested::AllOf(kind),
        (None, _) => named(),
        (Some(kind), names) => {
            let with_kind = |name: &String| format!("{}/{name}", kind.singular());
            Requested::Named(names.iter().map(with_kind).collect())
        }
    }
}

/// The name in `pod NAME`, which may be the beginning of several names.
fn beginning(words: &[String], has_pod: impl Fn(&str) -> bool) -> Option<&str> {
    match words {
        [kind, name] if !has_pod(kind) => {
            kinds::single(kind).filter(|kind| kind.kind == "Pod").map(|_| name.as_str())
        }
        _ => None,
    }
}

/// The pods that an agent reports and whose names begin with this text.
fn begin_with(known: &[Known], text: &str, namespace: Option<&str>) -> Vec<Described> {
    let begins = |known: &&Known| {
        let metadata = &known.answer.pod.metadata;
        metadata.name.as_deref().is_some_and(|name| name.starts_with(text))
            && namespace.is_none_or(|wanted| metadata.namespace.as_deref() == Some(wanted))
    };
    known.iter().filter(begins).map(|known| Described::from(&known.answer)).collect()
}

/// The pods that the agent of a runtime's `crib run` reports, if there is a run.
fn of_agent(cri: &Cri) -> Result<Vec<Known>, CallError> {
    let answer = cri.call_run(Request::Pods)?;
    let choice = cri.choice();
    let known = answer.unwrap_or_default().pods.into_iter();
    let known = known.map(|answer| Known { choice: choice.clone(), answer });
    Ok(known.collect())
}

/// The pod with this uid, if an agent reports it.
fn with_uid(known: &[Known], uid: &str) -> Option<Described> {
    let same = |known: &&Known| known.answer.pod.metadata.uid.as_deref() == Some(uid);
    known.iter().find(same).map(|known| Described::from(&known.answer))
}

/// The pod that the argument names: one that an agent reports, or else one that only a runtime reports.
async fn describe(all: &[Cri], known: &[Known], text: &str) -> Result<Described, CallError> {
    if let Some(answer) = choose(known, text)? {
        return Ok(Described::from(answer));
    }
    let (cri, sandbox) = find::pod(all, text).await?;
    let metadata = sandbox.metadata.unwrap_or_default();
    // The argument was an id, and an agent reports the pod.
    if let Some(described) = with_uid(known, &metadata.uid) {
        return Ok(described);
    }
    let pod = of_runtime(cri, &sandbox.id).await?;
    Ok(Described { pod, events: None })
}

impl From<&PodWithEvents> for Described {
    fn from(answer: &PodWithEvents) -> Self {
        Self { pod: answer.pod.clone(), events: Some(answer.events.clone()) }
    }
}

impl From<Described> for Description {
    fn from(pod: Described) -> Self {
        Self::Pod(Box::new(pod))
    }
}

impl From<ObjectInRun<'_>> for Description {
    fn from(found: ObjectInRun<'_>) -> Self {
        Self::Object { object: found.object, objects: found.objects }
    }
}

/// The pod with this name. Fails if several match; the error lists namespaces or runs that distinguish them.
fn choose<'a>(known: &'a [Known], text: &str) -> Result<Option<&'a PodWithEvents>, CallError> {
    let (namespace, name) = find::namespace_and_name(text);
    let namespace_of =
        |known: &Known| known.answer.pod.metadata.namespace.clone().unwrap_or_default();
    let mut fit: Vec<&Known> = known
        .iter()
        .filter(|known| known.answer.pod.metadata.name.as_deref() == Some(name))
        .filter(|known| namespace.is_none_or(|wanted| namespace_of(known) == wanted))
        .collect();
    // A terminating pod may have a successor of the same name.
    let ends = |known: &Known| known.answer.pod.metadata.deletion_timestamp.is_some();
    if !fit.iter().all(|known| ends(known)) {
        fit.retain(|known| !ends(known));
    }
    if fit.len() < 2 {
        return Ok(fit.first().map(|known| &known.answer));
    }
    let first = fit.first().map(|known| namespace_of(known));
    let one_namespace = fit.iter().all(|known| Some(namespace_of(known)) == first);
    let candidate = |known: &&Known| match one_namespace {
        true => known.choice.clone(),
        false => format!("{}/{name}", namespace_of(known)),
    };
    let mut candidates: Vec<String> = fit.iter().map(candidate).collect();
    candidates.sort();
    Err(CallError::Ambiguous { what: "pod", name: text.to_owned(), candidates })
}

async fn of_runtime(cri: &Cri, id: &str) -> Result<Pod, CallError> {
    let status = cri.call("PodSandboxStatus", cri.runtime.pod(id)).await?;
    let filter =
        v1::ContainerFilter { pod_sandbox_id: id.to_owned(), ..v1::ContainerFilter::default() };
    let listed = cri.runtime.containers(filter);
    let listed = cri.call("ListContainers", listed).await?;
    let mut containers = Vec::new();
    for container in listed {
        let status = cri.runtime.container(&container.id);
        containers.push(cri.call("ContainerStatus", status).await?);
    }
    Ok(from_cri::pod(status.status.unwrap_or_default(), containers))
}

fn print_text(all: &[Description], with_events: bool) -> Result<(), CallError> {
    let now = Timestamp::now();
    let texts = all.iter().map(|description| {
        let lines = match description {
            Description::Pod(described) => {
                let events = match described.events.as_deref() {
                    None => Events::Unknown,
                    Some(_) if !with_events => Events::Hidden,
                    Some(events) => Events::Recorded(events),
                };
                pod::lines(&described.pod, events, now)
            }
            Description::Object { object, objects } => {
                object::lines(object, objects, with_events, now)
            }
        };
        escaped(lines).join("\n")
    });
    match texts.collect::<Vec<_>>().as_slice() {
        [] => Ok(()),
        texts => print(&texts.join("\n\n\n")),
    }
}

fn document(all: &[Description]) -> Result<Value, CallError> {
    let mut document = All::default();
    for description in all {
        match description {
            Description::Pod(pod) => document.pods.push(pod),
            Description::Object { object, .. } => document.objects.push(object),
        }
    }
    serde_json::to_value(document)
        .map_err(|error| CallError::Io { doing: "write the pods".to_owned(), source: error.into() })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn known(choice: &str, namespace: &str, name: &str) -> Known {
        let mut answer = PodWithEvents::default();
        answer.pod.metadata.namespace = Some(namespace.to_owned());
        answer.pod.metadata.name = Some(name.to_owned());
        Known { choice: choice.to_owned(), answer }
    }

    #[rstest]
    #[case::names("web shop/db", "web shop/db")]
    #[case::kind("pod web shop/db", "pod/web pod/shop/db")]
    #[case::short_kind("deploy web", "deployment/web")]
    #[case::all("po", "all pods")]
    #[case::all_of_kind("pods", "all pods")]
    #[case::slash("pod/web job/migrate", "pod/web job/migrate")]
    #[case::pod_with_name_of_kind("job web", "job web")]
    #[case::kind_without_name("deploy", "all deployments.apps")]
    #[case::nothing("", "")]
    fn names_may_follow_a_kind(#[case] line: &str, #[case] expected: &str) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = match requested(&words, |name| name == "job") {
            Requested::AllPods => "all pods".to_owned(),
            Requested::AllOf(kind) => format!("all {}", kind.plural_name()),
            Requested::Named(names) => names.join(" "),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn kind_without_description_is_refused() {
        let check = |word: &str| check_kind(&kinds::single(word).unwrap());
        check("deploy").unwrap();
        let expected = "cannot describe persistentvolumes: show them with `crib get persistentvolumes -o yaml`";
        assert_eq!(check("pv").unwrap_err().to_string(), expected);
    }

    #[rstest]
    #[case::pod("pod we", None, "default/web a/web-2")]
    #[case::namespace("pods web", Some("a"), "a/web-2")]
    #[case::other("po x", None, "")]
    #[case::no_kind("we", None, "")]
    #[case::several_names("pod we db", None, "")]
    #[case::other_kind("deploy we", None, "")]
    fn beginning_of_a_name_stands_for_pods(
        #[case] line: &str,
        #[case] namespace: Option<&str>,
        #[case] expected: &str,
    ) {
        let all = [
            known("--run x", "default", "web"),
            known("--run x", "a", "db"),
            known("--run x", "a", "web-2"),
        ];
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = beginning(&words, |_| false).map(|name| begin_with(&all, name, namespace));
        let name = |found: &Described| {
            let metadata = &found.pod.metadata;
            let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
            format!("{}/{}", namespace.unwrap(), name.unwrap())
        };
        let names: Vec<String> = found.unwrap_or_default().iter().map(name).collect();
        assert_eq!(names.join(" "), expected);
    }

    #[rstest]
    #[case::one("web", Ok(Some("default")))]
    #[case::prefixed("pod/web", Ok(Some("default")))]
    #[case::elsewhere("other", Ok(None))]
    #[case::namespaces("db", Err("\"db\" matches more than one pod: choose one of a/db, b/db"))]
    #[case::in_namespace("b/db", Ok(Some("b")))]
    #[case::wrong_namespace("c/db", Ok(None))]
    #[case::runs(
        "twice",
        Err("\"twice\" matches more than one pod: choose one of --run x, --run y")
    )]
    fn pod_is_chosen_by_name(#[case] text: &str, #[case] expected: Result<Option<&str>, &str>) {
        let all = [
            known("--run x", "default", "web"),
            known("--run x", "a", "db"),
            known("--run x", "b", "db"),
            known("--run x", "default", "twice"),
            known("--run y", "default", "twice"),
        ];
        let chosen = choose(&all, text).map_err(|error| error.to_string());
        let namespace = chosen.map(|chosen| chosen?.pod.metadata.namespace.clone());
        let expected = expected.map(|namespace| namespace.map(str::to_owned));
        assert_eq!(namespace, expected.map_err(str::to_owned));
    }
}
